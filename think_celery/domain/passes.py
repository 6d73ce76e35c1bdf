"""A pass over rows, as the tick makes it for each kind of work."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from think_celery.logs import trace_of
from think_celery.protocols import Knock
from think_celery.retries import knock_again_after
from think_celery.runtime import Runtime
from think_celery.store.database import Tx
from think_celery.store.missed import PutOff

logger = logging.getLogger("think_celery.tick")

Item = TypeVar("Item")

ROWS, SECONDS = 500, 0.2
"""How many rows, or how long, one kind of work may take before it is the next one's turn."""

FULL = 1000
"""So many messages in a queue are enough where nobody takes any: a worker that comes begins with these."""

UNASKED = 3
"""So often the tick knocks for a row without asking how many messages wait, and each of these may be lost."""

PATIENCE = timedelta(milliseconds=200)
"""How long a pass waits for a row that somebody else has locked."""


def each_row(
    rt: Runtime,
    what: str,
    rows: Iterable[Item],
    work: Callable[[Tx, Item], int],
    otherwise: Callable[[Tx, Item], int] | None = None,
) -> int:
    """Do *work* for each of these rows in a transaction of its own, and add up what it returns.

    A row that fails is logged and hides no other; the next pass finds it again. A row that somebody else has
    locked for long fails. When the time of this kind of work is over, the rest is left for later.

    Args:
        rt: The runtime.
        what: The work, for the log: "could not …".
        rows: May be read while they are worked on.
        work: Returns how many rows it has changed, or whether it has changed this one.
        otherwise: Done for a row whose *work* has failed.
    """
    done, until = 0, math.inf
    for row in rows:
        if rt.clock.elapsed() > until:
            break
        until = min(until, rt.clock.elapsed() + SECONDS)  # from the first one on: finding it may take long
        for attempt in (work, otherwise):
            if attempt is None:
                continue
            try:
                done += _transact(rt, attempt, row)
                break
            except Exception as error:
                logger.error("could not %s; the next pass tries again: %s", what, trace_of(error))
    return done


def batches(rt: Runtime, find: Callable[[Tx], Sequence[Item]], limit: int) -> Iterator[Sequence[Item]]:
    """What *find* finds, again while that is *limit* rows, others than before, and the pass has time.

    The time is looked at here, too: where all rows of a batch are put off, :func:`each_row` gets none to look at it.
    """
    before: Sequence[Item] = []
    until = rt.clock.elapsed() + SECONDS
    while rt.clock.elapsed() <= until and (found := rt.db.read(find)) != before:
        yield found
        if len(found) < limit:
            return
        before = found


def worth_a_knock(
    rt: Runtime,
    rows: Sequence[Any],
    knock_for: Callable[[Any], Knock],
    key: str,
    put_off: PutOff,
) -> list[Any]:
    """Those of these rows whose knock seems lost that one more message could help.

    What waits for a queue that no worker serves would fill the broker without an end, and the tick would do little
    else. So a row that was knocked for some times is put off while its queue is full and nothing is taken from it,
    all at once, as if it had been knocked for. When the count of its knocks has doubled it is knocked for all the same:
    what fills the queue may be of others, and its own messages be lost.

    Args:
        rt: The runtime.
        rows: All of one kind.
        knock_for: Makes the knock for one of them.
        key: The name of the column that tells one from another.
        put_off: Puts rows of that kind off.
    """
    until = rt.clock.elapsed() + SECONDS
    wanted: list[Any] = []
    behind = defaultdict[timedelta, list[Any]](list)
    for row in rows:
        has_doubled = row.knocks & (row.knocks - 1) == 0
        if row.knocks >= UNASKED and not has_doubled and _is_full(rt, knock_for(row), until):
            behind[knock_again_after(row.knocks, watched=rt.broker_is_watched)].append(row)
        else:
            wanted.append(row)

    for after, waiting in behind.items():
        keys, latest = [getattr(row, key) for row in waiting], max(row.knock_at for row in waiting)
        try:
            _transact(rt, put_off, keys, latest, after)
        except Exception as error:
            logger.error("could not put off rows of a full queue; they are knocked for: %s", trace_of(error))
            wanted += waiting
    return wanted


def _is_full(rt: Runtime, knock: Knock, until: float) -> bool:
    """Whether that many messages wait where it would go to; a broker that is slow to answer is asked no more."""
    waiting = rt.waiting(knock) if rt.clock.elapsed() <= until else None
    return waiting is not None and waiting >= FULL


def _transact(rt: Runtime, work: Callable[..., int], *arguments: Any) -> int:
    def patient(tx: Tx) -> int:
        tx.wait_at_most(PATIENCE)
        return work(tx, *arguments)

    return rt.db.transact(patient)
