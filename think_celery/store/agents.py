"""Rows of agents."""

from typing import Any

from sqlalchemy import Row, bindparam, literal, select, update

from think_celery.ids import AgentRef
from think_celery.store.database import Tx
from think_celery.store.statements import insert_new, now, on_each
from think_celery.store.tables import agents, submissions

_MAKE = insert_new(agents, agents.c.epoch, epoch=0, created_at=now())
_OF_SUBMISSION = select(
    submissions.c.agent_id, submissions.c.agent_class, submissions.c.agent_name, literal(0), now()
).where(submissions.c.id == bindparam("submission"))
_MAKE_FOR = on_each(
    lambda insert: (
        insert(agents)
        .from_select(["id", "agent_class", "name", "epoch", "created_at"], _OF_SUBMISSION)
        .on_conflict_do_nothing()
    )
)
_MINE = agents.c.id == bindparam("agent")
_LOCK = select(agents).where(_MINE).with_for_update(key_share=True)
_NEXT_EPOCH = update(agents).where(_MINE).values(epoch=agents.c.epoch + 1)


def make(tx: Tx, agent: AgentRef) -> None:
    """Add the agent's row where there is none yet."""
    tx.execute(_MAKE, {"id": agent.id, "agent_class": agent.agent_class, "name": agent.name}).close()


def make_for(tx: Tx, submission_id: str) -> None:
    """Add the row of a submission's agent where there is none yet."""
    tx.execute(_MAKE_FOR, {"submission": submission_id})


def lock(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The agent's row, locked for this transaction."""
    return tx.execute(_LOCK, {"agent": agent_id}).first()


def next_epoch(tx: Tx, agent_id: str) -> None:
    """Begin another epoch: what was accepted before it no longer runs."""
    tx.execute(_NEXT_EPOCH, {"agent": agent_id})
