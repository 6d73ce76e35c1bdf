"""Who fires schedules, and when: a beat on time, a worker or a task of another scheduler once a second.

Any number of them may do so at once, for each slot is claimed by one. The pass of kind ``schedules`` says when one
of them looked last.
"""

from datetime import timedelta

from think_celery.domain.passes import ROWS
from think_celery.domain.schedules import schedules
from think_celery.runtime import Runtime
from think_celery.store import health, processes

KIND = "schedules"
"""The pass by which it is known that somebody fires schedules."""

EVERY = timedelta(seconds=1)
LONGEST_WAIT, SHORTEST_WAIT = 1.0, 0.01
"""Seconds between two looks. Not longer, for a schedule may be added, or the clock be set, at any time."""

SILENT = timedelta(minutes=1)
"""A last look further back than this means that nobody fires."""


def once_a_second(rt: Runtime) -> int:
    """Fire what is due if nobody in this database has looked within this second, and say how many slots were."""
    return _fire(rt) if _admitted(rt) else 0


def on_time(rt: Runtime) -> float:
    """Fire what is due, and say after how many seconds to look again: when the next slot comes, or a second later.

    For the few processes whose only work it is: it looks whatever others have done.
    """
    _admitted(rt)  # noted for those who ask who fires
    fired = _fire(rt)
    now, due = rt.db.read(health.now), schedules.next_due(rt)
    if due is None:
        return LONGEST_WAIT
    if due <= now:  # what came due just now; or somebody else has it in hand, or it failed
        return SHORTEST_WAIT if fired else LONGEST_WAIT
    return min(max((due - now).total_seconds(), SHORTEST_WAIT), LONGEST_WAIT)


def _admitted(rt: Runtime) -> bool:
    return rt.db.transact(lambda tx: processes.admit(tx, KIND, EVERY))


def _fire(rt: Runtime) -> int:
    done, until = 0, rt.clock.elapsed() + EVERY.total_seconds()
    while (fired := schedules.fire_due(rt, ROWS)) and rt.clock.elapsed() < until:
        done += fired
    return done + fired


def is_silent(rt: Runtime) -> bool:
    """Whether there are schedules, and nobody has looked after them for a minute."""
    return rt.db.read(lambda tx: health.unfired(tx, KIND, SILENT))
