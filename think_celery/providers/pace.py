"""How often an answer is read that comes token by token.

A read that wakes up costs several times what its token costs, and listeners are shown text on the cadence of the live
log only. So an answer that trickles is read on that cadence, and what has come by then is one read.
"""

import math
from collections.abc import Callable

from think_celery.cadence import until_next
from think_celery.clock import Clock, SystemClock

BURST_BYTES = 4096
"""An answer of which one read brings so much comes as fast as it is read: the next read does not wait."""

SHARE = 0.05
"""The longest rest, as a share of the time that the answer has taken: its end, for which somebody waits, may be late by
that."""

PART = 0.5
"""The longest rest, as a part of the time that the limit for the next token leaves."""


class Pace:
    """When the answer that a connection brings is read on."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._began: float | None = None
        self._time_left: Callable[[], float] = lambda: math.inf
        self._trickles = True

    def begin(self, time_left: Callable[[], float]) -> None:
        """The first of an answer is there: from now on its reads may rest.

        *time_left* says how many seconds the next of it may still take to come.
        """
        self._began, self._trickles = self._clock.elapsed(), True
        self._time_left = time_left

    def end(self) -> None:
        """No more text comes: what is left is read at once."""
        self._began = None

    def rest(self) -> None:
        """Before a read: let more come, if it comes in small pieces."""
        if self._began is None or not self._trickles:
            return
        now = self._clock.elapsed()
        seconds = until_next(now)
        if seconds <= (now - self._began) * SHARE and seconds <= self._time_left() * PART:
            self._clock.sleep(seconds)

    def took(self, size: int) -> None:
        """After a read of that many bytes."""
        self._trickles = size < BURST_BYTES
