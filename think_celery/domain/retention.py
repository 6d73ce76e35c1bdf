"""Removes what has ended long ago: in the tick, some rows at a time.

``think_retention`` is how long it is kept whole, ``think_key_retention`` how long the slim row of a submission is, and
with it its idempotency key. Messages are never removed here, nor what has not ended, nor a submission whose workflow
goes on or has not got its news, nor a child whose parent has not got them.
"""

from collections.abc import Callable
from datetime import timedelta

from think_celery.domain.passes import SECONDS
from think_celery.runtime import Runtime
from think_celery.store import control, jobs, processes, retention, schedules, slots
from think_celery.store.database import Tx

EVERY = timedelta(minutes=1)

NEWS_KEPT = timedelta(days=1)
"""How long news is kept after it was delivered."""

DELETED_KEPT = timedelta(days=1)
"""How long a deleted workflow is remembered, so that nothing of it is taken for its successor's."""

Removal = Callable[[Tx, timedelta, int], int]


def apply(rt: Runtime, limit: int) -> int:
    """Remove what is old enough, and say how many rows that concerned.

    Looked for once a minute. Each *limit* rows are a transaction of their own. What the time of this kind of work was
    too short for comes again at once.
    """
    if not rt.db.transact(lambda tx: processes.admit(tx, "retention", EVERY)):
        return 0
    began, done = rt.clock.elapsed(), 0
    for age, remove in _removals(rt):
        count = limit
        while age is not None and count and rt.clock.elapsed() - began <= SECONDS:
            count = rt.db.transact(lambda tx, age=age, remove=remove: remove(tx, age, limit))  # type: ignore[misc]
            done += count
            if count:
                rt.failpoint("retention:removed")
    if rt.clock.elapsed() - began > SECONDS:
        rt.db.transact(lambda tx: processes.admit_next(tx, "retention", EVERY))
    return done


def _removals(rt: Runtime) -> list[tuple[timedelta | None, Removal]]:
    kept, keys = rt.settings.retention, rt.settings.key_retention
    return [
        (NEWS_KEPT, retention.delete_news),
        (kept, retention.delete_workflows),
        (DELETED_KEPT, control.forget),
        (kept, retention.delete_decisions),
        (kept, retention.slim_submissions),
        (keys, retention.delete_submissions),
        (kept, jobs.delete_old),
        (kept, slots.delete_old),
        (kept, schedules.delete_old),
    ]
