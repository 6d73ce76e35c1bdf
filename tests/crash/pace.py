"""How much slower the machine is just now than one that has nothing else to do.

The bounds of the crash tests are promises about a machine with a free processor. On one that is shared, or
that runs several of these tests at once, they are stretched by as much as a thread waits for its processor.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_SECONDS, WORK_SECONDS = 0.2, 0.004


class Pace:
    """Samples it five times a second, from ``start`` to ``stop``, as long as there is something to bound."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._wanted = threading.Condition()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="pace", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        with self._wanted:
            self._wanted.notify_all()
        self._thread.join(5)

    def begin(self) -> None:
        """Somebody has bounds from now on."""
        with self._wanted:
            self._users += 1
            self._wanted.notify_all()

    def end(self) -> None:
        """That one has no more."""
        with self._wanted:
            self._users -= 1

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._wanted:
                self._wanted.wait_for(lambda: self._users or self._stop.is_set())
            wake_at = time.monotonic() + EVERY_SECONDS
            self._stop.wait(EVERY_SECONDS)
            worked = time.thread_time()
            while time.thread_time() - worked < WORK_SECONDS:
                pass
            now = time.monotonic()
            self._samples.append((now, max((now - wake_at) / WORK_SECONDS, 1.0)))

    def stretch(self, since: float) -> float:
        """By what a bound that counts from *since* is to be multiplied: 1 on a machine that is free."""
        found = []
        for at, factor in reversed(self._samples):
            if at < since:
                break
            found.append(factor)
        return sum(found) / len(found) if found else 1.0


@contextmanager
def measured_pace() -> Iterator[Pace]:
    """One that samples during the block, for which somebody has bounds."""
    measured = Pace()
    measured.start()
    measured.begin()
    try:
        yield measured
    finally:
        measured.end()
        measured.stop()
