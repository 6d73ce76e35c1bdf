"""Lines: the row that owns an agent's turn order and its lease."""

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


def _seize(where: ColumnElement[bool]) -> Update:
    return update(lines).where(where).values(process_id=None, token=lines.c.token + 1)
