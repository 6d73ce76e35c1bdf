"""What was accepted before its agent was destroyed, and what after, whatever the clock says.

What an agent had, its destruction removes. What was accepted in a transaction that was open then comes to light later,
and is told by its instant, which is at most that of the destruction. Whatever is accepted once the destruction can be
seen gets a later one, also within the same microsecond, and when a clock was set back.
"""

from sqlalchemy import BigInteger, ColumnElement, Table, bindparam, case, func, select, type_coerce

from think_celery.store.statements import now
from think_celery.store.tables import agents
from think_celery.store.types import UtcDateTime

OF_AGENT = "accepted_of"
"""The parameter with the agent's id of :func:`accepted_now`."""


def accepted_now() -> ColumnElement[object]:
    """The present instant, or the first one after the agent was destroyed, as the ``created_at`` of a new row."""
    destroyed = (
        select(type_coerce(agents.c.jobs_since, BigInteger))
        .where(agents.c.id == bindparam(OF_AGENT))
        .scalar_subquery()
    )
    present, first = type_coerce(now(), BigInteger), func.coalesce(destroyed, -1) + 1
    return type_coerce(case((first > present, first), else_=present), UtcDateTime)


def is_destroyed(table: Table) -> ColumnElement[bool]:
    """Whether a row of that table was accepted before its agent, which may be there again, was destroyed."""
    return agents.c.jobs_since >= table.c.created_at
