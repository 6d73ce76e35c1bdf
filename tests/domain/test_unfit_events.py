"""What a model yields that is no event, or of other types than it says: the turn ends, and says why."""

import math
from typing import Any

import pytest

from think_celery import ChatAgent, Think
from think_celery.domain.turns.eventchecks import MOST_TOKENS
from think_celery.errors import ModelError
from think_celery.protocols import (
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    Usage,
)
from think_celery.providers.scripted import FunctionModel
from think_celery.testing import ThinkTest

END = Finish("stop", None, Usage())
UNFIT: list[tuple[Any, str]] = [
    (None, "yielded a NoneType"),
    (b"text", "yielded a bytes"),
    (TextDelta(None), "TextDelta.text is a NoneType"),
    (ReasoningDelta(5), "ReasoningDelta.text is an int"),
    (ReasoningEnd(5), "ReasoningEnd.metadata=5"),
    (StepMetadata("x"), "StepMetadata.metadata='x'"),
    (StepMetadata({"p": 5}), "by provider"),
    (ToolCallDelta(0, None, "add", "{}"), "ToolCallDelta.tool_call_id is a NoneType"),
    (ToolCallComplete(0, "c", "add", object()), "ToolCallComplete.arguments is an object"),
    (ToolCallComplete(0, "c", "", "{}"), "pass the name of a tool"),
    (ToolCallComplete(0, "c", "add", "{}", metadata=[1]), "metadata=[1]"),
    (Finish(object(), None, Usage()), "Finish.reason="),
    (Finish("done", None, Usage()), "pass one of stop, length"),
    (Finish("stop", 5, Usage()), "Finish.raw_reason is an int"),
    (Finish("stop", None, None), "Finish.usage is a NoneType"),
]


class Plain(Think):
    """Asks a model."""


class Own(ChatAgent):
    """Has a loop of its own."""

    said: Any = None

    def on_chat_message(self, ctx):
        """Yields what the test gives it."""
        yield self.said
        yield "done"


@pytest.mark.parametrize(("unfit", "why"), UNFIT)
def test_of_a_model(t: ThinkTest, unfit: Any, why: str) -> None:
    """Some had been passed over, and with some the end could not be stored: each worker asked the model anew."""

    def answer(request: Any) -> Any:
        yield from (TextDelta("a"), unfit, END)

    t.use_model(FunctionModel(answer))
    submission = Plain("a").submit_messages("Hi")
    t.run_until_idle()

    ended = Plain("a").inspect_submission(submission.submission_id)
    assert ended is not None
    assert (ended.status, ended.error_type) == ("error", "InvalidValue")
    assert why in str(ended.error)


@pytest.mark.parametrize(("unfit", "why"), UNFIT[2:])
def test_of_an_own_loop(quick: ThinkTest, monkeypatch: pytest.MonkeyPatch, unfit: Any, why: str) -> None:
    """The same of what on_chat_message yields."""
    monkeypatch.setattr(Own, "said", unfit)
    submission = Own("a").submit_messages("Hi")
    quick.run_until_idle()

    ended = Own("a").inspect_submission(submission.submission_id)
    assert ended is not None
    assert (ended.status, ended.error_type) == ("error", "InvalidValue")
    assert why in str(ended.error)


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (7, 7),
        (2**63, MOST_TOKENS),
        (10**30, MOST_TOKENS),
        (-5, 0),
        (math.nan, 0),
        (1.5, 0),
        ("7", 0),
        (None, 0),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_of_tokens_that_nobody_can_have_used(t: ThinkTest, told: Any, counts: int, fails: bool) -> None:
    """A server's wrong number is no reason to ask it again, for ever: a turn ends all the same, failed or not."""
    used = Usage(input_tokens=told, output_tokens=told, total_tokens=told)

    def answer(request: Any) -> Any:
        yield TextDelta("a")
        if fails:
            raise ModelError("no more", usage=used)
        yield Finish("stop", None, used)

    t.use_model(FunctionModel(answer))
    submission = Plain("a").submit_messages("Hi")
    t.run_until_idle()

    ended = Plain("a").inspect_submission(submission.submission_id)
    assert ended is not None
    assert ended.status == ("error" if fails else "completed")
    if not fails:
        message = Plain("a").messages[-1]
        assert message.metadata is not None
        assert message.metadata["usage"]["input_tokens"] == counts
