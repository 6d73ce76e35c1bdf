"""A function as a tool: its schema, the check of its arguments, its call and its result."""

import dataclasses
import enum
import functools
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, StrictInt

from tests.ground.samples import Cat, Color, Line, Tree
from think_celery import approvals
from think_celery.errors import (
    AsyncNotSupported,
    InvalidDuration,
    InvalidTool,
    InvalidToolArguments,
    InvalidToolResult,
    UnsupportedSchema,
)
from think_celery.signals import AbortController
from think_celery.tools import (
    Tool,
    ToolContext,
    as_tool,
    as_tools,
    client_tool,
    dump_result,
    parse_arguments,
    tool,
    tools_of,
)

CONTEXT = ToolContext(
    agent_name="issue-42",
    submission_id="s",
    message_id="m",
    tool_call_id="call_1",
    idempotency_key="s:0:0",
    attempt=1,
    signal=AbortController().signal,
)


class Desk:
    """Has tools of every spelling."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool
    def look_up(self, order: int, context: ToolContext, detail: Literal["short", "long"] = "short") -> str:
        """Look up an order.

        It must exist.

        Args:
            order (int): The number of the order,
                as printed on the bill.
            detail: How much to tell.
                Mostly: short.

        Returns:
            What is known.
        """
        return f"{self.owner} {order} {detail} {context.tool_call_id}"

    @tool(name="refund-order", description="Give money back.", idempotent=True, timeout="30 seconds")
    def refund(self, order: int, amount: Annotated[Decimal, Field(gt=0, description="In euros.")]) -> str:
        """Not shown."""
        return f"{order}: {amount}"

    @tool
    @staticmethod
    def ping() -> str:
        return "pong"

    @classmethod
    @tool
    def whose(cls) -> str:
        return cls.__name__

    def no_tool(self) -> None:
        raise AssertionError

    @property
    def trap(self) -> None:
        raise AssertionError("collecting tools must not read properties")


class NightDesk(Desk):
    def look_up(self, order: int, context: ToolContext, at_night: bool = True) -> str:
        return "night " + super().look_up(order, context)

    @tool
    def refund(self, order: int) -> str:
        """Refuse."""
        return "no"

    ping = None

    @tool
    def lock(self) -> None:
        """Lock up."""


def named(tools: list[Tool]) -> dict[str, Tool]:
    return {each.name: each for each in tools}


class TestDeclaring:
    def test_a_decorated_function_is_the_plain_function(self):
        """Called directly, a `@tool` method is the plain method."""

        def plain(order: int) -> int:
            return order + 1

        assert tool(plain) is plain
        assert tool(idempotent=True)(plain) is plain
        assert plain(1) == 2
        assert Desk("Ada").refund(1, Decimal(2)) == "1: 2"

    def test_async_functions_are_refused_where_they_are_written(self):
        """`async def` tools are refused, with the remedy."""

        async def fetch() -> None: ...

        async def stream() -> Any:
            yield 1

        for function in (fetch, stream):
            with pytest.raises(AsyncNotSupported, match=r"The tool '\w+' is an async function.*asyncio.run"):
                tool(function)
        with pytest.raises(AsyncNotSupported):
            as_tool(fetch)

    @pytest.mark.parametrize("name", ["", "look up", "ünfit", "a" * 65, "a\n", "look.up"])
    def test_a_name_that_vendors_refuse_is_refused(self, name):
        """Vendors take letters, digits, `_` and `-`, 64 at most."""
        with pytest.raises(InvalidTool, match=r"no name for a tool.*@tool\(name="):
            tool(name=name)(lambda: None)

    def test_a_lambda_needs_a_name(self):
        """`<lambda>` is no name."""
        with pytest.raises(InvalidTool, match="<lambda>"):
            tool(lambda: None)

    @pytest.mark.parametrize("given", [functools.partial(print), print, Desk, 3])
    def test_what_is_no_function_is_refused(self, given):
        """Signature and annotations must be there to read."""
        with pytest.raises(InvalidTool, match=r"no function.*`def`"):
            tool(given)

    def test_a_generator_is_refused(self):
        """What it yields would be lost."""

        def rows() -> Iterator[int]:
            yield 1

        with pytest.raises(InvalidTool, match=r"generator.*list"):
            tool(rows)

    def test_a_timeout_must_be_a_span(self):
        """Seconds, `timedelta` or words."""
        with pytest.raises(InvalidDuration, match="timeout='soon'"):
            tool(timeout="soon")


class TestCollecting:
    def test_the_marked_methods_are_found_in_order_and_bound(self):
        """Offered without more ado, in the order in which they were defined, with their options."""
        look_up, refund, ping, whose = tools_of(Desk("Ada"))

        assert [each.name for each in (look_up, refund, ping, whose)] == [
            "look_up",
            "refund-order",
            "ping",
            "whose",
        ]
        assert (look_up.idempotent, look_up.timeout_seconds, look_up.takes_context) == (False, None, True)
        assert (refund.idempotent, refund.timeout_seconds, refund.takes_context) == (True, 30.0, False)
        assert look_up.call({"order": 7}, CONTEXT) == "Ada 7 short call_1"
        assert (ping.call({}, CONTEXT), whose.call({}, CONTEXT)) == ("pong", "Desk")

    def test_an_override_stays_a_tool_with_its_own_signature(self):
        """Undecorated: the options and, without a docstring of its own, the description of the one above."""
        tools = named(tools_of(NightDesk("Ada")))

        assert list(tools) == ["look_up", "refund", "whose", "lock"]
        assert tools["look_up"].description.startswith("Look up an order.")
        assert set(tools["look_up"].parameters["properties"]) == {"order", "at_night"}
        assert tools["look_up"].call({"order": 1}, CONTEXT) == "night Ada 1 short call_1"

    def test_a_decorated_override_has_its_own_options(self):
        """The nearest `@tool` counts."""
        tools = named(tools_of(NightDesk("Ada")))

        assert (tools["refund"].description, tools["refund"].idempotent) == ("Refuse.", False)

    def test_an_override_that_is_no_method_removes_the_tool(self):
        """As `__hash__ = None` removes hashing."""
        assert "ping" not in named(tools_of(NightDesk("Ada")))
        assert "ping" in named(tools_of(Desk("Ada")))

    def test_an_async_override_is_refused(self):
        """It was no `async def` when the base was decorated."""

        class Broken(Desk):
            async def look_up(self, order: int) -> None: ...

        with pytest.raises(AsyncNotSupported):
            tools_of(Broken("Ada"))

    def test_two_tools_of_one_name_are_refused(self):
        """The model could not tell them apart."""

        class Twice:
            @tool
            def one(self) -> None: ...

            @tool(name="one")
            def other(self) -> None: ...

        with pytest.raises(InvalidTool, match="another tool has this name"):
            tools_of(Twice())
        with pytest.raises(InvalidTool, match="another tool has this name"):
            as_tools([Twice().one, Twice().one])

    def test_a_decorator_around_a_tool_keeps_it_one(self):
        """With functools.wraps, marks, annotations and docstring shine through, and the wrapper is called."""

        def shouting(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs).upper()

            return wrapper

        class Loud:
            @shouting
            @tool(idempotent=True)
            def say(self, words: str) -> str:
                """Say it."""
                return words

        (say,) = tools_of(Loud())

        assert (say.description, say.idempotent, list(say.parameters["properties"])) == (
            "Say it.",
            True,
            ["words"],
        )
        assert say.call(say.validate({"words": "hi"}), CONTEXT) == "HI"

    def test_functions_and_methods_become_tools_on_request(self):
        """What `get_tools()` returns may be decorated or not, or a Tool already."""

        def add(a: int, b: int = 1) -> int:
            """Add."""
            return a + b

        made = as_tool(add)

        assert as_tool(made) is made
        assert (made.name, made.description, made.function) == ("add", "Add.", add)
        assert as_tool(Desk("Ada").refund).name == "refund-order"
        with pytest.raises(InvalidTool, match="without its object"):
            as_tool(Desk.look_up)


class TestSchema:
    def test_self_and_context_are_not_in_it_and_descriptions_are(self):
        """Docstring → description, Args and Field → parameters, defaults shown."""
        look_up, refund, ping, _ = tools_of(Desk("Ada"))

        assert look_up.description == "Look up an order.\n\nIt must exist.\n\nReturns:\n    What is known."
        assert look_up.parameters == {
            "type": "object",
            "properties": {
                "order": {
                    "type": "integer",
                    "description": "The number of the order, as printed on the bill.",
                },
                "detail": {
                    "type": "string",
                    "enum": ["short", "long"],
                    "default": "short",
                    "description": "How much to tell. Mostly: short.",
                },
            },
            "required": ["order"],
            "additionalProperties": False,
        }
        assert refund.description == "Give money back."
        assert refund.parameters["properties"]["amount"]["description"] == "In euros."
        assert ping.parameters == {"type": "object", "properties": {}, "additionalProperties": False}

    def test_every_schema_can_be_sent(self):
        """It is plain JSON, whatever the defaults are."""

        def odd(
            at: datetime = datetime(2026, 1, 1, tzinfo=UTC),
            price: Annotated[Decimal, Field(ge=Decimal("0.5"), multiple_of=Decimal("0.01"))] = Decimal("1.5"),
            color: Color = Color.RED,
            something: Any = object(),  # noqa: B008
        ) -> None: ...

        parameters = as_tool(odd).parameters

        json.dumps(parameters, allow_nan=False)
        assert parameters["properties"]["price"]["anyOf"][0] == {
            "type": "number",
            "minimum": 0.5,
            "multipleOf": 0.01,
        }
        assert "default" not in parameters["properties"]["something"]

    @pytest.mark.parametrize(
        "spelling",
        [
            Optional[ToolContext],  # noqa: UP045
            ToolContext | None,
            Annotated[ToolContext, "x"],
        ],
    )
    def test_a_context_may_be_optional(self, spelling):
        """So that the method can be called directly without one."""

        def act(x: int, ctx=None): ...

        act.__annotations__["ctx"] = spelling

        assert as_tool(act).takes_context
        assert list(as_tool(act).parameters["properties"]) == ["x"]

    def test_parameters_may_have_any_name(self):
        """Names that pydantic keeps for itself, or that begin with an underscore, are the user's to use."""

        def act(
            _hidden: int, model_config: str, schema: str, copy: int, p0: int, alias: int = 3
        ) -> dict[str, Any]:
            return locals()

        given = {"_hidden": 1, "model_config": "a", "schema": "b", "copy": 2, "p0": 5}
        made = as_tool(act)

        assert set(made.parameters["properties"]) == {*given, "alias"}
        assert made.call(made.validate(given), CONTEXT) == {**given, "alias": 3}

    def test_models_recursive_ones_included_are_written_with_references(self):
        """FR-87: standard JSON Schema, nothing left out."""

        def plant(tree: Tree, lines: list[Line]) -> None: ...

        parameters = as_tool(plant).parameters

        assert parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
        assert parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}

    @pytest.mark.parametrize(
        ("function", "problem"),
        [
            (lambda *args: None, r"'\*args' can't be passed by name"),
            (lambda **kwargs: None, r"'\*\*kwargs' can't be passed by name"),
            (lambda x, /: None, "'x' can't be passed by name"),
            (
                lambda x=Field(3): None,  # noqa: B008
                "the default of 'x' is a pydantic Field",
            ),
        ],
    )
    def test_parameters_that_a_model_cannot_pass_are_refused(self, function, problem):
        """A tool that can't be called as declared fails when it is collected."""
        with pytest.raises(InvalidTool, match=problem):
            as_tool(tool(name="act")(function))

    def test_annotations_without_a_schema_are_refused(self):
        """Parameters of arbitrary classes, or of names that aren't there at run time."""

        def foreign(desk: Desk) -> None: ...

        def missing(desk: "Nowhere") -> None: ...  # noqa: F821

        def code(callback: int | type[Desk]) -> None: ...

        def two(a: ToolContext, b: ToolContext) -> None: ...

        for function, problem in [
            (foreign, "no JSON Schema"),
            (missing, "can't be resolved.*Nowhere"),
            (code, "no JSON Schema"),
            (two, "two parameters ask for the ToolContext"),
        ]:
            with pytest.raises(InvalidTool, match=problem):
                as_tool(function)

    def test_it_is_read_once_for_all_agents(self):
        """Thousands of agents of one class must not make thousands of schemas."""
        one, other = tools_of(Desk("a"))[0], tools_of(Desk("b"))[0]

        assert one.parameters is other.parameters


class TestArguments:
    def test_they_are_made_what_the_function_declares(self):
        """JSON has no dates, UUIDs, enums, models; pydantic makes them, strict types included."""

        @dataclasses.dataclass
        class Place:
            town: str

        class Order(BaseModel):
            id: UUID
            lines: list[Line]

        def act(
            order: Order, place: Place, on: date, color: Color, pair: tuple[int, str], n: StrictInt
        ) -> Any: ...

        act.__annotations__.update(order=Order, place=Place)
        kwargs = as_tool(act).validate(
            {
                "order": {
                    "id": "0190b4b2-7c1e-7000-8000-000000000001",
                    "lines": [{"sku": "A", "price": "1.10"}],
                },
                "place": {"town": "Bern"},
                "on": "2026-03-01",
                "color": 1,
                "pair": [1, "a"],
                "n": 5,
            }
        )

        assert kwargs["order"].lines[0].price == Decimal("1.10")
        assert (kwargs["place"], kwargs["on"]) == (Place("Bern"), date(2026, 3, 1))
        assert (kwargs["color"], kwargs["pair"], kwargs["n"]) == (Color.RED, (1, "a"), 5)

    def test_what_was_left_out_stays_out(self):
        """The function's own defaults hold."""
        assert tools_of(Desk("Ada"))[0].validate({"order": "7"}) == {"order": 7}

    def test_problems_name_their_paths_for_the_model(self):
        """The text goes to the model, so that it can mend its call."""

        def act(lines: list[Line], count: int) -> None: ...

        with pytest.raises(InvalidToolArguments) as refused:
            as_tool(act).validate({"lines": [{"sku": "A", "price": "x"}, 3], "more": 1})

        assert refused.value.tool == "act"
        assert [problem.partition(":")[0] for problem in refused.value.problems] == [
            "lines[0].price",
            "lines[1]",
            "count",
            "more",
        ]
        assert "lines[0].price: " in str(refused.value)

    @pytest.mark.parametrize("given", [None, "", " ", "\n\t", "{}", {}])
    def test_none_means_no_arguments(self, given):
        """FR-73: empty, blank, null or missing arguments call the tool with {}."""
        assert parse_arguments(given) == {}

    def test_an_object_passes_and_texts_are_cleaned(self):
        """FR-73, FR-37: some servers send an object; a pair of escapes is one character, a lone one U+FFFD."""
        assert parse_arguments({"a": "x\ud83c"}) == {"a": "x\ufffd"}
        assert parse_arguments('{"a": "\\ud83c\\udf78", "b": "\\ud83c!"}') == {
            "a": "\U0001f378",
            "b": "\ufffd!",
        }

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ('{"a": ', "not valid JSON"),
            ("{'a': 1}", "not valid JSON"),
            ('{"a": NaN}', "NaN is not in JSON"),
            ('{"a": 1e999}', "too large"),
            ("[" * 100_000, "not valid JSON"),
            ("null", "must be a JSON object, not null"),
            ("[1]", "must be a JSON object, not an array"),
            ('"x"', "must be a JSON object, not a string"),
            ("true", "must be a JSON object, not true or false"),
            ("1.5", "must be a JSON object, not a number"),
        ],
    )
    def test_what_is_no_object_is_told_to_the_model(self, given, problem):
        """Invalid JSON is an answer for the model, never a crash of the turn."""
        with pytest.raises(InvalidToolArguments, match=problem) as refused:
            parse_arguments(given)

        assert len(str(refused.value)) < 1000

    @pytest.mark.parametrize(
        "written", ["1.10", '"1.10"', "0.12345678901234567890123", "1E-7", '"1E-7"', "3"]
    )
    def test_decimals_keep_their_digits(self, written):
        """FR-86: 1.10 is not taken through float, also when the arguments were stored in between."""
        refund = tools_of(Desk("Ada"))[1]

        arguments = parse_arguments(f'{{"order": 1, "amount": {written}}}', refund.parameters)
        stored = json.loads(json.dumps(arguments))

        assert str(refund.validate(stored)["amount"]) == str(Decimal(written.strip('"')))


class TestHandMade:
    """A tool for a schema that came from elsewhere."""

    def made(self, **changes: Any) -> Tool:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        given = {"name": "act", "description": "", "parameters": schema, "function": lambda n: n, **changes}
        return Tool(**given)

    def test_arguments_are_checked_against_its_schema(self):
        """They are passed as the model wrote them."""
        made = self.made()

        assert made.call(made.validate({"n": 3}), CONTEXT) == 3
        with pytest.raises(InvalidToolArguments, match="n: 'x' is not of type 'integer'"):
            made.validate({"n": "x"})

    @pytest.mark.parametrize(
        "changes",
        [
            {"name": "a b"},
            {"parameters": {"type": "array"}},
            {"parameters": {"type": "nonsense"}},
            {"parameters": {"type": "object", "properties": {"a": {"$ref": "https://example.com/s"}}}},
            {"function": 3},
        ],
    )
    def test_it_is_checked_when_it_is_made(self, changes):
        """No reference leads out of the schema: nothing is fetched from the network."""
        with pytest.raises(InvalidTool):
            self.made(**changes)


class TestCalling:
    def test_what_the_function_raises_goes_through(self):
        """The turn decides what the model is told."""

        def fail() -> None:
            raise LookupError("no such order")

        with pytest.raises(LookupError, match="no such order"):
            as_tool(fail).call({}, CONTEXT)

    def test_a_coroutine_as_result_is_refused(self):
        """A plain function that returns what an async one made would never run it."""

        async def later() -> None: ...

        def act() -> Any:
            return later()

        with pytest.raises(AsyncNotSupported, match="'act' returned"):
            as_tool(act).call({}, CONTEXT)


class Mood(enum.Enum):
    GOOD = "good"


@pytest.mark.parametrize(
    ("value", "dumped"),
    [
        (None, None),
        ("a\ud83cb", "a\ufffdb"),
        ("\ud83c\udf78", "\U0001f378"),
        ({"k\ud83c": ["\ud83c"]}, {"k\ufffd": ["\ufffd"]}),
        ({1: (2, {3})}, {"1": [2, [3]]}),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (timedelta(days=1), "P1D"),
        (Mood.GOOD, "good"),
        (b"\xff", "_w=="),
        (float("nan"), "NaN"),
        ([float("inf"), {"a": float("-inf")}], ["Infinity", {"a": "-Infinity"}]),
        (Tree(name="a"), {"name": "a", "children": []}),
        (Cat(kind="cat", lives=9, weight=float("nan")), {"kind": "cat", "lives": 9, "weight": "NaN"}),
        ((n for n in "ab"), ["a", "b"]),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0][:30],
)
def test_a_result_is_anything_that_pydantic_can_dump(value, dumped):
    """Tool results are looser than steps, and clean (FR-37): they are valid JSON and valid UTF-8."""
    result = dump_result(value)

    assert result == dumped
    json.dumps(result, allow_nan=False, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    "value",
    [object(), [lambda: 1], {"a": Desk("Ada")}, ValueError("x")],
    ids=["object", "function", "instance", "error"],
)
def test_a_result_without_json_form_is_an_error(value):
    """It names the tool and the type, and what could be returned instead; it says each thing once."""
    with pytest.raises(
        InvalidToolResult, match=r"^The result of the tool look, an? \w+, has.*models"
    ) as raised:
        dump_result(value, "look")

    assert str(raised.value).count("no JSON form") == 1


def test_a_result_that_contains_itself_is_an_error():
    """Not an endless recursion."""
    around: list[Any] = []
    around.append(around)

    with pytest.raises(InvalidToolResult):
        dump_result(around)


class TestApprovals:
    """B26: which calls of a tool need somebody's approval."""

    def made(self, needs_approval: Any, **arguments: Any) -> bool:
        @tool(needs_approval=needs_approval)
        def pay(euros: int, to: str = "Ann", context: ToolContext | None = None) -> None:
            """Pay."""

        made = as_tool(pay)
        return made.asks_first(made.validate(arguments))

    @pytest.mark.parametrize(("asks", "expected"), [(True, True), (False, False), (lambda **all: True, True)])
    def test_always_never_or_by_a_function(self, asks, expected):
        """The same for each call, or what a function says of it."""
        assert self.made(asks, euros=1) is expected

    def test_a_function_takes_what_it_names(self):
        """It gets arguments as the tool would, with the tool's defaults, and nothing that it does not name."""
        told: list[Any] = []

        assert self.made(lambda euros: told.append(euros) or euros > 5, euros=9)
        assert not self.made(lambda euros, to, much=7: told.append((euros, to, much)) or False, euros="9")
        assert not self.made(lambda **given: told.append(given) or False, euros=9, to="Bob")
        assert told == [9, (9, "Ann", 7), {"euros": 9, "to": "Bob"}]

    @pytest.mark.parametrize("answer", [None, 0, "", [], "no"])
    def test_only_false_means_no(self, answer, caplog):
        """A function that forgot to return, or returns no bool, asks; that is logged once, with the tool's name."""
        approvals._warn_of_no_bool.cache_clear()

        assert self.made(lambda euros: answer, euros=1) is True
        assert self.made(lambda euros: answer, euros=1) is True

        (record,) = [each for each in caplog.records if "needs_approval of tool pay" in each.message]
        assert (record.levelname, type(answer).__name__ in record.message) == ("WARNING", True)

    @pytest.mark.parametrize(
        ("asks", "problem"),
        [
            (lambda amount: True, "'amount', which is none of the tool's parameters"),
            (lambda context: True, "'context'"),
            (lambda euros, /: True, "'euros'"),
            ("yes", "needs_approval is 'yes'"),
            (1, "needs_approval is 1"),
        ],
    )
    def test_what_can_not_decide_is_refused(self, asks, problem):
        """When the tool is made, not when its call waits."""
        with pytest.raises(InvalidTool, match=re.escape(problem)):
            self.made(asks, euros=1)

    def test_an_async_function_is_refused(self):
        """As all that turns call."""

        async def asks(euros: int) -> bool:
            return True

        with pytest.raises(AsyncNotSupported, match="needs_approval"):
            self.made(asks, euros=1)

    def test_a_tool_made_by_hand(self):
        """A function gets the arguments as the model wrote them; a name that the schema lacks is refused."""
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        made = Tool(
            name="x", description="", parameters=schema, function=lambda n: n, needs_approval=lambda n: n > 1
        )

        assert made.asks_first({"n": 2})
        with pytest.raises(InvalidTool, match="'m'"):
            Tool(
                name="x",
                description="",
                parameters=schema,
                function=lambda n: n,
                needs_approval=lambda m: True,
            )

    def test_an_overriding_method_keeps_it(self):
        """An approval that a base asks for is not lost by overriding the method."""

        class Base:
            @tool(needs_approval=True)
            def pay(self, euros: int) -> None:
                """Pay."""

        class Sub(Base):
            def pay(self, euros: int) -> None:
                """Pay."""

        (made,) = tools_of(Sub())
        assert made.needs_approval is True


class Place(BaseModel):
    lat: float


class TestClientTools:
    """B26: tools that a client runs."""

    @pytest.mark.parametrize(
        ("parameters", "fits", "unfit"),
        [
            (None, {}, {"a": 1}),
            (Place, {"lat": 1.5}, {"lat": "north"}),
            ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 1}, {"n": "x"}),
        ],
    )
    def test_its_schema(self, parameters, fits, unfit):
        """Nothing, a type or a JSON Schema: the model's arguments are checked before any client sees them."""
        made = client_tool("locate", "Where?", parameters)

        assert (made.name, made.description, made.is_client) == ("locate", "Where?", True)
        assert made.parameters["type"] == "object"
        assert made.validate(fits) == fits
        with pytest.raises(InvalidToolArguments):
            made.validate(unfit)
        assert not made.asks_first(fits)

    @pytest.mark.parametrize("name", ["", "a b", "x" * 65, 7])
    def test_a_name_that_is_none(self, name):
        """The model must be able to call it."""
        with pytest.raises(InvalidTool, match="no name for a tool"):
            client_tool(name, "")

    def test_what_is_refused(self):
        """A schema of something else than an object, a type that has none, an approval beside the client's answer."""
        with pytest.raises(InvalidTool, match="object"):
            client_tool("x", "", {"type": "string"})
        with pytest.raises(UnsupportedSchema):
            client_tool("x", "", int)
        with pytest.raises(InvalidTool, match="a client runs it"):
            Tool(name="x", description="", parameters={"type": "object"}, needs_approval=True)

    def test_among_functions(self):
        """It is offered like any other; two of one name are refused."""
        made = client_tool("locate", "Where?")

        assert as_tools([made]) == [made]
        with pytest.raises(InvalidTool, match="another tool has this name"):
            as_tools([made, made])
