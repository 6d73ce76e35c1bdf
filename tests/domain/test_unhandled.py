"""Events that nobody took, and calls of steps from where there are none."""

import threading
from typing import Any

import pytest

from tests.domain.flows import DESK, begin, start
from think_celery import ThinkClient
from think_celery.testing import ThinkTest


class TestUnhandled:
    def test_what_nobody_took_is_listed(self, t: ThinkTest):
        """FR-65: of fifty events the run takes each once, and those that came too late are listed, not lost."""

        def run(event, step):
            return [step.wait_for_event(f"w{n}", type="go").payload for n in range(40)]

        workflow = start(t.rt, run)
        for number in range(50):
            workflow.send("go", number)
            if number % 5 == 4:
                t.run_until_idle()
        workflow.send("other", "x")
        t.run_until_idle()

        assert workflow.output == list(range(40))
        left = DESK.unhandled_events("w1")
        assert left == ThinkClient().unhandled_events("w1")
        assert [(event.type, event.payload) for event in left] == [
            *[("go", number) for number in range(40, 50)],
            ("other", "x"),
        ]

    def test_of_a_run_that_took_all_there_are_none(self, t: ThinkTest):
        """Nor is the engine's own news among them."""
        assert (begin(t, lambda event, step: step.now()).status, DESK.unhandled_events("w1")) == (
            "complete",
            [],
        )


def calls(step: Any) -> dict[str, Any]:
    """Each kind of step."""
    return {
        "now": step.now,
        "sleep_until": lambda: step.sleep_until("s", None),
        "gather": step.gather,
        "wait_any": lambda: step.wait_any("a", name="w"),
        "prompt": lambda: step.prompt("p", prompt="?", output=dict),
        "start_prompt": lambda: step.start_prompt("p", prompt="?", output=dict),
        "run_workflow": lambda: step.run_workflow("c", "Flow"),
        "update_agent_state": lambda: step.update_agent_state({}),
        "report_complete": step.report_complete,
        "report_error": lambda: step.report_error("x"),
        "send_event": lambda: step.send_event("x"),
    }


@pytest.mark.parametrize("where", ["thread", "step", "transaction"])
def test_steps_are_called_in_run_itself(quick: ThinkTest, where: str):
    """In another thread, in a step's function, in its transaction: refused with words, and nothing is recorded."""

    def run(event, step):
        said: dict[str, str] = {}

        def try_all() -> None:
            for name, call in calls(step).items():
                try:
                    call()
                except Exception as error:
                    said[name] = f"{type(error).__name__} {error}"

        if where == "thread":
            thread = threading.Thread(target=try_all)
            thread.start()
            thread.join()
        elif where == "step":
            step.do("outer", lambda: try_all())
        else:
            step.transaction("outer", lambda conn: try_all())
        assert set(said) == set(calls(step))
        return list(said.values())

    workflow = begin(quick, run)
    words = "in another thread" if where == "thread" else "inside the function of step 'outer'"

    assert [text for text in workflow.output if "StepMisuse" not in text or words not in text] == []
    assert [key for key, _ in workflow.keys] == ([] if where == "thread" else ["outer"])


@pytest.mark.parametrize(
    "wait",
    [
        lambda step: step.wait_any("a", name="w"),
        lambda step: step.sleep_until("w", step.now().replace(year=2100)),
        lambda step: step.run_workflow("w", "Flow", workflow_id="child"),
        lambda step: step.do("w", lambda: None, queue="gpu"),
    ],
    ids=["wait_any", "sleep_until", "run_workflow", "queue"],
)
def test_a_wait_that_was_swallowed_is_noticed(quick: ThinkTest, wait: Any):
    """Each new wait unwinds as the others do: code that catches everything and goes on is stopped, and says where."""

    def run(event, step):
        if event.workflow_id == "child":
            return step.wait_for_event("x", type="x")
        try:
            wait(step)
        except BaseException:
            return "went on"

    workflow = begin(quick, run)

    assert (workflow.status, workflow.row.error_type) == ("paused", "SuspendSwallowed")
