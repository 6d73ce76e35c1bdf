"""How an agent comes to life: ``start()``, ``on_start`` and ``autostart``.

``on_start`` runs in a worker that holds the agent's line, as a turn does: so one at a time, and before the turn
that follows. Which version of the class has started is noted when it has returned.
"""

import functools
import hashlib
import inspect
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from think_celery.described import describe
from think_celery.domain import calls, knocks, lines
from think_celery.domain.inhand import doing
from think_celery.domain.leases import LET_GO_SECONDS, Hold
from think_celery.domain.outcomes import Outcome
from think_celery.domain.passes import each_row
from think_celery.domain.patience import patiently
from think_celery.errors import InvalidValue, LeaseLost, TooManyAttempts, Unwind
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.names import check_name
from think_celery.protocols import AgentHooks
from think_celery.retries import knock_again_after
from think_celery.runtime import Runtime, agent_classes
from think_celery.store import agents
from think_celery.store import lines as line_rows
from think_celery.store.database import Tx
from think_celery.store.leases import Lease, fence

logger = logging.getLogger("think_celery.agents")

HOOK = "on_start"


# --- the version of a class -----------------------------------------------------------------------


def version_of(cls: Any) -> str:
    """The version of an agent's class: its attribute ``version``, else a hash of its source.

    Bases of yours count too. Where there is no source (a class made in a shell), its compiled methods count.
    """
    return cls.version if cls.version is not None else _hashed(cls)


@functools.lru_cache(maxsize=1000)
def _hashed(cls: type) -> str:
    theirs = [base for base in cls.__mro__ if not _is_ours(base) and base is not object]
    text = "\x1e".join(_source(base) for base in theirs)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_ours(cls: type) -> bool:
    package, _, module = cls.__module__.partition(".")
    return package == "think_celery" and not module.startswith("demo")


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        codes = {name: getattr(value, "__code__", None) for name, value in vars(cls).items()}
        told = [
            (
                name,
                code.co_code.hex(),
                code.co_names,
                [str(const) for const in code.co_consts if _plain(const)],
            )
            for name, code in sorted(codes.items())
            if code is not None
        ]
        return f"{cls.__qualname__}{told}"


def _plain(constant: Any) -> bool:
    return isinstance(constant, str | int | float | bytes | None)


# --- asking for it --------------------------------------------------------------------------------


def start(rt: Runtime, agent: AgentRef, queue: str | None = None) -> None:
    """Store the agent's row, and let a worker run its ``on_start`` soon, unless this version of it has started.

    Raises:
        UnknownClass: No agent class of that name is registered here.
    """
    cls = agent_classes.get(agent.agent_class)
    chosen = queue or cls.queue or rt.settings.queue

    def work(tx: Tx) -> None:
        if not cls._overrides(HOOK):
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
            f"{cls.agent_class}.autostart gives a {type(named).__name__}: it must be a list of agents' names, or a "
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
    if agent_class not in agent_classes:
        logger.error(
            "%s waits to be started: no such agent class is imported in this worker. Add its module to "
            "`think_imports` or to Celery's `imports`.",
            agent,
        )
        return Outcome("unknown-class")
    process_id = rt.monitor.process_id()
    lease = rt.db.transact(lambda tx: _take_line(tx, agent.id, process_id))
    if lease is None:
        return Outcome("busy")
    rt.failpoint("start:claimed")
    with rt.monitor.hold(lease, seconds=rt.settings.turn_timeout_seconds) as hold:
        try:
            with doing(hold, agent):
                outcome = _run(rt, hold, agent, row.started_version)
        except LeaseLost:
            return Outcome("lease-lost")
        except BaseException as error:
            if not isinstance(error, Unwind):  # of a worker that died, nothing more is done
                with suppress(LeaseLost):
                    _give_back(rt, hold)
            raise
        with suppress(LeaseLost):
            _give_back(rt, hold)
        return outcome


def _give_back(rt: Runtime, hold: Hold) -> None:
    patiently(rt, hold, lambda: rt.db.transact(lambda tx: lines.free(rt, tx, hold.lease)))


def _take_line(tx: Tx, agent_id: str, process_id: str) -> Lease | None:
    if not line_rows.is_there(tx, agent_id):  # or a turn's end that waits for a caller would be waited for
        line_rows.make_line(tx, agent_id)
    return line_rows.take_line_of(tx, agent_id, process_id)


def _run(rt: Runtime, hold: Hold, agent: AgentRef, started_version: str | None) -> Outcome:
    made = rt.make_agent(agent.agent_class, agent.name)
    if not made._overrides(HOOK) or version_of(type(made)) == started_version:
        rt.db.transact(lambda tx: agents.need_no_start(tx, agent.id))
        return Outcome("ended-before")
    failure = ensure(rt, hold, made, agent, started_version)
    if failure is None:
        return Outcome("started", ended=True, row=str(agent))
    return Outcome("error", ended=True, row=str(agent), error_type=failure)


def ensure(
    rt: Runtime, hold: Hold, made: AgentHooks, agent: AgentRef, started_version: str | None
) -> str | None:
    """Run ``on_start`` under the agent's lease if this version of its class has not started.

    Returns the type of the error with which it failed. That is noted and logged, and the work goes on.

    Raises:
        LeaseLost: The line is another worker's now.
    """
    if not made._overrides(HOOK):
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
        result = calls.attempt(rt, made.on_start, timeout=left, signal=hold.signal)
        if isinstance(result, calls.Failed) and calls.passes(result.error):
            raise result.error
    except BaseException as outside:  # this worker is told to stop
        if calls.interrupts(outside) and not hold.lost:
            _write(rt, hold, agent, lambda tx: agents.start_later(tx, agent.id))
        raise
    rt.failpoint("start:ran")
    if isinstance(result, calls.Failed):
        logger.error("on_start of %s failed; its work goes on: %s", agent, trace_of(result.error))
        return _failed(rt, hold, agent, result.error)
    if isinstance(result, calls.Abandoned):
        logger.error("on_start of %s did not return and was given up", agent)
        return _failed(rt, hold, agent, TimeoutError("it did not return in time and was given up"))
    _write(rt, hold, agent, lambda tx: agents.started(tx, agent.id, version))
    rt.failpoint("start:committed")
    logger.info("%s has started", agent, extra={"think_event": "agent.started", "think_agent": str(agent)})
    return None


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

    return each_row(rt, "knock for an agent's start", rt.db.read(lambda tx: agents.missed(tx, limit)), work)
