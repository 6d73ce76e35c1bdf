"""Delete rows of jobs, many at once."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select

from think_celery.store.database import Tx
from think_celery.store.tables import jobs


def delete_some(
    tx: Tx,
    *,
    agent_id: str | None,
    kinds: Sequence[str],
    statuses: Sequence[str],
    before: datetime | None,
    limit: int,
) -> int:
    """Delete jobs that nobody works on, of those before that instant, and say how many; ``None``: of all agents."""
    free = select(jobs.c.seq).where(jobs.c.process_id.is_(None))
    chosen = free.where(jobs.c.kind.in_(kinds), jobs.c.status.in_(statuses))
    if agent_id is not None:
        chosen = chosen.where(jobs.c.agent_id == agent_id)
    if before is not None:
        chosen = chosen.where(func.coalesce(jobs.c.completed_at, jobs.c.created_at) < before)
    return tx.execute(delete(jobs).where(jobs.c.seq.in_(chosen.order_by(jobs.c.seq).limit(limit)))).rowcount
