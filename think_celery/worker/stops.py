"""How the news that a worker stops gets to all who work in it, in time for them to hand over.

Handlers of signals interrupt their own thread anywhere, so ours only write a byte into a pipe. A thread of each
process listens to it: of the worker's, and of every child of the prefork pool, which has inherited it.
"""

import logging
import os
import select
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from billiard import current_process
from celery.exceptions import WorkerTerminate

logger = logging.getLogger("think_celery.worker")

SIGNALS = ("SIGTERM", "SIGINT", "SIGQUIT")
PATIENCE_SECONDS = 5.0
"""How long a child that is ended may take to hand over."""

REPORT_SECONDS = 0.2
"""How long a child that has handed over lives on, so that its parent learns how its task went."""

Stop = Callable[[], None]


class StopEvent:
    """An event that a signal's handler may set, and that forks of this process share. It is never cleared."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        weakref.finalize(self, _close, self.reader, self._writer)

    def set(self) -> None:
        """Set it, also from a signal's handler; setting it again changes nothing."""
        os.write(self._writer, b"!")  # nobody ever reads it, so all can see it


def _close(*files: int) -> None:
    for file in files:
        with suppress(OSError):
            os.close(file)


def wait_for_any(*events: StopEvent) -> None:
    """Wait until one of them is set."""
    poll = select.poll()
    for event in events:
        poll.register(event.reader, select.POLLIN)
    poll.poll()


def call_when_set(event: StopEvent, stop: Stop) -> None:
    """Call *stop* in a thread once the event is set."""

    def wait() -> None:
        wait_for_any(event)
        stop()

    threading.Thread(target=wait, name="think-stop", daemon=True).start()


# --- in the worker's main process -----------------------------------------------------------------


def set_at_signals(event: StopEvent) -> None:
    """Set the event as soon as a signal that stops a Celery worker comes, then let Celery handle it.

    Celery's own signal ``worker_shutting_down`` is sent when a soft shutdown is over: too late to use its time.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # the process is a host's, and so are its signals
    for name in SIGNALS:
        number = getattr(signal, name)
        handler = signal.getsignal(number)
        if callable(handler) and str(getattr(handler, "__module__", "")).startswith("celery."):
            signal.signal(number, partial(_set_first, event, handler))


def _set_first(event: StopEvent, handler: Callable[..., Any], *frame: Any) -> None:
    event.set()
    try:
        handler(*frame)
    except NotImplementedError:
        # Celery ends tasks in a cold shutdown, and not every pool can. In the solo pool that would be raised in
        # the middle of the work.
        logger.info("this pool can't end what it works on; that is handed over")


# --- in a child of the prefork pool ---------------------------------------------------------------


class Child:
    """What a child is told: that its worker stops, or that it is to end by itself.

    A signal ends a child at a cold shutdown, when its task is revoked with ``terminate``, or because it came to
    the whole group of processes. While the child works for us, that is a wish to hand over first.
    """

    def __init__(self, parents: StopEvent, stop: Stop) -> None:
        self._parents, self._own, self._stop = parents, StopEvent(), stop
        self._signal: int | None = None
        self._free = threading.Event()
        self._late = False
        threading.Thread(target=self._listen, name="think-stop", daemon=True).start()

    def _listen(self) -> None:
        wait_for_any(self._parents, self._own)
        self._stop()
        wait_for_any(self._own)
        if not self._free.wait(PATIENCE_SECONDS):
            logger.warning("work that was told to hand over goes on; it is interrupted")
        else:
            threading.Event().wait(REPORT_SECONDS)
        self._late = True
        os.kill(os.getpid(), self._signal or signal.SIGTERM)

    def _asked(self, number: int, frame: Any) -> None:
        if self._late:
            raise WorkerTerminate(-(256 - number))
        self._signal = number
        self._own.set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """While the block runs, a signal that would end the process lets the work hand over first."""
        numbers = [getattr(signal, name) for name in SIGNALS]
        before = {n: handler for n in numbers if callable(handler := signal.getsignal(n))}
        self._free.clear()
        for number in before:
            signal.signal(number, self._asked)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._free.set()


_child: Child | None = None


def begin_child(parents: StopEvent, stop: Stop, **_: Any) -> None:
    """Listen, if this process is a child of the prefork pool; called at the start of each."""
    global _child
    if current_process().name != "MainProcess":
        _child = Child(parents, stop)


@contextmanager
def working() -> Iterator[None]:
    """The block is work of ours: in a child it may hand over before a signal ends the process."""
    if _child is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    with _child.working():
        yield
