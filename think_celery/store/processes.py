"""Worker processes and their liveness: a lease is as long as its process is alive.

Renewing is one UPDATE of one row, however many turns a process runs. A process is declared dead in two
looks, some seconds apart, or at once when this machine can prove that it is gone. Dead is final.

One look is not enough: when the database stood still for everybody, nobody could renew, and whoever comes first
afterwards would find all leases run out and take over work that is alive.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import and_, bindparam, case, delete, insert, null, or_, select, update

from think_celery.store.database import Tx
from think_celery.store.statements import AT_MOST, insert_new, now, span
from think_celery.store.tables import processes, ticks

STEADY_GAP = timedelta(seconds=3)
"""Passes further apart than this don't count as watching."""

SECOND_LOOK = timedelta(seconds=2)
"""How long after the first look the second may take over: two renewal intervals."""

LIVENESS = "leases"
"""The kind of pass that watches processes."""


_MINE = and_(processes.c.id == bindparam("process"), processes.c.dead.is_(False))
_REGISTER = insert(processes).values(until=now(span("lease")), dead=False, started_at=now())
_RENEW = update(processes).where(_MINE).values(until=now(span("lease")), suspect_since=null())


def register(tx: Tx, process_id: str, host: dict[str, Any], lease: timedelta) -> None:
    """Add this process, alive for one lease from now."""
    tx.execute(_REGISTER, {"id": process_id, "host": host, "lease": lease})


def renew(tx: Tx, process_id: str, lease: timedelta) -> bool:
    """Stay alive for another lease, and say whether the process still may: once declared dead it may not."""
    return tx.execute(_RENEW, {"process": process_id, "lease": lease}).rowcount == 1


_STEADY = case((ticks.c.last_at >= now(-STEADY_GAP), ticks.c.steady_since), else_=now())
_NEW_KIND = insert_new(ticks, ticks.c.kind, last_at=now(-timedelta(days=1)), steady_since=now())
_ADMIT = (
    update(ticks)
    .where(ticks.c.kind == bindparam("pass"), ticks.c.last_at <= now(span("ago")))
    .values(last_at=now(), steady_since=_STEADY)
)


def admit(tx: Tx, kind: str, every: timedelta) -> bool:
    """Say whether this pass may run: passes of a kind are admitted once in *every*, per database.

    Also keeps since when the passes have come steadily, which is what makes two looks count.
    """
    tx.execute(_NEW_KIND, {"kind": kind})
    return tx.execute(_ADMIT, {"pass": kind, "ago": -every}).rowcount == 1


_OUT_OF_TIME = and_(processes.c.until < now(), processes.c.dead.is_(False))
_LAPSED = select(processes.c.id).where(_OUT_OF_TIME).order_by(processes.c.until).limit(AT_MOST)


def lapsed(tx: Tx, limit: int = 500) -> list[str]:
    """The processes whose time has run out and that are not declared dead yet."""
    return list(tx.execute(_LAPSED, {"at_most": limit}).scalars())


_IS_HEARD_OF = select(processes.c.id).where(_MINE, processes.c.until >= now())


def is_heard_of(tx: Tx, process_id: str) -> bool:
    """Whether that process was heard of within its lease."""
    return tx.execute(_IS_HEARD_OF, {"process": process_id}).first() is not None


def alive(tx: Tx) -> list[tuple[str, dict[str, Any]]]:
    """Id and host facts of every process not declared dead."""
    rows = tx.execute(select(processes.c.id, processes.c.host).where(processes.c.dead.is_(False)))
    return [(row.id, row.host) for row in rows]


_ADMIT_NEXT = update(ticks).where(ticks.c.kind == bindparam("pass")).values(last_at=now(span("ago")))


def admit_next(tx: Tx, kind: str, every: timedelta) -> None:
    """Let the next pass of this kind run whenever it comes: this one was not through."""
    tx.execute(_ADMIT_NEXT, {"pass": kind, "ago": -every})


_STEADY_SINCE = select(ticks.c.steady_since).where(ticks.c.kind == LIVENESS).scalar_subquery()
_ADMITTED_AT = select(ticks.c.last_at).where(ticks.c.kind == LIVENESS).scalar_subquery()
_NOT_SUSPECT = or_(processes.c.suspect_since.is_(None), processes.c.suspect_since < _STEADY_SINCE)
_SUSPECT = update(processes).where(_MINE, _OUT_OF_TIME, _NOT_SUSPECT).values(suspect_since=now())


def suspect(tx: Tx, process_id: str) -> None:
    """The first look: remember when it found the process out of time, unless a look that counts did already."""
    tx.execute(_SUSPECT, {"process": process_id})


_WATCHED = and_(
    processes.c.until < now(),
    processes.c.suspect_since <= now(-SECOND_LOOK),
    processes.c.suspect_since >= _STEADY_SINCE,
    now(-STEADY_GAP) <= _ADMITTED_AT,
)
_END_PROVEN = update(processes).where(_MINE).values(dead=True)
_END_WATCHED = _END_PROVEN.where(_WATCHED)


def declare_dead(tx: Tx, process_id: str, *, known: bool = False) -> bool:
    """The second look: end the process if no renewal came since the first, and say whether this call did.

    *known* means that its end is proven, so that one look is enough. Else the looks count only if the
    passes have come steadily since the first one, and if this pass has not been held up itself.
    """
    return tx.execute(_END_PROVEN if known else _END_WATCHED, {"process": process_id}).rowcount == 1


def forget_dead(tx: Tx, older_than: timedelta, limit: int = 500) -> int:
    """Delete processes that have been dead for that long, and say how many."""
    old = (
        select(processes.c.id)
        .where(processes.c.dead.is_(True), processes.c.until < now(-older_than))
        .limit(limit)
    )
    return tx.execute(delete(processes).where(processes.c.id.in_(old))).rowcount
