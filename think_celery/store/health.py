"""What ``think-celery doctor`` asks the database: questions over all rows, each of them one statement."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, case, func, or_, select, type_coerce
from sqlalchemy.sql import ColumnElement

from think_celery.ids import short_hash
from think_celery.states import OutboxStatus, SubmissionStatus, WorkflowStatus, is_terminal
from think_celery.store import statements
from think_celery.store.database import Tx
from think_celery.store.leases import HELD, Lease
from think_celery.store.schedule_tables import schedules
from think_celery.store.statements import AT_MOST, on_each
from think_celery.store.tables import agents, outbox, processes, submissions, ticks, workflows
from think_celery.store.types import UtcDateTime

_UNFINISHED = [status.value for status in SubmissionStatus if not is_terminal(status)]


def now(tx: Tx) -> datetime:
    """The present instant by the database's clock; on SQLite that is the host's."""
    moment: datetime = tx.execute(select(type_coerce(statements.now(), UtcDateTime))).scalar_one()
    return moment


# --- who works ------------------------------------------------------------------------------------


def last_passes(tx: Tx) -> dict[str, datetime]:
    """When a pass of each kind was admitted last."""
    return {row.kind: row.last_at for row in tx.execute(select(ticks.c.kind, ticks.c.last_at))}


def _answer(insert: Any) -> Any:
    statement = insert(ticks).values(last_at=statements.now(), steady_since=statements.now())
    at = {"last_at": statement.excluded.last_at}
    return statement.on_conflict_do_update(index_elements=[ticks.c.kind], set_=at)


_ANSWER = on_each(_answer)


def answer(tx: Tx, queue: str) -> None:
    """Note that a worker has just taken a ping from this queue."""
    tx.execute(_ANSWER, {"kind": _ping(queue)})


def answered_at(tx: Tx, queue: str) -> datetime | None:
    """When a worker took a ping from this queue last."""
    return tx.execute(select(ticks.c.last_at).where(ticks.c.kind == _ping(queue))).scalar()


def _ping(queue: str) -> str:
    return f"ping {short_hash(queue)}"  # a queue's name may be longer than the column


_GONE = or_(processes.c.id.is_(None), processes.c.dead.is_(True), processes.c.until < statements.now())
_LOST = (
    select(HELD, processes.c.until)
    .outerjoin(processes, processes.c.id == HELD.c.process_id)
    .where(_GONE)
    .order_by(HELD.c.kind, HELD.c.key)
    .limit(AT_MOST)
)


def lost(tx: Tx, limit: int = 500) -> list[tuple[Lease, datetime | None]]:
    """Leases of processes that are dead or out of time, with the end of that time.

    ``None`` where the process's row is gone: it has been dead for a day.
    """
    found = tx.execute(_LOST, {"at_most": limit})
    return [
        (Lease(kind=row.kind, key=row.key, process_id=row.process_id, token=row.token), row.until)
        for row in found
    ]


def count_alive(tx: Tx) -> int:
    """How many processes have worked, and have renewed themselves in time."""
    living = and_(processes.c.dead.is_(False), processes.c.until >= statements.now())
    return tx.execute(select(func.count()).select_from(processes).where(living)).scalar() or 0


# --- what waits -----------------------------------------------------------------------------------


def waiting_turns(tx: Tx, late: timedelta) -> Sequence[Row[Any]]:
    """Turns that wait for a worker, and are not behind another, in groups of one class and queue.

    ``forgotten`` counts those whose knock was due *late* ago or earlier: a tick would have seen them.
    """
    s = submissions.c
    due = or_(s.not_before.is_(None), s.not_before <= statements.now())
    statement = (
        select(
            s.agent_class,
            s.queue,
            func.count().label("count"),
            _count(s.knock_at < statements.now(-late)).label("forgotten"),
            func.max(s.knocks).label("knocks"),
            func.min(s.created_at).label("oldest"),
            func.min(s.id).label("example"),
        )
        .where(s.knock_at.is_not(None), s.status.in_(_UNFINISHED), due)
        .group_by(s.agent_class, s.queue)
        .order_by(s.agent_class, func.coalesce(s.queue, ""))
    )
    return tx.execute(statement).all()


def waiting_runs(tx: Tx, late: timedelta) -> Sequence[Row[Any]]:
    """Runs of workflows that wait for a worker, in groups of one class, version and queue."""
    w = workflows.c
    queue = func.coalesce(w.step_queue, w.queue)
    freed = and_(w.status == WorkflowStatus.RUNNING, w.process_id.is_(None))
    statement = (
        select(
            w.workflow,
            w.version,
            w.agent_class,
            queue.label("queue"),
            func.count().label("count"),
            _count(w.knock_at < statements.now(-late)).label("forgotten"),
            func.max(w.knocks).label("knocks"),
            func.min(w.created_at).label("oldest"),
            func.min(w.workflow_id).label("example"),
        )
        .where(w.knock_at.is_not(None), or_(w.status == WorkflowStatus.QUEUED, freed))
        .group_by(w.workflow, w.version, w.agent_class, queue)
        .order_by(w.workflow, w.version, func.coalesce(queue, ""))
    )
    return tx.execute(statement).all()


def waiting_news(tx: Tx, late: timedelta) -> Sequence[Row[Any]]:
    """News that waits for its delivery, in groups of one queue."""
    o = outbox.c
    statement = (
        select(
            o.queue,
            func.count().label("count"),
            _count(o.knock_at < statements.now(-late)).label("forgotten"),
            func.max(o.knocks).label("knocks"),
            func.min(o.created_at).label("oldest"),
            func.min(o.id).label("example"),
        )
        .where(o.knock_at.is_not(None), o.status == OutboxStatus.PENDING)
        .group_by(o.queue)
        .order_by(func.coalesce(o.queue, ""))
    )
    return tx.execute(statement).all()


def _count(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


# --- what needs somebody --------------------------------------------------------------------------


def _at_hand(in_hand: ColumnElement[bool], knock_at: ColumnElement[Any]) -> ColumnElement[bool]:
    # Both sides have a partial index; a look at every row of these tables could take long.
    return or_(in_hand, knock_at.is_not(None))


def dying_turns(tx: Tx, attempts: int, takeovers: int, limit: int) -> Sequence[Row[Any]]:
    """Unfinished turns in which that many workers have died in a row, or which changed hands that often."""
    s = submissions.c
    statement = (
        select(s.id, s.agent_class, s.agent_name, s.attempts, s.takeovers)
        .where(
            _at_hand(s.status == SubmissionStatus.RUNNING, s.knock_at),
            s.status.in_(_UNFINISHED),
            or_(s.attempts >= attempts, s.takeovers >= takeovers),
        )
        .order_by(s.seq)
        .limit(limit)
    )
    return tx.execute(statement).all()


def dying_runs(tx: Tx, attempts: int, takeovers: int, limit: int) -> Sequence[Row[Any]]:
    """Runs in which that many workers have died in a row, or which changed hands that often."""
    w = workflows.c
    statement = (
        select(w.workflow, w.workflow_id, w.attempts, w.takeovers)
        .where(
            _at_hand(w.process_id.is_not(None), w.knock_at),
            or_(w.attempts >= attempts, w.takeovers >= takeovers),
        )
        .order_by(w.created_at)
        .limit(limit)
    )
    return tx.execute(statement).all()


def paused_runs(tx: Tx, limit: int) -> Sequence[Row[Any]]:
    """Runs that have stopped with an error, and can be resumed; not those that somebody has paused."""
    w = workflows.c
    statement = (
        select(w.workflow, w.workflow_id, w.error_type)
        .where(w.status == WorkflowStatus.PAUSED, w.error_type.is_not(None))
        .order_by(w.created_at)
        .limit(limit)
    )
    return tx.execute(statement).all()


def undelivered(tx: Tx, attempts: int, limit: int) -> Sequence[Row[Any]]:
    """News whose delivery has failed that often."""
    o = outbox.c
    statement = (
        select(o.id, o.attempts, o.last_error)
        .where(o.status == OutboxStatus.PENDING, o.attempts >= attempts)
        .order_by(o.created_at)
        .limit(limit)
    )
    return tx.execute(statement).all()


def failed_starts(tx: Tx, limit: int) -> Sequence[Row[Any]]:
    """Agents whose ``on_start`` has failed, and has not succeeded since."""
    a = agents.c
    statement = (
        select(a.agent_class, a.name, a.start_error_type, a.start_failed_at)
        .where(a.start_failed_at.is_not(None))
        .order_by(a.start_failed_at)
        .limit(limit)
    )
    return tx.execute(statement).all()


# --- schedules ------------------------------------------------------------------------------------

_ARMED = schedules.c.due_at.is_not(None)


def armed_schedules(tx: Tx) -> Any:
    """How many schedules may fire (``count``), and since when the first of them is there (``oldest``)."""
    columns = func.count().label("count"), func.min(schedules.c.created_at).label("oldest")
    return tx.execute(select(*columns).select_from(schedules).where(_ARMED)).one()


def called_by_schedules(tx: Tx) -> Sequence[Any]:
    """What the schedules that may fire call, in groups of one class and method, with one of each as an ``example``."""
    s = schedules.c
    columns = s.agent_class, s.method, func.count().label("count"), func.min(s.id).label("example")
    statement = select(*columns).where(_ARMED).group_by(s.agent_class, s.method)
    return tx.execute(statement.order_by(s.agent_class, func.coalesce(s.method, ""))).all()


def late_schedules(tx: Tx, late: timedelta, limit: int) -> Sequence[Row[Any]]:
    """Schedules that should have fired that long ago, the longest late first."""
    overdue = schedules.c.due_at < statements.now(-late)
    statement = select(schedules).where(overdue).order_by(schedules.c.due_at).limit(AT_MOST)
    return tx.execute(statement, {"at_most": limit}).all()


def unfired(tx: Tx, kind: str, silent: timedelta) -> bool:
    """Whether there are schedules, and no pass of that *kind* was made for so long, though one of them is that old."""
    looked = select(ticks.c.kind).where(ticks.c.kind == kind, ticks.c.last_at >= statements.now(-silent))
    armed = select(schedules.c.id).where(_ARMED, schedules.c.created_at <= statements.now(-silent))
    return bool(tx.execute(select(and_(armed.exists(), ~looked.exists()))).scalar())
