"""Rows of the inbox: what was sent to workflow runs and what their steps have taken from it.

An event for a workflow that does not exist yet is stored under run 0 and moved to the first run when that
begins. Whoever stores an event has locked the workflow's row before (``store.workflows.wake``).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Boolean,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import ColumnElement

from think_celery.states import STEP_MOVES, StepStatus
from think_celery.store import steps as steps_store
from think_celery.store.database import Tx
from think_celery.store.leases import WORKFLOW_HELD, Lease
from think_celery.store.moves import move, moving
from think_celery.store.statements import AT_MOST, insert_new, now, span
from think_celery.store.steps import ENDED, StepRef, fence, its_row
from think_celery.store.tables import events, steps, workflows
from think_celery.store.workflows import wake, waking

EARLY = 0
"""The run of events that came before their workflow."""

_OF_KEY = events.c.workflow_key == bindparam("of_key")
_UNREAD = and_(
    _OF_KEY,
    events.c.run == bindparam("of_run"),
    events.c.type == bindparam("of_type"),
    events.c.consumed_by.is_(None),
)

# --- sending --------------------------------------------------------------------------------------

_SENT_AT = bindparam("sent_at", type_=events.c.created_at.type)
_INSERT = insert_new(events, events.c.seq, created_at=func.coalesce(_SENT_AT, now()))


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
    values = {
        "workflow_key": workflow_key,
        "run": run,
        "type": type,
        "payload": payload,
        "dedupe_key": dedupe_key,
        "sent_at": sent_at,
    }
    return tx.execute(_INSERT, values).first() is not None


def _waking_and_inserting() -> Select[Any]:
    # The time of the event is read where the UPDATE returns it, and so after the row was locked: that is the order
    # of events and looks.
    woken = waking(returning=[now().label("sent_at")]).cte("woken")
    values = {
        "workflow_key": bindparam("of_key", type_=events.c.workflow_key.type),
        "run": func.coalesce(select(woken.c.run).scalar_subquery(), literal(EARLY)),
        "created_at": func.coalesce(select(woken.c.sent_at).scalar_subquery(), now()),
        **{
            name: bindparam(f"new_{name}", type_=events.c[name].type)
            for name in ("type", "payload", "dedupe_key")
        },
    }
    insert = postgresql.insert(events).from_select([*values], select(*values.values()))
    return select(woken).add_cte(insert.on_conflict_do_nothing().cte("stored"))


_WAKE_AND_INSERT = _waking_and_inserting()


def send(tx: Tx, workflow_key: str, *, type: str, payload: str, dedupe_key: str) -> Row[Any] | None:
    """Wake a workflow and store an event for it, and return its row; ``None``, and stored as early: there is none.

    On PostgreSQL that is one statement.
    """
    if tx.postgres:
        values = {"new_type": type, "new_payload": payload, "new_dedupe_key": dedupe_key}
        return tx.execute(_WAKE_AND_INSERT, {"of_key": workflow_key, **values}).first()
    row = wake(tx, workflow_key)
    run = EARLY if row is None else row.run
    insert(tx, workflow_key=workflow_key, run=run, type=type, payload=payload, dedupe_key=dedupe_key)
    return row


# --- looking and taking ---------------------------------------------------------------------------

_FIRST_UNREAD = select(events).where(_UNREAD).order_by(events.c.seq).limit(1)
_FIRST_UNREAD_BY = _FIRST_UNREAD.where(
    events.c.created_at <= bindparam("until", type_=events.c.created_at.type)
)


def first_unread(
    tx: Tx, workflow_key: str, run: int, type: str, until: datetime | None = None
) -> Row[Any] | None:
    """The oldest event of that type that no step has taken, sent at or before *until*."""
    values: dict[str, Any] = {"of_key": workflow_key, "of_run": run, "of_type": type}
    if until is None:
        return tx.execute(_FIRST_UNREAD, values).first()
    return tx.execute(_FIRST_UNREAD_BY, {**values, "until": until}).first()


_UNREAD_OF = (
    select(events)
    .where(
        _OF_KEY,
        events.c.run == bindparam("of_run"),
        events.c.type.in_(bindparam("of_types", expanding=True)),
        events.c.consumed_by.is_(None),
    )
    .order_by(events.c.seq)
)
_UNREAD_OF_BY = _UNREAD_OF.where(events.c.created_at <= bindparam("until", type_=events.c.created_at.type))


_ALL_UNREAD = (
    select(events)
    .where(_OF_KEY, events.c.run == bindparam("of_run"), events.c.consumed_by.is_(None))
    .order_by(events.c.seq)
)


def unread(tx: Tx, workflow_key: str, run: int) -> Sequence[Row[Any]]:
    """Every event of a run that no step has taken, oldest first."""
    return tx.execute(_ALL_UNREAD, {"of_key": workflow_key, "of_run": run}).all()


def unread_of(
    tx: Tx, workflow_key: str, run: int, types: Sequence[str], until: datetime | None = None
) -> Sequence[Row[Any]]:
    """All events of these types that no step has taken, sent at or before *until*, oldest first."""
    values: dict[str, Any] = {"of_key": workflow_key, "of_run": run, "of_types": list(types)}
    if until is None:
        return tx.execute(_UNREAD_OF, values).all()
    return tx.execute(_UNREAD_OF_BY, {**values, "until": until}).all()


_FOUND = events.alias("found")
_INBOX = select(workflows.c.inbox).where(workflows.c.key == bindparam("of_key")).scalar_subquery()


def _seen(deadline: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    due = func.coalesce(deadline <= now(), false()).label("due")
    return (deadline, due, _FOUND.c.seq, _FOUND.c.type, _FOUND.c.payload, _FOUND.c.created_at)


def _beginning() -> Select[Any]:
    # The count and the event are of the moment at which the statement began: it is not the count of the row that the
    # fence has locked, which may be a later one.
    entry = steps_store.INSERT_WAITING["postgresql"].cte("entry")
    first = select(events.c.seq).where(_UNREAD).order_by(events.c.seq).limit(1).scalar_subquery()
    found = entry.outerjoin(_FOUND, _FOUND.c.seq == first)
    return select(_INBOX.label("inbox"), *_seen(entry.c.deadline_at)).select_from(found)


_BEGIN = _beginning()


def begin_wait(
    tx: Tx,
    lease: Lease,
    ref: StepRef,
    type: str | None,
    timeout: timedelta | None,
    told: str | None = None,
) -> Row[Any] | None:
    """Add the entry of a step that waits, and look as :func:`look` does, in one statement.

    ``None``, and nothing is changed, where the lease is lost and where there is such an entry already, and always on
    SQLite, which has no such statement.
    """
    if not tx.postgres:
        return None
    of = {"of_key": ref.workflow_key, "of_run": ref.run, "of_type": type}
    return tx.execute(_BEGIN, {**steps_store.new_waiting(lease, ref, timeout, told), **of}).first()


def _looking() -> Select[Any]:
    in_time = or_(
        bindparam("any_time", type_=Boolean),
        steps.c.deadline_at.is_(None),
        events.c.created_at <= steps.c.deadline_at,
    )
    first = select(events.c.seq).where(_UNREAD, in_time).order_by(events.c.seq).limit(1)
    return (
        select(workflows.c.inbox, *_seen(steps.c.deadline_at))
        .select_from(workflows)
        .join(steps, its_row())
        .outerjoin(_FOUND, _FOUND.c.seq == first.correlate(steps).scalar_subquery())
        .where(WORKFLOW_HELD)
    )


_LOOK = _looking()


def look(tx: Tx, lease: Lease, ref: StepRef, type: str | None, *, any_time: bool) -> Row[Any] | None:
    """What a step that waits would find now, without a lock; ``None`` where the lease is lost.

    The row has the oldest unread event of that type which was sent by the step's deadline (with *any_time*: at
    any time), without a ``seq`` where there is none; the ``inbox`` as it was counted at that same moment; and
    whether the deadline is ``due``. An event may be on its way in that was sent before the deadline: a step
    that gives up looks again under the fence.
    """
    values = {**ref.mine, **lease.parameters, "of_type": type, "any_time": any_time}
    return tx.execute(_LOOK, values).first()


_CONSUME = (
    update(events)
    .where(events.c.seq == bindparam("taken_seq"), events.c.consumed_by.is_(None))
    .values(consumed_by=bindparam("of_step"))
    .returning(events.c.seq)
)


def consume(tx: Tx, seq: int, step: str) -> bool:
    """Take an event for a step, and say whether it was still there."""
    return tx.execute(_CONSUME, {"taken_seq": seq, "of_step": step}).first() is not None


def _taking(status: StepStatus) -> Any:
    taken = _CONSUME.where(exists(select(fence().c.key))).cte("taken")
    where = and_(its_row(), exists(select(taken.c.seq)))
    return moving(steps, where, status, allowed=STEP_MOVES, completed_at=now())


_TAKE = {status: _taking(status) for status in ENDED}


def take(tx: Tx, lease: Lease, ref: StepRef, seq: int, status: StepStatus, **changes: Any) -> bool:
    """Take an event for a step and end its entry, in one statement fenced by the lease, and say whether that was done.

    False, and nothing is changed, where the lease is lost or the event is gone, and always on SQLite, which has no
    such statement.
    """
    if not tx.postgres:
        return False
    return move(tx, _TAKE[status], **ref.mine, **lease.parameters, taken_seq=seq, **changes)


# --- early events ---------------------------------------------------------------------------------

_EARLY = events.c.run == EARLY
_HAS_EARLY = select(events.c.seq).where(_OF_KEY, _EARLY).limit(1)


def has_early(tx: Tx, workflow_key: str) -> bool:
    """Whether events wait for a workflow to begin."""
    return tx.execute(_HAS_EARLY, {"of_key": workflow_key}).first() is not None


_ADOPT = update(events).where(_OF_KEY, _EARLY)


def adopt(tx: Tx, workflow_key: str, run: int) -> int:
    """Move early events to a run, and say how many there were."""
    return tx.execute(_ADOPT, {"of_key": workflow_key, "run": run}).rowcount


_ADOPTABLE = (
    select(events.c.workflow_key)
    .join(workflows, workflows.c.key == events.c.workflow_key)
    .where(_EARLY, workflows.c.deleted_at.is_(None))
    .distinct()
    .limit(AT_MOST)
)


def adoptable(tx: Tx, limit: int) -> Sequence[str]:
    """Workflows that exist and have early events which nobody has moved to them."""
    return tx.execute(_ADOPTABLE, {"at_most": limit}).scalars().all()


_OLD = (
    select(events.c.seq)
    .where(_EARLY, events.c.created_at < now(span("age")))
    .order_by(events.c.created_at)
    .limit(AT_MOST)
)
_FORGET_EARLY = delete(events).where(events.c.seq.in_(_OLD))


def forget_early(tx: Tx, older_than: timedelta, limit: int) -> int:
    """Delete events whose workflow never began, and say how many."""
    return tx.execute(_FORGET_EARLY, {"age": -older_than, "at_most": limit}).rowcount
