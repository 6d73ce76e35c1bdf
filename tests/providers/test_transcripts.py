"""The check of conversations finds each thing that a provider would refuse."""

import copy
import json
from typing import Any

import pytest

from tests.providers import transcripts
from tests.providers.transcripts import anthropic_problems, openai_problems
from think_celery.messages import StepStartPart, TextPart, ToolPart, UIMessage, user
from think_celery.protocols import ModelRequest, ToolSpec
from think_celery.providers.anthropic_request import request_body as anthropic_body
from think_celery.providers.openai_request import request_body as openai_body


def request() -> ModelRequest:
    """A conversation with two calls, one of which failed, and a text after them."""
    done = ToolPart(type="tool-x", tool_call_id="c1", state="output-available", input={"n": 1}, output="1")
    failed = ToolPart(type="tool-x", tool_call_id="c2", state="output-error", input={}, error_text="no")
    parts = [StepStartPart(), TextPart(text="Hm."), done, failed, StepStartPart(), TextPart(text="So.")]
    messages = [user("Go"), UIMessage(role="assistant", parts=parts), user("And?")]
    tool = ToolSpec(name="x", description="X.", parameters={"type": "object"})
    return ModelRequest(system="Be brief.", messages=messages, tools=[tool])


OPENAI = json.loads(openai_body("m", request(), {}))
ANTHROPIC = json.loads(anthropic_body("m", request(), {}, max_tokens=9))


def test_what_is_right_is_found_right():
    """Both providers' own requests keep every rule."""
    assert transcripts.problems(request()) == []
    assert [m["role"] for m in OPENAI["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert [m["role"] for m in ANTHROPIC["messages"]] == ["user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda m: m.pop(3), "have no result"),
        (lambda m: m.insert(3, m.pop(5)), "have no result"),
        (lambda m: m.pop(2), "answers no call"),
        (lambda m: m.append(m.pop(4)), "answers no call"),
        (lambda m: m[3].update(content=""), "has no text"),
        (lambda m: m[3].update(tool_call_id="c9"), "answers no call"),
        (lambda m: m[4].update(tool_call_id="c1"), "answers no call"),
        (lambda m: m[1].update(content=""), "says nothing"),
        (lambda m: m[5].update(content=None), "neither content nor calls"),
        (lambda m: m[5].update(content=""), "empty field"),
        (lambda m: m[2]["tool_calls"][1].update(id="c1"), "is there twice"),
        (lambda m: m[2]["tool_calls"][1].update(id=""), "is unfit"),
        (lambda m: m[2]["tool_calls"][0]["function"].update(arguments="{"), "no JSON object"),
        (lambda m: m[2]["tool_calls"][0]["function"].update(arguments="[]"), "no JSON object"),
        (lambda m: m[2]["tool_calls"][0]["function"].update(name=""), "has no function"),
        (lambda m: m.pop(), "the assistant's own"),
        (lambda m: m[1].update(role="human"), "no such role"),
        (lambda m: m.clear(), "nothing to answer"),
    ],
)
def test_openai(spoil: Any, found: str) -> None:
    """One change to a good body breaks one rule of OpenAI's chat completions."""
    body = copy.deepcopy(OPENAI)
    spoil(body["messages"])

    assert any(found in problem for problem in openai_problems(body)), openai_problems(body)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda b: b["messages"].pop(0), "roles alternate"),
        (lambda b: b["messages"].pop(2), "roles alternate"),
        (lambda b: b["messages"].pop(), "not the user's"),
        (lambda b: b["messages"][2]["content"].pop(), "the results in it"),
        (lambda b: b["messages"][1]["content"].pop(), "the results in it"),
        (
            lambda b: b["messages"][2]["content"].insert(0, {"type": "text", "text": "x"}),
            "results must stand first",
        ),
        (lambda b: b["messages"][0]["content"][0].update(text=" "), "says nothing"),
        (lambda b: b["messages"][0]["content"].clear(), "has no content"),
        (lambda b: b["messages"][1]["content"][1].update(id="a b"), "is unfit"),
        (lambda b: b["messages"][1]["content"][2].update(id="c1"), "is there twice"),
        (lambda b: b["messages"][1]["content"][1].update(input="{}"), "no object as its input"),
        (
            lambda b: b["messages"][0]["content"].append(b["messages"][1]["content"][1]),
            "the assistant's blocks",
        ),
        (lambda b: b.pop("tools"), "no tools"),
        (lambda b: b.update(system=" "), "is blank"),
    ],
)
def test_anthropic(spoil: Any, found: str) -> None:
    """One change to a good body breaks one rule of Anthropic's Messages."""
    body = copy.deepcopy(ANTHROPIC)
    spoil(body)

    assert any(found in problem for problem in anthropic_problems(body)), anthropic_problems(body)


def test_a_request_that_cannot_be_made():
    """A call without a result, which no provider's own code lets through, is a problem, too."""
    open_call = ToolPart(type="tool-x", tool_call_id="c1", state="approval-requested", input={})
    message = UIMessage(role="assistant", parts=[StepStartPart(), open_call])

    found = transcripts.problems(ModelRequest(system=None, messages=[user("Go"), message]))

    assert len(found) == 2
    with pytest.raises(AssertionError, match="has no result"):
        transcripts.check([ModelRequest(system=None, messages=[user("Go"), message])])
