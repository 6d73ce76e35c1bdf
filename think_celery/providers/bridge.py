"""Asynchronous streams for synchronous readers: one event loop per process, in a native thread of its own.

An asynchronous HTTP client belongs to the loop in which it was used first. One that sees a loop per call fails at
the second call ("Event loop is closed"), and one that was brought along through a fork speaks through its parent's
connections. So all of a process's asynchronous models live in its one loop, which a forked child does not inherit.
The reader may be a thread or a greenlet.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from think_celery import forks, native
from think_celery.clock import SystemClock
from think_celery.signals import AbortSignal

T = TypeVar("T")
_clock = SystemClock()


class Aborted(Exception):
    """The reader was told to stop."""


class Overdue(Exception):
    """Nothing came in time."""


class Loop:
    """An event loop in a native thread. ``generation`` tells it from those of other processes."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = native.Alarm()
        native.start(self._run, "think-async-models")

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        self._begun.ring()
        loop.run_forever()

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Run a coroutine in the loop, and return what cancels it. It must not raise."""
        self._begun.sleep(60)
        assert self._loop is not None
        loop, tasks = self._loop, set[asyncio.Task[None]]()
        cancelled = False

        def begin() -> None:
            if not cancelled:
                task = loop.create_task(make())
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        loop.call_soon_threadsafe(begin)
        return cancel


_generation = 0
_lock = threading.Lock()
_loop: Loop | None = None


def _forget_parent() -> None:
    global _generation, _lock, _loop
    _generation, _lock, _loop = _generation + 1, threading.Lock(), None


forks.in_child(_forget_parent)


def loop() -> Loop:
    """This process's loop."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = Loop(_generation)
        return _loop


def generation() -> int:
    """How many forks this process is away from the one that loaded this module."""
    return _generation


class Stream(Generic[T]):
    """What an asynchronous iterator yields, for one synchronous reader.

    The iterator runs in the process's loop, ahead of its reader. It is cancelled when the reader stops.
    """

    def __init__(self, make: Callable[[], AsyncIterator[T]], signal: AbortSignal) -> None:
        self._make, self._signal = make, signal
        self._came: deque[T | BaseException | None] = deque()
        self._woken = threading.Event()
        self._home = native.thread_safe_caller()

    def items(self, first: float, gap: float) -> Iterator[T]:
        """Each item as it comes; the first within *first* seconds, each next one within *gap* of the one before.

        The time that the reader takes between two items does not count.

        Raises:
            Aborted: The signal came.
            Overdue: An item did not come in time.
        """
        forget = self._signal.on_abort(self._woken.set)
        cancel = loop().spawn(self._pass_on)
        try:
            limit = first
            while True:
                item = self._next(limit)
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
                limit = gap
        finally:
            forget()
            cancel()

    def _next(self, limit: float) -> T | BaseException | None:
        until = _clock.elapsed() + limit
        while True:
            if self._signal.aborted:
                raise Aborted
            if self._came:
                return self._came.popleft()
            left = until - _clock.elapsed()
            if left <= 0:
                raise Overdue
            self._woken.wait(left)
            self._woken.clear()

    async def _pass_on(self) -> None:
        """In the loop: put down what comes, and wake the reader."""
        last: BaseException | None = None
        iterator = self._make()
        try:
            async for item in iterator:
                self._put(item)
        except asyncio.CancelledError:
            last = Aborted()
        except BaseException as error:  # it is the reader's
            last = error
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                with suppress(BaseException):
                    await close()
            self._put(last)

    def _put(self, item: T | BaseException | None) -> None:
        self._came.append(item)
        if not self._woken.is_set():
            self._home(self._woken.set)
