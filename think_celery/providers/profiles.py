"""How a tool's schema is told to a server that takes not all of JSON Schema: its meaning is kept, or it is an error.

What the model then writes is checked against the tool's own schema all the same.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, get_args

from think_celery.errors import InvalidTool, NoModel
from think_celery.jsontext import schema_problems
from think_celery.protocols import JsonSchema, ModelEvent, ToolCallComplete, ToolSpec

Profile = Literal["standard", "inline", "strict"]

_KEPT_IN_STRICT = {
    *("type", "enum", "const", "anyOf", "$ref", "$defs", "title", "description"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_DROPPED_IN_STRICT = {
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
    "$comment",
}
_FORMATS_IN_STRICT = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_NULL = {"type": "null"}


def checked_profile(name: str, profile: Profile) -> Profile:
    """The profile, if there is one of that name.

    Raises:
        NoModel: There is none.
    """
    if profile not in get_args(Profile):
        raise NoModel(name, f"schemas={profile!r}: it must be one of {', '.join(get_args(Profile))}.")
    return profile


def fitted(profile: Profile, spec: ToolSpec) -> JsonSchema:
    """The tool's parameters as *profile* tells them.

    Raises:
        InvalidTool: It can't; the error names the keyword and where it stands.
    """
    match profile:
        case "inline":
            return _Inline(spec).told()
        case "strict":
            return _Strict(spec).told()
    return spec.parameters


def _refuse(spec: ToolSpec, profile: str, where: str, why: str) -> InvalidTool:
    return InvalidTool(
        spec.name,
        f"{where}: {why}, which the model's profile {profile!r} can't express",
        "Change the type, or make the model with schemas='standard'.",
    )


def _target(root: JsonSchema, reference: str) -> JsonSchema:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found  # type: ignore[no-any-return]


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


class _Inline:
    """References replaced by what they refer to."""

    def __init__(self, spec: ToolSpec) -> None:
        self._spec, self._root = spec, spec.parameters

    def told(self) -> JsonSchema:
        whole = {key: value for key, value in self._root.items() if key != "$defs"}
        return self._schema(whole, "", ())  # type: ignore[no-any-return]

    def _schema(self, schema: Any, where: str, inside: tuple[str, ...]) -> Any:
        if isinstance(schema, list):
            return [self._schema(each, where, inside) for each in schema]
        if not isinstance(schema, Mapping):
            return schema
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in inside:
                name = reference.rpartition("/")[2] or "the whole"
                raise _refuse(self._spec, "inline", where or "(the whole)", f"{name} holds itself")
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            target = self._schema(_target(self._root, reference), where, (*inside, reference))
            return {**target, **self._schema(beside, where, inside)}
        told: dict[str, Any] = {}
        for key, value in schema.items():
            if key in ("properties", "patternProperties"):
                told[key] = {
                    name: self._schema(each, _at(where, name), inside) for name, each in value.items()
                }
            elif key in ("const", "enum", "default", "examples"):
                told[key] = value
            elif key not in ("discriminator", "$defs"):
                # The former maps to references; the tags say the same.
                told[key] = self._schema(value, f"{where}[]" if key == "items" else where, inside)
        return told


class _Strict:
    """OpenAI's strict mode: closed objects, every property required, a list of keywords."""

    def __init__(self, spec: ToolSpec) -> None:
        self._spec, self._root = spec, spec.parameters

    def told(self) -> JsonSchema:
        return self._schema(self._root, "")

    def _no(self, where: str, why: str) -> InvalidTool:
        return _refuse(self._spec, "strict", where or "(the whole)", why)

    def _schema(self, schema: Any, where: str) -> dict[str, Any]:
        if not isinstance(schema, Mapping) or not schema:
            raise self._no(where, "any value is allowed")
        given = self._united(schema, where)
        told: dict[str, Any] = {}
        for key, value in given.items():
            match key:
                case "properties" | "required" | "additionalProperties":
                    continue
                case "$defs":
                    told[key] = {name: self._schema(each, name) for name, each in value.items()}
                case "anyOf":
                    told[key] = [self._schema(each, where) for each in value]
                case "items":
                    told[key] = self._schema(value, f"{where}[]")
                case "format":
                    if value in _FORMATS_IN_STRICT:  # a format is a remark; what is dropped is checked later
                        told[key] = value
                case _ if key in _KEPT_IN_STRICT:
                    told[key] = value
                case _ if key not in _DROPPED_IN_STRICT:
                    raise self._no(where, f"the keyword {key!r}")
        if not told.keys() & {"type", "anyOf", "enum", "const", "$ref"}:
            raise self._no(where, "any value is allowed")
        types = told.get("type")
        if types == "object" or (isinstance(types, list) and "object" in types):
            self._close(given, told, where)
        if (types == "array" or (isinstance(types, list) and "array" in types)) and "items" not in told:
            raise self._no(where, "a list of anything")
        return told

    def _united(self, schema: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Without the two keywords that say what plainer ones say as well."""
        if "oneOf" in schema:
            if "discriminator" not in schema:  # with one, no two alternatives fit
                raise self._no(where, "the keyword 'oneOf'")
            schema = {
                **{key: value for key, value in schema.items() if key != "oneOf"},
                "anyOf": schema["oneOf"],
            }
        if "allOf" in schema:
            if len(schema["allOf"]) != 1 or "$ref" in schema:
                raise self._no(where, "the keyword 'allOf'")
            schema = {**schema["allOf"][0], **{key: value for key, value in schema.items() if key != "allOf"}}
        return schema

    def _close(self, given: Mapping[str, Any], told: dict[str, Any], where: str) -> None:
        properties = given.get("properties", {})
        extra = given.get("additionalProperties", False)
        if extra is not False:
            raise self._no(where, "an object with keys of any name ('additionalProperties')")
        required = given.get("required", ())
        told["properties"] = {
            name: self._property(each, _at(where, name), optional=name not in required)
            for name, each in properties.items()
        }
        told["required"] = list(properties)
        told["additionalProperties"] = False

    def _property(self, schema: Any, where: str, *, optional: bool) -> dict[str, Any]:
        told = self._schema(schema, where)
        if not optional or _takes_null(self._root, schema):
            return told
        if "anyOf" in told:
            return {**told, "anyOf": [*told["anyOf"], _NULL]}
        described: dict[str, Any] = {key: told.pop(key) for key in ("title", "description") if key in told}
        return {**described, "anyOf": [told, _NULL]}


def _takes_null(root: JsonSchema, schema: Any) -> bool:
    return not schema_problems(_rooted(root, schema), None)


def _rooted(root: JsonSchema, schema: Any) -> Any:
    return {**schema, "$defs": root["$defs"]} if "$defs" in root else schema


# --- the way back ---------------------------------------------------------------------------------


def relaxing(tools: Sequence[ToolSpec], events: Iterator[ModelEvent]) -> Iterator[ModelEvent]:
    """*events* in which a property that strict mode made nullable is left out where the model wrote null."""
    schemas = {tool.name: tool.parameters for tool in tools}
    try:
        for event in events:
            if isinstance(event, ToolCallComplete) and event.name in schemas and "null" in event.arguments:
                event = replace(event, arguments=_relaxed_text(schemas[event.name], event.arguments))
            yield event
    finally:
        if isinstance(events, Generator):
            events.close()


def _relaxed_text(schema: JsonSchema, arguments: str) -> str:
    try:
        value = json.loads(arguments, parse_float=_Digits)
        relaxed = _relaxed(schema, schema, value)
        return arguments if relaxed == value else _written(relaxed)
    except (ValueError, RecursionError):  # no JSON, or nested too deep: the tool refuses it
        return arguments


class _Digits(Decimal):
    """A number with a fraction, as it was written."""

    def __new__(cls, digits: str) -> "_Digits":
        number = super().__new__(cls, digits)
        number.text = digits
        return number

    text: str


def _relaxed(root: JsonSchema, schema: Any, value: Any) -> Any:
    if not isinstance(schema, Mapping):
        return value
    if isinstance(schema.get("$ref"), str):
        return _relaxed(root, _target(root, schema["$ref"]), value)
    for each in schema.get("allOf", ()):
        value = _relaxed(root, each, value)
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        tried = _relaxed(root, each, value)
        if not schema_problems(_rooted(root, each), _plain(tried)):
            return tried
    properties = schema.get("properties", {})
    if isinstance(value, dict):
        return {
            key: _relaxed(root, properties.get(key), item)
            for key, item in value.items()
            if item is not None or not _made_nullable(root, schema, key)
        }
    if isinstance(value, list):
        return [_relaxed(root, schema.get("items"), item) for item in value]
    return value


def _made_nullable(root: JsonSchema, schema: Mapping[str, Any], key: str) -> bool:
    properties = schema.get("properties", {})
    return (
        key in properties and key not in schema.get("required", ()) and not _takes_null(root, properties[key])
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def _written(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)}: {_written(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return value.text if isinstance(value, _Digits) else json.dumps(value, ensure_ascii=False)
