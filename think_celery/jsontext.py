"""A model's JSON text: read without losing digits, and checked against a JSON Schema.

JSON numbers with a fraction become floats, but where the schema has a decimal: there the number becomes a
string of the same digits, which is plain JSON, can be stored as such, and makes the very same ``Decimal``.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import Any
from uuid import UUID

import pydantic
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend

from think_celery.messages import clean

JsonSchema = Mapping[str, Any]

DECIMAL = {"type": "string", "format": "decimal"}
"""The JSON Schema of a decimal that is written as a string."""

MAX_PROBLEMS = 20

_formats = FormatChecker(formats=())


def read_json(text: str, schema: JsonSchema | None = None) -> Any:
    """The value that *text* holds, with clean strings, and decimals exact where *schema* has them.

    Raises:
        ValueError: It is not JSON; the text says why and where.
    """
    exact: list[str] = []

    def number(digits: str) -> Decimal:
        exact.append(digits)
        return Decimal(digits)

    try:
        raw = clean(json.loads(text, parse_float=number, parse_constant=_no_constant))
        plain = _with_floats(raw) if exact else raw
        if not exact or schema is None:
            return plain
        return _keep_digits(schema, [schema], raw, plain)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def schema_problems(schema: JsonSchema, value: Any, *, formats: bool = False) -> list[str]:
    """What of *value* does not fit *schema*, each with its path; nothing when it fits.

    Beyond the standard: a string of format ``decimal`` must be a number, and multiples are counted in
    decimal digits, so that 1.10 is a multiple of 0.01. With *formats* dates, times, spans, UUIDs and the like
    must be some as well, as pydantic reads them, and a decimal's bounds hold for its strings, too.
    """
    try:
        errors = list((_strict_validator if formats else _validator)(schema).iter_errors(value))
    except RecursionError:
        return ["it is nested too deep"]
    return [_problem(error) for error in errors[:MAX_PROBLEMS]]


def unfit_schema(schema: JsonSchema) -> str | None:
    """Why *schema* is no JSON Schema of an object; ``None`` when it is one."""
    try:
        _Validator.check_schema(schema)
    except SchemaError as error:
        return f"its parameters are no JSON Schema ({error.message[:300]})"
    if schema.get("type") != "object":
        return "its parameters are no JSON Schema of an object"
    foreign = next((ref for ref in _references(schema) if not ref.startswith("#")), None)
    if foreign is not None:  # jsonschema would fetch it from the network
        return f"its parameters refer to {foreign!r}, and only references into themselves (#/…) are followed"
    return None


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for each in schema.values():
            yield from _references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def path_text(path: Iterable[int | str]) -> str:
    """A path into JSON as one would write it: ``items[3].total``."""
    text = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in path).removeprefix(".")
    return text or "(the whole)"


def _problem(error: ValidationError) -> str:
    nearest = best_match([error]) or error  # of a union, the alternative that came closest
    message = nearest.message if len(nearest.message) <= 300 else f"{nearest.message[:300]}…"
    return f"{path_text(nearest.absolute_path)}: {message}"


# --- digits ---------------------------------------------------------------------------------------


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not in JSON")


def _with_floats(raw: Any) -> Any:
    if isinstance(raw, Decimal):
        number = float(raw)
        if not math.isfinite(number):
            raise ValueError(f"the number {raw} is too large")
        return number
    if isinstance(raw, dict):
        return {key: _with_floats(item) for key, item in raw.items()}
    if isinstance(raw, list):
        return [_with_floats(item) for item in raw]
    return raw


def _keep_digits(root: JsonSchema, schemas: list[Any], raw: Any, plain: Any) -> Any:
    """*raw*, with its decimals as strings where *schemas* say so, and as floats elsewhere."""
    applied = [each for schema in schemas for each in _applied(root, schema, plain)]
    if isinstance(raw, Decimal):
        return str(raw) if any(_wants_digits(schema) for schema in applied) else plain
    if isinstance(raw, dict):
        return {
            key: _keep_digits(root, [_of_key(schema, key) for schema in applied], item, plain[key])
            for key, item in raw.items()
        }
    if isinstance(raw, list):
        return [
            _keep_digits(root, [_of_index(schema, index) for schema in applied], item, plain[index])
            for index, item in enumerate(raw)
        ]
    return raw


def _applied(root: JsonSchema, schema: Any, plain: Any) -> Iterator[JsonSchema]:
    """The schemas that hold for *plain*: references followed, and of alternatives the first that it fits."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    if "$ref" in schema:
        yield from _applied(root, _target(root, schema["$ref"]), plain)
    for each in schema.get("allOf", ()):
        yield from _applied(root, each, plain)
    for keyword in ("anyOf", "oneOf"):
        fitting = (
            each for each in schema.get(keyword, ()) if _validator(_rooted(root, each)).is_valid(plain)
        )
        yield from _applied(root, next(fitting, None), plain)


def _wants_digits(schema: JsonSchema) -> bool:
    """Whether it is a decimal, and no string that a number written as one could be taken for."""
    strings = [each for each in schema.get("anyOf", ()) if each.get("type") == "string"]
    return strings == [DECIMAL]


def _of_key(schema: JsonSchema, key: str) -> Any:
    if key in schema.get("properties", {}):
        return schema["properties"][key]
    for pattern, each in schema.get("patternProperties", {}).items():
        if re.search(pattern, key):
            return each
    return schema.get("additionalProperties")


def _of_index(schema: JsonSchema, index: int) -> Any:
    first = schema.get("prefixItems", ())
    return first[index] if index < len(first) else schema.get("items")


def _target(root: JsonSchema, reference: str) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _rooted(root: JsonSchema, schema: Any) -> Any:
    """An inner schema with the definitions that it refers to."""
    return {**schema, "$defs": root["$defs"]} if isinstance(schema, Mapping) and "$defs" in root else schema


# --- the dialect ----------------------------------------------------------------------------------


@_formats.checks("decimal")
def _is_decimal(value: object) -> bool:
    if not isinstance(value, str):
        return True
    try:
        return Decimal(value).is_finite()
    except InvalidOperation:
        return False


def _multiple_of(_: Any, step: Any, value: Any, __: JsonSchema) -> Iterator[ValidationError]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return
    with localcontext() as context:
        context.prec = 700  # enough for every float, so that the rest is exact
        rest = Decimal(str(value)) % Decimal(str(step))
    if rest:
        yield ValidationError(f"{value!r} is not a multiple of {step}")


def _pattern(_: Any, pattern: str, value: Any, __: JsonSchema) -> Iterator[ValidationError]:
    """Patterns may be written for another engine; what Python can't read is left to the type's own check."""
    if not isinstance(value, str):
        return
    try:
        found = re.search(pattern, value)
    except re.error:
        return
    if not found:
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _any_of(validator: Any, schemas: Any, value: Any, schema: JsonSchema) -> Iterator[ValidationError]:
    """As the standard has it, but a decimal that is written as a string is measured as the number that it is."""
    if isinstance(value, str) and _wants_digits(schema) and _is_decimal(value):
        value = float(value)
    return _plain_any_of(validator, schemas, value, schema)  # type: ignore[no-any-return]


def _reader(kind: Any) -> Any:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)

    def reads(value: object) -> bool:
        if isinstance(value, str):
            adapter.validate_python(value)
        return True

    return reads


_strict_formats = FormatChecker(formats=())
_strict_formats.checks("decimal")(_is_decimal)
for _format, _kind in {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "uuid1": pydantic.UUID1,
    "uuid3": pydantic.UUID3,
    "uuid4": pydantic.UUID4,
    "uuid5": pydantic.UUID5,
    "uri": pydantic.AnyUrl,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "ipv4network": IPv4Network,
    "ipv6network": IPv6Network,
    "ipv4interface": IPv4Interface,
    "ipv6interface": IPv6Interface,
    "ipvanyaddress": pydantic.IPvAnyAddress,
    "ipvanynetwork": pydantic.IPvAnyNetwork,
    "ipvanyinterface": pydantic.IPvAnyInterface,
}.items():
    _strict_formats.checks(_format, raises=pydantic.ValidationError)(_reader(_kind))

_rules = {"multipleOf": _multiple_of, "pattern": _pattern}
_Validator: Any = extend(Draft202012Validator, _rules)  # type: ignore[no-untyped-call,unused-ignore]

_plain_any_of: Any = Draft202012Validator.VALIDATORS["anyOf"]
_StrictValidator: Any = extend(Draft202012Validator, {**_rules, "anyOf": _any_of})  # type: ignore[no-untyped-call,unused-ignore]


def _strict_validator(schema: Any) -> Any:
    return _StrictValidator(schema, format_checker=_strict_formats)


def _validator(schema: Any) -> Any:
    return _Validator(schema, format_checker=_formats)
