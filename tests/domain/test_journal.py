"""Replay: the code must ask for what is recorded, and parking must not let it act."""

import contextlib
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import begin, flow, seize_of, start
from think_celery.domain.workflows import control
from think_celery.domain.workflows.journal import OWN_ERRORS, own_failure, recorded_error
from think_celery.errors import (
    ChildWorkflowError,
    ChildWorkflowTimeoutError,
    ReplayMismatch,
    StepError,
    Suspend,
    ThinkPromptAbortedError,
    ThinkPromptError,
    ThinkPromptSkippedError,
    ThinkPromptTimeoutError,
    ThinkPromptValidationError,
    WorkflowRejectedError,
    WorkflowTimeoutError,
)
from think_celery.retries import Retry
from think_celery.testing import ThinkTest

ONCE = Retry(max_attempts=1)


class Answer(BaseModel):
    """Some answer."""

    title: str


class TestMismatch:
    def test_changed_code_stops_resumably_and_runs_nothing(self, t: ThinkTest):
        """FR-63: v1 parks at a wait, v2 has another step first: paused, both named, nothing of v2 run; v1 goes on."""
        ran: list[str] = []

        def first(event, step):
            step.wait_for_event("a", type="go")
            return step.do("b", lambda: ran.append("b1") or "done")

        def second(event, step):
            step.do("b", lambda: ran.append("b2"))
            step.wait_for_event("a", type="go")

        workflow = begin(t, first)
        flow(second)
        workflow.send("go")
        t.run_until_idle()

        assert (workflow.status, workflow.row.error_type) == ("paused", "ReplayMismatch")
        assert "event 'a'" in workflow.row.error
        assert "do 'b'" in workflow.row.error
        assert ran == []

        flow(first)
        assert control.resume(t.rt, workflow.ref)
        t.run_until_idle()
        assert (workflow.output, workflow.row.error_type, workflow.row.error) == ("done", None, None)
        assert ran == ["b1"]

    def test_the_kind_counts_too(self, t: ThinkTest):
        """An entry of one name and another kind is not consumed silently."""
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        flow(lambda event, step: step.do("a", lambda: 1))
        workflow.send("go")
        t.run_until_idle()

        assert workflow.row.error_type == "ReplayMismatch"

    @pytest.mark.parametrize("way", ["returned", "raised KeyError"])
    def test_code_that_ends_before_its_journal_does_is_a_mismatch(self, t: ThinkTest, way: str):
        """Entries that the code never asked for: it changed, or it is not deterministic. Nothing is thrown away."""

        def first(event, step):
            step.do("a", lambda: 1)
            step.do("b", lambda: 2)
            step.wait_for_event("c", type="go")

        def second(event, step):
            step.do("a", lambda: 1)
            if way != "returned":
                raise KeyError("gone")

        workflow = begin(t, first)
        flow(second)
        workflow.send("go")
        t.run_until_idle()

        assert (workflow.status, workflow.row.error_type) == ("paused", "ReplayMismatch")
        assert f"nothing more: it {way}" in workflow.row.error

    def test_a_mismatch_can_not_be_caught(self, t: ThinkTest):
        """`except Exception` around the step must not let the changed code go on."""
        ran: list[int] = []

        def second(event, step):
            try:
                step.do("b", lambda: ran.append(1))
            except Exception:
                ran.append(2)
            step.do("c", lambda: ran.append(3))

        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        flow(second)
        workflow.send("go")
        t.run_until_idle()

        assert workflow.row.error_type == "ReplayMismatch"
        assert ran == []

    def test_steps_may_be_added_at_the_end(self, t: ThinkTest):
        """What is recorded is the beginning of what the code asks for: longer code goes on from there."""
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        flow(lambda event, step: [step.wait_for_event("a", type="go").payload, step.do("new", lambda: 2)])
        workflow.send("go", 1)
        t.run_until_idle()

        assert workflow.output == [1, 2]

    def test_a_branch_on_a_recorded_error_replays(self, t: ThinkTest):
        """Deterministic code that branches on a caught error leaves no entry over."""

        def fail():
            raise ValueError("no")

        def run(event, step):
            try:
                step.do("a", fail, retry=ONCE)
            except StepError:
                step.do("made up for", lambda: 1)
            finally:
                step.do("always", lambda: 2)
            return step.wait_for_event("w", type="go").payload

        workflow = begin(t, run)
        workflow.send("go", "end")
        t.run_until_idle()

        assert workflow.output == "end"
        assert [key for key, _ in workflow.keys] == ["a", "made up for", "always", "w"]


class TestSuspending:
    def test_a_finally_acts_only_when_the_run_gets_there(self, t: ThinkTest):
        """While the run parks, every step raises the same Suspend, so no clean-up step runs or is recorded."""
        ran: list[str] = []

        def run(event, step):
            try:
                step.wait_for_event("a", type="go")
            finally:
                step.do("clean up", lambda: ran.append("cleaned"))

        workflow = begin(t, run)
        assert ran == []
        assert [key for key, _ in workflow.keys] == ["a"]

        workflow.send("go")
        t.run_until_idle()
        assert ran == ["cleaned"]
        assert workflow.status == "complete"

    @pytest.mark.parametrize("kind", ["do", "transaction", "event", "approval", "sleep", "prompt"])
    def test_every_kind_of_step_raises_it_again(self, t: ThinkTest, kind: str):
        """For each kind: nothing is run, stored or asked for after the first Suspend."""
        seen: list[Any] = []
        ran: list[int] = []

        def again(step):
            match kind:
                case "do":
                    step.do("x", lambda: ran.append(1))
                case "transaction":
                    step.transaction("x", lambda conn: ran.append(1))
                case "event":
                    step.wait_for_event("x", type="go")
                case "approval":
                    step.wait_for_approval("x")
                case "sleep":
                    step.sleep("x", 0)
                case "prompt":
                    step.prompt("x", prompt="y", output=Answer)

        def run(event, step):
            try:
                step.sleep("first", 60)
            except Suspend as first:
                seen.append(first.step)
                try:
                    again(step)
                except Suspend as second:
                    seen.append(second.step)
                    raise

        workflow = begin(t, run)

        assert workflow.status == "waiting"
        assert seen == ["first", "first"]
        assert ran == []
        assert [key for key, _ in workflow.keys] == ["first"]

    @pytest.mark.parametrize("swallow", ["returned", "raised", "went on"])
    def test_a_swallowed_suspend_stops_resumably(self, t: ThinkTest, swallow: str):
        """Code that catches Suspend and goes on is told so; the run is paused, and resumes with better code."""

        def bad(event, step):
            try:
                step.wait_for_event("a", type="go")
            except BaseException:
                if swallow == "raised":
                    raise ValueError("hidden") from None
                if swallow == "went on":
                    with contextlib.suppress(BaseException):
                        step.do("next", lambda: 1)
            return "done"

        workflow = begin(t, bad)
        assert (workflow.status, workflow.row.error_type) == ("paused", "SuspendSwallowed")
        assert "'a'" in workflow.row.error
        assert [key for key, _ in workflow.keys] == ["a"]

        flow(lambda event, step: step.wait_for_event("a", type="go").payload)
        workflow.send("go", 5)
        t.run_until_idle()
        assert workflow.status == "paused"
        assert control.resume(t.rt, workflow.ref)
        t.run_until_idle()
        assert workflow.output == 5

    def test_except_exception_does_not_catch_it(self, t: ThinkTest):
        """Suspend is a BaseException."""

        def run(event, step):
            try:
                return step.wait_for_event("a", type="go").payload
            except Exception:
                return "caught"

        workflow = begin(t, run)
        workflow.send("go", "event")
        t.run_until_idle()

        assert workflow.output == "event"

    def test_a_user_can_not_park_by_raising_it(self, quick: ThinkTest):
        """A Suspend that no step has raised is an error of the code like any other."""

        def run(event, step):
            raise Suspend("mine")

        workflow = begin(quick, run)

        assert (workflow.status, workflow.row.error_type) == ("errored", "Suspend")

    def test_a_lost_lease_can_not_be_caught_either(self, t: ThinkTest):
        """Once the lease is gone, every step raises Suspend: `except Exception` does not let the code act."""
        ran: list[str] = []

        def run(event, step):
            try:
                step.do("a", lambda: ran.append("a"))
            except Exception:
                ran.append("caught")
            finally:
                step.do("b", lambda: ran.append("b"))

        process = t.rt.monitor.process_id()
        workflow = start(t.rt, run)

        def taken_over(point: str) -> None:
            if point == "step:a:ran":
                t.rt.db.transact(lambda tx: seize_of(tx, workflow.ref.key, process))

        t.rt.failpoint = taken_over
        outcome = workflow.advance()

        assert outcome.word == "lease-lost"
        assert ran == ["a"]
        assert workflow.keys == []


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            WorkflowTimeoutError("s", 1.5),
            WorkflowRejectedError("s", None),
            WorkflowRejectedError("s", "a\x00b\ud800"),
            ChildWorkflowError("s", "Child", "c1", "errored", "KeyError", "no\x00such"),
            ChildWorkflowTimeoutError("s", "Child", "c1", "terminated", 5.0),
            ThinkPromptError("id", "error", "w", "s", "why"),
            ThinkPromptAbortedError("id", "aborted", "w", "s", "why"),
            ThinkPromptSkippedError("id", "skipped", "w", "s", "why"),
            ThinkPromptValidationError("id", "error", "w", "s", "why"),
            ThinkPromptTimeoutError("id", "aborted", "w", "s", "why", 3.0),
        ],
    )
    def test_our_own_errors_keep_class_and_fields(self, error: Any):
        """Only our own errors keep their class; the first pass and the replay raise equal ones."""
        failure = own_failure(error)
        once, again = recorded_error("s", failure, 1), recorded_error("s", failure, 1)

        assert type(once) is type(again) is type(error)
        assert once.args == again.args
        assert [str(arg) for arg in once.args if "\x00" in str(arg)] == []

    def test_each_of_them_is_tested(self):
        """A new one in the list gets a row above."""
        assert len(OWN_ERRORS) == 9

    def test_a_users_error_of_the_same_name_is_no_own_error(self, t: ThinkTest):
        """What a step function raised is a StepError, whatever its class is called."""

        class WorkflowTimeoutError(Exception):
            """The user's own."""

        def fail():
            raise WorkflowTimeoutError("mine")

        def run(event, step):
            try:
                step.do("a", fail, retry=ONCE)
            except StepError as error:
                return [error.error_type, error.message]

        assert begin(t, run).output == ["WorkflowTimeoutError", "mine"]

    def test_one_of_ours_from_a_step_function_is_a_step_error(self, t: ThinkTest):
        """The same for our own class, raised by a step's function."""

        def fail():
            raise ReplayMismatch("w", 0, "a", "b")

        workflow = begin(t, lambda event, step: step.do("a", fail, retry=ONCE))

        assert workflow.status == "errored"
        assert workflow.row.error_type == "StepError"
