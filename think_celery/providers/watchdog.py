"""Deadlines and aborts that also hold while a socket read blocks.

One thread per process watches all guards. When a guard's deadline passes, or its signal comes, it cuts
the connection (a socket's ``shutdown``); the blocked reader wakes up with an end of stream or an error,
and reads in ``guard.fired`` why. It needs no alarm signal and no time limit of a pool, so it is the same in
prefork, threads and gevent.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from think_celery import forks
from think_celery.clock import SystemClock
from think_celery.logs import trace_of
from think_celery.signals import AbortSignal

logger = logging.getLogger(__name__)
_clock = SystemClock()


class Guard:
    """Watches one request. Made by :func:`guard`."""

    def __init__(self, cut: Callable[[], None], watcher: "_Watcher") -> None:
        self._cut: Callable[[], None] | None = cut
        self._watcher = watcher
        # Reentrant: a signal handler may abort in the very thread that is inside one of these methods.
        self._lock = threading.RLock()
        self._reason = ""
        self.deadline = math.inf
        self.fired: str | None = None
        self.aborted = False

    def extend(self, seconds: float, reason: str) -> None:
        """Cut in that many seconds from now, for *reason*, unless extended again before."""
        if self.fired is not None:
            return
        self._reason = reason
        self.deadline = deadline = _clock.elapsed() + seconds
        if deadline < self._watcher.wake_at:
            self._watcher.wake(deadline)

    def left(self) -> float:
        """The seconds until it cuts; endless where it has no deadline."""
        return self.deadline - _clock.elapsed()

    def pause(self) -> None:
        """Have no deadline until the next :meth:`extend`; an abort still cuts."""
        self.deadline = math.inf

    def reconnected(self) -> None:
        """Say that the connection is another one now: it is cut at once if the guard has fired before."""
        if self.fired is not None:
            with self._lock:
                self._call_cut()

    def disarm(self) -> None:
        """Never cut from now on. When this returns, no cut is under way."""
        with self._lock:
            self._cut = None
            self.deadline = math.inf

    def expire(self) -> None:
        """Cut because the deadline has passed."""
        self._fire(self._reason, aborted=False)

    def abort(self, reason: str) -> None:
        """Cut because the work was told to stop."""
        self._fire(reason, aborted=True)

    def _fire(self, reason: str, *, aborted: bool) -> None:
        with self._lock:
            self.deadline = math.inf
            if self._cut is None:
                return
            if self.fired is None:
                self.fired, self.aborted = reason, aborted
            self._call_cut()

    def _call_cut(self) -> None:
        if self._cut is None:
            return
        try:
            self._cut()
        except Exception as error:  # the watcher serves every other request too and must go on
            logger.error("A model connection could not be cut: %s", trace_of(error))


class _Watcher:
    """The process's one thread, started by the first guard."""

    def __init__(self) -> None:
        self.wake_at = math.inf
        self._changed = threading.Condition()
        self._guards: set[Guard] = set()
        self._thread: threading.Thread | None = None

    def add(self, guard: Guard) -> None:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="think-watchdog", daemon=True)
                thread.start()  # before anybody counts on it: a process may have no more threads
                self._thread = thread
            self._guards.add(guard)

    def remove(self, guard: Guard) -> None:
        with self._changed:
            self._guards.discard(guard)

    def wake(self, deadline: float) -> None:
        with self._changed:
            # It will look by then, and at all guards: a greenlet that reads a burst need not wake it for each token.
            self.wake_at = min(self.wake_at, deadline)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                # Infinite while the guards are looked through: an `extend` that comes meanwhile, whether or not
                # its deadline was still seen, then takes the lock and wakes the wait below.
                self.wake_at = math.inf
                now = _clock.elapsed()
                due = [guard for guard in self._guards if guard.deadline <= now]
                if not due:
                    self.wake_at = min((guard.deadline for guard in self._guards), default=math.inf)
                    self._changed.wait(None if self.wake_at == math.inf else self.wake_at - now)
            for guard in due:
                guard.expire()


_watcher = _Watcher()


def _forget_parent() -> None:
    global _watcher
    _watcher = _Watcher()


forks.in_child(_forget_parent)


@contextmanager
def guard(cut: Callable[[], None], signal: AbortSignal | None = None) -> Iterator[Guard]:
    """Watch the block: *cut* is called from another thread when a deadline passes or *signal* comes.

    There is no deadline until the first ``extend``. *cut* must be quick, and harmless when repeated; it
    is never called after the block.
    """
    watcher = _watcher
    watched = Guard(cut, watcher)
    watcher.add(watched)
    forget: Callable[[], None] = lambda: None  # noqa: E731
    try:
        if signal is not None:
            given = signal
            forget = signal.on_abort(lambda: watched.abort(given.reason or "aborted"))
        yield watched
    finally:
        forget()
        watched.disarm()
        watcher.remove(watched)
