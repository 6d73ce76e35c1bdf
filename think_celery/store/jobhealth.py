"""What the doctor asks of jobs. Looking changes nothing."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, and_, case, func, or_, select

from think_celery.states import JobStatus
from think_celery.store import statements
from think_celery.store.database import Tx
from think_celery.store.jobs import IS_DUE, WAITS
from think_celery.store.tables import jobs


def waiting_jobs(tx: Tx, late: timedelta) -> Sequence[Row[Any]]:
    """Jobs that wait for a worker, and are not behind another, in groups of one class, method and queue.

    ``forgotten`` counts those whose knock was due *late* ago or earlier: a tick would have seen them.
    """
    j = jobs.c
    forgotten = case((j.knock_at < statements.now(-late), 1), else_=0)
    statement = (
        select(
            j.agent_class,
            j.method,
            j.queue,
            func.count().label("count"),
            func.coalesce(func.sum(forgotten), 0).label("forgotten"),
            func.max(j.knocks).label("knocks"),
            func.min(j.created_at).label("oldest"),
            func.min(j.id).label("example"),
        )
        .where(j.knock_at.is_not(None), WAITS, IS_DUE)
        .group_by(j.agent_class, j.method, j.queue)
        .order_by(j.agent_class, func.coalesce(j.method, ""), func.coalesce(j.queue, ""))
    )
    return tx.execute(statement).all()


def dying_jobs(tx: Tx, attempts: int, takeovers: int, limit: int) -> Sequence[Row[Any]]:
    """Unfinished jobs in which that many workers have died in a row, or which changed hands that often."""
    j = jobs.c
    at_hand = or_(j.process_id.is_not(None), j.knock_at.is_not(None))
    statement = (
        select(j.id, j.agent_class, j.agent_name, j.attempts, j.takeovers)
        .where(at_hand, j.completed_at.is_(None), or_(j.attempts >= attempts, j.takeovers >= takeovers))
        .order_by(j.seq)
        .limit(limit)
    )
    return tx.execute(statement).all()


def interrupted(tx: Tx, limit: int) -> Sequence[Row[Any]]:
    """Fibers that were interrupted and that nobody has decided on."""
    j = jobs.c
    statement = (
        select(j.id, j.agent_class, j.agent_name, j.method, j.error_type)
        .where(and_(j.status == JobStatus.INTERRUPTED, j.completed_at.is_(None)))
        .order_by(j.seq)
        .limit(limit)
    )
    return tx.execute(statement).all()
