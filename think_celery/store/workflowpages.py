"""Lists of workflows, a page at a time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, or_, select

from think_celery.ids import AgentRef
from think_celery.store.database import Tx
from think_celery.store.tables import workflows

Place = tuple[datetime, str]
"""Where a workflow stands in the order: when it was started, and its key."""

_OUTLINE = (workflows.c.created_at, workflows.c.key, workflows.c.metadata)
_WHOLE = tuple(column for column in workflows.c if column.name != "params")


def page(
    tx: Tx,
    *,
    statuses: Sequence[str] | None,
    workflow: str | None,
    agent: AgentRef | None,
    after: Place | None,
    limit: int,
    outline: bool = False,
) -> Sequence[Row[Any]]:
    """Workflows without their params, newest first, from behind a place on; as an *outline*, place and metadata only.

    A start that is committed late has the place of when it was made, which may be on a page that was read before.
    """
    w = workflows.c
    statement = (
        select(*(_OUTLINE if outline else _WHOLE))
        .where(w.deleted_at.is_(None))
        .order_by(w.created_at.desc(), w.key.desc())
        .limit(limit)
    )
    if agent is not None:
        statement = statement.where(w.agent_class == agent.agent_class, w.agent_name == agent.name)
    if statuses is not None:
        statement = statement.where(w.status.in_(statuses))
    if workflow is not None:
        statement = statement.where(w.workflow == workflow)
    if after is not None:
        since, key = after
        # So that an index leads there: behind a mere OR each page would begin at the top.
        statement = statement.where(w.created_at <= since, or_(w.created_at < since, w.key < key))
    return tx.execute(statement).all()


def those(tx: Tx, keys: Sequence[str]) -> Sequence[Row[Any]]:
    """The workflows of these keys, in the same order."""
    w = workflows.c
    statement = select(*_WHOLE).where(w.key.in_(keys), w.deleted_at.is_(None))
    return tx.execute(statement.order_by(w.created_at.desc(), w.key.desc())).all()
