"""Worker processes and their liveness: a lease is as long as its process is alive.

Renewing is one UPDATE of one row, however many turns a process runs. A process is declared dead in two
looks (engine rule: one look after a stall of everybody would take over live work), or at once when this
machine can prove that it is gone. Dead is final.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import and_, case, delete, or_, select, update

from think_celery.store.database import Tx
from think_celery.store.tables import processes, ticks

STEADY_GAP = timedelta(seconds=3)
"""Passes further apart than this don't count as watching."""

SECOND_LOOK = timedelta(seconds=2)
"""How long after the first look the second may take over: two renewal intervals."""

LIVENESS = "leases"
"""The kind of pass that watches processes."""


def register(tx: Tx, process_id: str, host: dict[str, Any], lease: timedelta) -> None:
    """Add this process, alive for one lease from now."""
    tx.execute(
        processes.insert().values(
            id=process_id, host=host, until=tx.now(lease), dead=False, started_at=tx.now()
        )
    )


def renew(tx: Tx, process_id: str, lease: timedelta) -> bool:
    """Stay alive for another lease, and say whether the process still may: once declared dead it may not."""
    statement = (
        update(processes)
        .where(processes.c.id == process_id, processes.c.dead.is_(False))
        .values(until=tx.now(lease), suspect_since=None)
    )
    return tx.execute(statement).rowcount == 1


def admit(tx: Tx, kind: str, every: timedelta) -> bool:
    """Say whether this pass may run: passes of a kind are admitted once in *every*, per database.

    Also keeps since when the passes have come steadily, which is what makes two looks count.
    """
    tx.execute(
        tx.insert(ticks)
        .values(kind=kind, last_at=tx.now(-STEADY_GAP * 2), steady_since=tx.now())
        .on_conflict_do_nothing()
    )
    steady = case((ticks.c.last_at >= tx.now(-STEADY_GAP), ticks.c.steady_since), else_=tx.now())
    statement = (
        update(ticks)
        .where(ticks.c.kind == kind, ticks.c.last_at <= tx.now(-every))
        .values(last_at=tx.now(), steady_since=steady)
    )
    return tx.execute(statement).rowcount == 1


def lapsed(tx: Tx, limit: int = 500) -> list[str]:
    """The processes whose time has run out and that are not declared dead yet."""
    statement = (
        select(processes.c.id)
        .where(processes.c.until < tx.now(), processes.c.dead.is_(False))
        .order_by(processes.c.until)
        .limit(limit)
    )
    return list(tx.execute(statement).scalars())


def alive(tx: Tx) -> list[tuple[str, dict[str, Any]]]:
    """Id and host facts of every process not declared dead."""
    rows = tx.execute(select(processes.c.id, processes.c.host).where(processes.c.dead.is_(False)))
    return [(row.id, row.host) for row in rows]


def suspect(tx: Tx, process_id: str) -> None:
    """The first look: remember when it found the process out of time, unless a look that counts did already."""
    steady_since = select(ticks.c.steady_since).where(ticks.c.kind == LIVENESS).scalar_subquery()
    tx.execute(
        update(processes)
        .where(
            processes.c.id == process_id,
            processes.c.dead.is_(False),
            processes.c.until < tx.now(),
            or_(processes.c.suspect_since.is_(None), processes.c.suspect_since < steady_since),
        )
        .values(suspect_since=tx.now())
    )


def declare_dead(tx: Tx, process_id: str, *, known: bool = False) -> bool:
    """The second look: end the process if no renewal came since the first, and say whether this call did.

    *known* means that its end is proven, so that one look is enough. Else the looks count only if the
    passes have come steadily since the first one, and if this pass has not been held up itself.
    """
    steady_since = select(ticks.c.steady_since).where(ticks.c.kind == LIVENESS).scalar_subquery()
    admitted_at = select(ticks.c.last_at).where(ticks.c.kind == LIVENESS).scalar_subquery()
    watched = and_(
        processes.c.until < tx.now(),
        processes.c.suspect_since <= tx.now(-SECOND_LOOK),
        processes.c.suspect_since >= steady_since,
        admitted_at >= tx.now(-STEADY_GAP),
    )
    statement = update(processes).where(processes.c.id == process_id, processes.c.dead.is_(False))
    if not known:
        statement = statement.where(watched)
    return tx.execute(statement.values(dead=True)).rowcount == 1


def forget_dead(tx: Tx, older_than: timedelta, limit: int = 500) -> int:
    """Delete processes that have been dead for that long, and say how many."""
    old = (
        select(processes.c.id)
        .where(processes.c.dead.is_(True), processes.c.until < tx.now(-older_than))
        .limit(limit)
    )
    return tx.execute(delete(processes).where(processes.c.id.in_(old))).rowcount
