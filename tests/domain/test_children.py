"""A workflow that another one starts and waits for."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import DESK, Desk, Handle, begin, flow, runs_of, start
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import advance, children, control, workflows
from think_celery.errors import ChildWorkflowError, ChildWorkflowTimeoutError, WorkflowTimeoutError
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import answer
from think_celery.retries import Retry
from think_celery.store import control as rows
from think_celery.testing import ThinkTest


@dataclass
class Bill:
    """What a child returns."""

    amount: Decimal


class Reply(BaseModel):
    """What a prompt of a child is answered with."""

    text: str


def parent(seen: list[Any] | None = None, **options: Any) -> Any:
    """A run that starts one child, and says what came of it."""

    def run(event, step):
        try:
            result: Any = step.run_workflow("bill", "Child", event.payload, **options)
        except ChildWorkflowError as error:
            result = error
        if seen is not None:
            seen.append(result)
        step.wait_for_event("go", type="go")
        return [type(result).__name__, *map(str, getattr(result, "args", ()))]

    return run


def child_of(t: ThinkTest, workflow: Handle) -> Handle:
    """The only child of a run."""
    found = [row for row in runs_of(t.rt, "Child") if row.parent_key == workflow.ref.key]
    (row,) = found
    return Handle(t.rt, WorkflowRef("Child", row.workflow_id))


def go_on(t: ThinkTest, workflow: Handle) -> None:
    workflow.send("go")
    t.run_until_idle()


class TestResult:
    def test_it_comes_back_as_it_was_returned(self, t: ThinkTest):
        """A child's output keeps its type, on the first pass and on replay; both runs stand in the tables."""
        seen: list[Any] = []
        flow(lambda event, step: Bill(Decimal(event.payload["amount"])), name="Child")
        workflow = begin(t, parent(seen), {"amount": "1.10"})
        assert workflow.keys == [("bill:start", "done"), ("bill:wait", "done"), ("go", "waiting")]
        go_on(t, workflow)

        assert seen == [Bill(Decimal("1.10"))] * 2
        assert child_of(t, workflow).status == "complete"

    def test_the_parent_waits_without_a_worker(self, t: ThinkTest):
        """While the child waits, both are rows; the child's agent is the parent's."""
        flow(lambda event, step: step.wait_for_event("w", type="pay").payload, name="Child")
        workflow = begin(t, parent())
        child = child_of(t, workflow)

        assert (workflow.status, child.status) == ("waiting", "waiting")
        assert (child.row.agent_class, child.row.agent_name) == ("Desk", "front")
        child.send("pay", 5)
        t.run_until_idle()
        assert dict(workflow.keys)["bill:wait"] == "done"

    def test_children_have_children(self, t: ThinkTest):
        """Each waits for its own."""
        flow(lambda event, step: step.run_workflow("deeper", "Deeper") + 1, name="Child")
        flow(lambda event, step: 1, name="Deeper")
        seen: list[Any] = []
        begin(t, parent(seen))

        assert seen == [2]

    @pytest.mark.parametrize(
        "point",
        [
            "step:bill:start:before-commit",
            "step:bill:start:committed",
            "workflow:started",
            "step:bill:wait:looked",
            "step:bill:wait:committed",
            "workflow:before-park",
            "workflow:parked",
            "workflow:before-end",
            "workflow:ended",
            "outbox:stored",
            "outbox:before-delivery",
            "outbox:delivered",
        ],
    )
    def test_killed_anywhere_there_is_one_child(self, t: ThinkTest, point: str):
        """Child and entry are one transaction, so are its end and the news: it is started once, and heard of."""
        ran: list[str] = []
        flow(lambda event, step: step.do("once", lambda: ran.append("x") or "paid"), name="Child")
        seen: list[Any] = []
        workflow = start(t.rt, parent(seen))
        t.crash_at(point)
        t.run_until_idle()
        t.skip(120)

        assert t.crashes == [point]
        assert seen[-1:] == ["paid"]
        assert ran == ["x"]
        assert child_of(t, workflow).row.parent_run == 1


class TestErrors:
    def test_an_error_names_the_child(self, t: ThinkTest):
        """Its type and text are the child's; the same on replay."""
        seen: list[Any] = []

        def fails(event, step):
            raise LookupError("no such bill")

        flow(fails, name="Child")
        workflow = begin(t, parent(seen, workflow_id="c1"))
        go_on(t, workflow)

        assert workflow.output == [
            *("ChildWorkflowError", "bill:wait", "Child", "c1", "errored", "LookupError", "no such bill")
        ]
        assert seen[0].is_a(LookupError)
        assert str(seen[0]) == str(seen[1])
        assert "'c1' is errored: LookupError: no such bill" in str(seen[0])

    def test_a_child_that_dies_each_time(self, t: ThinkTest):
        """A poisonous one ends in a terminal error that its parent sees."""
        seen: list[Any] = []
        flow(lambda event, step: step.do("boom", lambda: None), name="Child")
        t.crash_at("step:boom:before", times=6)
        begin(t, parent(seen))
        t.skip(600)

        assert seen[-1].is_a(type("TooManyAttempts", (Exception,), {}))

    def test_an_id_that_is_taken(self, t: ThinkTest):
        """A run of that id which this run did not start is an error, and nothing of it is touched."""
        seen: list[Any] = []
        flow(lambda event, step: "other's", name="Child")
        other = start(t.rt, None, id="c1", name="Child")
        t.run_until_idle()
        workflow = begin(t, parent(seen, workflow_id="c1"))
        go_on(t, workflow)

        assert workflow.output[:6] == [
            *("ChildWorkflowError", "bill:start", "Child", "c1", "not started", "WorkflowExists")
        ]
        assert str(seen[0]) == str(seen[1])
        assert other.row.parent_key is None

    def test_what_is_unfit_takes_no_place_in_the_journal(self, t: ThinkTest):
        """An unknown class and unfit params are told alike each time; nothing is recorded, nothing started."""

        def run(event, step):
            said = []
            for workflow, params in [("Nowhere", None), ("Child", object()), (5, None)]:
                try:
                    step.run_workflow("x", workflow, params)
                except Exception as error:
                    said.append(type(error).__name__)
            step.do("after", lambda: None)
            step.sleep("nap", 5)
            return said

        flow(lambda event, step: None, name="Child")
        workflow = begin(t, run)
        t.skip(6)

        assert workflow.output == ["UnknownClass", "InvalidValue", "InvalidValue"]
        assert [key for key, _ in workflow.keys] == ["after", "nap"]


class TestTime:
    def test_the_child_is_terminated(self, t: ThinkTest):
        """At the deadline, in one transaction: the child ends, with its prompts and its children."""
        seen: list[Any] = []
        flow(lambda event, step: step.run_workflow("deeper", "Deeper"), name="Child")
        flow(lambda event, step: step.prompt("ask", prompt="?", output=Reply), name="Deeper")
        t.script(Desk)
        workflow = start(t.rt, parent(seen, timeout=60))
        workflow.advance()
        child = child_of(t, workflow)
        child.advance()
        (deeper,) = [Handle(t.rt, WorkflowRef("Deeper", row.workflow_id)) for row in runs_of(t.rt, "Deeper")]
        deeper.advance()
        t.lose_messages()
        t.clock.advance(timedelta(seconds=61))
        workflows.wake_due(t.rt, 10)
        workflow.advance()

        assert isinstance(seen[-1], ChildWorkflowTimeoutError)
        assert isinstance(seen[-1], WorkflowTimeoutError)
        assert (seen[-1].status, seen[-1].seconds) == ("terminated", 60.0)
        assert (child.status, deeper.status) == ("terminated", "terminated")
        assert [row.status for row in submissions.find(t.rt, DESK._ref)] == ["aborted"]
        t.run_until_idle()
        assert workflow.inbox == []

    def test_or_let_go(self, t: ThinkTest):
        """It goes on, and is nobody's child any more."""
        seen: list[Any] = []
        flow(lambda event, step: step.wait_for_event("w", type="pay").payload, name="Child")
        workflow = begin(t, parent(seen, timeout=60, cancel_on_timeout=False))
        child = child_of(t, workflow)
        t.skip(61)
        assert (seen[-1].status, child.status) == ("waiting", "waiting")

        child.send("pay", 5)
        t.run_until_idle()
        assert child.output == 5
        assert (child.row.parent_key, workflow.inbox) == (None, [])

    def test_what_it_returned_in_time_counts(self, t: ThinkTest):
        """The child has ended, its news is under way when the time is up: the result is taken."""
        seen: list[Any] = []
        flow(lambda event, step: "paid", name="Child")
        workflow = start(t.rt, parent(seen, timeout=60))
        workflow.advance()
        child_of(t, workflow).advance()
        t.lose_messages()
        t.clock.advance(timedelta(seconds=61))
        workflows.wake_due(t.rt, 10)
        workflow.advance()

        assert seen[-1] == "paid"
        t.skip(60)
        assert [event.consumed_by for event in workflow.inbox] == ["bill:wait"]

    def test_another_in_its_place_is_left_alone(self, t: ThinkTest):
        """A child that was deleted is nobody's; a run that was started under its id since then is another's."""
        flow(lambda event, step: step.wait_for_event("x", type="x").payload, name="Child")
        workflow = start(t.rt, parent(workflow_id="c1", timeout=10))
        workflow.advance()
        child = child_of(t, workflow)
        control.delete(t.rt, child.ref)
        other = start(t.rt, None, name="Child", id="c1")
        t.clock.advance(timedelta(seconds=20))
        t.lose_messages()
        workflows.wake_due(t.rt, 10)
        workflow.advance()

        assert workflow.keys[1] == ("bill:wait", "failed")
        assert other.status == "queued"


class TestEnd:
    def test_terminate_all_ends_all_below(self, t: ThinkTest):
        """Children, theirs, and the prompts of all; a worker that has one in hand can't write any more."""
        flow(lambda event, step: step.run_workflow("deeper", "Deeper"), name="Child")
        flow(lambda event, step: step.prompt("ask", prompt="?", output=Reply), name="Deeper")
        workflow = start(t.rt, parent())
        workflow.advance()
        child = child_of(t, workflow)
        child.advance()
        (row,) = runs_of(t.rt, "Deeper")
        claim = advance.claim_run(t.rt, WorkflowRef("Deeper", row.workflow_id))
        assert isinstance(claim, advance.Claim)

        assert t.rt.db.transact(lambda tx: children.terminate_all(t.rt, tx, workflow.row)) == 2
        assert t.rt.db.transact(lambda tx: children.terminate_all(t.rt, tx, workflow.row)) == 0

        deeper = Handle(t.rt, claim.ref)
        assert (child.status, deeper.status) == ("terminated", "terminated")
        assert (child.row.error_type, child.row.completed_at is None) == ("ParentEnded", False)
        assert deeper.row.token > claim.lease.token

    def test_a_paused_child_ends_too(self, t: ThinkTest):
        """Nothing of the pause is left in its row."""
        flow(lambda event, step: step.wait_for_event("x", type="x").payload, name="Child")
        workflow = begin(t, parent())
        child = child_of(t, workflow)
        control.pause(t.rt, child.ref)
        control.terminate(t.rt, workflow.ref)

        assert (child.status, child.row.pause_at) == ("terminated", None)

    def test_a_parent_that_dies_each_time_takes_them_along(self, t: ThinkTest):
        """Nobody is left to answer to."""
        flow(lambda event, step: step.wait_for_event("w", type="pay"), name="Child")
        workflow = begin(t, parent())
        child = child_of(t, workflow)
        t.crash_at("workflow:claimed", times=6)
        workflow.send("other")
        t.skip(600)

        assert (workflow.status, child.status) == ("errored", "terminated")

    def test_a_deleted_child_is_told_of(self, t: ThinkTest):
        """Whoever deletes a child tells its parent in the same transaction."""
        seen: list[Any] = []
        flow(lambda event, step: step.wait_for_event("w", type="pay"), name="Child")
        workflow = begin(t, parent(seen))
        child = child_of(t, workflow)

        def delete(tx: Any) -> None:
            row = rows.terminate(tx, child.ref.key)
            children.tell_parent(t.rt, tx, row, "deleted", error="deleted by hand")

        t.rt.db.transact(delete)
        t.run_until_idle()

        assert (seen[-1].status, seen[-1].message) == ("deleted", "deleted by hand")

    def test_an_answer_in_the_child(self, t: ThinkTest):
        """A child prompts as its parent does."""
        t.script(Desk, answer({"text": "hello"}))
        seen: list[Any] = []
        flow(lambda event, step: step.prompt("ask", prompt="?", output=Reply), name="Child")
        begin(t, parent(seen))

        assert seen == [Reply(text="hello")]


def test_what_stands_before_a_wait_runs_once(t: ThinkTest):
    """FR-66: step A, a child with a wait and a step, step B: none is repeated; a send is stored before the park."""
    ran: list[str] = []

    def note(what: str) -> Any:
        return lambda: ran.append(what)

    def send() -> None:
        ran.append("send")
        if ran.count("send") == 1:
            raise OSError("not yet")

    def inner(event, step):
        step.do("in", note("in"))
        step.wait_for_event("w", type="go")
        step.do("out", note("out"))

    def run(event, step):
        step.do("a", note("a"))
        step.run_workflow("child", "Child")
        step.do("b", note("b"))
        step.do("send", send, retry=Retry(max_attempts=2, delay=1))
        step.wait_for_event("answer", type="answer")

    flow(inner, name="Child")
    workflow = begin(t, run)
    child_of(t, workflow).send("go")
    t.run_until_idle()
    assert (workflow.status, dict(workflow.keys)["send"]) == ("waiting", "done")
    workflow.send("answer")
    t.run_until_idle()

    assert workflow.status == "complete"
    assert ran == ["a", "in", "out", "b", "send", "send"]
