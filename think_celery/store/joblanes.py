"""The lanes of jobs, in which one runs at a time, and when the tick knocks for jobs."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, func, null, or_, select, update

from think_celery.retries import MISSED_AFTER
from think_celery.states import JobStatus
from think_celery.store.database import Tx
from think_celery.store.jobs import IN_FRONT, IS_DUE, KNOCK, MINE, WAITS
from think_celery.store.missed import Missed, PutOff
from think_celery.store.statements import AT_MOST, now, span, unlocked
from think_celery.store.tables import jobs

_before = jobs.alias("first")

# --- lanes ----------------------------------------------------------------------------------------

_HEAD_SEQ = (
    select(func.min(_before.c.seq))
    .where(
        _before.c.agent_id == bindparam("agent"),
        _before.c.lane == bindparam("of_lane"),
        _before.c.lane.is_not(None),
    )
    .scalar_subquery()
)
_HEAD = select(*KNOCK, jobs.c.process_id, IS_DUE.label("due")).where(jobs.c.seq == _HEAD_SEQ)
_NEXT = and_(jobs.c.seq == _HEAD_SEQ, jobs.c.seq > bindparam("behind"), WAITS)
_HAS_NEXT = select(jobs.c.seq).where(_NEXT)
_EXPECT_HEAD = (
    update(jobs)
    .where(_NEXT)
    .values(
        knock_at=case((jobs.c.due_at > now(MISSED_AFTER), jobs.c.due_at), else_=now(MISSED_AFTER)), knocks=0
    )
)


def head(tx: Tx, agent_id: str, lane: str) -> Row[Any] | None:
    """The first job that is left in a lane."""
    return tx.execute(_HEAD, {"agent": agent_id, "of_lane": lane}).first()


def expect_head(tx: Tx, agent_id: str, lane: str, behind: int) -> None:
    """Let the tick knock for the job that is first in a lane now that this one is out of it, should nobody else do.

    Nothing is done where the first one was before it anyway: rows of a lane are locked in its order. Where the one
    that was first is cancelled just now, this waits for that, and then it is the turn of the one behind.
    """
    values = {"agent": agent_id, "of_lane": lane, "behind": behind}
    while tx.execute(_EXPECT_HEAD, values).rowcount == 0:
        if tx.execute(_HAS_NEXT, values).first() is None:
            return


_LOCK_HEAD = (
    select(jobs.c.seq)
    # The lane again: one that left it between this look and its lock is no first one.
    .where(jobs.c.seq == _HEAD_SEQ, jobs.c.lane == bindparam("of_lane"))
    .with_for_update(key_share=True, skip_locked=True)
)


def lock_head(tx: Tx, agent_id: str, lane: str) -> int | None:
    """The number of the first job of a lane, locked; ``None`` where there is none, or another has it locked."""
    return tx.execute(_LOCK_HEAD, {"agent": agent_id, "of_lane": lane}).scalar()


# --- what the tick looks for ----------------------------------------------------------------------

missed = Missed(jobs, *KNOCK)
"""Jobs whose knock seems lost, or whose time has come."""

put_off = PutOff(jobs, jobs.c.id)


_SEEN = and_(MINE, jobs.c.knock_at == bindparam("seen"))
_KNOCK_AGAIN = (
    update(jobs)
    .where(_SEEN, unlocked(jobs.c.seq, _SEEN))
    .values(knock_at=case((WAITS, now(span("after"))), else_=null()))
    .returning(*KNOCK, jobs.c.knock_at)
)


def knock_again(tx: Tx, job_id: str, seen: datetime, after: timedelta, knocks: int) -> Row[Any] | None:
    """Set when to knock next, if nobody else has since *seen*; ``None`` if one has, or there is no need."""
    row = tx.execute(_KNOCK_AGAIN, {"job": job_id, "seen": seen, "after": after, "knocks": knocks}).first()
    return None if row is None or row.knock_at is None else row


_BEHIND = (
    select(jobs.c.seq)
    .where(
        jobs.c.agent_id == bindparam("agent"),
        jobs.c.lane == bindparam("of_lane"),
        jobs.c.lane.is_not(None),
        jobs.c.seq > bindparam("behind"),
        jobs.c.knock_at <= now(),
    )
    .order_by(jobs.c.seq)
    .limit(AT_MOST)
    .with_for_update(key_share=True, skip_locked=True)
)
_EXPECT_NONE = update(jobs).where(jobs.c.seq.in_(_BEHIND)).values(knock_at=null())


def expect_none_behind(tx: Tx, row: Row[Any], head: int, limit: int) -> int:
    """Let the tick not look at the jobs of a row's lane until they are its first one; returns how many these are.

    Under the lock of that first one, whose end sees to the next.
    """
    values = {"agent": row.agent_id, "of_lane": row.lane, "behind": head, "at_most": limit}
    return tx.execute(_EXPECT_NONE, values).rowcount


_TO_KNOCK = (
    select(jobs.c.seq)
    .where(WAITS, IS_DUE, or_(jobs.c.lane.is_(None), ~IN_FRONT))
    .with_for_update(key_share=True, skip_locked=True)
)
_KNOCK_NOW = update(jobs).where(jobs.c.seq.in_(_TO_KNOCK)).values(knock_at=now(), knocks=0)
_NEXT_DUE = (
    select(jobs.c.due_at)
    .where(jobs.c.due_at.is_not(None), jobs.c.status == JobStatus.PENDING)
    .order_by(jobs.c.due_at)
    .limit(1)
)


def knock_now(tx: Tx) -> None:
    """Let the tick knock for every job that waits for a worker, at once: the broker has lost all messages.

    Those that somebody has locked are left out: a caller, or another worker that does the same in another order.
    """
    tx.execute(_KNOCK_NOW)


def next_due(tx: Tx) -> datetime | None:
    """When the next job that waits for its time is due."""
    return tx.execute(_NEXT_DUE).scalar()
