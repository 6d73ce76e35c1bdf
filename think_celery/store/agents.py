"""Rows of agents."""

from typing import Any

from sqlalchemy import Row, select, update

from think_celery.ids import AgentRef
from think_celery.store.database import Tx
from think_celery.store.tables import agents


def make(tx: Tx, agent: AgentRef) -> None:
    """Add the agent's row where there is none yet."""
    tx.execute(
        tx.insert(agents)
        .values(id=agent.id, agent_class=agent.agent_class, name=agent.name, epoch=0, created_at=tx.now())
        .on_conflict_do_nothing()
    )


def epoch(tx: Tx, agent_id: str) -> int:
    """How often the agent's conversation was reset; 0 for an agent without a row."""
    return tx.execute(select(agents.c.epoch).where(agents.c.id == agent_id)).scalar() or 0


def lock(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The agent's row, locked for this transaction."""
    statement = select(agents).where(agents.c.id == agent_id).with_for_update(key_share=True)
    return tx.execute(statement).first()


def next_epoch(tx: Tx, agent_id: str) -> None:
    """Begin another epoch: what was accepted before it no longer runs."""
    tx.execute(update(agents).where(agents.c.id == agent_id).values(epoch=agents.c.epoch + 1))
