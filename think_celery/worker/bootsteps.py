"""What a Celery worker does beside its tasks: it ticks, so recovery needs neither beat nor a free slot, sees at
once when a child of its pool dies, and lets its work hand over when it stops.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import bootsteps, signals

from think_celery import brokers, forks, hosts
from think_celery.domain import recovery, tick
from think_celery.domain.liveness import has_ended
from think_celery.domain.schedules import drivers
from think_celery.errors import ConfigurationError
from think_celery.logs import trace_of
from think_celery.memory import is_in_memory
from think_celery.metronome import Metronome, SilenceWatch
from think_celery.runtime import Runtime
from think_celery.store.database import is_away
from think_celery.tasks import check_content, set_limits
from think_celery.worker import stops
from think_celery.worker.revoked import Revocations

logger = logging.getLogger("think_celery.worker")

TICK_SECONDS = 1.0
_AWAY = (
    "the database %s can't be reached, or can't serve (%s). Until it can, this worker does nothing, and looks again "
    "each second. What is wrong with it says: think-celery doctor -A YOUR_APP"
)
CHILDREN_SECONDS = 0.2
"""How often the parent of a prefork pool looks whether a child is gone."""


class Ticker:
    """Makes both passes of the tick once a second, the first ones at once, until stopped.

    Each in a thread of its own: two looks at a process count only where they come steadily, so the pass over
    processes must not wait for the other work.
    """

    def __init__(
        self, rt: Runtime, *, forgotten: bool = False, beside: Callable[[], None] = lambda: None
    ) -> None:
        """*forgotten* says that the broker holds no message, so all that waits is knocked for at first.

        *beside* is done after each pass over the work, also after one that failed.
        """
        self._rt, self._stop, self._forgotten = rt, threading.Event(), forgotten
        self._beside = beside
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin."""
        self._stop.clear()
        for name, make_pass in (("think-tick-leases", tick.watch), ("think-tick", self._work)):
            thread = threading.Thread(target=self._run, args=(make_pass,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self, rt: Runtime) -> int:
        if self._forgotten:
            tick.knock_now(rt)
            self._forgotten = False
        try:
            return tick.work(rt)
        finally:
            self._beside()

    def _run(self, make_pass: Callable[[Runtime], int]) -> None:
        told, clock = "", self._rt.clock
        while not self._stop.is_set():
            began = clock.elapsed()
            try:
                with forks.uncut(), hosts.thread_closed():  # whoever is told of an end is the users'
                    make_pass(self._rt)
            except Exception as error:
                told = self._complain(error, told)
            else:
                if told == _AWAY:
                    logger.warning("the database answers again")
                told = ""
            self._stop.wait(max(0.0, TICK_SECONDS - (clock.elapsed() - began)))

    def _complain(self, error: Exception, told: str) -> str:
        """Log why a pass failed; what stays until somebody acts, only if it was not *told* before. Returns what is."""
        if isinstance(error, ConfigurationError):
            if str(error) != told:
                logger.error("this worker can't look after what is due or lost: %s", error)
            return str(error)
        if is_away(error):
            if told != _AWAY:
                url = self._rt.db.url.set(query={}).render_as_string(hide_password=True)
                logger.error("a tick failed: %s", _AWAY % (url, type(error).__name__))
            return _AWAY
        logger.error("a tick failed; the next one tries again: %s", trace_of(error))
        return told

    def stop(self) -> None:
        """End, and wait for the passes in hand."""
        self._stop.set()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(timeout=10)


class ChildReaper:
    """Looks after the children of a prefork pool: what one that dies had in hand is free at once.

    The tick proves a death, too, but not at once: only one worker of all makes a pass over processes each second.
    """

    def __init__(self, rt: Runtime, pids: Callable[[], set[int]]) -> None:
        """*pids* says which children there are."""
        self._rt, self._pids, self._stop = rt, pids, threading.Event()
        self._thread = threading.Thread(target=self._run, name="think-children", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        known = self._pids()
        while not self._stop.wait(CHILDREN_SECONDS):
            there = self._pids()
            if known - there:
                try:
                    with forks.uncut():  # the pool forks the next child just now
                        recovery.reap(self._rt)
                except Exception as error:
                    logger.error(
                        "could not free the work of a dead child; the tick will: %s", trace_of(error)
                    )
            known = there

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(timeout=10)


def children_of(pool: Any) -> set[int]:
    """The pids of a prefork pool's children that live; none once it has stopped.

    The pool itself may learn of an end five seconds late: it is woken when the child's files are closed, asks for its
    exit code, and if there is none yet, asks again with its next round.
    """
    inner = getattr(pool, "_pool", None)
    return set() if inner is None else {child.pid for child in list(inner._pool) if not has_ended(child.pid)}


def _fire(rt: Runtime) -> float:
    drivers.once_a_second(rt)
    return TICK_SECONDS


class TickStep(bootsteps.StartStopStep):  # type: ignore[misc,unused-ignore]
    """Added to the worker of each app that ``ThinkCelery`` wires. It stops before the pool does."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Check that this worker can serve, before it has started anything.

        Raises:
            ConfigurationError: It has a broker in memory and would fork, or would refuse our messages.
            InvalidSetting: A setting is unknown or unfit.
        """
        super().__init__(parent, **kwargs)
        self._running: list[Any] = []
        self._forks = "prefork" in getattr(parent.pool_cls, "__module__", str(parent.pool_cls))
        if is_in_memory(parent.app) and self._forks:
            raise ConfigurationError(
                "The broker memory:// lives in one process, and the prefork pool forks others. Start the worker with "
                "--pool threads, or set CELERY_BROKER_URL to a broker such as redis://localhost:6379/0."
            )
        check_content(parent.app)
        set_limits(parent.app, parent.app.think.runtime.settings)
        self._stopping = stops.StopEvent()  # before the pool forks
        # Now: a queue that is made later, because something is sent to it, is not consumed.
        parent.app.think.consumes = frozenset(parent.app.amqp.queues.consume_from)
        if self._forks:
            begin = partial(stops.begin_child, self._stopping, parent.app.think.stop)
            signals.worker_process_init.connect(begin, weak=False)

    def start(self, parent: Any) -> None:
        """Tick, look after children, and listen for the end."""
        think = parent.app.think
        stops.call_when_set(self._stopping, think.stop)
        stops.set_at_signals(self._stopping)
        rt = think.runtime
        revocations, watch = Revocations(parent.app, rt), SilenceWatch(rt)

        def beside() -> None:
            revocations.look()
            watch.look()

        # What an earlier process had in its memory is gone.
        self._running = [revocations, Ticker(rt, forgotten=is_in_memory(parent.app), beside=beside)]
        if think.fires_schedules or rt.settings.worker_schedules:
            self._running.append(Metronome(rt, _fire))
        if self._forks:
            self._running.append(ChildReaper(think.runtime, lambda: children_of(parent.pool)))
        for each in self._running:
            each.start()
        brokers.warn(parent.app, parent.pool_cls)

    def close(self, parent: Any) -> None:
        """Let the work in hand be handed over, whatever has stopped the worker."""
        self._stopping.set()
        parent.app.think.stop()

    def stop(self, parent: Any) -> None:
        """Stop ticking."""
        parent.app.think.consumes = frozenset()
        for each in reversed(self._running):
            each.stop()

    def terminate(self, parent: Any) -> None:
        """At a cold shutdown, where Celery waits for nobody: let the work be handed over, and sign off."""
        think = parent.app.think
        think.runtime.monitor.wait_until_free(stops.PATIENCE_SECONDS)
        self.stop(parent)
        think.close()
