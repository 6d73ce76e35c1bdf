"""What a model may write as a structured answer, and what becomes of it."""

import dataclasses
import json
import sys
import typing
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, create_model
from typing_extensions import TypedDict

from tests.ground.samples import Answer, Bill, Box, Cat, Color, Dog, Line, Pets, Point, Tree
from think_celery.errors import UnsupportedSchema
from think_celery.jsontext import read_json, schema_problems
from think_celery.schemas import check_answer, output_schema, validate_output, validation_problems
from think_celery.serialization import dumps, loads


class Foreign:
    pass


class WithCode(BaseModel):
    callback: Callable[[], int]


class WithCodeInUnion(BaseModel):
    callback: int | Callable[[], int]


class WithForeign(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    foreign: Foreign


class WithForeignInUnion(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    foreign: list[Foreign | str]


class WithClass(BaseModel):
    cls: type[Foreign]


@dataclasses.dataclass
class WithAnything:
    thing: Foreign


class Numbers(RootModel[list[int]]):
    pass


class Either(RootModel[Cat | Dog]):
    pass


class Scores(RootModel[dict[str, int]]):
    pass


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    on: date
    pair: tuple[int, str]
    color: Color


class Priced(BaseModel):
    """A price list."""

    price: Annotated[Decimal, Field(gt=0, multiple_of=Decimal("0.01"), description="Net.")]
    rate: Annotated[float, Field(multiple_of=0.1)] = 0.3
    code: Annotated[str, Field(pattern=r"^\p{Lu}+$")] = "A"


class Ambiguous(BaseModel):
    value: str | Decimal


class Options(TypedDict):
    mode: Literal["a", "b"]
    price: NotRequired[Decimal]


def answered(output: Any, text: str) -> Any:
    """The whole way of an answer: checked, stored with the codec, read again, validated."""
    value, problems = check_answer(output_schema(output), text)
    assert problems == []
    json.dumps(value, allow_nan=False)
    return validate_output(output, loads(dumps(value, what="answer")))


def patterns(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
        return own + [found for each in schema.values() for found in patterns(each)]
    return [found for each in schema for found in patterns(each)] if isinstance(schema, list) else []


class TestOutputSchema:
    @pytest.mark.parametrize(
        "output", [Line, Tree, Pets, Bill, Point, Answer, Options, Scores, Strict, Box[int]]
    )
    def test_models_dataclasses_and_typed_dicts_become_a_schema_of_an_object(self, output):
        """A8: JSON Schema, draft 2020-12, that can be stored and sent as it is."""
        schema = output_schema(output)

        assert schema["type"] == "object"
        assert "$ref" not in schema
        assert json.loads(json.dumps(schema, allow_nan=False)) == schema
        jsonschema.Draft202012Validator.check_schema(schema)

    def test_each_class_has_its_own_which_is_made_once(self):
        """A workflow asks for it at each pass; a class that is defined anew under one name is another class."""

        def make(kind: type) -> type:
            return create_model("Made", value=(kind, ...))

        first, second = make(int), make(str)

        assert output_schema(first) is output_schema(first)
        assert output_schema(first)["properties"] == {"value": {"type": "integer"}}
        assert output_schema(second)["properties"] == {"value": {"type": "string"}}

    @pytest.mark.parametrize(
        ("output", "problem"),
        [
            (int, "no pydantic model, dataclass or TypedDict"),
            (list[int], "no pydantic model"),
            (Line | None, "no pydantic model"),
            (Color, "no pydantic model"),
            (Foreign, "no pydantic model"),
            (Line(sku="A", price=Decimal(1)), "no pydantic model"),
            ({"type": "object"}, "no pydantic model"),
            (dict, "no pydantic model"),
            (Numbers, "no JSON object"),
            (Either, "no JSON object"),
            (WithCode, "can't express it"),
            (WithCodeInUnion, "can't express it"),
            (WithForeign, "can't express it"),
            (WithForeignInUnion, "can't express it"),
            (WithClass, "can't express it"),
            (WithAnything, "can't express it"),
        ],
        ids=lambda value: getattr(value, "__name__", str(value))[:30],
    )
    def test_what_json_schema_cannot_express_is_refused(self, output, problem):
        """A12: refused when the step is created, and never sent with a part left out."""
        with pytest.raises(UnsupportedSchema) as refused:
            output_schema(output)

        assert problem in str(refused.value)

    @pytest.mark.parametrize(
        ("output", "remedy"),
        [
            (int, r"class Answer\(pydantic.BaseModel\):\n +value: int$"),
            (list[int], r"class Answer\(pydantic.BaseModel\):\n +value: list\[int\]$"),
            (Numbers, r"class Answer\(pydantic.BaseModel\):\n +value: Numbers$"),
            (5, "the class itself, not an object of it, nor its schema"),
            ("Line", "the class itself"),
            (Line(sku="A", price=Decimal(1)), "the class itself"),
            ({"type": "object"}, "nor its schema"),
            (Foreign, "Pass a class of one of these three kinds"),
            (WithCode, "Use another type there"),
        ],
        ids=lambda value: getattr(value, "__name__", str(value))[:30],
    )
    def test_the_remedy_is_one(self, output, remedy):
        """A model around it where such a field can be; a class that would not work is not proposed."""
        with pytest.raises(UnsupportedSchema, match=remedy) as refused:
            output_schema(output)

        assert ("class Answer" in str(refused.value)) == ("class Answer" in remedy)

    def test_a_typed_dict_of_typing(self):
        """A12: it will do from Python 3.12 on; before that the error says which one to import."""
        of_typing = typing.TypedDict("of_typing", {"title": str})  # noqa: UP013

        if sys.version_info >= (3, 12):
            assert output_schema(of_typing)["required"] == ["title"]
            return
        with pytest.raises(
            UnsupportedSchema, match=r"of_typing.*from typing_extensions import TypedDict"
        ) as refused:
            output_schema(of_typing)
        assert "class Answer" not in str(refused.value)

    def test_a_decimal_is_a_number_or_a_string_without_pattern(self):
        """FR-86: no look-around pattern, whatever pydantic's version; bounds and descriptions are kept."""
        schema = output_schema(Priced)

        assert schema["properties"]["price"] == {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
                {"type": "string", "format": "decimal"},
            ],
            "description": "Net.",
        }
        assert patterns(output_schema(Bill)) == []
        assert schema["description"] == "A price list."

    @pytest.mark.parametrize(
        ("output", "good", "bad"),
        [
            (
                Tree,
                {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]},
                {"name": "a", "children": [{"name": "b", "children": [{"nom": "c"}]}]},
            ),
            (
                Pets,
                {"pets": [{"kind": "cat", "lives": 9, "weight": 4.5}, {"kind": "dog", "weight": 8}]},
                {
                    "pets": [
                        {"kind": "dog", "lives": 9, "weight": "x", "more": 1},
                        {"kind": "cat", "weight": 8},
                    ]
                },
            ),
            (Bill, {"total": 1, "tip": None}, {"total": 1, "tip": []}),
            (Answer, {"labels": [], "urgent": True}, {"labels": [], "urgent": "maybe"}),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_a_standard_validator_agrees_with_the_type(self, output, good, bad):
        """FR-87: recursive models, tagged unions and optional fields keep their meaning."""
        validator = jsonschema.Draft202012Validator(output_schema(output))

        assert validator.is_valid(good)
        assert not validator.is_valid(bad)
        validate_output(output, good)
        with pytest.raises(ValidationError):
            validate_output(output, bad)


class TestAnswers:
    @pytest.mark.parametrize(
        ("written", "decimal"),
        [
            ("1.10", "1.10"),
            ('"1.10"', "1.10"),
            ('"1E-7"', "1E-7"),
            ("1E-7", "1E-7"),
            ("1e-7", "1E-7"),
            ("3", "3"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("0.12345678901234567890123", "0.12345678901234567890123"),
        ],
    )
    def test_a_decimal_comes_through_exactly(self, written, decimal):
        """FR-86: number, string and scientific notation; 1.10 is not taken through float."""
        text = f'{{"total": {written}, "by_name": {{"a": {written}}}, "pair": [{written}, 0.5]}}'

        bill = answered(Bill, text)

        assert [str(bill.total), str(bill.by_name["a"]), str(bill.pair[0])] == [decimal] * 3
        assert bill.pair[1] == 0.5

    def test_numbers_that_are_no_decimals_stay_numbers(self):
        """Only where the schema has a decimal do digits become a string."""
        value, _ = check_answer(
            output_schema(Bill), '{"total": 1.10, "rate": 1.10, "anything": [1.10, {"a": 2.5}]}'
        )

        assert value == {"total": "1.10", "rate": 1.1, "anything": [1.1, {"a": 2.5}]}

    def test_of_a_tagged_union_the_right_alternative_decides(self):
        """A dog's weight is a decimal, a cat's is not."""
        pets = answered(
            Pets, '{"pets": [{"kind":"cat","lives":9,"weight":4.50},{"kind":"dog","weight":8.50}]}'
        ).pets

        assert (pets[0].weight, str(pets[1].weight)) == (4.5, "8.50")
        assert type(pets[0].weight) is float

    def test_a_number_where_text_is_allowed_too_stays_a_number(self):
        """As a string it would be taken for the text."""
        assert type(answered(Ambiguous, '{"value": 1.5}').value) is Decimal
        assert answered(Ambiguous, '{"value": "1.5"}').value == "1.5"

    def test_money_is_a_multiple_of_a_cent(self):
        """Counted in decimal digits: 1.10 / 0.01 is no whole number in floats."""
        assert answered(Priced, '{"price": 1.10, "rate": 0.7}').price == Decimal("1.10")
        assert check_answer(output_schema(Priced), '{"price": 1.105}')[1] == [
            "price: 1.105 is not a multiple of 0.01"
        ]
        _, problems = check_answer(output_schema(Priced), '{"price": 1, "rate": 0.75}')
        assert problems == ["rate: 0.75 is not a multiple of 0.1"]

    def test_a_decimals_bounds_hold(self):
        """A number that breaks them is the turn's error, not the workflow's."""
        _, problems = check_answer(output_schema(Priced), '{"price": -1.5}')

        assert problems == ["price: -1.5 is less than or equal to the minimum of 0"]

    def test_a_pattern_of_another_engine_is_left_to_the_type(self):
        """Pydantic's patterns are Rust's; what Python can't read must not fail every answer."""
        assert answered(Priced, '{"price": 1, "code": "ÄB"}').code == "ÄB"
        value, problems = check_answer(output_schema(Priced), '{"price": 1, "code": "x"}')
        assert problems == []
        with pytest.raises(ValidationError):
            validate_output(Priced, value)

    @pytest.mark.parametrize(
        ("output", "text", "kind"),
        [
            (Point, '{"x": 1, "y": [1.50]}', Point(1, [Decimal("1.50")])),
            (Answer, '{"labels": ["a"], "urgent": true}', {"labels": ["a"], "urgent": True}),
            (Options, '{"mode": "a", "price": 2.50}', {"mode": "a", "price": Decimal("2.50")}),
            (Scores, '{"a": 1}', Scores({"a": 1})),
            (Strict, '{"on": "2026-01-01", "pair": [1, "a"], "color": 1}', None),
            (Box[int], '{"item": 3}', Box[int](item=3)),
        ],
    )
    def test_an_answer_becomes_the_type_that_was_asked_for(self, output, text, kind):
        """A2, A11: validated again with the original type, strict ones included."""
        made = answered(output, text)

        expected = Strict(on=date(2026, 1, 1), pair=(1, "a"), color=Color.RED) if kind is None else kind
        assert made == expected
        assert type(made) is type(expected)

    def test_surrogates_are_cleaned(self):
        """FR-37: an escaped pair is one character, a lone half U+FFFD."""
        tree = answered(Tree, '{"name": "\\ud83c\\udf78 \\ud83c"}')

        assert tree.name == "\U0001f378 \ufffd"

    @pytest.mark.parametrize(
        ("output", "text", "problems"),
        [
            (
                Line,
                "",
                ["(the whole): 'sku' is a required property", "(the whole): 'price' is a required property"],
            ),
            (
                Line,
                None,
                ["(the whole): 'sku' is a required property", "(the whole): 'price' is a required property"],
            ),
            (Line, "[]", ["(the whole): [] is not of type 'object'"]),
            (Line, '{"sku": "A", "price": "abc"}', ["price: 'abc' is not a 'decimal'"]),
            (Line, '{"sku": "A", "price": "NaN"}', ["price: 'NaN' is not a 'decimal'"]),
            (Line, '{"sku": "A", "price": 1, "tags": ["a", 2]}', ["tags[1]: 2 is not of type 'string'"]),
            (
                Tree,
                '{"name": "a", "children": [{"name": "b"}, {"name": 3}]}',
                ["children[1].name: 3 is not of type 'string'"],
            ),
        ],
    )
    def test_problems_name_their_paths(self, output, text, problems):
        """A13: invalid answers are never repaired silently; the error says where they are wrong."""
        assert check_answer(output_schema(output), text)[1] == problems

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{", "not valid JSON"),
            ('{"sku": NaN}', "NaN is not in JSON"),
            ('{"price": 1e999}', "too large"),
            ("[" * 100_000, "not valid JSON"),
            ('{"a":' * 100_000, "not valid JSON"),
        ],
    )
    def test_text_that_is_no_json_is_a_problem_and_no_crash(self, text, problem):
        """A model can write anything."""
        value, problems = check_answer(output_schema(Line), text)

        assert value is None
        assert len(problems) == 1
        assert problem in problems[0]

    def test_many_and_long_problems_are_cut(self):
        """They go into a row and to the model."""
        text = json.dumps({"sku": "A", "price": 1, "tags": [{"long": "x" * 5000}] * 500})

        _, problems = check_answer(output_schema(Line), text)

        assert len(problems) == 20
        assert max(map(len, problems)) < 350

    def test_pydantics_problems_name_their_paths_too(self):
        """What JSON Schema lets pass may still not fit the type."""
        with pytest.raises(ValidationError) as refused:
            validate_output(Bill, {"total": 1, "pair": ["x", 1.0], "by_name": {"a": []}})

        assert [each.partition(": ")[0] for each in validation_problems(refused.value)] == [
            "by_name.a",
            "pair[0]",
        ]


class TestReading:
    def test_a_deep_value_is_a_problem_and_no_crash(self):
        """Recursion has an end, also in the check."""
        deep: dict[str, Any] = {"name": "a"}
        for _ in range(5000):
            deep = {"name": "a", "children": [deep]}

        assert schema_problems(output_schema(Tree), deep) == ["it is nested too deep"]

    def test_without_a_schema_numbers_are_floats(self):
        """Plain JSON, clean."""
        assert read_json('{"a": [1.10, 1, "\\ud83c"]}') == {"a": [1.1, 1, "\ufffd"]}

    def test_digits_are_kept_through_references_patterns_and_combinations(self):
        """Schemas made by hand use more of JSON Schema than pydantic does."""
        decimal = {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]}
        schema = {
            "type": "object",
            "properties": {
                "all": {"allOf": [{"$ref": "#/$defs/a~1b"}]},
                "first": {"prefixItems": [{"type": "number"}, decimal], "items": decimal},
                "no": {"type": "number"},
            },
            "patternProperties": {"^x": decimal},
            "additionalProperties": {"oneOf": [{"type": "array", "items": decimal}, {"type": "number"}]},
            "$defs": {"a/b": decimal},
        }

        value = read_json(
            '{"all": 1.10, "first": [1.10, 1.10, 1.10], "no": 1.10, "x1": 1.10, "y": [1.10], "z": 1.10}',
            schema,
        )

        assert value == {
            "all": "1.10",
            "first": [1.1, "1.10", "1.10"],
            "no": 1.1,
            "x1": "1.10",
            "y": ["1.10"],
            "z": 1.1,
        }


class TestFormats:
    """What the schema alone finds of a type that is not known where the answer is checked."""

    @pytest.mark.parametrize(
        ("format", "fits", "unfit"),
        [
            ("date", "2027-01-01", "2027-02-30"),
            ("date-time", "2027-01-01T12:00:00Z", "tomorrow"),
            ("time", "12:00:00", "25:00"),
            ("duration", "P1DT2H", "a while"),
            ("uuid", "12345678-1234-5678-1234-567812345678", "7"),
            ("uuid4", "12345678-1234-4678-9234-567812345678", "12345678-1234-1678-9234-567812345678"),
            ("uri", "https://a.example/b", "b"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "10.0.0.1"),
            ("ipvanynetwork", "10.0.0.0/8", "10.0.0.0/99"),
            ("made-up", "x", None),
        ],
    )
    def test_they_are_checked(self, format, fits, unfit):
        """A13: a date must be one; a format that nobody knows says nothing. Tools' arguments are left to the tool."""
        schema = {"type": "object", "properties": {"v": {"type": "string", "format": format}}}

        assert check_answer(schema, json.dumps({"v": fits}))[1] == []
        if unfit is not None:
            assert check_answer(schema, json.dumps({"v": unfit}))[1] == [f"v: {unfit!r} is not a {format!r}"]
            assert schema_problems(schema, {"v": unfit}) == []

    @pytest.mark.parametrize("price", ["-1", "0", "1.123", -1, "x"])
    def test_a_decimals_bounds_hold_for_its_strings(self, price):
        """FR-86: a number that is written as a string is no way round them."""
        schema = output_schema(Priced)

        assert check_answer(schema, json.dumps({"price": price}))[1] != []
        assert check_answer(schema, '{"price": "1.10"}') == ({"price": "1.10"}, [])
