"""What a model may write, as JSON Schema, and what it wrote, as the type that was asked for."""

import dataclasses
import inspect
import json
import re
from typing import Any, get_origin
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from think_celery.classes import find_loaded
from think_celery.errors import InvalidValue, UnsupportedSchema
from think_celery.jsontext import DECIMAL, MAX_PROBLEMS, JsonSchema, path_text, read_json, schema_problems
from think_celery.wording import a_type, agree, shown


class PlainJsonSchema(GenerateJsonSchema):
    """JSON Schema as models and their servers understand it.

    A ``Decimal`` is a number or a string, without the look-around pattern that some versions of pydantic
    write: engines refuse it, and it does not match scientific notation. Titles made up from field names
    are left out, for they tell a model nothing new. What JSON Schema can't express is refused, also where
    pydantic would leave it out (an alternative of a union) or allow anything (a class).
    """

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number: JsonSchemaValue = {"type": "number"}
        bounds = {key: _as_json_number(schema[key]) for key in _BOUNDS if key in schema}  # type: ignore[literal-required]
        self.update_with_validations(number, bounds, self.ValidationsMapping.numeric)
        return {"anyOf": [number, dict(DECIMAL)]}

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a class")

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(detail)


_BOUNDS = ("multiple_of", "le", "ge", "lt", "gt")


_made: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()


def output_schema(output: Any) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a pydantic model, dataclass or TypedDict that a model shall fill in.

    It is made once for each class, for making it takes a millisecond; nobody changes it.

    Raises:
        UnsupportedSchema: It is another type, its answers would be no object, or JSON Schema can't express
            a part of it.
    """
    if isinstance(output, type) and output in _made:
        return _made[output]
    schema = _output_schema(output)
    if isinstance(output, type):
        _made[output] = schema
    return schema


def _output_schema(output: Any) -> dict[str, Any]:
    name = type_text(output)
    if not _is_record(output):
        raise UnsupportedSchema(name, "it is no pydantic model, dataclass or TypedDict", _if_no_field(output))
    try:
        schema = TypeAdapter(output).json_schema(schema_generator=PlainJsonSchema)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        if error.code == "typed-dict-version":
            remedy = "Below Python 3.12 write: from typing_extensions import TypedDict."
            raise UnsupportedSchema(name, "it is a TypedDict of typing's, or holds one", remedy) from error
        remedy = "Use another type there, one that JSON has, or a model, dataclass or TypedDict of such."
        raise UnsupportedSchema(name, f"JSON Schema can't express it ({error.message})", remedy) from error
    definitions = schema.get("$defs", {})
    top = definitions.get(schema["$ref"].rpartition("/")[2], {}) if "$ref" in schema else schema
    if top.get("type") != "object":
        raise UnsupportedSchema(name, "its answers would be no JSON object")
    return {**top, **({"$defs": definitions} if definitions else {})}


def _if_no_field(kind: Any) -> str | None:
    """What to do where this can't be a field of a model either; ``None`` where it can."""
    try:
        check_type(kind, "a field")
    except InvalidValue:
        return (
            "Pass a class of one of these three kinds; the class itself, not an object of it, nor its schema."
        )
    return None


def type_text(kind: Any) -> str:
    """A type as one would write it: ``Draft``, ``list[str]``."""
    return kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else shown(kind)


def loaded_output(stored: str | None, schema: JsonSchema) -> type | None:
    """The output type of that name, if this process has it and can check answers with it.

    It may have changed since the *schema* was made from it: what counts is the one of today, as it does where the
    answer is used. Each started script has a ``__main__`` of its own, so there only the very same will do.
    """
    found = None if stored is None else find_loaded(stored)
    if found is None:
        return None
    try:
        same = output_schema(found) == schema
    except Exception:  # a class whose annotations can't be read here; the schema decides
        return None
    return found if same or found.__module__ != "__main__" else None


def check_answer(schema: JsonSchema, arguments_text: str | None, output: Any = None) -> tuple[Any, list[str]]:
    """Read a model's final answer, and say what of it does not fit *schema*, nor *output*, where that is known.

    All problems of both are found. Formats (such as dates) are the type's to judge, for it may read more than
    the standard allows; without it, the schema's.

    A fence (```` ```json ````) around the whole text is no part of it. The value is plain JSON, to be stored and given
    to :func:`validate_output` later. A number for a decimal
    has become a string of the same digits. With problems, each of which names its path, the value is what
    could be read.
    """
    if arguments_text is None or not arguments_text.strip():
        return {}, _problems(schema, {}, {}, output)
    try:
        text, value = _read_answer(arguments_text, schema)
    except ValueError as error:
        return None, [f"{path_text(())}: it is not valid JSON: {error}"]
    # As numbers, for bounds do not hold for the strings that some of them have become.
    return value, _problems(schema, read_json(text), value, output)


def _problems(schema: JsonSchema, numbers: Any, value: Any, output: Any) -> list[str]:
    problems = schema_problems(schema, numbers, formats=output is None)
    if output is None:
        return problems
    try:
        validate_output(output, value)
    except ValidationError as error:
        news = [each for each in _all_errors(error) if not _is_said(each, problems)]
        problems += [_problem(each) for each in news]
    except Exception as error:
        if not problems:  # else it may well fail because of them
            problems.append(_failed(error))
    return problems[:MAX_PROBLEMS]


def _is_said(error: Any, problems: list[str]) -> bool:
    """Whether the schema has found the same."""
    *above, last = error["loc"] or ("",)
    if any(each.startswith(f"{path_text(error['loc'])}: ") for each in problems):
        return True
    if error["type"] not in ("missing", "extra_forbidden"):
        return False
    return any(each.startswith(f"{path_text(above)}: ") and repr(last) in each for each in problems)


_FENCED = re.compile(r"\s*```[A-Za-z0-9_+-]*\s*(.*?)\s*```\s*", re.DOTALL)


def _read_answer(text: str, schema: JsonSchema) -> tuple[str, Any]:
    """The JSON text of an answer and its value: the text itself, or else what one fence around all of it holds.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return text, read_json(text, schema)
    except ValueError:
        fenced = _FENCED.fullmatch(text)
        if fenced is None:
            raise
        return fenced[1], read_json(fenced[1], schema)


def validate_output(output: Any, value: Any) -> Any:
    """An answer that :func:`check_answer` returned, as an instance of *output*.

    Raises:
        pydantic.ValidationError: It does not fit; :func:`validation_problems` names the paths.
    """
    return TypeAdapter(output).validate_json(json.dumps(value))


def read_output(output: Any, value: Any) -> tuple[Any, list[str]]:
    """Like :func:`validate_output`, but says what does not fit; with problems the value is ``None``.

    An error of a validator's own counts as one: the answer is no better for it.
    """
    try:
        return validate_output(output, value), []
    except ValidationError as error:
        return None, validation_problems(error)
    except Exception as error:
        return None, [_failed(error)]


def _failed(error: Exception) -> str:
    return f"{path_text(())}: its validation failed: {type(error).__name__}: {error}"[:400]


def as_type(kind: Any, value: Any, what: str) -> Any:
    """*value*, which code has made, as an instance of *kind*; *what* is what to call it in the error.

    Raises:
        InvalidValue: It does not fit, or *kind* is no type that can be checked.
    """
    check_type(kind, what)
    try:
        made = TypeAdapter(kind).validate_python(value)
        problems = _misfits(kind, value)
    except ValidationError as error:
        problems = validation_problems(error)
    if problems:
        raise InvalidValue(
            f"{what} {agree(what, 'does', 'do')} not fit {type_text(kind)}: {'; '.join(problems)}. "
            "Pass what the type asks for."
        )
    return made


def check_type(kind: Any, what: str) -> None:
    """Make sure that *kind* is a type that :func:`as_type` can check values against.

    Raises:
        InvalidValue: It is not.
    """
    problem = None
    try:
        if isinstance(kind, str) or inspect.isroutine(kind):  # a name to be resolved; a call to be checked
            problem = f"it is {a_type(kind)}, and no type"
        else:
            TypeAdapter(kind)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        problem = error.message
    except Exception as error:  # what is no type at all may raise anything
        problem = f"it is {a_type(kind)}, and no type: {type(error).__name__}"
    if problem is not None:
        raise InvalidValue(
            f"{what} can't be checked against {type_text(kind)} ({problem}). Use a pydantic model, a dataclass, a "
            "TypedDict or a plain type."
        )


def _misfits(kind: Any, value: Any) -> list[str]:
    """What of the dataclasses in *value* does not fit: they check nothing when they are made, nor does pydantic then.

    Where they have no configuration of their own, that of the type around them is theirs. What comes of it is thrown
    away: making one anew calls its ``__post_init__`` again. It has all its fields: what seems to be missing is an
    ``InitVar``.
    """
    try:
        TypeAdapter(tuple[kind], config=_AGAIN).validate_python((value,))
    except ValidationError as error:
        found = [each for each in _all_errors(error) if each["type"] != "missing"]
        return [_problem({**each, "loc": each["loc"][1:]}) for each in found]
    except Exception:  # a __post_init__ that can't be called twice
        return []
    return []


_AGAIN = ConfigDict(revalidate_instances="always")


def as_plain(kind: Any, value: Any) -> Any:
    """A model of pydantic's as JSON values, if :func:`as_type` makes an equal one of them again; else as it is.

    So what is stored of it can be read when its class has moved.
    """
    if not isinstance(value, BaseModel):
        return value
    try:
        plain = value.model_dump(mode="json", by_alias=True)
        return plain if TypeAdapter(kind).validate_python(plain) == value else value
    except (ValueError, PydanticUserError):  # it has no JSON form, or is strict about its types
        return value


def validation_problems(error: ValidationError) -> list[str]:
    """What pydantic found, each with its path."""
    return [_problem(each) for each in _all_errors(error)]


def _all_errors(error: ValidationError) -> list[Any]:
    return list(error.errors(include_url=False, include_context=False, include_input=False))


def _problem(error: Any) -> str:
    return f"{path_text(error['loc'])}: {error['msg']}"


def _is_record(output: Any) -> bool:
    plain = get_origin(output) or output
    if not isinstance(plain, type):
        return False
    typed_dict = issubclass(plain, dict) and hasattr(plain, "__total__")  # of typing or typing_extensions
    return issubclass(plain, BaseModel) or dataclasses.is_dataclass(plain) or typed_dict


def _as_json_number(bound: Any) -> int | float:
    return int(bound) if bound == int(bound) else float(bound)
