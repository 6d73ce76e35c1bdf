"""Clocks that jump: a host whose wall clock is set, and one that was suspended."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from tests.domain.crowd import clerk, workers
from think_celery.clock import SystemClock
from think_celery.domain import recovery
from think_celery.domain.leases import Hold
from think_celery.domain.submissions import claims
from think_celery.errors import LeaseLost
from think_celery.runtime import Runtime
from think_celery.store import processes

DAY = timedelta(days=1)


class Settable(SystemClock):
    """A host's clock whose hands a test moves, and which a test lets sleep."""

    def __init__(self) -> None:
        self.ahead, self.slept = timedelta(0), 0.0

    def now(self) -> datetime:
        """The wall clock."""
        return super().now() + self.ahead

    def elapsed(self) -> float:
        """The one that never jumps, and counts the time of a suspension."""
        return super().elapsed() + self.slept


@contextmanager
def working(rt: Runtime) -> Iterator[tuple[Hold, Settable]]:
    """A turn in hand, on a host with such a clock."""
    clock = Settable()
    rt.clock = rt.db.clock = rt.monitor.db.clock = clock
    submission = clerk(rt).submit_messages("Hello").submission_id
    claimed = claims.claim(rt, submission)
    assert isinstance(claimed, claims.Claim)
    with rt.monitor.hold(claimed.lease, submission_id=submission, seconds=3600) as hold:
        yield hold, clock


@pytest.mark.parametrize("by", [DAY, -DAY])
def test_a_wall_clock_that_is_set_changes_no_lease(postgres_url: str, by: timedelta) -> None:
    """Leases are compared by the database's clock, and deadlines by one that never jumps."""
    with workers(postgres_url) as rt, workers(postgres_url) as other, working(rt) as (hold, clock):
        clock.ahead = by
        rt.monitor.beat()
        recovery.sweep(rt)

        assert other.db.read(processes.lapsed) == []
        assert not hold.overdue
        assert not rt.monitor.is_stale()
        hold.check()


@pytest.mark.parametrize("by", [DAY, -DAY])
def test_nor_does_one_that_all_look_at(sqlite_url: str, by: timedelta) -> None:
    """On SQLite the clock is the host's: the first look may find a process out of time, and its beat clears that."""
    with workers(sqlite_url) as rt, workers(sqlite_url) as other, working(rt) as (hold, clock):
        other.clock = other.db.clock = clock
        clock.ahead = by

        recovery.sweep(other)
        rt.monitor.beat()
        recovery.sweep(other)

        assert [row for row in other.db.read(processes.alive) if row[0] == hold.lease.process_id]
        hold.check()
        assert not hold.overdue


def test_after_a_suspension_the_database_is_asked(postgres_url: str) -> None:
    """A machine that slept past its lease does nothing before it knows that the work is still its own."""
    with workers(postgres_url) as rt, workers(postgres_url) as other, working(rt) as (hold, clock):
        clock.slept = 60.0

        assert rt.monitor.is_stale()
        hold.check()
        assert not rt.monitor.is_stale()  # it has renewed

        recovery.hand_back(other, hold.lease)
        clock.slept = 120.0
        with pytest.raises(LeaseLost):
            hold.check()


def test_the_clock_of_leases_counts_the_time_of_a_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux stops CLOCK_MONOTONIC while the machine is suspended, and others take over meanwhile."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 42.0}.__getitem__)

    assert SystemClock().elapsed() == 42.0
