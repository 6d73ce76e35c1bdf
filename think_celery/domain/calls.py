"""Calls of users' functions: in helper threads, so that one that does not come back can be given up.

A helper thread runs in a copy of the caller's context variables. It can't be stopped; when it is given up,
what it still returns is dropped and logged.
"""

import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from think_celery import hosts
from think_celery.errors import CallTimeout, Suspend, TurnCancelled, Unwind
from think_celery.runtime import Runtime
from think_celery.signals import AbortSignal

logger = logging.getLogger("think_celery.calls")

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""How long functions may go on after they were told to stop."""

AT_ONCE = 16
"""How many functions of one call run at a time: a model may ask for hundreds of tools in one answer."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The function returned."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The function was given up. ``started`` is False where it was never called."""

    started: bool = True


Result = Done[T] | Failed | Abandoned


class _Call(Generic[T]):
    """One function, which a helper thread calls in a copy of the context of whoever asks for it.

    With a *context* of its own it is one piece of a longer work: what the host opens for the thread stays open.
    """

    def __init__(
        self,
        function: Callable[[], T],
        on_end: Callable[[], None],
        context: contextvars.Context | None = None,
    ) -> None:
        self._function, self._on_end = function, on_end
        self._is_piece = context is not None
        self.leaves_open = False  # what the host has opened for the thread
        self._context = contextvars.copy_context() if context is None else context
        self._lock = threading.Lock()
        self._given_up = False
        self._outcome: Done[T] | Failed | None = None

    def begin(self) -> "_Call[T]":
        """Call it in a thread of its own."""
        threading.Thread(target=self.run, name="think-call", daemon=True).start()
        return self

    def run(self) -> None:
        """Call it in this thread, and close what the host has opened for the thread meanwhile."""
        self._context.run(self._run)

    def _run(self) -> None:
        outcome: Done[T] | Failed
        try:
            outcome = run(self._function)
        except BaseException as error:  # signals don't come to this thread: the function made it up
            outcome = Failed(error)
        with self._lock:
            self._outcome = outcome
            late = self._given_up
        if late:
            logger.warning("a function that had been given up came back; its outcome is dropped")
        self.leaves_open = self._is_piece and not late
        if not self.leaves_open:
            hosts.close_thread()
        self._on_end()

    def take(self) -> Result[T]:
        """The outcome, or the function is given up."""
        with self._lock:
            if self._outcome is None:
                self._given_up = True
                return Abandoned()
            return self._outcome


class Helper:
    """A kept thread for one call after another: making a thread takes longer than many a function.

    A call whose function is given up takes the thread with it; the next call gets another one.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call[Any] | None] | None = None

    def begin(self, call: _Call[T]) -> _Call[T]:
        """Make the call in the kept thread. The one before it has ended, or was given up."""
        if self._calls is None:
            made: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
            threading.Thread(target=_work, args=(made,), name="think-call", daemon=True).start()
            self._calls = made  # now there is a thread that takes them: a process may have no more
        self._calls.put(call)
        return call

    def close(self) -> None:
        """Let the thread end as soon as it is free."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _work(calls: "queue.SimpleQueue[_Call[Any] | None]") -> None:
    open_yet = False
    while (call := calls.get()) is not None:
        call.run()
        open_yet = call.leaves_open
        del call  # nothing of it is kept until the next one comes
    if open_yet:
        hosts.close_thread()


CELERYS = {"SoftTimeLimitExceeded", "WorkerShutdown", "WorkerTerminate", "GreenletExit"}


def interrupts(error: BaseException) -> bool:
    """Whether it was not the code's own doing but came from outside: Ctrl-C, Celery's time limit or shutdown."""
    if isinstance(error, KeyboardInterrupt):  # signals come to the main thread only
        return threading.current_thread() is threading.main_thread()
    return type(error).__name__ in CELERYS


def passes(error: BaseException) -> bool:
    """Whether it goes on upwards: what ends this worker from outside, or in a test.

    Everything else that users' code raises is that code's failure, ``SystemExit`` and asyncio's
    ``CancelledError`` too: let through, it would end or wedge the worker, and the row would never end.
    """
    return interrupts(error) or (isinstance(error, Unwind) and not isinstance(error, Suspend | TurnCancelled))


def run(function: Callable[[], T]) -> Done[T] | Failed:
    """Call *function* here, and say how it went. What interrupts it is not its failure, and goes on."""
    try:
        return Done(function())
    except BaseException as error:
        if interrupts(error):
            raise
        return Failed(error)


def _timed(rt: Runtime, function: Callable[[], T], timeout: float) -> Result[T]:
    began = rt.clock.elapsed()
    result = run(function)
    if rt.clock.elapsed() - began <= timeout or (isinstance(result, Failed) and passes(result.error)):
        return result
    return Abandoned()


def attempt(
    rt: Runtime,
    function: Callable[[], T],
    *,
    timeout: float | None,
    signal: AbortSignal | None = None,
    grace: float | None = None,
    helper: Helper | None = None,
    context: contextvars.Context | None = None,
) -> Result[T]:
    """Call *function* and say how it went; an exception that comes out of this is not the function's.

    Args:
        rt: With ``threads`` off the function runs here, and nothing ends it; it has been given up if it moved the clock
            by more than *timeout*.
        function: Called once.
        timeout: Seconds after which it is given up. ``None``: it runs in the calling thread.
        signal: After it comes, the function gets *grace* seconds more.
        grace: In seconds, if not :data:`GRACE_SECONDS`.
        helper: Whose thread to use; without one the function gets a thread of its own.
        context: In which it runs, as one piece of a longer work, if not in a copy of the caller's.
    """
    if timeout is None:
        return run(function)
    if not rt.threads:
        return _timed(rt, function, timeout)
    ended, wake = threading.Event(), threading.Event()

    def on_end() -> None:
        ended.set()
        wake.set()

    call = _Call(function, on_end, context)
    if helper is None:
        call.begin()
    else:
        helper.begin(call)
    remove = signal.on_abort(wake.set) if signal is not None else None
    try:
        # A signal in the last seconds can lengthen the wait by the grace at most.
        if wake.wait(timeout) and not ended.is_set():
            ended.wait(min(GRACE_SECONDS if grace is None else grace, timeout))
    finally:
        if remove is not None:
            remove()
    result = call.take()
    if helper is not None and isinstance(result, Abandoned):
        helper.close()
    return result


def call(rt: Runtime, function: Callable[[], T], *, timeout: float | None) -> T:
    """Call *function* and return what it returns, or raise what it raises.

    Raises:
        CallTimeout: It took longer than *timeout* seconds and was given up.
    """
    match attempt(rt, function, timeout=timeout):
        case Done(value):
            return value
        case Failed(error):
            raise error
        case _:
            assert timeout is not None
            raise CallTimeout(timeout)


def call_all(
    rt: Runtime,
    functions: Sequence[Callable[[], Any]],
    *,
    signal: AbortSignal,
    grace: float = GRACE_SECONDS,
) -> list[Result[Any]]:
    """Call several functions, up to :data:`AT_ONCE` at once, and say in their order how each went.

    After *signal* those that don't answer within *grace* seconds are given up, and none is begun. With
    ``rt.threads`` off they run here, one after the other.
    """
    if not rt.threads:
        return [Abandoned(started=False) if signal.aborted else run(function) for function in functions]
    results: list[Result[Any]] = []
    for start in range(0, len(functions), AT_ONCE):
        results += _call_batch(functions[start : start + AT_ONCE], signal, grace)
    return results


def _call_batch(
    functions: Sequence[Callable[[], Any]], signal: AbortSignal, grace: float
) -> list[Result[Any]]:
    if signal.aborted:
        return [Abandoned(started=False) for _ in functions]
    lock, left = threading.Lock(), len(functions)
    all_ended, wake = threading.Event(), threading.Event()

    def on_end() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        all_ended.set()
        wake.set()

    calls = [_Call(function, on_end).begin() for function in functions]
    remove = signal.on_abort(wake.set)
    try:
        wake.wait()
        all_ended.wait(grace)
    finally:
        remove()
    return [call.take() for call in calls]
