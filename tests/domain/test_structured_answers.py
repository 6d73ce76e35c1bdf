"""A10, FR-86, FR-87: structured answers over real wires come back whole, as the type that was asked for."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.domain.flows import Desk, begin
from tests.providers import anthropic_frames
from tests.providers.server import ModelServer, tool_call_frames
from think_celery.providers.anthropic import AnthropicModel
from think_celery.providers.openai import OpenAIModel
from think_celery.testing import ThinkTest


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Square(BaseModel):
    kind: Literal["square"] = "square"
    side: float


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: float


class Node(BaseModel):
    """A tree of shapes, with everything that is easily lost on the way."""

    name: str
    price: Decimal
    due: date
    seen_at: datetime
    colour: Colour
    shape: Square | Circle
    note: str | None = None
    children: list["Node"] = []


LEAF = Node(
    name="leaf",
    price=Decimal("1.10"),
    due=date(2026, 2, 28),
    seen_at=datetime(2026, 2, 28, 12, tzinfo=UTC),
    colour=Colour.BLUE,
    shape=Circle(radius=0.5),
)
TREE = LEAF.model_copy(update={"name": "tree", "shape": Square(side=2), "note": "tall", "children": [LEAF]})

seen: list[Any] = []


@pytest.fixture
def server() -> Iterator[ModelServer]:
    seen.clear()
    with ModelServer() as server:
        yield server


def written(strict: bool) -> dict[str, Any]:
    """The tree as a model writes it: a decimal as a number; in strict mode null for what is left out."""
    whole: dict[str, Any] = json.loads(TREE.model_dump_json())
    for node in (whole, *whole["children"]):
        node["price"] = 1.10
        if strict:
            node["children"] = node["children"] or None
        elif not node["children"]:
            del node["children"]
    return whole


def run(event: Any, step: Any) -> str:
    seen.append(step.prompt("draw", prompt="Draw a tree.", output=Node))
    return "drawn"


def asked(t: ThinkTest, model: Any, frames: Any, server: ModelServer) -> Any:
    server.script(frames)
    t.use_model(model, Desk)
    done = begin(t, run)
    assert done.status == "complete", done.row.error
    return seen[-1]


class TestForcedTools:
    @pytest.mark.parametrize("schemas", ["standard", "strict"])
    def test_over_openais_wire(self, t: ThinkTest, server: ModelServer, schemas: Any) -> None:
        """A recursive model with a union, a decimal, dates and an enum: equal to what the model wrote."""
        model = OpenAIModel("m", api_key="k-1", base_url=server.base_url, schemas=schemas)
        frames = tool_call_frames(("think_final_answer", written(schemas == "strict")))

        assert asked(t, model, frames, server) == TREE
        assert seen[-1].children[0].price.as_tuple().exponent in (-1, -2)
        body = server.requests[0]
        assert body["tool_choice"]["function"]["name"] == "think_final_answer"
        assert body["tools"][0]["function"].get("strict", False) is (schemas == "strict")

    def test_over_anthropics_wire(self, t: ThinkTest, server: ModelServer) -> None:
        """The same."""
        model = AnthropicModel("m", api_key="k-1", base_url=server.base_url)
        block = anthropic_frames.call_block(0, "think_final_answer", written(False))

        assert asked(t, model, anthropic_frames.message(block, reason="tool_use"), server) == TREE
        assert server.requests[0]["tool_choice"] == {"type": "tool", "name": "think_final_answer"}


class TestTurns:
    def test_thinking_and_tools_over_anthropics_wire(self, quick: ThinkTest, server: ModelServer) -> None:
        """FR-83: a turn with thinking and a tool: the second request holds the thinking signed, and it is no text."""
        server.script(
            anthropic_frames.message(
                anthropic_frames.thinking_block("hm hm"),
                anthropic_frames.call_block(1, "add", {"a": 1, "b": 2}),
                reason="tool_use",
            ),
            anthropic_frames.message(anthropic_frames.text_block("It is 3.")),
        )
        quick.use_model(AnthropicModel("m", api_key="k-1", base_url=server.base_url), Desk)
        desk = Desk("sums")

        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        def tools(self: Any) -> Any:
            return [add]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Desk, "get_tools", tools)
            submission = desk.submit_messages("Add 1 and 2.")
            quick.run_until_idle()

        done = desk.inspect_submission(submission.submission_id)
        assert done is not None
        assert (str(done.status), done.message().text) == ("completed", "It is 3.")
        sent = server.requests[1]["messages"]
        assert [block["type"] for block in sent[1]["content"]] == ["thinking", "tool_use"]
        assert sent[1]["content"][0]["signature"] == "sig-1"
        assert sent[2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}]
        assert done.message().metadata["usage"]["input_tokens"] == 6
