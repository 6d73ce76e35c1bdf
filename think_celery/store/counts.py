"""How many rows a question would be about."""

from datetime import datetime

from sqlalchemy import func, select

from think_celery.store.database import Tx
from think_celery.store.tables import submissions


def ended_submissions(
    tx: Tx, agent_id: str, *, statuses: list[str], completed_before: datetime | None = None
) -> int:
    """How many submissions of an agent have ended and match."""
    statement = (
        select(func.count())
        .select_from(submissions)
        .where(submissions.c.agent_id == agent_id, submissions.c.status.in_(statuses))
    )
    if completed_before is not None:
        statement = statement.where(submissions.c.completed_at < completed_before)
    return int(tx.execute(statement).scalar_one())
