"""Threads and locks of the operating system, also where gevent has put greenlets in their place.

A greenlet runs only while the others let it. What must go on while one of them computes is a native thread; and
what such a thread shares with greenlets is a native lock, held for a few instructions and never while waiting.
"""

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

Call = Callable[[], Any]


class Running(Protocol):
    """A thread that was started."""

    def is_alive(self) -> bool:
        """Whether it still runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for that many seconds at most."""


def has_greenlets() -> bool:
    """Whether gevent has replaced this process's threads."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _original(module: str, name: str) -> Any:
    if has_greenlets():
        return sys.modules["gevent.monkey"].get_original(module, name)
    return getattr(importlib.import_module(module), name)


def lock() -> threading.Lock:
    """A lock that threads and greenlets may share, for a few instructions: nothing under it may wait."""
    made: threading.Lock = _original("_thread", "allocate_lock")()
    return made


class Alarm:
    """What a native thread sleeps on, until it is rung: from then on it does not sleep any more."""

    def __init__(self) -> None:
        self._silent = lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake whoever sleeps on it. Ringing twice is ringing once."""
        if self._silent.locked():
            self._silent.release()

    def sleep(self, seconds: float) -> bool:
        """Sleep that long, or until it rings, and say whether it has rung."""
        if not self._silent.acquire(timeout=seconds):
            return False
        self._silent.release()
        return True


class _Native:
    """A thread that gevent does not know."""

    def __init__(self, run: Call) -> None:
        self._run, self._runs = run, lock()
        self._runs.acquire()
        _original("_thread", "start_new_thread")(self._work, ())

    def _work(self) -> None:
        try:
            self._run()
        finally:
            self._runs.release()

    def is_alive(self) -> bool:
        return self._runs.locked()

    def join(self, timeout: float | None = None) -> None:
        waiting = threading.Event()  # a greenlet's, so that the others go on
        left = float("inf") if timeout is None else timeout
        while self.is_alive() and left > 0:
            waiting.wait(0.01)
            left -= 0.01


def start(run: Call, name: str) -> Running:
    """Run this in a native thread, which does not keep the process alive. It must not raise."""
    if has_greenlets():
        return _Native(run)
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def thread_safe_caller() -> Callable[[Call], None]:
    """What makes a call on behalf of a native thread, in the thread where this is called if greenlets live there.

    Locks, events and sockets of greenlets belong to their thread: no other may touch them.
    """
    if not has_greenlets():
        return lambda call: call()
    gevent = sys.modules["gevent"]
    loop = gevent.get_hub().loop
    return lambda call: loop.run_callback_threadsafe(gevent.spawn, call)
