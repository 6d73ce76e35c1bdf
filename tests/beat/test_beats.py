"""Any number of beats, at any time: each slot is fired once, and none is forgotten."""

import random
import signal
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.beat.stand import Stand, gaps, torment

pytestmark = pytest.mark.services

SECOND = timedelta(seconds=1)
SEED = 20261130


def test_three_beats_that_are_stopped_and_killed(stand: Stand) -> None:
    """Each slot is fired once and runs once, however many beats there are, though one is 900 ms ahead (FR-19).

    Beats are ended at random, in order and by kill -9, and started again; one of them runs at any time.
    """
    names = [f"tormented-{n}" for n in range(4)]
    for name in names:
        stand.pulse(name).schedule_every(1, "note")
    ahead = stand.wrong_clock(0.9)
    beats = [stand.beat, stand.beat, lambda: stand.beat(clock=ahead)]

    ended = torment(stand, beats, 10.0, random.Random(SEED))

    assert ended >= 4
    for name in names:
        slots = stand.settled(name)
        done = [row for row in slots if row.status == "done"]
        assert gaps(slots, SECOND) == [], stand.report()
        assert len({row.scheduled_for for row in slots}) == len(slots)
        assert all((b.scheduled_for - a.scheduled_for) % SECOND == timedelta(0) for a, b in pairwise(slots))
        assert all(row.created_at >= row.scheduled_for for row in slots), "one was fired before its time"
        assert {row.status for row in slots} <= {"done", "skipped"}, stand.report()
        assert len(done) >= 5, stand.report()
        assert len(stand.effects(name)) == len(done), stand.report()


def test_no_beat_for_some_slots(stand: Stand) -> None:
    """The latest slot that was missed runs, once, and stands for those before it (FR-20, C4)."""
    stand.pulse("missed").schedule_every(1, "note")
    first = stand.beat()
    stand.until(lambda: len(stand.effects("missed")) >= 1, what="the first slot done")
    stand.end(first, by=signal.SIGKILL)
    stand.until(lambda: stand.statuses("missed")["open"] == 0, what="its slots settled")
    before = stand.slots("missed")
    stand.nap(3.5)

    assert len(stand.slots("missed")) == len(before)
    second = stand.beat()
    stand.until(lambda: len(stand.slots("missed")) >= len(before) + 2, what="two more slots")
    stand.end(second)

    slots = stand.settled("missed")
    late = slots[len(before)]
    # It runs, unless the next one has come before a worker took it.
    assert late.status == "done" or "overtaken" in late.reason, stand.report()
    assert late.missed_from == before[-1].scheduled_for + SECOND
    assert late.scheduled_for - late.missed_from >= 2 * SECOND
    assert len(stand.effects("missed")) == sum(row.status == "done" for row in slots)
    assert gaps(slots, SECOND) == []


def test_no_worker_for_some_slots(stand: Stand) -> None:
    """The latest slot runs once a worker is there; those before it are listed as skipped, with the reason (FR-21)."""
    stand.end(*(each for each in stand.processes if each.running))  # its worker
    stand.pulse("waits").schedule_every(1, "note")
    beat = stand.beat()
    stand.until(lambda: len(stand.slots("waits")) >= 5, what="five slots")
    stand.end(beat)
    assert stand.effects("waits") == []

    stand.worker()
    *skipped, last = stand.settled("waits")

    assert [row.status for row in skipped] == ["skipped"] * len(skipped)
    assert all("overtaken" in row.reason for row in skipped), stand.report()
    assert last.status == "done"
    assert len(stand.effects("waits")) == 1
