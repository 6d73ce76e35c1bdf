"""How a status changes: every move of `states.py` works, every other is refused, one racer wins."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product

import pytest
from sqlalchemy import Table, bindparam, select

from think_celery.states import (
    INTERACTION_MOVES,
    OUTBOX_MOVES,
    STEP_MOVES,
    SUBMISSION_MOVES,
    WORKFLOW_MOVES,
    InteractionStatus,
    OutboxStatus,
    StepStatus,
    SubmissionStatus,
    WorkflowStatus,
    is_terminal,
)
from think_celery.store import submissions, tables, workflows
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


def step(name: str) -> dict[str, object]:
    return {"workflow_key": "w", "run": 1, "step": name, "position": 0, "kind": "do"}


def news(name: str) -> dict[str, object]:
    return {"id": name, "dedupe_key": name, "workflow_key": "w", "run": 1, "event_type": "e"}


def interaction(name: str) -> dict[str, object]:
    asked = {"agent_id": "a", "agent_class": "A", "agent_name": "x", "submission_id": "s", "message_id": "m"}
    call = {"tool_call_id": name, "tool": "pay", "kind": "approval", "fingerprint": "f"}
    return {"id": name, **asked, **call}


NOUNS = [
    pytest.param(tables.submissions, "id", submission, SubmissionStatus, SUBMISSION_MOVES, id="submission"),
    pytest.param(tables.workflows, "key", workflow, WorkflowStatus, WORKFLOW_MOVES, id="workflow"),
    pytest.param(tables.steps, "step", step, StepStatus, STEP_MOVES, id="step"),
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


@pytest.mark.parametrize("status", SubmissionStatus)
def test_ending_all_makes_listed_moves_only(db, status):
    """`submissions.end_all` ends what is not at its end; what it moves, `states.py` lists."""
    insert(db, tables.submissions, submission("s"), status)

    ended = db.transact(lambda tx: submissions.end_all(tx, "s", "reset"))

    assert [row.id for row in ended] == ([] if is_terminal(status) else ["s"])
    assert all(
        row.status in SUBMISSION_MOVES[status] and is_terminal(SubmissionStatus(row.status)) for row in ended
    )


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
