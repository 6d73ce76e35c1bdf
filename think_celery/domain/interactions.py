"""Calls that wait for a person's approval or for a client's answer: what is open, and what is decided."""

from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.store import interactions as rows


def any_open(rt: Runtime, agent: AgentRef) -> bool:
    """Whether a call of the agent waits for somebody. (In a transaction: ``store.interactions.any_open``.)"""
    return rt.db.look(lambda tx: rows.any_open(tx, agent.id))
