"""How a status changes: every move of `states.py` works, every other is refused, one racer wins."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product

import pytest
from sqlalchemy import Table, bindparam, select

from think_celery.states import (
    INTERACTION_MOVES,
    JOB_MOVES,
    OUTBOX_MOVES,
    SLOT_MOVES,
    STEP_MOVES,
    SUBMISSION_MOVES,
    WORKFLOW_MOVES,
    WORKFLOW_RESTARTS,
    InteractionStatus,
    JobStatus,
    OutboxStatus,
    SlotStatus,
    StepStatus,
    SubmissionStatus,
    WorkflowStatus,
    is_terminal,
)
from think_celery.store import outbox, schedule_tables, submissions, tables, workflows
from think_celery.store.leases import Lease
from think_celery.store.moves import move, moved, moving

WANTED = tables.submissions.c.id == bindparam("wanted")
COMPLETE = moving(tables.submissions, WANTED, SubmissionStatus.COMPLETED, allowed=SUBMISSION_MOVES)
ABORT = moving(
    tables.submissions,
    WANTED,
    SubmissionStatus.ABORTED,
    allowed=SUBMISSION_MOVES,
    returning=tables.submissions.c,
)
NOW = datetime(2027, 1, 1, tzinfo=UTC)


def submission(name: str) -> dict[str, object]:
    return {
        "id": name,
        "agent_id": name,
        "agent_class": "A",
        "agent_name": "x",
        "kind": "submit",
        "epoch": 0,
        "fingerprint": "f",
    }


def workflow(name: str) -> dict[str, object]:
    return {
        "key": name,
        "workflow": "W",
        "workflow_id": name,
        "version": "1",
        "agent_class": "A",
        "agent_name": "x",
        "params": "{}",
    }


def job(name: str) -> dict[str, object]:
    return {
        "id": name,
        "agent_id": "a",
        "agent_class": "A",
        "agent_name": "x",
        "kind": "queue",
        "method": "m",
    }


def step(name: str) -> dict[str, object]:
    return {"workflow_key": "w", "run": 1, "step": name, "position": 0, "kind": "do"}


def news(name: str) -> dict[str, object]:
    return {"id": name, "dedupe_key": name, "workflow_key": "w", "run": 1, "event_type": "e"}


def interaction(name: str) -> dict[str, object]:
    asked = {"agent_id": "a", "agent_class": "A", "agent_name": "x", "submission_id": "s", "message_id": "m"}
    call = {"tool_call_id": name, "tool": "pay", "kind": "approval", "fingerprint": "f"}
    return {"id": name, **asked, **call}


def slot(name: str) -> dict[str, object]:
    return {"id": name, "schedule_id": name, "scheduled_for": NOW}


NOUNS = [
    pytest.param(tables.submissions, "id", submission, SubmissionStatus, SUBMISSION_MOVES, id="submission"),
    pytest.param(tables.workflows, "key", workflow, WorkflowStatus, WORKFLOW_MOVES, id="workflow"),
    pytest.param(tables.jobs, "id", job, JobStatus, JOB_MOVES, id="job"),
    pytest.param(tables.workflows, "key", workflow, WorkflowStatus, WORKFLOW_RESTARTS, id="restart"),
    pytest.param(tables.steps, "step", step, StepStatus, STEP_MOVES, id="step"),
    pytest.param(schedule_tables.slots, "id", slot, SlotStatus, SLOT_MOVES, id="slot"),
    pytest.param(tables.outbox, "id", news, OutboxStatus, OUTBOX_MOVES, id="outbox"),
    pytest.param(
        tables.interactions, "id", interaction, InteractionStatus, INTERACTION_MOVES, id="interaction"
    ),
]


def insert(db, table: Table, row: dict[str, object], status: str) -> None:
    db.transact(lambda tx: tx.execute(table.insert().values(**row, status=status, created_at=NOW)))


@pytest.mark.parametrize(("table", "key", "row", "statuses", "moves"), NOUNS)
def test_exactly_the_listed_moves_work(db, table, key, row, statuses, moves):
    """Each move that `states.py` lists moves the row; each other one returns False and leaves it as it is."""
    pairs = {f"{source} to {to}": (source, to) for source, to in product(statuses, statuses)}
    for name, (source, _) in pairs.items():
        insert(db, table, row(name), source)

    wanted = table.c[key] == bindparam("wanted")
    to_status = {status: moving(table, wanted, status, allowed=moves) for status in statuses}
    moved = {
        pair
        for name, pair in pairs.items()
        if db.transact(lambda tx, n=name, to=pair[1]: move(tx, to_status[to], wanted=n))
    }

    assert moved == {(source, to) for source, targets in moves.items() for to in targets}
    stored = db.read(lambda tx: tx.execute(select(table.c[key], table.c.status)).all())
    assert dict(map(tuple, stored)) == {
        name: str(to if (source, to) in moved else source) for name, (source, to) in pairs.items()
    }


def test_a_refused_move_changes_no_other_column(db):
    """A call that comes too late writes nothing at all: an answer never overwrites another outcome."""
    insert(db, tables.submissions, submission("s"), SubmissionStatus.ABORTED)

    late = db.transact(lambda tx: move(tx, COMPLETE, wanted="s", error="late", attempts=9))

    row = db.read(lambda tx: tx.execute(select(tables.submissions)).one())
    assert late is False
    assert (row.status, row.error, row.attempts) == ("aborted", None, 0)


def test_a_moved_row_is_returned_as_it_is_then(db):
    """Whoever moves a row needs no second look; whoever comes too late gets no row."""
    insert(db, tables.submissions, submission("s"), SubmissionStatus.PENDING)

    def abort(tx):
        return moved(tx, ABORT, wanted="s", error="why")

    first = db.transact(abort)
    second = db.transact(abort)

    assert (first.id, first.status, first.error) == ("s", "aborted", "why")
    assert second is None


def test_a_column_that_is_misspelt_moves_nothing(db):
    """A status that changes without what belongs to it would be a row that tells no story."""
    insert(db, tables.submissions, submission("s"), SubmissionStatus.PENDING)

    with pytest.raises(TypeError, match="eror"):
        db.transact(lambda tx: move(tx, ABORT, wanted="s", eror="why"))

    assert db.read(lambda tx: tx.execute(select(tables.submissions.c.status)).scalar()) == "pending"


@pytest.mark.parametrize("status", WorkflowStatus)
def test_waking_makes_listed_moves_only(db, status):
    """`workflows.wake` counts an event in a row of any status; what it moves, `states.py` lists."""
    insert(db, tables.workflows, workflow("w"), status)

    row = db.transact(lambda tx: workflows.wake(tx, "w"))

    assert row.status == status or row.status in WORKFLOW_MOVES[status]
    assert (row.status != status) == (status == WorkflowStatus.WAITING)


@pytest.mark.parametrize("wanted", [None, NOW])
def test_seizing_makes_listed_moves_only(db, wanted):
    """`workflows.seize` takes a run from its holder; one that shall pause is paused with that."""
    values = {"process_id": "p", "token": 3, "pause_at": wanted}
    insert(db, tables.workflows, {**workflow("w"), **values}, WorkflowStatus.RUNNING)
    lease = Lease(kind="workflow", key="w", process_id="p", token=3)

    row = db.transact(lambda tx: workflows.seize(tx, lease))

    assert row.status == ("running" if wanted is None else "paused")
    assert row.status in WORKFLOW_MOVES[WorkflowStatus.RUNNING]


@pytest.mark.parametrize("status", SubmissionStatus)
def test_ending_all_makes_listed_moves_only(db, status):
    """`submissions.end_all` ends what is not at its end; what it moves, `states.py` lists."""
    insert(db, tables.submissions, submission("s"), status)

    ended = db.transact(lambda tx: submissions.end_all(tx, "s", "reset"))

    assert [row.id for row in ended] == ([] if is_terminal(status) else ["s"])
    assert all(
        row.status in SUBMISSION_MOVES[status] and is_terminal(SubmissionStatus(row.status)) for row in ended
    )


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("status", OutboxStatus)
def test_delivering_at_once_makes_listed_moves_only(db, status, there):
    """`outbox.deliver` settles what is pending, to one of two ends (on SQLite nothing); `states.py` lists them."""
    insert(db, tables.outbox, news("n") | {"workflow_key": "w", "payload": "1"}, status)
    if there:
        insert(db, tables.workflows, workflow("w"), WorkflowStatus.WAITING)

    found = db.single(lambda tx: outbox.deliver(tx, "n"))

    row = db.read(lambda tx: outbox.get(tx, "n"))
    if status != OutboxStatus.PENDING or not db.on_postgres:
        assert (found, row.status, row.payload) == (None, status, "1")
        return
    assert row.status == found.became == (OutboxStatus.DELIVERED if there else OutboxStatus.DROPPED)
    assert row.status in OUTBOX_MOVES[status]
    assert (found.status, row.payload) == ("queued" if there else None, None)


def test_of_racing_calls_exactly_one_wins(db):
    """Twelve threads at a barrier make the same move of one row: one returns True, eleven False."""
    for turn in range(5):
        insert(db, tables.submissions, submission(f"s{turn}"), SubmissionStatus.PENDING)
        barrier = threading.Barrier(12)

        def race(turn=turn, barrier=barrier):
            barrier.wait()
            return db.transact(lambda tx: move(tx, ABORT, wanted=f"s{turn}"))

        with ThreadPoolExecutor(12) as pool:
            won = [future.result() for future in [pool.submit(race) for _ in range(12)]]

        assert sorted(won) == [False] * 11 + [True]
