"""Keeps schedules going in one process: fires them, and sees that what classes declare is stored.

A beat has one, and each worker that is to fire schedules. Where the task ``think.tick`` fires them, the processes that
run it share the second half of that.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from think_celery import forks, hosts
from think_celery.domain.agents import starts
from think_celery.domain.schedules import declarations, drivers
from think_celery.errors import ConfigurationError, InvalidValue
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.runtime import Runtime, agent_classes

logger = logging.getLogger("think_celery.schedules")

RETRY_SECONDS = 1.0
"""After how long to try again when the database is away."""

LOOK_SECONDS = 1.0
"""How often it is looked whether classes have come or changed."""

DECLARE_SECONDS = 900.0
"""How often all declarations are compared although no class has changed here: what another version of the code
declared is kept for ten minutes, and then has to go."""

STOP_SECONDS = 2.0


class Metronome:
    """Fires schedules in one thread and reconciles declared tasks in another, until stopped.

    Two, so that thousands of agents to look through hold up no slot. Neither ends because of an error; the
    database may be away for as long as it likes.
    """

    def __init__(self, rt: Runtime, fire: Callable[[Runtime], float]) -> None:
        """*fire* looks once, and says after how many seconds it wants to look again."""
        self._rt, self._fire = rt, fire
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reconciler = Reconciler(rt)

    def start(self) -> None:
        """Begin, or begin again after a fork or an accident."""
        self._stop.clear()
        self._threads = [
            self._thread("think-schedules", "fire schedules", lambda: self._fire(self._rt)),
            self._thread("think-declarations", "reconcile scheduled tasks", self._declare),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def runs(self) -> bool:
        """Whether both threads live."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End; what is in hand is waited for, but not for long: another fires what this one does not."""
        self._stop.set()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(timeout=STOP_SECONDS)

    def _thread(self, name: str, what: str, work: Callable[[], float]) -> threading.Thread:
        return threading.Thread(target=self._repeat, args=(what, work), name=name, daemon=True)

    def _repeat(self, what: str, work: Callable[[], float]) -> None:
        told = ""
        while not self._stop.is_set():
            try:
                with forks.uncut(), hosts.thread_closed():  # autostart and get_scheduled_tasks are the users'
                    seconds = work()
            except Exception as error:  # each kind of accident is said once, not once a second
                seconds, text = RETRY_SECONDS, f"{type(error).__name__}: {_said(error)}"
                if text != told:
                    told = text
                    logger.error("this process can't %s and tries again each second: %s", what, _said(error))
            else:
                if told:
                    told = ""
                    logger.info("this process can %s again", what)
            self._stop.wait(seconds)

    def _declare(self) -> float:
        self._reconciler.look()
        return LOOK_SECONDS


class Reconciler:
    """Sees that what the classes of one process declare is stored."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        self._known: dict[str, type] | None = None
        self._declare_at = 0.0
        self._at_it = threading.Lock()

    def look(self) -> None:
        """Start the agents of ``autostart`` and compare what all classes declare with what is stored, if it is time."""
        if not self._at_it.acquire(blocking=False):
            return  # another thread of this process is at it
        try:
            self._look()
        finally:
            self._at_it.release()

    def _look(self) -> None:
        elapsed, classes = self.rt.clock.elapsed(), agent_classes.usable()
        if classes == self._known and elapsed < self._declare_at:
            return
        _start(self.rt, classes)
        declarations.reconcile_all(self.rt)
        self._known, self._declare_at = classes, elapsed + DECLARE_SECONDS


def _start(rt: Runtime, classes: Mapping[str, type]) -> None:
    """Start the agents that these classes name in ``autostart``."""
    for agent_class, cls in classes.items():
        try:
            names = starts.autostart_names(cls)
        except Exception as error:  # its own code; it is not to hold up the others
            logger.error("autostart of %s can't be used: %s", agent_class, _said(error))
            continue
        for name in names:
            starts.start(rt, AgentRef(agent_class, name))


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigurationError | InvalidValue) else trace_of(error)


class SilenceWatch:
    """Tells a worker's log when there are schedules and nobody fires them."""

    FIRST_SECONDS, SECONDS = 10.0, 60.0
    """When it looks: not at once, for a beat may be started together with the worker."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._next_at = rt.clock.elapsed() + self.FIRST_SECONDS
        self._told = False

    def look(self) -> None:
        """Look, if it is time, and say it once as long as it stays so."""
        elapsed = self._rt.clock.elapsed()
        if elapsed < self._next_at:
            return
        self._next_at = elapsed + self.SECONDS
        silent = drivers.is_silent(self._rt)
        if silent and not self._told:
            logger.warning(
                "There are schedules, and nothing has fired them for a minute. %s", remedies("YOUR_APP")
            )
        self._told = silent


def remedies(app: str) -> str:
    """What to do where nobody fires schedules."""
    return (
        f"Start a beat: celery -A {app} beat -S think_celery.beat:ThinkScheduler; or, if another scheduler runs, let "
        "it send the task think.tick with schedules=True each second, with expires=2. (For one worker on its own: "
        "think_worker_schedules = True.)"
    )
