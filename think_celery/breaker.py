"""A circuit breaker: what has failed is not tried again for a while."""

from think_celery.clock import Clock


class Breaker:
    """Counts failures in a row, and says when to rest. It only keeps count: whoever uses it does the work.

    Calls from several threads at once may lose a count, which costs one more try.
    """

    def __init__(self, clock: Clock, *, rest_seconds: float, failures: int = 1) -> None:
        """After that many *failures* in a row it rests for *rest_seconds*."""
        self.broken = False
        """Whether it has rested since the last success."""
        self._clock, self._rest_seconds, self._most = clock, rest_seconds, failures
        self._failures = 0
        self._rests_until = 0.0

    def rests(self) -> bool:
        """Whether nothing is to be tried now."""
        return self.broken and self._clock.elapsed() < self._rests_until

    def failed(self) -> bool:
        """Note a failure, and say whether a rest begins with it."""
        self._failures += 1
        if self._failures < self._most:
            return False
        self._failures = 0
        self._rests_until = self._clock.elapsed() + self._rest_seconds
        self.broken = True
        return True

    def succeeded(self) -> bool:
        """Note a success, and say whether it is the first one after a rest."""
        self._failures = 0
        was_broken, self.broken = self.broken, False
        return was_broken
