"""Every error that a step can raise: the same on the first pass and on each replay, by type, text and attributes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import DESK, Desk, begin, flow, start
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import workflows
from think_celery.errors import NonRetryableError
from think_celery.providers.scripted import answer, fail
from think_celery.retries import Retry
from think_celery.testing import ThinkTest

ONCE = Retry(max_attempts=1)
TOO_LARGE = 2 * 1024 * 1024


class Word(BaseModel):
    """What a prompt is answered with."""

    word: str


def raises(error: BaseException) -> Callable[[], Any]:
    """A function that raises it."""

    def function() -> Any:
        raise error

    return function


def commits(conn: Any) -> None:
    """A function that ends the transaction which is not its own."""
    conn.commit()


async def later() -> None:
    """Not a plain function."""


def ask(step: Any, **options: Any) -> Any:
    given = {"prompt": "?", "output": Word, **options}
    return step.prompt("ask", **given)


def twice(step: Any) -> None:
    ask(step)
    ask(step)


def gathered(step: Any) -> None:
    handles = [step.start_prompt("ask", prompt="?", output=Word, key=key) for key in "ab"]
    step.gather(*handles)


def any_of(step: Any) -> None:
    step.wait_any(step.start_prompt("ask", prompt="?", output=Word), "never", name="first")


def nested(step: Any) -> None:
    step.do("outer", lambda: step.do("inner", lambda: None), retry=ONCE)


def in_transaction(step: Any) -> None:
    step.transaction("outer", lambda conn: step.now(), retry=ONCE)


def child(step: Any, **options: Any) -> None:
    step.run_workflow("child", options.pop("workflow", "Child"), **options)


CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "do: raised": (lambda step: step.do("a", raises(KeyError("x")), retry=ONCE), "StepError"),
    "do: raised each time": (
        lambda step: step.do("a", raises(OSError(5, "disk")), retry=Retry(max_attempts=3, delay=1)),
        "StepError",
    ),
    "do: not to be tried again": (lambda step: step.do("a", raises(NonRetryableError("no"))), "StepError"),
    "do: can't be stored": (lambda step: step.do("a", lambda: {1, 2}), "StepError"),
    "do: too large": (lambda step: step.do("a", lambda: "x" * TOO_LARGE), "StepError"),
    "do: does not fit": (lambda step: step.do("a", lambda: {"word": 5}, output=Word), "StepError"),
    "do: a step in a step": (nested, "StepError"),
    "do: no function": (lambda step: step.do("a", 5), "StepMisuse"),
    "do: needs two arguments": (lambda step: step.do("a", lambda x, y: None), "StepMisuse"),
    "do: async": (lambda step: step.do("a", later), "AsyncNotSupported"),
    "do: no name": (lambda step: step.do("", lambda: None), "StepMisuse"),
    "do: no retry": (lambda step: step.do("a", lambda: None, retry="twice"), "StepMisuse"),
    "transaction: no retry": (lambda step: step.transaction("a", lambda conn: None, retry=2), "StepMisuse"),
    "do: no queue": (lambda step: step.do("a", lambda: None, queue=""), "StepMisuse"),
    "do: no span": (lambda step: step.do("a", lambda: None, timeout="soon"), "InvalidDuration"),
    "transaction: raised": (
        lambda step: step.transaction("a", lambda conn: raises(ValueError("x"))(), retry=ONCE),
        "StepError",
    ),
    "transaction: ended by its function": (lambda step: step.transaction("a", commits), "StepError"),
    "transaction: too large": (lambda step: step.transaction("a", lambda conn: "x" * TOO_LARGE), "StepError"),
    "transaction: a step in it": (in_transaction, "StepError"),
    "event: late": (lambda step: step.wait_for_event("w", type="never", timeout=10), "WorkflowTimeoutError"),
    "event: no type": (lambda step: step.wait_for_event("w", type=""), "StepMisuse"),
    "approval: refused": (lambda step: step.wait_for_approval("no"), "WorkflowRejectedError"),
    "approval: no decision": (
        lambda step: (step.wait_for_event("x", type="approval"), step.wait_for_approval("odd")),
        "StepError",
    ),
    "approval: late": (
        lambda step: (
            [step.wait_for_event(f"x{n}", type="approval") for n in range(2)]
            and step.wait_for_approval("a", timeout=10)
        ),
        "WorkflowTimeoutError",
    ),
    "sleep: no span": (lambda step: step.sleep("s", -1), "InvalidDuration"),
    "sleep until: no zone": (lambda step: step.sleep_until("s", None), "StepMisuse"),
    "prompt: the turn failed": (ask, "ThinkPromptError"),
    "prompt: late": (lambda step: ask(step, timeout=5), "ThinkPromptTimeoutError"),
    "prompt: aborted": (ask, "ThinkPromptAbortedError"),
    "prompt: skipped": (ask, "ThinkPromptSkippedError"),
    "prompt: unfit answer": (ask, "ThinkPromptValidationError"),
    "prompt: too large": (lambda step: ask(step, prompt="x" * TOO_LARGE), "StepError"),
    "prompt: no object": (lambda step: ask(step, output=int), "UnsupportedSchema"),
    "prompt: too many answers": (lambda step: ask(step, max_steps=1, output_retries=3), "StepMisuse"),
    "prompt: no key": (lambda step: ask(step, key=""), "StepMisuse"),
    "prompt: no agent": (lambda step: ask(step, agent="Desk"), "StepMisuse"),
    "prompt: an unknown agent": (lambda step: ask(step, agent=("Nobody", "x")), "UnknownClass"),
    "prompt: no message": (lambda step: ask(step, prompt=5), "InvalidMessage"),
    "prompt: one name twice": (twice, "DuplicateStep"),
    "start_prompt: too large": (
        lambda step: step.start_prompt("ask", prompt="x" * TOO_LARGE, output=Word),
        "StepError",
    ),
    "gather: the first error": (gathered, "ThinkPromptValidationError"),
    "gather: no handle": (lambda step: step.gather("ask"), "StepMisuse"),
    "any: late": (
        lambda step: step.wait_any("never", "nor this", name="w", timeout=10),
        "WorkflowTimeoutError",
    ),
    "any: a prompt failed": (any_of, "ThinkPromptValidationError"),
    "any: nothing": (lambda step: step.wait_any(), "StepMisuse"),
    "any: a list": (lambda step: step.wait_any(["a", "b"]), "StepMisuse"),
    "any: a span among the types": (lambda step: step.wait_any("a", "3 days"), "StepMisuse"),
    "gather: a list": (lambda step: step.gather([]), "StepMisuse"),
    "event: a span as its name": (lambda step: step.wait_for_event("3 days", type="a"), "StepMisuse"),
    "approval: a span as its name": (lambda step: step.wait_for_approval("3 days"), "StepMisuse"),
    "approval: seconds as its name": (lambda step: step.wait_for_approval(60), "StepMisuse"),
    "sleep: the span first": (lambda step: step.sleep("1h30m", "nap"), "StepMisuse"),
    "sleep until: a span as its name": (lambda step: step.sleep_until("P3D", None), "StepMisuse"),
    "do: retry is a number": (lambda step: step.do("a", lambda: None, retry=3), "StepMisuse"),
    "transaction: retry is a dict": (
        lambda step: step.transaction("a", lambda conn: None, retry={"max_attempts": 3}),
        "StepMisuse",
    ),
    "child: failed": (child, "ChildWorkflowError"),
    "child: its id is taken": (lambda step: child(step, workflow_id="taken"), "ChildWorkflowError"),
    "child: late": (lambda step: child(step, workflow="Sleeper", timeout=10), "ChildWorkflowTimeoutError"),
    "child: unknown": (lambda step: child(step, workflow="Nowhere"), "UnknownClass"),
    "child: unfit params": (lambda step: child(step, params=object()), "InvalidValue"),
    "child: too large": (lambda step: child(step, params={"x": "x" * TOO_LARGE}), "PayloadTooLarge"),
    "state: raised": (lambda step: step.update_agent_state(lambda state: 1 / 0), "StepError"),
    "state: nothing": (lambda step: step.update_agent_state(lambda state: None), "StepError"),
    "state: too large": (lambda step: step.update_agent_state({"x": "x" * TOO_LARGE}), "StepError"),
    "state: no change": (lambda step: step.update_agent_state(5), "StepMisuse"),
}


def prepare(t: ThinkTest, case: str) -> None:
    """What else there is: other workflows, answers, decisions, and somebody who ends the turn."""
    flow(lambda event, step: raises(LookupError("no such"))(), name="Child")
    flow(lambda event, step: step.sleep("s", "1 day"), name="Sleeper")
    if case == "child: its id is taken":
        start(t.rt, None, id="taken", name="Child")
    said = answer({"word": "fine" if case == "prompt: one name twice" else 5})
    t.script(Desk, *[fail(400) if case == "prompt: the turn failed" else said] * 3)


def end_turn(case: str) -> None:
    """End the prompt's turn before it begins, in another way than by an answer."""
    found = [row for row in DESK.list_submissions() if row.status == "pending"]
    if case == "prompt: aborted":
        DESK.cancel_submission(found[0].submission_id, "not needed")
    if case == "prompt: skipped":
        DESK.clear_messages()


def told(error: Exception) -> tuple[Any, ...]:
    return type(error), error.args, str(error), vars(error)


@pytest.mark.parametrize("case", CASES)
def test_first_pass_and_replay_raise_the_same(quick: ThinkTest, case: str):
    """Promise of every step: an error is text, and its text is that of the first time."""
    t, (call, expected), seen = quick, CASES[case], []
    prepare(t, case)

    def run(event, step):
        try:
            call(step)
        except Exception as error:
            seen.append(told(error))
        for number in range(2):  # each replays what was before it
            step.sleep(f"nap{number}", 100)

    workflow = start(t.rt, run)
    for decision in ({"approved": False, "reason": "no"}, {"odd": True}):
        workflow.send("approval", decision)
    workflow.advance()
    end_turn(case)
    if case == "prompt: late":  # nobody takes the turn
        t.lose_messages()
        t.clock.advance(timedelta(seconds=6))
        workflows.wake_due(t.rt, 10)
        workflow.advance()
    t.run_until_idle()
    t.skip(500)

    assert [row[0].__name__ for row in seen] == [expected] * len(seen)
    assert len(seen) >= 3
    assert seen.count(seen[0]) == len(seen)
    assert workflow.status == "complete"


def test_what_is_too_large_is_told_once(quick: ThinkTest):
    """FR-31: a permanent error that names the step; it is not tried again."""

    def run(event, step):
        said = []
        for number, act in enumerate(
            [
                lambda: step.do("big", lambda: "x" * TOO_LARGE),
                lambda: ask(step, prompt="x" * TOO_LARGE),
                lambda: step.update_agent_state({"x": "x" * TOO_LARGE}),
            ]
        ):
            try:
                act()
            except Exception as error:
                said.append([number, error.step, error.error_type, error.attempts])  # type: ignore[attr-defined]
        return said

    workflow = begin(quick, run)

    assert workflow.output == [
        [0, "big", "PayloadTooLarge", 1],
        [1, "ask:submit", "PayloadTooLarge", 1],
        [2, "update-agent-state", "PayloadTooLarge", 1],
    ]
    assert submissions.find(quick.rt, None) == []
