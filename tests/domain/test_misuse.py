"""What a user gets wrong about workflows, and is told at once."""

from typing import Any

import pytest

from tests.domain.flows import flow, start
from think_celery import Retry, Think, ThinkWorkflow
from think_celery.domain.workflows import workflows
from think_celery.errors import InvalidClass, InvalidValue, ReplayMismatch, StepError, WorkflowExists
from think_celery.testing import ThinkTest


class Till(Think):
    """Starts workflows."""


class NightTill(Till):
    """A till, too."""


class Shelf(Think):
    """Another agent."""


def ended(t: ThinkTest, run: Any) -> Any:
    workflow = start(t.rt, run)
    t.run_until_idle()
    return workflow


class TestTheAgentOfAWorkflow:
    @pytest.mark.parametrize("declared", [Till, "Till", "shop.Till", Think, Any, "Any"])
    def test_a_fitting_one_starts_it(self, quick: ThinkTest, declared: Any):
        """The class, a base of it, or the name of one; a type that says nothing fits each."""

        class Sale(ThinkWorkflow[declared, dict]):  # type: ignore[misc, type-arg, valid-type]
            def run(self, event, step):
                return "sold"

        workflow_id = NightTill("a").run_workflow(Sale, {})
        quick.run_until_idle()
        assert quick.output(Sale, workflow_id) == "sold"

    @pytest.mark.parametrize("declared", [Till, "Till", "Tlil"])
    def test_another_is_refused_at_the_start(self, quick: ThinkTest, declared: Any):
        """Whether it is the wrong agent or a misspelt name: nothing is stored, and both are named."""

        class Sale(ThinkWorkflow[declared, dict]):  # type: ignore[misc, type-arg, valid-type]
            def run(self, event, step):
                return "sold"

        with pytest.raises(InvalidValue, match=r"Sale is a workflow of T.*A Shelf can't start it"):
            Shelf("a").run_workflow(Sale, {})
        assert list(Shelf("a").get_workflows()) == []


@pytest.mark.parametrize(
    "run",
    [lambda self, step, event: 1, lambda self, event: 1, lambda self, event, step, more: 1, lambda self: 1],
)
def test_a_run_that_can_not_be_called_is_refused_with_its_class(run: Any):
    """Swapped names and a wrong number of parameters; the error shows the right form."""
    with pytest.raises(InvalidClass, match=r"def run\(self, event, step\)"):
        type("Wrong", (ThinkWorkflow,), {"run": run})


class TestAnIdThatIsTaken:
    def test_by_another_agent(self, quick: ThinkTest):
        """Is an error that names both, whatever on_conflict says."""
        flow(lambda event, step: None)
        Till("a").run_workflow("Flow", workflow_id="monday")

        for on_conflict in ("return", "raise"):
            with pytest.raises(WorkflowExists, match=r"Till\('a'\) has started it, so Till\('b'\)") as raised:
                Till("b").run_workflow("Flow", workflow_id="monday", on_conflict=on_conflict)
            assert raised.value.owner == "Till('a')"

    def test_with_other_params(self, quick: ThinkTest, caplog: Any):
        """The first run is returned, as for submissions, and the log says so; equal params are no difference."""
        flow(lambda event, step: None)
        for rows in (3, 3):
            Till("a").run_workflow("Flow", {"rows": rows}, workflow_id="monday")
        assert "other params" not in caplog.text

        Till("a").run_workflow("Flow", {"rows": 4}, workflow_id="monday")
        assert "other params" in caplog.text


class TestTheTimeoutOfAStep:
    def test_a_function_that_moves_the_clock_too_far(self, quick: ThinkTest):
        """Counts as timed out, as it does in a worker: it is tried again, and what it returned is dropped."""
        said: list[int] = []

        def slow() -> str:
            said.append(1)
            quick.clock.sleep(61 if len(said) == 1 else 60)
            return f"call {len(said)}"

        def run(event, step):
            return step.do("call", slow, timeout="1 minute", retry=Retry(max_attempts=2, delay=1))

        assert ended(quick, run).output == "call 2"

    def test_each_time(self, quick: ThinkTest):
        """The step fails with StepTimeout, however far the clock was moved."""

        def run(event, step):
            try:
                step.do("call", lambda: quick.clock.sleep(5000), timeout=60, retry=Retry(max_attempts=2))
            except StepError as error:
                return [error.error_type, error.attempts]

        workflow = ended(quick, run)
        quick.skip("1 minute")
        assert workflow.output == ["StepTimeout", 2]


def test_attempts_count_how_often_a_step_was_begun(quick: ThinkTest):
    """One for what was done at once, and one more for each that failed; none while it waits."""
    tries: list[int] = []

    def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no")

    def run(event, step):
        step.do("at once", lambda: 1)
        step.do("flaky", flaky, retry=Retry(delay=1))
        step.wait_for_event("go", type="go")

    workflow = ended(quick, run)
    quick.skip(10)
    steps = quick.steps(workflow.ref.workflow_id)
    assert [(step.name, step.attempts) for step in steps] == [("at once", 1), ("flaky", 3), ("go", 0)]


def test_a_mismatch_in_a_test_says_what_is_true_there(quick: ThinkTest):
    """No run is paused by t.replay."""
    workflow = ended(quick, lambda event, step: step.do("a", lambda: 1))
    flow(lambda event, step: step.do("b", lambda: 1))

    with pytest.raises(ReplayMismatch, match="the run would be paused here") as raised:
        quick.replay(workflow.ref.workflow_id)
    assert "is paused" not in str(raised.value)
    assert "resume" not in str(raised.value)


def test_what_step_and_the_workflow_have(quick: ThinkTest):
    """An AttributeError names where the other's calls are."""
    flow(lambda event, step: None)
    cls = workflows.workflow_classes.get("Flow")

    def run(event, step):
        said = []
        for act in (
            lambda: step.report_progress(1),
            lambda: cls().report_complete(1),
            lambda: step.rest(),
            lambda: step.wait_for_evnt("go"),
            lambda: cls().report_progres(1),
        ):
            with pytest.raises(AttributeError) as raised:
                act()
            said.append(str(raised.value))
        return said

    assert ended(quick, run).output == [
        "step has no 'report_progress'. It is on the workflow: self.report_progress.",
        "Flow has no 'report_complete'. It is on step: step.report_complete(…).",
        "step has no 'rest'.",
        "step has no 'wait_for_evnt'. Did you mean step.wait_for_event?",
        "Flow has no 'report_progres'. Did you mean self.report_progress?",
    ]
