"""Rows of workflow runs: their status, lease and inbox count.

Two rules keep events from being lost. Storing an event always updates the workflow's row, whatever its
status (:func:`wake`); parking is one UPDATE conditional on the inbox count that the holder has looked at
(:func:`park`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, case, func, null, or_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery.ids import AgentRef, WorkflowRef
from think_celery.retries import MISSED_AFTER
from think_celery.states import WORKFLOW_MOVES, WorkflowStatus, is_terminal
from think_celery.store.database import Tx
from think_celery.store.leases import Lease
from think_celery.store.moves import move, moved
from think_celery.store.tables import workflows

TERMINAL = [status.value for status in WorkflowStatus if is_terminal(status)]

_KNOCK = (
    workflows.c.key,
    workflows.c.workflow,
    workflows.c.workflow_id,
    workflows.c.run,
    workflows.c.wakes,
    workflows.c.queue,
    workflows.c.status,
)


def _claimable() -> ColumnElement[bool]:
    # A running one without a process was taken from a holder that died.
    freed = and_(workflows.c.status == WorkflowStatus.RUNNING, workflows.c.process_id.is_(None))
    return or_(workflows.c.status == WorkflowStatus.QUEUED, freed)


# --- rows -----------------------------------------------------------------------------------------


def insert(tx: Tx, ref: WorkflowRef, agent: AgentRef, **values: Any) -> Row[Any] | None:
    """Add a queued run, and return it; ``None`` where the workflow is there already: nothing is changed."""
    statement = (
        tx.insert(workflows)
        .values(
            key=ref.key,
            workflow=ref.workflow,
            workflow_id=ref.workflow_id,
            run=1,
            agent_class=agent.agent_class,
            agent_name=agent.name,
            status=WorkflowStatus.QUEUED,
            created_at=tx.now(),
            knock_at=tx.now(MISSED_AFTER),
            **values,
        )
        .on_conflict_do_nothing()
        .returning(workflows)
    )
    return tx.execute(statement).first()


def get(tx: Tx, key: str) -> Row[Any] | None:
    """The workflow of that key."""
    return tx.execute(select(workflows).where(workflows.c.key == key)).first()


def by_id(tx: Tx, workflow_id: str) -> Sequence[Row[Any]]:
    """The workflows, of whatever class, that were started under that id."""
    statement = select(workflows).where(workflows.c.workflow_id == workflow_id)
    return tx.execute(statement.order_by(workflows.c.workflow)).all()


def find(
    tx: Tx, *, statuses: Sequence[str] | None = None, workflow: str | None = None, limit: int = 100
) -> Sequence[Row[Any]]:
    """Workflows, newest first."""
    statement = select(workflows).order_by(workflows.c.created_at.desc(), workflows.c.key).limit(limit)
    if statuses is not None:
        statement = statement.where(workflows.c.status.in_(statuses))
    if workflow is not None:
        statement = statement.where(workflows.c.workflow == workflow)
    return tx.execute(statement).all()


# --- what a holder does ---------------------------------------------------------------------------


def claim(tx: Tx, key: str, process_id: str) -> Row[Any] | None:
    """Take a run that waits for a worker, and count the attempt; ``None`` if it can't be taken now."""
    return moved(
        tx,
        workflows,
        and_(workflows.c.key == key, _claimable()),
        WorkflowStatus.RUNNING,
        allowed=WORKFLOW_MOVES,
        process_id=process_id,
        token=workflows.c.token + 1,
        attempts=workflows.c.attempts + 1,
        takeovers=workflows.c.takeovers + 1,
        started_at=func.coalesce(workflows.c.started_at, tx.now()),
        wake_at=None,
        knock_at=None,
        knocks=0,
    )


def progress(tx: Tx, key: str) -> None:
    """Note durable progress: the deaths before it no longer count as attempts."""
    tx.execute(update(workflows).where(workflows.c.key == key).values(attempts=1))


def _release(tx: Tx, lease: Lease, to: WorkflowStatus, **changes: Any) -> Row[Any] | None:
    return moved(tx, workflows, lease.held, to, allowed=WORKFLOW_MOVES, process_id=None, **changes)


def park(tx: Tx, lease: Lease, inbox: int, wake_at: datetime | None) -> bool:
    """Give the run back until an event comes or *wake_at* passes, and say whether this call did.

    False when an event has come since *inbox* was counted (look again), or when the lease is lost.
    """
    return move(
        tx,
        workflows,
        and_(lease.held, workflows.c.inbox == inbox),
        WorkflowStatus.WAITING,
        allowed=WORKFLOW_MOVES,
        parked_inbox=inbox,
        wake_at=wake_at,
        process_id=None,
        attempts=0,
        takeovers=0,
    )


def hand_over(tx: Tx, lease: Lease, *, orderly: bool, after: timedelta = MISSED_AFTER) -> Row[Any] | None:
    """Put a run in hand back into the queue for another worker; ``None`` if the lease is lost.

    Args:
        tx: The transaction.
        lease: The holder's.
        orderly: Whether the claim came to an orderly end, so that it is no failed attempt.
        after: When the tick knocks if nobody else does.
    """
    changes: dict[str, Any] = {"attempts": 0} if orderly else {}
    return _release(
        tx,
        lease,
        WorkflowStatus.QUEUED,
        wakes=workflows.c.wakes + 1,
        knock_at=tx.now(after),
        knocks=0,
        **changes,
    )


def complete(tx: Tx, lease: Lease, output: str) -> bool:
    """End the run with its result, and say whether this call did."""
    changes: dict[str, Any] = {"output": output, "attempts": 0, "completed_at": tx.now()}
    return _release(tx, lease, WorkflowStatus.COMPLETE, **changes) is not None


def fail(tx: Tx, lease: Lease, error_type: str, error: str) -> bool:
    """End the run in error, and say whether this call did."""
    changes: dict[str, Any] = {"error_type": error_type, "error": error, "completed_at": tx.now()}
    return _release(tx, lease, WorkflowStatus.ERRORED, **changes) is not None


def stop_resumably(tx: Tx, lease: Lease, error_type: str, error: str) -> bool:
    """Pause the run with an error that :func:`resume` clears, and say whether this call did."""
    changes: dict[str, Any] = {"error_type": error_type, "error": error, "attempts": 0}
    return _release(tx, lease, WorkflowStatus.PAUSED, **changes) is not None


# --- what anybody does ----------------------------------------------------------------------------


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
    waiting = workflows.c.status == WorkflowStatus.WAITING
    statement = update(workflows).where(workflows.c.key == key)
    if run is not None:
        statement = statement.where(workflows.c.run == run)
    if live:
        statement = statement.where(workflows.c.status.not_in(TERMINAL))
    statement = statement.values(
        inbox=workflows.c.inbox + 1,
        status=case((waiting, WorkflowStatus.QUEUED.value), else_=workflows.c.status),
        wakes=case((waiting, workflows.c.wakes + 1), else_=workflows.c.wakes),
        knock_at=case((waiting, tx.now(MISSED_AFTER)), else_=workflows.c.knock_at),
        knocks=case((waiting, 0), else_=workflows.c.knocks),
        wake_at=case((waiting, null()), else_=workflows.c.wake_at),
    )
    return tx.execute(statement.returning(*_KNOCK)).first()


def resume(tx: Tx, key: str) -> Row[Any] | None:
    """Put a paused run back into the queue and clear its error; ``None`` if it isn't paused."""
    return _queue(tx, and_(workflows.c.key == key, workflows.c.status == WorkflowStatus.PAUSED))


def _queue(tx: Tx, where: ColumnElement[bool]) -> Row[Any] | None:
    return moved(
        tx,
        workflows,
        where,
        WorkflowStatus.QUEUED,
        allowed=WORKFLOW_MOVES,
        returning=_KNOCK,
        wakes=workflows.c.wakes + 1,
        knock_at=tx.now(MISSED_AFTER),
        knocks=0,
        wake_at=None,
        attempts=0,
        error_type=None,
        error=None,
    )


# --- what the tick looks for ----------------------------------------------------------------------


def _due(tx: Tx) -> ColumnElement[bool]:
    return and_(workflows.c.status == WorkflowStatus.WAITING, workflows.c.wake_at <= tx.now())


def _unread() -> ColumnElement[bool]:
    return and_(workflows.c.status == WorkflowStatus.WAITING, workflows.c.inbox > workflows.c.parked_inbox)


def due(tx: Tx, limit: int) -> Sequence[str]:
    """Waiting runs whose time has come."""
    statement = select(workflows.c.key).where(_due(tx)).order_by(workflows.c.wake_at).limit(limit)
    return tx.execute(statement).scalars().all()


def wake_due(tx: Tx, key: str) -> Row[Any] | None:
    """Queue a run whose time has come; ``None`` if another did."""
    return _queue(tx, and_(workflows.c.key == key, _due(tx)))


def next_wake(tx: Tx) -> datetime | None:
    """When the next waiting run's time comes; ``None`` where none waits for a time."""
    statement = select(workflows.c.wake_at).where(
        workflows.c.status == WorkflowStatus.WAITING, workflows.c.wake_at.is_not(None)
    )
    return tx.execute(statement.order_by(workflows.c.wake_at).limit(1)).scalar()


def unread(tx: Tx, limit: int) -> Sequence[str]:
    """Waiting runs with an event that they were not woken for. There are none, or a rule was broken."""
    statement = select(workflows.c.key).where(_unread()).order_by(workflows.c.key).limit(limit)
    return tx.execute(statement).scalars().all()


def wake_unread(tx: Tx, key: str) -> Row[Any] | None:
    """Queue a waiting run that has unread events; ``None`` if another did."""
    return _queue(tx, and_(workflows.c.key == key, _unread()))


def missed(tx: Tx, limit: int) -> Sequence[Row[Any]]:
    """Runs whose knock seems lost."""
    statement = (
        select(*_KNOCK, workflows.c.knock_at, workflows.c.knocks)
        .where(workflows.c.knock_at <= tx.now())
        .order_by(workflows.c.knock_at)
        .limit(limit)
    )
    return tx.execute(statement).all()


def knock_again(tx: Tx, key: str, seen: datetime, after: timedelta, knocks: int) -> Row[Any] | None:
    """Set when to knock next, if nobody else has since *seen*; ``None`` if one has, or there is no need.

    A row that no longer waits for a worker is told to expect no knock.
    """
    wants = _claimable()
    statement = (
        update(workflows)
        .where(workflows.c.key == key, workflows.c.knock_at == seen)
        .values(knock_at=case((wants, tx.now(after)), else_=null()), knocks=knocks)
        .returning(*_KNOCK, workflows.c.knock_at)
    )
    row = tx.execute(statement).first()
    return None if row is None or row.knock_at is None else row


def knock_now(tx: Tx) -> None:
    """Let the tick knock for every run that waits for a worker, at once: the broker has lost all messages."""
    tx.execute(update(workflows).where(_claimable()).values(knock_at=tx.now(), knocks=0))


def seize(tx: Tx, lease: Lease) -> Row[Any] | None:
    """Take the run from that holder, for whoever claims it next; ``None`` if it no longer had it."""
    statement = (
        update(workflows)
        .where(lease.held)
        .values(
            process_id=None,
            token=workflows.c.token + 1,
            wakes=workflows.c.wakes + 1,
            knock_at=tx.now(),
            knocks=0,
        )
        .returning(*_KNOCK)
    )
    return tx.execute(statement).first()
