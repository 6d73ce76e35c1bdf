"""Lines: the row that owns an agent's turn order and its lease."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Update, and_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery.store.database import Tx
from think_celery.store.leases import TURNS, Lease
from think_celery.store.tables import lines


def make_line(tx: Tx, agent_id: str) -> None:
    """Make the agent's line where there is none yet."""
    tx.execute(tx.insert(lines).values(agent_id=agent_id, kind=TURNS, token=0).on_conflict_do_nothing())


def lock_line(tx: Tx, agent_id: str) -> Any:
    """Lock the agent's line, and return it (``None`` where there is none)."""
    statement = (
        select(lines.c.process_id, lines.c.token)
        .where(lines.c.agent_id == agent_id, lines.c.kind == TURNS)
        .with_for_update(key_share=True)
    )
    return tx.execute(statement).first()


def take_line(tx: Tx, agent_id: str, process_id: str) -> Lease | None:
    """Take the agent's line if it is free; ``None`` if another holds it."""
    statement = (
        update(lines)
        .where(lines.c.agent_id == agent_id, lines.c.kind == TURNS, lines.c.process_id.is_(None))
        .values(process_id=process_id, token=lines.c.token + 1)
        .returning(lines.c.token)
    )
    token = tx.execute(statement).scalar()
    return None if token is None else Lease(kind=TURNS, key=agent_id, process_id=process_id, token=token)


def free_line(tx: Tx, lease: Lease) -> bool:
    """Give the line back, and say whether it was still the holder's."""
    statement = update(lines).where(lease.held).values(process_id=None)
    return tx.execute(statement).rowcount == 1


def seize_line(tx: Tx, agent_id: str) -> None:
    """Take the line from whoever holds it, and leave it free."""
    own = and_(lines.c.agent_id == agent_id, lines.c.kind == TURNS)
    tx.execute(_seize(own))


def seize_from(tx: Tx, lease: Lease) -> bool:
    """Take the line from that holder, leave it free, and say whether it still had it."""
    return tx.execute(_seize(lease.held)).rowcount == 1


def look_later(tx: Tx, agent_id: str, after: timedelta) -> None:
    """Let the tick look at the line: its head is locked by a caller just now, so nobody could expect it."""
    tx.execute(update(lines).where(_of(agent_id)).values(look_at=tx.now(after)))


def looked(tx: Tx, agent_id: str) -> None:
    """The line was looked at."""
    tx.execute(update(lines).where(_of(agent_id)).values(look_at=None))


def to_look_at(tx: Tx, limit: int) -> list[str]:
    """The agents whose lines are to be looked at now."""
    due = select(lines.c.agent_id).where(lines.c.look_at <= tx.now(), lines.c.kind == TURNS)
    return list(tx.execute(due.order_by(lines.c.look_at).limit(limit)).scalars())


def _of(agent_id: str) -> ColumnElement[bool]:
    return and_(lines.c.agent_id == agent_id, lines.c.kind == TURNS)


def _seize(where: ColumnElement[bool]) -> Update:
    return update(lines).where(where).values(process_id=None, token=lines.c.token + 1)
