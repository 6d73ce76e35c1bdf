"""Which workflow runs the tick wakes, and which it knocks for."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, null, select, update

from think_celery.states import WorkflowStatus
from think_celery.store.database import Tx
from think_celery.store.missed import Missed, PutOff
from think_celery.store.moves import moved
from think_celery.store.statements import AT_MOST, now, span, unlocked
from think_celery.store.tables import workflows
from think_celery.store.workflows import CLAIMABLE, KNOCK, queueing

_MINE = workflows.c.key == bindparam("of_key")

_WAITING = workflows.c.status == WorkflowStatus.WAITING
_DUE = and_(_WAITING, workflows.c.wake_at <= now())
_UNREAD = and_(_WAITING, workflows.c.inbox > workflows.c.parked_inbox)
_DUE_KEYS = select(workflows.c.key).where(_DUE).order_by(workflows.c.wake_at).limit(AT_MOST)
_WAKE_DUE = queueing(_DUE)


def due(tx: Tx, limit: int) -> Sequence[str]:
    """Waiting runs whose time has come."""
    return tx.execute(_DUE_KEYS, {"at_most": limit}).scalars().all()


def wake_due(tx: Tx, key: str) -> Row[Any] | None:
    """Queue a run whose time has come; ``None`` if another did."""
    return moved(tx, _WAKE_DUE, of_key=key)


_NEXT_WAKE = (
    select(workflows.c.wake_at)
    .where(_WAITING, workflows.c.wake_at.is_not(None))
    .order_by(workflows.c.wake_at)
    .limit(1)
)


def next_wake(tx: Tx) -> datetime | None:
    """When the next waiting run's time comes; ``None`` where none waits for a time."""
    return tx.execute(_NEXT_WAKE).scalar()


_UNREAD_KEYS = select(workflows.c.key).where(_UNREAD).order_by(workflows.c.key).limit(AT_MOST)
_WAKE_UNREAD = queueing(_UNREAD)


def unread(tx: Tx, limit: int) -> Sequence[str]:
    """Waiting runs with an event that they were not woken for. There are none, or a rule was broken."""
    return tx.execute(_UNREAD_KEYS, {"at_most": limit}).scalars().all()


def wake_unread(tx: Tx, key: str) -> Row[Any] | None:
    """Queue a waiting run that has unread events; ``None`` if another did."""
    return moved(tx, _WAKE_UNREAD, of_key=key)


missed = Missed(workflows, *KNOCK, queues=[workflows.c.step_queue])
"""Runs whose knock seems lost."""

put_off = PutOff(workflows, workflows.c.key)


_SEEN = and_(_MINE, workflows.c.knock_at == bindparam("seen"))
_KNOCK_AGAIN = (
    update(workflows)
    .where(_SEEN, unlocked(workflows.c.key, _SEEN))
    .values(knock_at=case((CLAIMABLE, now(span("after"))), else_=null()))
    .returning(*KNOCK, workflows.c.knock_at)
)


def knock_again(tx: Tx, key: str, seen: datetime, after: timedelta, knocks: int) -> Row[Any] | None:
    """Set when to knock next, if nobody else has since *seen*; ``None`` if one has, or there is no need.

    A row that no longer waits for a worker is told to expect no knock.
    """
    row = tx.execute(_KNOCK_AGAIN, {"of_key": key, "seen": seen, "after": after, "knocks": knocks}).first()
    return None if row is None or row.knock_at is None else row


_TO_KNOCK = select(workflows.c.key).where(CLAIMABLE).with_for_update(key_share=True, skip_locked=True)
_KNOCK_NOW = update(workflows).where(workflows.c.key.in_(_TO_KNOCK)).values(knock_at=now(), knocks=0)


def knock_now(tx: Tx) -> None:
    """Let the tick knock for every run that waits for a worker, at once: the broker has lost all messages.

    Those that somebody has locked are left out: another worker, perhaps, that does the same in another order.
    """
    tx.execute(_KNOCK_NOW)
