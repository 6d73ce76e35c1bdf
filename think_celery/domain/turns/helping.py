"""Run another agent's turns in the place of one that waits for them: a pool full of those who wait would stand still.

Whoever waits in a worker runs the heads of the line that it waits for, while that line is free. A turn that waits says
so in its own line first: two agents whose tools wait for each other would otherwise wait for ever. An agent's own hook
after a turn holds the agent's line, and runs its turns under that very lease.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from think_celery.domain import inhand, knocks
from think_celery.domain.inhand import all_in_hand, in_hand
from think_celery.domain.leases import Hold
from think_celery.domain.patience import patiently
from think_celery.domain.submissions import claims
from think_celery.domain.turns import afterwards
from think_celery.domain.turns.afterwards import Afterwards
from think_celery.errors import NestedJob, NestedTurn
from think_celery.ids import AgentRef
from think_celery.runtime import Runtime, agent_classes
from think_celery.store import heads, waiting
from think_celery.store.database import Tx
from think_celery.store.waiting import JOB

logger = logging.getLogger("think_celery.waiting")

DEEPEST = 3
"""How many turns may be run inside one another: each takes a part of the stack, and of the patience of its callers."""


def own_hook(agent_id: str) -> Afterwards | None:
    """The hook after a turn of this agent's that runs here, if one does."""
    after = afterwards.current()
    return after if after is not None and after.agent.id == agent_id else None


def may_help(rt: Runtime, agent: AgentRef | None = None) -> bool:
    """Whether whoever waits here for that agent has a worker's slot, and may run turns in it."""
    if agent is not None and own_hook(agent.id) is not None:
        return True
    at_work = in_hand() is not None or rt.in_task()
    return at_work and inhand.depth() < DEEPEST and not rt.stopping.signal.aborted


def help_line(rt: Runtime, agent_id: str) -> bool:
    """Run the agent's next turn if its line is free and its messages come to this worker; whether one has ended.

    Raises:
        LeaseLost: An own hook has lost its line, or the worker stops.
    """
    hook = own_hook(agent_id)
    if hook is not None:
        outcome = hook.run_next()
        return outcome is not None and outcome.ended
    head = rt.db.read(lambda tx: heads.head(tx, agent_id))
    if head is None or head.held or not head.due or head.agent_class not in agent_classes:
        return False
    if not rt.takes(knocks.for_submission(head)):
        return False
    with inhand.helping(), afterwards.outside():
        return claims.run(rt, head.id).ended


# --- circles --------------------------------------------------------------------------------------


def own_turn(agent: AgentRef) -> bool:
    """Whether a turn of this agent runs in this very thread, or waits in it for what runs."""
    return own_hook(agent.id) is None and any(work.agent == agent for work in all_in_hand())


def refuse_nested(agent: AgentRef, call: str) -> None:
    """Make sure that a call which waits for a turn of this agent is not made inside one.

    Raises:
        NestedTurn: It is.
    """
    if own_hook(agent.id) is not None:
        return
    turns = [work.agent for work in all_in_hand() if work.agent is not None]
    if agent in turns:
        circle = [*reversed(turns[: turns.index(agent) + 1]), agent]
        raise NestedTurn(call, [str(each) for each in circle])


@contextmanager
def waits_for(rt: Runtime, agent: AgentRef, call: str) -> Iterator[None]:
    """While the block runs, the turn or job in hand (if there is one) waits for this agent, and everybody can see it.

    Raises:
        NestedTurn: That agent's turn waits for this one, directly or through others.
    """
    if own_hook(agent.id) is not None:
        if _jobs_in_hand():  # a turn may wait for this job
            _refuse_circle(rt, agent.id, call)
        yield
        return
    with _noted(rt, agent.id):
        _refuse_circle(rt, agent.id, call)
        yield


@contextmanager
def waits_for_job(rt: Runtime, job_id: str, call: str) -> Iterator[None]:
    """While the block runs, the turn or job in hand (if there is one) waits for this job, and everybody can see it.

    Raises:
        NestedJob: That job waits for the work in hand, through others, or begins after it.
    """
    with _noted(rt, JOB + job_id):
        try:
            _refuse_circle(rt, JOB + job_id, call)
        except NestedTurn as nested:
            raise NestedJob(call, job_id, nested.circle[-1].removeprefix(JOB), nested.circle) from None
        yield


@contextmanager
def _noted(rt: Runtime, whom: str) -> Iterator[None]:
    work = in_hand()
    if work is None or (work.agent is None and work.hold.lease.kind != "job"):
        yield
        return
    _in_row(rt, work.hold, lambda tx: waiting.wait_for(tx, work.hold.lease, whom))
    try:
        yield
    finally:
        if not work.hold.lost:
            _in_row(rt, work.hold, lambda tx: waiting.wait_no_more(tx, work.hold.lease, whom))


def _jobs_in_hand() -> list[str]:
    return [JOB + work.hold.lease.key for work in all_in_hand() if work.hold.lease.kind == "job"]


def _in_row(rt: Runtime, hold: Hold, change: Callable[[Tx], None]) -> None:
    patiently(rt, hold, lambda: rt.db.transact(change))


def _refuse_circle(rt: Runtime, whom: str, call: str) -> None:
    # Each waits for the one before it; a job is in the hands of whoever runs it.
    mine = [
        JOB + work.hold.lease.key if work.agent is None else work.agent.id
        for work in all_in_hand()
        if work.agent is not None or work.hold.lease.kind == "job"
    ]
    if not mine:
        return
    way: dict[str, str | None] = {whom: None}  # each agent or job, and who waits for it
    new = [whom]
    while new:
        edges = rt.db.read(lambda tx, new=new: waiting.waited_for_by(tx, new))  # type: ignore[misc]
        new = []
        for one, others in edges.items():
            for other in others:
                if other in mine:
                    here = mine[: mine.index(other) + 1]
                    raise NestedTurn(call, _named(rt, [*reversed(here), *_back(way, one), other]))
                if other not in way:
                    way[other] = one
                    new.append(other)


def _back(way: dict[str, str | None], last: str) -> list[str]:
    """The way to *last*, in the order in which one waits for the next."""
    steps: list[str] = []
    step: str | None = last
    while step is not None:
        steps.append(step)
        step = way[step]
    return steps[::-1]


def _named(rt: Runtime, agent_ids: Sequence[str]) -> list[str]:
    def names(tx: Tx) -> dict[str, str]:
        return {row.id: str(AgentRef(row.agent_class, row.name)) for row in waiting.names_of(tx, agent_ids)}

    found = rt.db.read(names)
    return [found.get(agent_id, agent_id) for agent_id in agent_ids]
