"""Schedules: what firing one takes, and whether 100,000 that are not due cost more than 1,000."""

import time
from collections.abc import Iterator
from itertools import count

from benchmarks import fill
from benchmarks.figures import Row, Size, check, until
from benchmarks.growth import Side, compared
from benchmarks.place import Place, threads
from benchmarks.project import Clerk
from think_celery.domain import tick
from think_celery.domain.schedules import firing

_DONE = "SELECT count(*) FROM think_jobs WHERE agent_name = %s AND status = 'completed'"
_ENDED = "SELECT count(*) FROM think_slots WHERE schedule_id = %s AND status = 'done'"
_numbers = count()


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Two databases with a worker each; this process is the beat of both: it fires what is due."""
    counts = size.pick(20, 1000, 1000), size.pick(200, 20_000, 100_000)
    with (
        place.scene() as one,
        place.scene() as other,
        one.worker(threads(size)) as first,
        other.worker(threads(size)) as second,
    ):
        small = Side(scene=one, worker=first, rows=counts[0])
        large = Side(scene=other, worker=second, rows=counts[1])
        for side in (small, large):
            fill.schedules(side.scene, side.rows)
            side.scene.run("ANALYZE")
        held, each = f"{large.rows:,} schedules", size.pick(1, 8, 15)
        yield compared(f"one more schedule, {held}", size, _schedule, each, small, large)
        yield compared(f"schedule → fired → its job done, {held}", size, _fired, each, small, large)
        yield compared(f"a look for due schedules, none is, {held}", size, _look, each, small, large)
        yield compared(f"pass of the tick, {held}", size, _tick, each, small, large)


def _schedule(side: Side, name: str) -> float:
    """Milliseconds of the call that stores one, for later."""
    agent = side.scene.agent(Clerk, f"clerk-{next(_numbers)}")
    began = time.perf_counter()
    agent.schedule("3 days", agent.note, name)
    return (time.perf_counter() - began) * 1000


def _fired(side: Side, name: str) -> float:
    """Milliseconds from the call, for now, until anybody can read that its job is done."""
    agent = side.scene.agent(Clerk, f"clerk-{next(_numbers)}")
    began = time.perf_counter()
    made = agent.schedule(0, agent.note, name)
    check(firing.fire_due(side.scene.rt) >= 1, "the schedule was not due")
    ended = until(lambda: side.scene.ask(_DONE, agent.name) == 1, 30, "a job", every=0.0005)
    check(side.scene.ask(_ENDED, made.schedule_id) == 1, "its slot has not ended")
    return (ended - began) * 1000


def _look(side: Side, _: str) -> float:
    """Milliseconds of asking when the next is due, and of firing what is due now: nothing."""
    began = time.perf_counter()
    due = firing.next_due(side.scene.rt)
    fired = firing.fire_due(side.scene.rt)
    took = time.perf_counter() - began
    check(due is not None and fired == 0, f"{fired} schedules were due")
    return took * 1000


def _tick(side: Side, _: str) -> float:
    """Milliseconds of a whole pass of a worker's tick, admitted as if the last one had been long ago."""
    side.scene.run("UPDATE think_ticks SET last_at = 0")
    began = time.perf_counter()
    tick.run(side.scene.rt)
    return (time.perf_counter() - began) * 1000
