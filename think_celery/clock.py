"""The time. No other module reads a clock."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from think_celery.signals import AbortSignal

_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(moment: datetime) -> int:
    """Microseconds since 1970 of an aware datetime; a naive one is refused (it names no instant)."""
    if moment.tzinfo is None:
        raise ValueError(
            f"{moment!r} has no time zone, so it names no instant. "
            "Pass an aware datetime, such as datetime.now(timezone.utc)."
        )
    return (moment - EPOCH) // MICROSECOND


def to_milliseconds(moment: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime, as JavaScript has it; a naive one is refused."""
    return to_microseconds(moment) // 1000


def can_be_told(moment: datetime) -> bool:
    """Whether an aware datetime can be told in UTC, where dates begin with the year 1 and end with the year 9999."""
    try:
        return moment.astimezone(UTC) is not None
    except (OverflowError, ValueError):
        return False


def from_microseconds(stored: int) -> datetime:
    """The instant stored as microseconds since 1970, in UTC."""
    return EPOCH + stored * MICROSECOND


class Clock(Protocol):
    """What the engine asks about time."""

    @property
    def database_time(self) -> bool:
        """Whether the database's own clock is read where it has one, instead of :meth:`now`."""

    def now(self) -> datetime:
        """The present instant, aware, in UTC."""

    def elapsed(self) -> float:
        """Seconds on a clock that never steps and also counts the time the machine was suspended."""

    def sleep(self, seconds: float, signal: AbortSignal | None = None) -> None:
        """Wait, until *signal* comes at most."""


class SystemClock:
    """The machine's clock."""

    database_time = True

    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> float:
        return time.clock_gettime(_STEADY)

    def sleep(self, seconds: float, signal: AbortSignal | None = None) -> None:
        if signal is None:
            time.sleep(seconds)
        else:
            signal.wait(seconds)
