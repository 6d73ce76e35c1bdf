"""A wish to stop that one piece of code hands to another, in the shape of the web's AbortController."""

import threading
from collections.abc import Callable


class AbortSignal:
    """Tells long work that it should end. Thread-safe; once aborted it stays so."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.RLock()  # a handler of an OS signal may abort while this thread holds it
        self._callbacks: list[Callable[[], None]] = []
        self._aborted = False  # asked for with each token: the event's own flag is two calls away
        self.reason: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether the work should end."""
        return self._aborted

    def wait(self, seconds: float) -> bool:
        """Wait up to that many seconds for the signal, and say whether it came."""
        return self._event.wait(seconds)

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* once when the signal comes (at once if it has come). Returns what removes it."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return lambda: self._remove(callback)
        callback()
        return lambda: None

    def _remove(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def _abort(self, reason: str) -> None:
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._aborted = True
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        failures = []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # the others must be told all the same
                failures.append(error)
        if failures:
            raise failures[0]


class AbortController:
    """The other end of a signal: ``controller.abort("no longer needed")``."""

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str = "aborted") -> None:
        """Give the signal. A second call changes nothing."""
        self.signal._abort(reason)
