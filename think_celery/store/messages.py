"""Rows of a conversation."""

from typing import Any

from sqlalchemy import Row, delete, func, select, update

from think_celery.store.database import Tx
from think_celery.store.tables import UNPLACED, messages

STREAMING, DONE = "streaming", "done"


def _end_of(agent_id: str) -> Any:
    newest = select(func.max(messages.c.position)).where(
        messages.c.agent_id == agent_id, messages.c.position < UNPLACED
    )
    return func.coalesce(newest.scalar_subquery(), 0) + 1


def append(tx: Tx, agent_id: str, message: dict[str, Any]) -> bool:
    """Add a message at the end, and say whether it is new: an id that is there already changes nothing."""
    statement = (
        tx.insert(messages)
        .values(agent_id=agent_id, position=_end_of(agent_id), status=DONE, **message)
        .on_conflict_do_nothing()
        .returning(messages.c.seq)  # the count of rows of an INSERT is not known on PostgreSQL
    )
    return tx.execute(statement).first() is not None


def store_unfinished(tx: Tx, agent_id: str, message: dict[str, Any]) -> None:
    """Store a turn's message so far. It has no place in the order yet."""
    _put(tx, agent_id, message, position=UNPLACED, status=STREAMING)


def store_finished(tx: Tx, agent_id: str, message: dict[str, Any]) -> None:
    """Store a turn's message for good, after everything that was added meanwhile."""
    _put(tx, agent_id, message, position=_end_of(agent_id), status=DONE)


def _put(tx: Tx, agent_id: str, message: dict[str, Any], **placed: Any) -> None:
    statement = tx.insert(messages).values(agent_id=agent_id, **message, **placed)
    changed = {"parts": message["parts"], "metadata": message.get("metadata"), **placed}
    tx.execute(statement.on_conflict_do_update(index_elements=["agent_id", "message_id"], set_=changed))


def get(tx: Tx, agent_id: str, message_id: str) -> Row[Any] | None:
    """One message."""
    statement = select(messages).where(messages.c.agent_id == agent_id, messages.c.message_id == message_id)
    return tx.execute(statement).first()


def of(tx: Tx, agent_id: str) -> list[Row[Any]]:
    """All messages of an agent in their order, the unfinished one last."""
    statement = (
        select(messages).where(messages.c.agent_id == agent_id).order_by(messages.c.position, messages.c.seq)
    )
    return list(tx.execute(statement))


def remove(tx: Tx, agent_id: str, message_id: str) -> None:
    """Delete one message."""
    tx.execute(delete(messages).where(messages.c.agent_id == agent_id, messages.c.message_id == message_id))


def remove_all(tx: Tx, agent_id: str) -> int:
    """Delete every message of an agent, and say how many there were."""
    return tx.execute(delete(messages).where(messages.c.agent_id == agent_id)).rowcount


def settle_all(tx: Tx, agent_id: str, message_id: str | None = None) -> None:
    """Give an agent's unfinished messages (or that one), as they are stored, their place in the order."""
    statement = update(messages).where(messages.c.agent_id == agent_id, messages.c.status == STREAMING)
    if message_id is not None:
        statement = statement.where(messages.c.message_id == message_id)
    tx.execute(statement.values(position=_end_of(agent_id), status=DONE))
