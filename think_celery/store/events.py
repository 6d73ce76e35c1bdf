"""Rows of the inbox: what was sent to workflow runs and what their steps have taken from it.

An event for a workflow that does not exist yet is stored under run 0 and moved to the first run when that
begins. Whoever stores an event has locked the workflow's row before (``store.workflows.wake``).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, select, update

from think_celery.store.database import Tx
from think_celery.store.tables import events, workflows

EARLY = 0
"""The run of events that came before their workflow."""


def insert(
    tx: Tx,
    *,
    workflow_key: str,
    run: int,
    type: str,
    payload: str,
    dedupe_key: str,
    sent_at: datetime | None = None,
) -> bool:
    """Store an event, and say whether it is new: the same *dedupe_key* again changes nothing."""
    statement = (
        tx.insert(events)
        .values(
            workflow_key=workflow_key,
            run=run,
            type=type,
            payload=payload,
            dedupe_key=dedupe_key,
            created_at=tx.now() if sent_at is None else sent_at,
        )
        .on_conflict_do_nothing()
        .returning(events.c.seq)  # the count of rows of an INSERT is not known on PostgreSQL
    )
    return tx.execute(statement).first() is not None


def first_unread(
    tx: Tx, workflow_key: str, run: int, type: str, until: datetime | None = None
) -> Row[Any] | None:
    """The oldest event of that type that no step has taken, sent at or before *until*."""
    statement = select(events).where(
        events.c.workflow_key == workflow_key,
        events.c.run == run,
        events.c.type == type,
        events.c.consumed_by.is_(None),
    )
    if until is not None:
        statement = statement.where(events.c.created_at <= until)
    return tx.execute(statement.order_by(events.c.seq).limit(1)).first()


def consume(tx: Tx, seq: int, step: str) -> bool:
    """Take an event for a step, and say whether it was still there."""
    statement = update(events).where(events.c.seq == seq, events.c.consumed_by.is_(None))
    return tx.execute(statement.values(consumed_by=step)).rowcount == 1


def has_early(tx: Tx, workflow_key: str) -> bool:
    """Whether events wait for a workflow to begin."""
    statement = select(events.c.seq).where(events.c.workflow_key == workflow_key, events.c.run == EARLY)
    return tx.execute(statement.limit(1)).first() is not None


def adopt(tx: Tx, workflow_key: str, run: int) -> int:
    """Move early events to a run, and say how many there were."""
    statement = update(events).where(events.c.workflow_key == workflow_key, events.c.run == EARLY)
    return tx.execute(statement.values(run=run)).rowcount


def adoptable(tx: Tx, limit: int) -> Sequence[str]:
    """Workflows that exist and have early events which nobody has moved to them."""
    statement = (
        select(events.c.workflow_key)
        .join(workflows, workflows.c.key == events.c.workflow_key)
        .where(events.c.run == EARLY)
        .distinct()
        .limit(limit)
    )
    return tx.execute(statement).scalars().all()


def forget_early(tx: Tx, older_than: timedelta, limit: int) -> int:
    """Delete events whose workflow never began, and say how many."""
    old = (
        select(events.c.seq)
        .where(events.c.run == EARLY, events.c.created_at < tx.now(-older_than))
        .order_by(events.c.created_at)
        .limit(limit)
    )
    return tx.execute(delete(events).where(events.c.seq.in_(old))).rowcount
