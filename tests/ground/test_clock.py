"""The time, and how an instant is stored."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from think_celery.clock import SystemClock, from_microseconds, to_microseconds
from think_celery.signals import AbortController


@pytest.mark.parametrize(
    ("moment", "stored"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), -1),
        (datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC), 1772366400000001),
        (datetime(2026, 3, 1, 14, 0, 0, 1, tzinfo=timezone(timedelta(hours=2))), 1772366400000001),
        (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), 253402300799999999),
    ],
)
def test_an_instant_is_stored_exactly(moment, stored):
    """Whole microseconds since 1970, the same on both databases, without a float in between."""
    assert to_microseconds(moment) == stored
    assert from_microseconds(stored) == moment
    assert from_microseconds(stored).tzinfo is UTC


def test_a_naive_time_is_refused():
    """It names no instant; the error says what to pass."""
    with pytest.raises(ValueError, match=r"no time zone.*datetime\.now\(timezone\.utc\)"):
        to_microseconds(datetime(2026, 3, 1))


def test_the_systems_clock_is_aware_and_its_elapsed_time_never_steps_back():
    """`now` is UTC; `elapsed` only grows."""
    clock = SystemClock()

    readings = [clock.elapsed() for _ in range(1000)]

    assert clock.now().tzinfo is UTC
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert readings == sorted(readings)


def test_a_sleep_ends_when_the_signal_comes():
    """A worker that shall stop must not sleep on."""
    controller, clock = AbortController(), SystemClock()
    controller.abort()
    before = clock.elapsed()

    clock.sleep(30, controller.signal)
    clock.sleep(0)

    assert clock.elapsed() - before < 10
