"""Statements that hold their own fence, and looks without a lock: what a transaction under way may not spoil."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from tests.domain.crowd import wait_for_lock
from tests.domain.flows import Handle, start, worker
from think_celery.domain.workflows import advance
from think_celery.domain.workflows.advance import Claim
from think_celery.errors import WorkflowTimeoutError
from think_celery.runtime import Runtime
from think_celery.states import StepStatus
from think_celery.store import events, leases, steps
from think_celery.store import workflows as rows
from think_celery.store.database import Tx
from think_celery.store.statements import now
from think_celery.store.steps import StepRef

PATIENCE = 60.0


@pytest.fixture
def rt(postgres_url: str, by_hand: None) -> Iterator[Runtime]:
    """A worker's runtime on PostgreSQL: SQLite has one writer, and no such races."""
    with worker(postgres_url) as runtime:
        yield runtime


def time_of(rt: Runtime) -> Any:
    """The database's time."""
    return rt.db.read(lambda tx: tx.execute(select(now())).scalar())


def claimed(rt: Runtime, run: Callable[..., Any]) -> tuple[Handle, Claim]:
    workflow = start(rt, run)
    claim = advance.claim_run(rt, workflow.ref)
    assert isinstance(claim, Claim)
    return workflow, claim


def during(rt: Runtime, change: Callable[[Tx], object], act: Callable[[], Any]) -> Any:
    """What comes of *act*, which begins while a transaction that has made this change is open, and waits for it."""
    results: list[Any] = []

    def work(tx: Tx) -> threading.Thread:
        change(tx)
        thread = threading.Thread(target=lambda: results.append(act()), daemon=True)
        thread.start()
        wait_for_lock(rt)
        assert results == []
        return thread

    rt.db.transact(work).join(PATIENCE)
    (result,) = results
    return result


class Sender:
    """Sends an event in a transaction that is committed only when somebody waits for it."""

    def __init__(self, workflow: Handle) -> None:
        self._workflow, self._sent = workflow, threading.Event()

    def send(self) -> None:
        """Return when the event is stored and not committed."""
        threading.Thread(target=lambda: self._workflow.rt.db.transact(self._work), daemon=True).start()
        assert self._sent.wait(PATIENCE)

    def _work(self, tx: Tx) -> None:
        events.send(tx, self._workflow.ref.key, type="go", payload='"hello"', dedupe_key="k")
        self._sent.set()
        wait_for_lock(self._workflow.rt)


class TestFence:
    """A check without the lock would let a statement in that began before the takeover was committed."""

    def test_of_a_step_that_is_done(self, rt: Runtime):
        """The entry of a worker whose lease is being taken away waits for that, and is refused."""
        workflow, claim = claimed(rt, lambda event, step: None)
        ref = StepRef(workflow_key=workflow.ref.key, run=1, step="a", position=0, kind="do")

        def store() -> bool:
            return rt.db.single(lambda tx: steps.insert_done(tx, claim.lease, ref, "1"))

        assert during(rt, lambda tx: rows.seize(tx, claim.lease), store) is False
        assert workflow.keys == []

    def test_of_a_wait_that_begins(self, rt: Runtime):
        """The same of the entry of a step that waits."""
        workflow, claim = claimed(rt, lambda event, step: None)
        ref = StepRef(workflow_key=workflow.ref.key, run=1, step="a", position=0, kind="event")

        def begin() -> Any:
            return rt.db.single(lambda tx: events.begin_wait(tx, claim.lease, ref, "go", None))

        assert during(rt, lambda tx: rows.seize(tx, claim.lease), begin) is None
        assert workflow.keys == []

    def test_of_an_event_that_is_taken(self, rt: Runtime):
        """The same of taking an event: neither is it taken, nor does the step end."""
        workflow, claim = claimed(rt, lambda event, step: None)
        workflow.send("go")
        ref = StepRef(workflow_key=workflow.ref.key, run=1, step="a", position=0, kind="event")
        seen: Any = rt.db.single(lambda tx: events.begin_wait(tx, claim.lease, ref, "go", None))

        def take() -> bool:
            return rt.db.single(
                lambda tx: events.take(tx, claim.lease, ref, seen.seq, StepStatus.DONE, output="1")
            )

        assert during(rt, lambda tx: rows.seize(tx, claim.lease), take) is False
        assert workflow.keys == [("a", "waiting")]
        assert [event.consumed_by for event in workflow.inbox] == [None]

    def test_an_event_under_way_is_no_reason_to_refuse(self, rt: Runtime):
        """What holds the row only to store an event does not cost the holder its write."""
        workflow, claim = claimed(rt, lambda event, step: None)
        ref = StepRef(workflow_key=workflow.ref.key, run=1, step="a", position=0, kind="do")

        def store() -> bool:
            return rt.db.single(lambda tx: steps.insert_done(tx, claim.lease, ref, "1"))

        assert during(rt, lambda tx: rows.wake(tx, workflow.ref.key), store) is True


class TestLooks:
    def test_an_event_under_way_when_a_wait_begins_is_not_lost(self, rt: Runtime):
        """R2: the count that is parked on is of the moment of the look, not of the row that the fence has locked."""
        workflow = start(rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        sender = Sender(workflow)
        rt.failpoint = lambda point: sender.send() if point == "workflow:claimed" else None

        assert workflow.advance().word == "complete"
        assert workflow.output == "hello"

    def test_an_event_under_way_at_the_deadline_counts(self, rt: Runtime):
        """Sent before the deadline it is taken, though the run looks after it and before the event is committed."""

        def run(event: Any, step: Any) -> Any:
            try:
                return step.wait_for_event("a", type="go", timeout=1).payload
            except WorkflowTimeoutError:
                return "late"

        workflow = start(rt, run)
        assert workflow.advance().word == "parked"
        (entry,) = workflow.journal
        workflow.send("other")
        sender = Sender(workflow)

        def overtake(point: str) -> None:
            if point == "workflow:claimed":
                sender.send()
                while time_of(rt) <= entry.deadline_at:
                    threading.Event().wait(0.01)

        rt.failpoint = overtake
        outcome = workflow.advance()

        (event,) = [event for event in workflow.inbox if event.type == "go"]
        assert event.created_at <= entry.deadline_at
        assert (outcome.word, workflow.output) == ("complete", "hello")

    def test_an_event_has_the_time_at_which_the_row_was_locked(self, rt: Runtime):
        """Events and looks have one order, so an event that waited for a look was not sent before it."""
        workflow, claim = claimed(rt, lambda event, step: None)
        looked: list[Any] = []

        def look(tx: Tx) -> threading.Thread:
            leases.fence(tx, claim.lease)
            sender = threading.Thread(target=lambda: workflow.send("go"), daemon=True)
            sender.start()
            wait_for_lock(rt)
            looked.append(time_of(rt))
            return sender

        rt.db.transact(look).join(PATIENCE)

        (event,) = workflow.inbox
        assert event.created_at > looked[0]
