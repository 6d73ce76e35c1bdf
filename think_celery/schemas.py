"""JSON Schema for what a model may write: tool arguments and final answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

JsonSchema = Mapping[str, Any]

DECIMAL_FORMAT = "decimal"


class PlainJsonSchema(GenerateJsonSchema):
    """JSON Schema as models and their servers understand it.

    A ``Decimal`` is a number or a string, without the look-around pattern that some versions of pydantic
    write: engines refuse it, and it does not match scientific notation. Titles made up from field names
    are left out, for they tell a model nothing new.
    """

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number: JsonSchemaValue = {"type": "number"}
        self.update_with_validations(number, schema, self.ValidationsMapping.numeric)
        return {"anyOf": [number, {"type": "string", "format": DECIMAL_FORMAT}]}

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def schema_problems(schema: JsonSchema, value: Any) -> list[str]:
    """What of *value* does not fit *schema*, each with its path; nothing when it fits."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [f"{_path(error.absolute_path)}: {error.message}" for error in errors]


def validation_problems(error: ValidationError) -> list[str]:
    """What pydantic found, each with its path."""
    return [f"{_path(item['loc'])}: {item['msg']}" for item in error.errors(include_url=False)]


def _path(loc: Sequence[int | str]) -> str:
    text = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in loc)
    return text.removeprefix(".")
