"""Reset an agent's turns, clear its conversation, or remove all that there is of it."""

import logging
from datetime import timedelta
from typing import Any, NamedTuple

from think_celery.domain.conversation import conversation, interactions, live
from think_celery.domain.conversation.conversation import Reset, Wait
from think_celery.domain.passes import ROWS, each_row
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.store import agents, jobs, removals, schedules, submissions, usage
from think_celery.store import interactions as interaction_rows
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.agents")

SKIPPED_BY_DESTROY = "Submission was skipped: its agent was destroyed."

CLEARED = {"type": "cleared"}

SWEEP_AFTER = timedelta(minutes=1)
"""How soon the tick looks after an agent whose removal did not come to its end."""

REMEMBERED = timedelta(days=1)
"""How long the empty row of a destroyed agent stays, for what was accepted before and commits late."""


def clear_messages(rt: Runtime, agent: AgentRef) -> int:
    """Reset the conversation, tell listeners that it is empty, and say how many turns were ended."""
    ended = conversation.reset(rt, agent)
    live.show(rt, agent.id, CLEARED)
    return ended


class _TurnsOnly(Reset):
    """The transcript stays, with what is stored of an unfinished answer."""

    def remove(self, tx: Tx) -> None:
        interactions.withdraw_all(tx, self.agent.id)
        conversation.place_unfinished(tx, self.agent.id)


def reset_turn_state(rt: Runtime, agent: AgentRef) -> int:
    """End every unfinished turn, keep the transcript, and say how many turns were ended."""
    return _TurnsOnly(rt, agent).run()


class _Destroy(Reset):
    """With the conversation go the agent's schedules, its jobs, its state and its counts."""

    reason = SKIPPED_BY_DESTROY

    def lock(self, tx: Tx) -> Wait | None:
        locked = schedules.lock_all(tx, self.agent.id)
        if locked is not None:
            return lambda tx: schedules.lock(tx, locked)
        job = removals.lock_jobs(tx, self.agent.id)
        if job is not None:
            return lambda tx: jobs.lock(tx, job)
        return super().lock(tx)

    def remove(self, tx: Tx) -> None:
        super().remove(tx)
        schedules.remove_all(tx, self.agent.id)
        agents.destroy(tx, self.agent.id, SWEEP_AFTER)
        interaction_rows.remove_all(tx, self.agent.id)
        usage.remove_all(tx, self.agent.id)
        jobs.remove_all(tx, self.agent.id)


def destroy(rt: Runtime, agent: AgentRef) -> None:
    """Remove all that there is of an agent.

    The first transaction ends what runs and empties the agent; then its submissions go, batch by batch. If this
    process dies meanwhile, the tick goes on.

    Raises:
        InsideTransaction: The caller's transaction is joined.
    """
    _Destroy(rt, agent).run()
    rt.failpoint("agent:destroyed")
    row = rt.db.read(lambda tx: agents.get(tx, agent.id))
    while row is not None and not _removed_all(rt, row):
        pass
    forget_frames(rt, agent.id)
    live.show(rt, agent.id, CLEARED)
    logger.info(
        "%s was destroyed", agent, extra={"think_event": "agent.destroyed", "think_agent": str(agent)}
    )


def forget_frames(rt: Runtime, agent_id: str) -> None:
    """Drop an agent's live frames; those that can't be reached now expire by themselves."""
    try:
        rt.events.forget(agent_id)
    except Exception as error:
        logger.warning("the live frames of a destroyed agent will expire: %s", trace_of(error))


def _removed_all(rt: Runtime, row: Any) -> bool:
    if not rt.db.transact(lambda tx: _remove_some(tx, row)).finished:
        return False
    locked = rt.db.read(lambda tx: removals.left_before(tx, row.id, row.epoch))
    if locked is not None:
        # Somebody has it for a moment, or a caller for longer: waited for with no lock held.
        rt.db.transact(lambda tx: submissions.lock(tx, locked))
    return locked is None


class _Removed(NamedTuple):
    rows: int
    left: int = 0

    @property
    def finished(self) -> bool:
        return not self.rows


def _remove_some(tx: Tx, row: Any) -> _Removed:
    """Remove submissions of an agent from before it was destroyed.

    One whose workflow has not got its news yet is emptied, and removed later. When none is left, the agent's own row
    is looked at again when it may go.
    """
    removed = removals.remove_before(tx, row.id, row.epoch, ROWS)
    if removed:
        return _Removed(removed)
    left = removals.empty_before(tx, row.id, row.epoch)
    agents.sweep_again(tx, row.id, SWEEP_AFTER if left else REMEMBERED)
    return _Removed(0, left)


def sweep(rt: Runtime, limit: int = ROWS) -> int:
    """Remove what is left of destroyed agents: rows whose workflow has got its news, and at last the agents' own.

    An agent that somebody has given work since keeps what is new.
    """
    found = rt.db.read(lambda tx: agents.to_sweep(tx, limit))

    def work(tx: Tx, row: Any) -> int:
        removed, left = _remove_some(tx, row)
        return removed or (0 if left else agents.forget(tx, row.id, REMEMBERED))

    return each_row(rt, "remove what is left of an agent", found, work)
