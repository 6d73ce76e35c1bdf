"""Which agents have tasks that their classes declare, and what is stored of those."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, bindparam, exists, select, union

from think_celery.store.agents import LIVES
from think_celery.store.database import Tx
from think_celery.store.schedule_tables import schedules
from think_celery.store.statements import AT_MOST
from think_celery.store.tables import agents

_DECLARED = (schedules.c.task_id.is_not(None), schedules.c.ended_at.is_(None))

_BY_CLASS = (
    select(agents.c.id.label("agent_id"), agents.c.agent_class, agents.c.name.label("agent_name"))
    .where(
        agents.c.agent_class.in_(bindparam("declaring", expanding=True)),
        agents.c.id > bindparam("after"),
        LIVES,
    )
    .order_by(agents.c.id)
    .limit(AT_MOST)
    .subquery()
)
# Of an agent that was destroyed nothing is declared again; what is left of it is ended when it is due.
_DESTROYED = exists().where(agents.c.id == schedules.c.agent_id, agents.c.destroyed_at.is_not(None))
_BY_SCHEDULE = (
    select(schedules.c.agent_id, schedules.c.agent_class, schedules.c.agent_name)
    .where(
        *_DECLARED,
        schedules.c.agent_class.in_(bindparam("classes", expanding=True)),
        schedules.c.agent_id > bindparam("after"),
        ~_DESTROYED,
    )
    .distinct()
    .order_by(schedules.c.agent_id)
    .limit(AT_MOST)
    .subquery()
)
_BOTH = union(select(_BY_CLASS), select(_BY_SCHEDULE)).subquery()
_THAT_DECLARE = select(_BOTH).order_by(_BOTH.c.agent_id).limit(AT_MOST)


def agents_that_declare(
    tx: Tx, declaring: Sequence[str], classes: Sequence[str], after: str, limit: int
) -> list[Row[Any]]:
    """A batch of agents in the order of their ids: those of classes that declare tasks, and those that declared some.

    Args:
        tx: The transaction.
        declaring: Classes whose agents all count.
        classes: Classes whose agents count that have schedules of declared tasks.
        after: The id of the last one of the batch before.
        limit: How many at most.
    """
    given = {"declaring": list(declaring), "classes": list(classes), "after": after, "at_most": limit}
    return list(tx.execute(_THAT_DECLARE, given))


_OF = select(schedules).where(*_DECLARED, schedules.c.agent_id.in_(bindparam("agent_ids", expanding=True)))


def declared_of(tx: Tx, agent_ids: Sequence[str]) -> list[Row[Any]]:
    """The schedules of the declared tasks of all these agents."""
    return list(tx.execute(_OF, {"agent_ids": list(agent_ids)})) if agent_ids else []
