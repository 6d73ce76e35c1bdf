"""What a function's annotations and docstring say to a model, and the check of its arguments."""

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, create_model
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo

from think_celery.errors import InvalidTool
from think_celery.schemas import PlainJsonSchema


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What was read from one function.

    ``arguments`` is a model with one field a parameter; ``fields`` maps the names of its fields to those
    of the parameters. ``parameters`` is its JSON Schema. ``context_parameter`` is the parameter annotated
    with the context's class, which is not in the schema.
    """

    description: str
    arguments: type[BaseModel]
    fields: Mapping[str, str]
    parameters: dict[str, Any]
    context_parameter: str | None


_Known = dict[tuple[str, bool, str], Signature]
_known: WeakKeyDictionary[Callable[..., Any], _Known] = WeakKeyDictionary()


def read_signature(function: Callable[..., Any], name: str, doc: str, context_type: type) -> Signature:
    """Read a function or bound method, once for all objects that it is bound to.

    Args:
        function: What will be called.
        name: The tool's name, for errors.
        doc: Its docstring, or the one it inherits.
        context_type: The class whose parameter is filled in by us.

    Raises:
        InvalidTool: It has parameters that a model can't pass or that have no JSON Schema.
    """
    plain, bound = getattr(function, "__func__", function), inspect.ismethod(function)
    known = _known.setdefault(plain, {})
    if (name, bound, doc) not in known:
        known[name, bound, doc] = _read(plain, name, bound, doc, context_type)
    return known[name, bound, doc]


def _read(function: Callable[..., Any], name: str, bound: bool, doc: str, context_type: type) -> Signature:
    description, described = _split_doc(doc)
    hints = _hints(function, name)
    context_parameter: str | None = None
    fields: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1 if bound else 0 :]:
        hint = hints.get(parameter.name, Any)
        _check(name, parameter)
        if _mentions(hint, context_type):
            if context_parameter is not None:
                raise InvalidTool(
                    name, f"two parameters ask for the {context_type.__name__}", "Keep one of them."
                )
            context_parameter = parameter.name
            continue
        field = f"p{len(fields)}"  # a name of ours: theirs may begin with `_` or hide a method of BaseModel
        fields[field] = parameter.name
        definitions[field] = (hint, _field(parameter, hint, described))
    try:
        arguments = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **definitions)
        schema = arguments.model_json_schema(schema_generator=PlainJsonSchema)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise InvalidTool(
            name,
            f"its parameters have no JSON Schema ({error.message})",
            "Annotate them with plain types, dataclasses or pydantic models.",
        ) from error
    schema.pop("title", None)
    return Signature(
        description=description,
        arguments=arguments,
        fields=fields,
        parameters={"type": "object", "properties": {}, **schema},
        context_parameter=context_parameter,
    )


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidTool(
            name, f"an annotation can't be resolved ({error})", "Use names that its module knows at run time."
        ) from error


def _field(parameter: inspect.Parameter, hint: Any, described: Mapping[str, str]) -> Any:
    default = ... if parameter.default is parameter.empty else parameter.default
    if parameter.name in described and not _has_description(hint):
        return Field(default, alias=parameter.name, description=described[parameter.name])
    return Field(default, alias=parameter.name)


def _check(tool_name: str, parameter: inspect.Parameter) -> None:
    if parameter.name == "self":
        raise InvalidTool(
            tool_name, "it is a method without its object", "Pass the bound method: agent.method."
        )
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise InvalidTool(
            tool_name,
            f"its parameter {str(parameter)!r} can't be passed by name",
            "Give each argument a parameter of its own (around a tool, a decorator needs functools.wraps).",
        )
    if isinstance(parameter.default, FieldInfo):
        raise InvalidTool(
            tool_name,
            f"the default of {parameter.name!r} is a pydantic Field, which a direct call would receive",
            f"Write {parameter.name}: Annotated[int, Field(…)] = 5.",
        )


def _mentions(hint: Any, wanted: type) -> bool:
    if get_origin(hint) is Annotated:
        return _mentions(get_args(hint)[0], wanted)
    if get_origin(hint) in (Union, types.UnionType):
        return any(_mentions(option, wanted) for option in get_args(hint))
    return hint is wanted


def _has_description(hint: Any) -> bool:
    return any(isinstance(note, FieldInfo) and note.description for note in getattr(hint, "__metadata__", ()))


_SECTION = re.compile(r"(?m)^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)*)")
_ENTRY = re.compile(r"(\w+)(?:\s*\([^)]*\))?:\s*(.*)")


def _split_doc(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring without its ``Args:`` section, and what that section says of each parameter."""
    section = _SECTION.search(doc)
    if section is None:
        return doc.strip(), {}
    described: dict[str, str] = {}
    current: str | None = None
    indent = len(section[1]) - len(section[1].lstrip(" \t"))
    for line in section[1].splitlines():
        entry = _ENTRY.fullmatch(line.strip())
        if entry and len(line) - len(line.lstrip()) <= indent:
            current = entry[1]
            described[current] = entry[2].strip()
        elif current is not None and line.strip():
            described[current] = f"{described[current]} {line.strip()}".strip()
    outside = (doc[: section.start()].strip(), doc[section.end() :].strip())
    return "\n\n".join(part for part in outside if part), described
