"""Schemas told to servers that take less than JSON Schema: the same meaning, or an error that says where."""

import json
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from think_celery.errors import InvalidTool, NoModel
from think_celery.protocols import ToolCallComplete, ToolSpec
from think_celery.providers.anthropic import AnthropicModel
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.profiles import fitted, relaxing
from think_celery.schemas import output_schema


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Home(BaseModel):
    """A home."""

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    street: str = Field("Main Street", description="Where it is.")
    size: float | None = None


class Counted(BaseModel):
    home: Home
    counts: dict[str, int]


def spec(output: Any, name: str = "answer") -> ToolSpec:
    schema = output if isinstance(output, dict) else output_schema(output)
    return ToolSpec(name=name, description="", parameters=schema)


def accepts(schema: Any, value: Any) -> bool:
    return Draft202012Validator(schema).is_valid(value)


HOMES = {
    "good": [
        {"pet": {"kind": "cat", "lives": 8}, "street": "x", "size": 1.5},
        {"pet": {"kind": "dog", "name": None}, "street": "x", "size": None},
    ],
    "bad": [
        {"pet": {"kind": "cow"}, "street": "x", "size": 1},
        {"pet": {"kind": "cat", "lives": "x"}, "street": "x", "size": 1},
        {"street": "x", "size": 1},
    ],
}


class TestStandard:
    def test_it_is_what_the_type_says(self):
        """FR-87: a tree, a tagged union and an optional field take good samples and refuse bad ones."""
        tree = fitted("standard", spec(Tree))
        home = fitted("standard", spec(Home))

        assert tree is spec(Tree).parameters or tree == spec(Tree).parameters
        assert accepts(tree, {"name": "a", "children": [{"name": "b", "children": []}]})
        assert not accepts(tree, {"name": "a", "children": [{"children": []}]})
        assert [accepts(home, each) for each in HOMES["good"] + HOMES["bad"]] == [True] * 2 + [False] * 3
        assert accepts(home, {"pet": {"kind": "dog"}})


class TestInline:
    def test_references_are_replaced(self):
        """The same samples fit, and no reference is left."""
        told = fitted("inline", spec(Home))

        assert "$" not in json.dumps(told)
        assert [accepts(told, each) for each in HOMES["good"] + HOMES["bad"]] == [True] * 2 + [False] * 3

    def test_a_cycle_is_an_error(self):
        """FR-87: what can't be told without references is refused, and where it stands is said."""
        with pytest.raises(InvalidTool, match=r"'answer'.*children.*Tree holds itself.*'inline'"):
            fitted("inline", spec(Tree))

    def test_a_property_may_be_called_like_a_keyword(self):
        """Names are no keywords."""
        schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "enum": {"$ref": "#/$defs/A"}}}

        told = fitted("inline", spec({**schema, "$defs": {"A": {"type": "integer"}}}))

        assert told == {
            "type": "object",
            "properties": {"$ref": {"type": "string"}, "enum": {"type": "integer"}},
        }


class TestStrict:
    def test_objects_are_closed_and_everything_is_required(self):
        """FR-88: what may be left out may be null; defaults go; descriptions stay."""
        told = fitted("strict", spec(Home))

        assert told["required"] == ["pet", "street", "size"]
        assert told["additionalProperties"] is False
        assert told["properties"]["street"] == {
            "description": "Where it is.",
            "anyOf": [{"type": "string"}, {"type": "null"}],
        }
        assert told["$defs"]["Cat"]["required"] == ["kind", "lives"]
        assert not {"default", "discriminator", "oneOf"} & set(json.dumps(told).replace('"', " ").split())
        assert [accepts(told, each) for each in HOMES["good"] + HOMES["bad"]] == [True] * 2 + [False] * 3

    def test_a_tree_may_hold_itself(self):
        """References are told in this mode."""
        told = fitted("strict", spec(Tree))

        assert accepts(told, {"name": "a", "children": [{"name": "b", "children": None}]})

    @pytest.mark.parametrize(
        ("output", "where"),
        [
            (Counted, r"counts: an object with keys of any name \('additionalProperties'\)"),
            ({"type": "object", "properties": {"a": {}}}, "a: any value"),
            ({"type": "object", "properties": {"a": {"type": "array"}}}, "a: a list of anything"),
            ({"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}, "a: .*'minLength'"),
            (
                {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}},
                r"a\[\]: .*'not'",
            ),
            ({"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}]}}}, "a: .*'oneOf'"),
        ],
    )
    def test_what_can_not_be_told_is_an_error(self, output, where):
        """FR-88: the error names the keyword and where it stands."""
        with pytest.raises(InvalidTool, match=where):
            fitted("strict", spec(output))

    def test_null_for_what_was_left_out_is_left_out_again(self):
        """The tool gets what its own schema says; numbers keep their digits, and a null that was meant stays."""
        given = (
            '{"pet": {"kind": "dog", "name": null}, "street": null, "size": null, "homes": [1.10, "null"],'
            ' "cat": {"kind": "cat", "lives": null}}'
        )
        schema = {
            **spec(Home).parameters,
            "properties": {**spec(Home).parameters["properties"], "cat": {"$ref": "#/$defs/Cat"}},
        }
        tools = [ToolSpec(name="answer", description="", parameters=schema)]

        (event,) = relaxing(tools, iter([ToolCallComplete(0, "c", "answer", given)]))

        assert event.arguments == (
            '{"pet": {"kind": "dog", "name": null}, "size": null, "homes": [1.10, "null"], "cat": {"kind": "cat"}}'
        )

    def test_what_is_no_json_is_the_tools_to_refuse(self):
        """It is handed on as it is."""
        call = ToolCallComplete(0, "c", "answer", '{"a": null')

        assert list(relaxing([spec(Home)], iter([call]))) == [call]


class TestTheModels:
    @pytest.mark.parametrize("model", [OpenAIModel, AnthropicModel])
    def test_an_unknown_profile(self, model):
        """Said when the model is made."""
        with pytest.raises(NoModel, match=r"schemas='loose'"):
            model("m", api_key="k-1", schemas="loose")

    def test_they_say_what_they_can_not_be_told(self):
        """Before anything is asked."""
        with pytest.raises(InvalidTool, match="Tree holds itself"):
            AnthropicModel("m", api_key="k-1", schemas="inline").check_tool(spec(Tree))
        with pytest.raises(InvalidTool, match="counts"):
            OpenAIModel("m", api_key="k-1", schemas="strict").check_tool(spec(Counted))
        OpenAIModel("m", api_key="k-1").check_tool(spec(Counted))
