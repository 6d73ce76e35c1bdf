"""What a workflow tells its agent on purpose: once, whatever dies where."""

from typing import Any, ClassVar

import pytest

from tests.domain.flows import Handle, flow
from think_celery import Think
from think_celery.domain.workflows import workflows
from think_celery.ids import WorkflowRef
from think_celery.testing import ThinkTest


class Teller(Think):
    """An agent that notes what it is told of its workflows."""

    told: ClassVar[list[Any]] = []

    def on_workflow_complete(self, news: Any) -> None:
        self.told.append(("complete", news.output))

    def on_workflow_error(self, news: Any) -> None:
        self.told.append(("error", news.error_type, news.error))

    def on_workflow_event(self, news: Any) -> None:
        self.told.append(("event", news.event["type"], news.event["payload"]))


def reporting(t: ThinkTest, run: Any) -> Handle:
    Teller.told.clear()
    flow(run)
    workflows.start(t.rt, Teller("r")._ref, "Flow", workflow_id="w1")
    return Handle(t.rt, WorkflowRef("Flow", "w1"))


def everything(event: Any, step: Any) -> str:
    step.send_event("half", {"n": 1})
    step.send_event("half", {"n": 2})
    step.report_error(LookupError("handled"))
    step.report_complete("early")
    step.sleep("nap", 5)
    return "late"


ONCE = [
    ("event", "half", {"n": 1}),
    ("event", "half", {"n": 2}),
    ("error", "LookupError", "handled"),
    ("complete", "early"),
]


def test_each_is_told_once_in_order(t: ThinkTest):
    """A25: replays tell nothing again; a report of the result comes before the end, which then tells nothing more."""
    workflow = reporting(t, everything)
    t.run_until_idle()
    assert Teller.told == ONCE
    t.skip(6)

    assert Teller.told == ONCE
    assert workflow.output == "late"
    assert [key for key, _ in workflow.keys][:4] == [
        *("send-event", "send-event#2", "report-error", "report-complete")
    ]


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (lambda step: None, [("error", "ValueError", "the end")]),
        (lambda step: step.report_error("soon"), [("error", "Error", "soon")]),
        (lambda step: [step.report_error(text) for text in ("soon", "again")], [("error", "Error", "soon")]),
        (lambda step: step.report_complete(1), [("complete", 1), ("error", "ValueError", "the end")]),
    ],
)
def test_a_run_that_ends_in_error(t: ThinkTest, report: Any, told: list[Any]):
    """A25: of errors the first report is the one that is told, once a run; the row has the error of the end."""

    def run(event, step):
        report(step)
        raise ValueError("the end")

    workflow = reporting(t, run)
    t.run_until_idle()
    t.skip(60)

    assert Teller.told == told
    assert (workflow.row.error_type, workflow.row.error) == ("ValueError", "the end")


@pytest.mark.parametrize("point", ["before", "before-commit", "committed"])
@pytest.mark.parametrize("step", ["send-event", "report-error", "report-complete"])
def test_killed_anywhere(quick: ThinkTest, step: str, point: str):
    """Entry and job are one transaction."""
    t = quick
    t.crash_at(f"step:{step}:{point}")
    workflow = reporting(t, everything)
    t.run_until_idle()
    t.skip(60)

    assert t.crashes == [f"step:{step}:{point}"]
    assert sorted(Teller.told, key=str) == sorted(ONCE, key=str)
    assert workflow.output == "late"


def test_what_can_not_be_told(t: ThinkTest):
    """Refused with words, alike on replay; what can't be stored is a permanent error."""
    seen: list[list[str]] = []

    def run(event, step):
        said = []
        for tell in (
            lambda: step.send_event(""),
            lambda: step.send_event("think-x"),
            lambda: step.send_event("x", {1, 2}),
            lambda: step.report_complete("x" * 2**21),
            lambda: step.report_error(5),
        ):
            try:
                tell()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        seen.append(said)
        step.sleep("nap", 5)

    reporting(t, run)
    t.run_until_idle()
    t.skip(6)

    assert seen[0] == seen[1]
    assert [text.partition(":")[0] for text in seen[0]] == [
        *("StepMisuse", "StepMisuse", "StepError", "StepError", "StepMisuse")
    ]
    assert Teller.told == [("complete", None)]
