"""Rows of workflow runs: their status, lease and inbox count.

Two rules keep events from being lost. Storing an event always updates the workflow's row, whatever its
status (:func:`wake`); parking is one UPDATE conditional on the inbox count that was read together with the events
(:func:`park`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, func, null, or_, select, update
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import ReturningUpdate

from think_celery.ids import AgentRef, WorkflowRef
from think_celery.retries import MISSED_AFTER
from think_celery.states import WORKFLOW_MOVES, WorkflowStatus, is_terminal
from think_celery.store.database import Tx
from think_celery.store.leases import WORKFLOW_HELD, Lease
from think_celery.store.moves import Move, move, moved, moving
from think_celery.store.statements import insert_new, now, span
from think_celery.store.tables import workflows

TERMINAL = [status.value for status in WorkflowStatus if is_terminal(status)]

KNOCK = (
    workflows.c.key,
    workflows.c.workflow,
    workflows.c.workflow_id,
    workflows.c.run,
    workflows.c.wakes,
    workflows.c.queue,
    workflows.c.step_queue,
    workflows.c.status,
)
"""What a knock needs."""

_MINE = workflows.c.key == bindparam("of_key")
_THERE = and_(_MINE, workflows.c.deleted_at.is_(None))

# A running one without a process was taken from a holder that died.
CLAIMABLE = or_(
    workflows.c.status == WorkflowStatus.QUEUED,
    and_(workflows.c.status == WorkflowStatus.RUNNING, workflows.c.process_id.is_(None)),
)

# --- rows -----------------------------------------------------------------------------------------


_INSERT = insert_new(
    workflows, *KNOCK, run=1, status=WorkflowStatus.QUEUED, created_at=now(), knock_at=now(MISSED_AFTER)
)


def insert(tx: Tx, ref: WorkflowRef, agent: AgentRef, **values: Any) -> Row[Any] | None:
    """Add a queued run, and return what a knock says; ``None`` where there is one already: nothing is changed."""
    values |= {
        "key": ref.key,
        "workflow": ref.workflow,
        "workflow_id": ref.workflow_id,
        "agent_class": agent.agent_class,
        "agent_name": agent.name,
    }
    return tx.execute(_INSERT, values).first()


_GET = select(workflows).where(_THERE)


def get(tx: Tx, key: str) -> Row[Any] | None:
    """The workflow of that key."""
    return tx.execute(_GET, {"of_key": key}).first()


_QUEUE = select(workflows.c.queue).where(_MINE)


def queue_of(tx: Tx, key: str) -> str | None:
    """The queue of the workflow of that key; ``None`` where it has none, or there is no such workflow."""
    queue: str | None = tx.execute(_QUEUE, {"of_key": key}).scalar()
    return queue


def by_id(tx: Tx, workflow_id: str) -> Sequence[Row[Any]]:
    """The workflows, of whatever class, that were started under that id."""
    mine = (workflows.c.workflow_id == workflow_id, workflows.c.deleted_at.is_(None))
    return tx.execute(select(workflows).where(*mine).order_by(workflows.c.workflow)).all()


# --- what a holder does ---------------------------------------------------------------------------


_IN_HAND = (
    workflows.c.key,
    workflows.c.workflow,
    workflows.c.workflow_id,
    workflows.c.run,
    workflows.c.version,
    workflows.c.queue,
    workflows.c.step_queue,
    workflows.c.agent_class,
    workflows.c.agent_name,
    workflows.c.parent_key,
    workflows.c.parent_run,
    workflows.c.parent_event,
    workflows.c.params,
    workflows.c.metadata,
    workflows.c.token,
    workflows.c.attempts,
    workflows.c.takeovers,
    workflows.c.created_at,
)
_CLAIM = moving(
    workflows,
    and_(_MINE, workflows.c.token == bindparam("seen_token"), CLAIMABLE),
    WorkflowStatus.RUNNING,
    allowed=WORKFLOW_MOVES,
    returning=_IN_HAND,
    token=workflows.c.token + 1,
    attempts=workflows.c.attempts + 1,
    takeovers=workflows.c.takeovers + 1,
    started_at=func.coalesce(workflows.c.started_at, now()),
    wake_at=None,
    knock_at=None,
    knocks=0,
)


def claim(tx: Tx, key: str, process_id: str, seen_token: int) -> Row[Any] | None:
    """Take a run that waits for a worker, and count the attempt; ``None`` if it can't be taken now.

    Only if nobody has had it since *seen_token* was seen: then what was seen with it still holds.
    """
    return moved(tx, _CLAIM, of_key=key, process_id=process_id, seen_token=seen_token)


_PROGRESS = update(workflows).where(_MINE).values(attempts=1)


def progress(tx: Tx, key: str) -> None:
    """Note durable progress: the deaths before it no longer count as attempts."""
    tx.execute(_PROGRESS, {"of_key": key})


def releasing(to: WorkflowStatus, *where: ColumnElement[bool], **changes: Any) -> Move:
    """The move with which a holder gives its run back, where that holds, too."""
    held = and_(WORKFLOW_HELD, *where)
    return moving(workflows, held, to, allowed=WORKFLOW_MOVES, returning=KNOCK, process_id=None, **changes)


_PARK = moving(
    workflows,
    and_(WORKFLOW_HELD, workflows.c.inbox == bindparam("seen_inbox"), workflows.c.pause_at.is_(None)),
    WorkflowStatus.WAITING,
    allowed=WORKFLOW_MOVES,
    parked_inbox=bindparam("seen_inbox"),
    process_id=None,
    attempts=0,
    takeovers=0,
)


def park(tx: Tx, lease: Lease, inbox: int, wake_at: datetime | None, step_queue: str | None = None) -> bool:
    """Give the run back until an event comes or *wake_at* passes, and say whether this call did.

    It goes on in *step_queue*, where that is given. False when an event has come since *inbox* was counted (look
    again), when somebody wants the run to pause, or when the lease is lost.
    """
    return move(tx, _PARK, **lease.parameters, seen_inbox=inbox, wake_at=wake_at, step_queue=step_queue)


_GO_TO = releasing(
    WorkflowStatus.QUEUED,
    workflows.c.pause_at.is_(None),
    wakes=workflows.c.wakes + 1,
    knock_at=now(MISSED_AFTER),
    knocks=0,
    attempts=0,
    takeovers=0,
)


def go_to(tx: Tx, lease: Lease, step_queue: str | None) -> Row[Any] | None:
    """Let a worker of that queue (``None``: the run's own) go on; ``None`` if the lease is lost, or it shall pause."""
    return moved(tx, _GO_TO, **lease.parameters, step_queue=step_queue)


_HAND_OVER = releasing(
    WorkflowStatus.QUEUED,
    workflows.c.pause_at.is_(None),
    wakes=workflows.c.wakes + 1,
    knock_at=now(span("after")),
    knocks=0,
)


def hand_over(tx: Tx, lease: Lease, *, orderly: bool, after: timedelta = MISSED_AFTER) -> Row[Any] | None:
    """Put a run in hand back into the queue for another worker; ``None`` if the lease is lost, or it shall pause.

    Args:
        tx: The transaction.
        lease: The holder's.
        orderly: Whether the claim came to an orderly end, so that it is no failed attempt.
        after: When the tick knocks if nobody else does.
    """
    changes: dict[str, Any] = {"attempts": 0} if orderly else {}
    return moved(tx, _HAND_OVER, **lease.parameters, after=after, **changes)


_COMPLETE = releasing(WorkflowStatus.COMPLETE, attempts=0, completed_at=now(), pause_at=None)


def complete(tx: Tx, lease: Lease, output: str) -> bool:
    """End the run with its result, and say whether this call did."""
    return move(tx, _COMPLETE, **lease.parameters, output=output)


_FAIL = releasing(WorkflowStatus.ERRORED, completed_at=now(), pause_at=None)


def fail(tx: Tx, lease: Lease, error_type: str, error: str) -> bool:
    """End the run in error, and say whether this call did."""
    return move(tx, _FAIL, **lease.parameters, error_type=error_type, error=error)


_STOP = releasing(WorkflowStatus.PAUSED, attempts=0, pause_at=now())


def stop_resumably(tx: Tx, lease: Lease, error_type: str, error: str) -> bool:
    """Pause the run with an error that ``control.resume`` clears, and say whether this call did."""
    return move(tx, _STOP, **lease.parameters, error_type=error_type, error=error)


# --- what anybody does ----------------------------------------------------------------------------


def waking(
    *where: ColumnElement[bool],
    mine: ColumnElement[bool] = _MINE,
    returning: Sequence[ColumnElement[Any]] = (),
) -> ReturningUpdate[Any]:
    """The UPDATE of :func:`wake`, where that holds, too; it may return more than what a knock needs."""
    waiting = workflows.c.status == WorkflowStatus.WAITING
    return (
        update(workflows)
        .where(mine, workflows.c.deleted_at.is_(None), *where)
        .values(
            inbox=workflows.c.inbox + 1,
            status=case((waiting, WorkflowStatus.QUEUED.value), else_=workflows.c.status),
            wakes=case((waiting, workflows.c.wakes + 1), else_=workflows.c.wakes),
            knock_at=case((waiting, now(MISSED_AFTER)), else_=workflows.c.knock_at),
            knocks=case((waiting, 0), else_=workflows.c.knocks),
            wake_at=case((waiting, null()), else_=workflows.c.wake_at),
        )
        .returning(*KNOCK, *returning)
    )


_OF_RUN = workflows.c.run == bindparam("of_run")
LIVE = workflows.c.status.not_in([bindparam(f"terminal_{name}", name) for name in TERMINAL])

_WAKE = {
    (any_run, live): waking(*([] if any_run else [_OF_RUN]), *([LIVE] if live else []))
    for any_run in (True, False)
    for live in (True, False)
}


def wake(tx: Tx, key: str, *, run: int | None = None, live: bool = False) -> Row[Any] | None:
    """Count an event that this transaction stores; a waiting run becomes queued. ``None``: no such run.

    Called before the event is inserted: the row's lock puts events and the holder's look at the inbox
    in one order.

    Args:
        tx: The transaction.
        key: The workflow's.
        run: Only this run of it.
        live: Only if it has not ended.
    """
    values = {"of_key": key} if run is None else {"of_key": key, "of_run": run}
    return tx.execute(_WAKE[run is None, live], values).first()


def queueing(*where: ColumnElement[bool], **changes: Any) -> Move:
    """The move of a run that waits, for a wake-up or for somebody who resumes it, back into the queue."""
    return moving(
        workflows,
        and_(_THERE, *where),
        WorkflowStatus.QUEUED,
        allowed=WORKFLOW_MOVES,
        returning=KNOCK,
        wakes=workflows.c.wakes + 1,
        knock_at=now(MISSED_AFTER),
        knocks=0,
        wake_at=None,
        attempts=0,
        error_type=None,
        error=None,
        **changes,
    )


_WANTED = workflows.c.pause_at.is_not(None)
_SEIZE = (
    update(workflows)
    .where(WORKFLOW_HELD)
    .values(
        status=case((_WANTED, WorkflowStatus.PAUSED.value), else_=workflows.c.status),
        process_id=None,
        token=workflows.c.token + 1,
        wakes=workflows.c.wakes + 1,
        knock_at=case((_WANTED, null()), else_=now()),
        knocks=0,
    )
    .returning(*KNOCK)
)


def seize(tx: Tx, lease: Lease) -> Row[Any] | None:
    """Take the run from that holder, for whoever claims it next; ``None`` if it no longer had it.

    One that shall pause is paused with that.
    """
    return tx.execute(_SEIZE, lease.parameters).first()
