"""How an agent comes to life: ``start()``, ``on_start``, its scheduled tasks, and ``autostart``.

``on_start`` runs in a worker that holds the agent's line, as a turn does: so one at a time, and before the turn
that follows. Then the tasks that the class declares are stored. Which version of the class has started is noted in
the same transaction.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from think_celery.described import describe
from think_celery.domain import calls, knocks, lacking
from think_celery.domain.agents.versions import version_of
from think_celery.domain.inhand import doing
from think_celery.domain.leases import LET_GO_SECONDS, Hold
from think_celery.domain.outcomes import Outcome
from think_celery.domain.passes import each_row, worth_a_knock
from think_celery.domain.patience import patiently
from think_celery.domain.schedules import declarations
from think_celery.domain.submissions import lines
from think_celery.errors import InvalidValue, LeaseLost, TooManyAttempts, Unwind
from think_celery.ids import AgentRef
from think_celery.names import check_name
from think_celery.protocols import AgentHooks
from think_celery.retries import knock_again_after
from think_celery.runtime import Runtime, agent_classes
from think_celery.store import agents
from think_celery.store import lines as line_rows
from think_celery.store.database import Tx
from think_celery.store.leases import Lease, fence
from think_celery.wording import a_type

logger = logging.getLogger("think_celery.agents")

HOOK = "on_start"


def has_start(cls: Any) -> bool:
    """Whether there is something to do when an agent of that class begins."""
    return bool(cls._overrides(HOOK)) or declarations.declares(cls)


# --- asking for it --------------------------------------------------------------------------------


def start(rt: Runtime, agent: AgentRef, queue: str | None = None) -> None:
    """Store the agent's row, and let a worker begin with it soon, unless this version of it has started.

    Raises:
        UnknownClass: No agent class of that name is registered here.
    """
    cls = agent_classes.get(agent.agent_class)
    chosen = queue or cls.queue or rt.settings.queue

    def work(tx: Tx) -> None:
        if not has_start(cls):
            agents.make(tx, agent)
            agents.revive(tx, agent.id)
            return
        row = agents.want_start(tx, agent, version_of(cls), chosen)
        if row is not None:
            tx.after_commit(lambda: rt.knock(knocks.for_start(row)))

    rt.db.accept(work)


def autostart_names(cls: Any) -> list[str]:
    """The agents of a class that its ``autostart`` names.

    Raises:
        InvalidValue: It is no list of names, and no classmethod that returns one.
    """
    named = cls.autostart() if callable(cls.autostart) else cls.autostart
    if isinstance(named, str) or not isinstance(named, Sequence | set | frozenset):
        raise InvalidValue(
            f"{cls.agent_class}.autostart gives {a_type(named)}: it must be a list of agents' names, or a "
            "classmethod that returns one."
        )
    for name in named:
        check_name(f"{cls.agent_class}.autostart", name, 200)
    return list(named)


def start_declared(rt: Runtime) -> list[AgentRef]:
    """Start every agent that a registered class names in ``autostart``, and say which those are.

    Raises:
        InvalidValue: A class's ``autostart`` can't be used.
    """
    declared = [
        AgentRef(name, each)
        for name in agent_classes.names()
        for each in autostart_names(agent_classes.get(name))
    ]
    for agent in declared:
        start(rt, agent)
    return declared


# --- doing it -------------------------------------------------------------------------------------


def run(rt: Runtime, agent_class: str, name: str) -> Outcome:
    """Start an agent that waits for it, if its line is free; else the turn in hand, or the tick, sees to it."""
    agent = AgentRef(agent_class, name)
    row = rt.db.read(lambda tx: agents.get(tx, agent.id))
    if row is None:
        return Outcome("not-found")
    if row.knock_at is None:
        return Outcome("ended-before")
    if not lacking.has_agent(rt, agent_class, f"the start of {agent}"):
        return Outcome("unknown-class")
    process_id = rt.monitor.process_id()
    lease = rt.db.transact(lambda tx: _take_line(tx, agent.id, process_id))
    if lease is None:
        return Outcome("busy")
    rt.failpoint("start:claimed")
    try:
        with _on_line(rt, lease, agent) as hold:
            return _run(rt, hold, agent, row.started_version)
    except LeaseLost:
        return Outcome("lease-lost")


@contextmanager
def _on_line(rt: Runtime, lease: Lease, agent: AgentRef) -> Iterator[Hold]:
    """Have the agent in hand, and give its line back."""
    with rt.monitor.hold(lease, seconds=rt.settings.turn_timeout_seconds) as hold:
        try:
            with doing(hold, agent):
                yield hold
        except Unwind:  # of a worker that died, nothing more is done
            raise
        except BaseException:
            with suppress(LeaseLost):
                _give_back(rt, hold)
            raise
        with suppress(LeaseLost):
            _give_back(rt, hold)


def is_ready(rt: Runtime, agent: AgentRef, started_version: str | None) -> bool:
    """Make sure that an agent has started before a job of it begins; whether the job may begin now.

    ``on_start`` runs on the agent's line. Where that is held, it may be just this that is done there; unless it has
    failed, and the turn that runs goes on all the same, as the job does then.
    """
    made = rt.make_agent(agent.agent_class, agent.name)
    if not has_start(type(made)) or version_of(type(made)) == started_version:
        return True
    process_id = rt.monitor.process_id()
    lease = rt.db.transact(lambda tx: _take_line(tx, agent.id, process_id))
    if lease is None:
        return _was_tried(rt, agent, version_of(type(made)))
    with _on_line(rt, lease, agent) as hold:
        ensure(rt, hold, made, agent, started_version)
    return True


def _was_tried(rt: Runtime, agent: AgentRef, version: str) -> bool:
    row = rt.db.read(lambda tx: agents.get(tx, agent.id))
    if row is None:
        return False
    failed = row.start_version == version and row.start_failed_at is not None
    over = row.start_attempts == 0 or row.start_attempts >= rt.settings.max_attempts
    return bool(row.started_version == version or (failed and over))


def _give_back(rt: Runtime, hold: Hold) -> None:
    patiently(rt, hold, lambda: rt.db.transact(lambda tx: lines.free(rt, tx, hold.lease)))


def _take_line(tx: Tx, agent_id: str, process_id: str) -> Lease | None:
    if not line_rows.is_there(tx, agent_id):  # or a turn's end that waits for a caller would be waited for
        line_rows.make_line(tx, agent_id)
    return line_rows.take_line_of(tx, agent_id, process_id)


def _run(rt: Runtime, hold: Hold, agent: AgentRef, started_version: str | None) -> Outcome:
    made = rt.make_agent(agent.agent_class, agent.name)
    if not has_start(type(made)) or version_of(type(made)) == started_version:
        rt.db.transact(lambda tx: agents.need_no_start(tx, agent.id))
        return Outcome("ended-before")
    failure = ensure(rt, hold, made, agent, started_version)
    if failure is None:
        return Outcome("started", ended=True, row=str(agent))
    return Outcome("error", ended=True, row=str(agent), error_type=failure)


def ensure(
    rt: Runtime, hold: Hold, made: AgentHooks, agent: AgentRef, started_version: str | None
) -> str | None:
    """Run ``on_start`` under the agent's lease, and store what its class declares, if this version has not started.

    Returns the type of the error with which one of the two failed. That is noted and logged, and the work goes on.

    Raises:
        LeaseLost: The line is another worker's now.
    """
    if not has_start(type(made)):
        return None
    version = version_of(type(made))
    if version == started_version:
        return None
    attempt = _write(rt, hold, agent, lambda tx: agents.begin_start(tx, agent.id, version))
    if attempt is None:  # another has done it since it was looked at
        return None
    if attempt > rt.settings.max_attempts:
        error = TooManyAttempts(f"on_start of {agent}", attempt - 1)
        return _failed(rt, hold, agent, error, attempts=attempt - 1)
    rt.failpoint("start:before")
    left = max(0.0, hold.deadline - rt.clock.elapsed()) + LET_GO_SECONDS
    try:
        result = calls.attempt(rt, lambda: _begin(made), timeout=left, signal=hold.signal)
        if isinstance(result, calls.Failed) and calls.passes(result.error):
            raise result.error
    except BaseException as outside:  # this worker is told to stop
        if calls.interrupts(outside) and not hold.lost:
            _write(rt, hold, agent, lambda tx: agents.start_later(tx, agent.id))
        raise
    rt.failpoint("start:ran")
    if isinstance(result, calls.Abandoned):
        logger.error("the start of %s did not return and was given up", agent)
        return _failed(rt, hold, agent, TimeoutError("it did not return in time and was given up"))
    tasks, failure = (None, result.error) if isinstance(result, calls.Failed) else result.value

    def work(tx: Tx) -> None:
        if failure is None:
            agents.started(tx, agent.id, version)
        if tasks is not None:
            declarations.store(rt, tx, made, tasks)

    _write(rt, hold, agent, work)
    if failure is not None:
        logger.error("the start of %s failed; its work goes on: %s", agent, declarations.said(failure))
        return _failed(rt, hold, agent, failure)
    rt.failpoint("start:committed")
    logger.info("%s has started", agent, extra={"think_event": "agent.started", "think_agent": str(agent)})
    return None


def _begin(made: AgentHooks) -> tuple[declarations.Tasks | None, BaseException | None]:
    """Run ``on_start``, then ask for the tasks, also where that failed: what they are, and what went wrong first."""
    began = calls.run(made.on_start) if made._overrides(HOOK) else None
    failure = began.error if isinstance(began, calls.Failed) else None
    if failure is not None and calls.passes(failure):
        raise failure
    asked = calls.run(lambda: declarations.of_agent(made))
    if isinstance(asked, calls.Done):
        return asked.value, failure
    if calls.passes(asked.error):
        raise asked.error
    return None, failure or asked.error


def _failed(rt: Runtime, hold: Hold, agent: AgentRef, error: BaseException, *, attempts: int = 0) -> str:
    error_type, text = describe(error)
    _write(
        rt,
        hold,
        agent,
        lambda tx: agents.start_failed(tx, agent.id, error_type, text, attempts=attempts),
    )
    return error_type


def _write(rt: Runtime, hold: Hold, agent: AgentRef, change: Any) -> Any:
    """Change the agent's row under the lease. Its own lock comes before the line's, as everywhere."""

    def work(tx: Tx) -> Any:
        agents.make(tx, agent)
        agents.lock(tx, agent.id)
        fence(tx, hold.lease)
        return change(tx)

    return patiently(rt, hold, lambda: rt.db.transact(work))


# --- the tick -------------------------------------------------------------------------------------


def knock_missed(rt: Runtime, limit: int) -> int:
    """Knock again for agents that wait to be started and whose knock seems lost, and say how often."""

    def work(tx: Tx, row: Any) -> bool:
        after = knock_again_after(row.knocks, watched=rt.broker_is_watched)
        if not agents.knock_again(tx, row.id, row.knock_at, after, row.knocks + 1):
            return False
        tx.after_commit(lambda: rt.knock(knocks.for_start(row)))
        return True

    missed = rt.db.read(lambda tx: agents.missed(tx, limit))
    wanted = worth_a_knock(rt, missed, knocks.for_start, "id", agents.put_off)
    return each_row(rt, "knock for an agent's start", wanted, work)
