"""Rows of slots: the instants of schedules that have come, and what became of each."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, delete, literal_column, select, union_all

from think_celery.states import SLOT_MOVES, SlotStatus, is_terminal
from think_celery.store.database import Tx
from think_celery.store.moves import move, moving
from think_celery.store.schedule_tables import slots
from think_celery.store.statements import AT_MOST, insert_new, now, span

_OF_SCHEDULE = slots.c.schedule_id == bindparam("schedule")
# Spelt out, so that the index of open slots serves it.
_OPEN = slots.c.status == literal_column(f"'{SlotStatus.OPEN}'")

_INSERT = insert_new(slots, slots.c.id, created_at=now())
_INSERT_ENDED = insert_new(slots, slots.c.id, created_at=now(), completed_at=now())


def insert(
    tx: Tx,
    slot_id: str,
    schedule_id: str,
    scheduled_for: datetime,
    status: SlotStatus = SlotStatus.OPEN,
    *,
    reason: str | None = None,
    missed_from: datetime | None = None,
    job_id: str | None = None,
    submission_id: str | None = None,
) -> bool:
    """Add a slot, and say whether it is new; False where its schedule has one of that instant, or an open one."""
    values = {
        "id": slot_id,
        "schedule_id": schedule_id,
        "scheduled_for": scheduled_for,
        "status": status,
        "reason": reason,
        "missed_from": missed_from,
        "job_id": job_id,
        "submission_id": submission_id,
    }
    statement = _INSERT_ENDED if is_terminal(status) else _INSERT
    return tx.execute(statement, values).first() is not None


_CLOSE = {
    status: moving(slots, slots.c.id == bindparam("slot"), status, allowed=SLOT_MOVES, completed_at=now())
    for status in SlotStatus
    if is_terminal(status)
}


def close(tx: Tx, slot_id: str, status: SlotStatus, reason: str | None = None) -> bool:
    """End an open slot, and say whether this call did. Called in the transaction that ends its job or submission."""
    return move(tx, _CLOSE[status], slot=slot_id, reason=reason)


_OPEN_OR_AT = union_all(
    select(slots).where(_OF_SCHEDULE, _OPEN),
    select(slots).where(_OF_SCHEDULE, slots.c.scheduled_for == bindparam("instant"), ~_OPEN),
)


def open_or_at(tx: Tx, schedule_id: str, instant: datetime) -> tuple[Row[Any] | None, bool]:
    """The schedule's open slot, if there is one; and whether there is one of that instant, open or not."""
    found = list(tx.execute(_OPEN_OR_AT, {"schedule": schedule_id, "instant": instant}))
    there = any(row.scheduled_for == instant for row in found)
    return next((row for row in found if row.status == SlotStatus.OPEN), None), there


_OPEN_OF = select(slots).where(_OF_SCHEDULE, _OPEN)


def open_of(tx: Tx, schedule_id: str) -> Row[Any] | None:
    """The schedule's open slot: there is one at most."""
    return tx.execute(_OPEN_OF, {"schedule": schedule_id}).first()


def find(
    tx: Tx,
    schedule_id: str,
    *,
    statuses: Sequence[str] | None = None,
    before: datetime | None = None,
    limit: int = 100,
) -> list[Row[Any]]:
    """Slots of a schedule, the latest first."""
    statement = select(slots).where(slots.c.schedule_id == schedule_id)
    if statuses is not None:
        statement = statement.where(slots.c.status.in_(statuses))
    if before is not None:
        statement = statement.where(slots.c.scheduled_for < before)
    return list(tx.execute(statement.order_by(slots.c.scheduled_for.desc()).limit(limit)))


_OLD = (
    select(slots.c.id)
    .where(slots.c.completed_at.is_not(None), slots.c.completed_at < now(span("age")))
    .order_by(slots.c.completed_at)
    .limit(AT_MOST)
    .with_for_update(key_share=True, skip_locked=True)
)
_DELETE_OLD = delete(slots).where(slots.c.id.in_(_OLD))


def delete_old(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete slots that ended so long ago, and say how many."""
    return tx.execute(_DELETE_OLD, {"age": -age, "at_most": limit}).rowcount
