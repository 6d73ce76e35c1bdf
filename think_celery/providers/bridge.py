"""Asynchronous streams for synchronous readers: one event loop per process, beside its threads or greenlets.

An asynchronous HTTP client belongs to the loop in which it was used first. One that sees a loop per call fails at
the second call ("Event loop is closed"), and one that was brought along through a fork speaks through its parent's
connections. So all of a process's asynchronous models live in its one loop, which a forked child does not inherit.
The reader may be a thread or a greenlet.
"""

import asyncio
import selectors
import sys
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


def _beside_greenlets() -> selectors.BaseSelector:
    """What a loop waits with where greenlets share its thread: they go on, and see nothing of the loop meanwhile.

    A thread's running loop and its hooks for asynchronous generators are the thread's, not the greenlet's. While the
    loop waits, they are put back to what they were, so that another greenlet may run a loop of its own.
    """

    class Waiting(selectors.DefaultSelector):
        def __init__(self) -> None:
            super().__init__()
            self._theirs = (asyncio._get_running_loop(), sys.get_asyncgen_hooks())

        def select(self, timeout: float | None = None) -> Any:
            ours = _change_to(self._theirs)
            try:
                if timeout is not None and timeout <= 0:
                    sys.modules["gevent"].sleep(0)  # work waits, and still the others get their turn
                return super().select(timeout)
            finally:
                self._theirs = _change_to(ours)

    return Waiting()


def _change_to(state: Any) -> Any:
    """Make this the thread's running loop and hooks, and return what they were."""
    was = (asyncio._get_running_loop(), sys.get_asyncgen_hooks())
    asyncio._set_running_loop(state[0])
    sys.set_asyncgen_hooks(*state[1])
    return was


class Loop:
    """An event loop in a thread of its own; among greenlets in one of them.

    (A native thread would have to wait for greenlets' locks, logging's for one, and might never be woken.)
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = threading.Event()
        threading.Thread(target=self._run, name="think-async-models", daemon=True).start()

    def _run(self) -> None:
        waiting = _beside_greenlets() if native.has_greenlets() else None
        self._loop = loop = asyncio.SelectorEventLoop(waiting)
        self._begun.set()
        loop.run_forever()

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Run a coroutine in the loop, and return what cancels it. It must not raise."""
        self._begun.wait()
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
            _loop = Loop()
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
        self._woken.set()
