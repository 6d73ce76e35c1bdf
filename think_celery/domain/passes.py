"""A pass over rows, as the tick makes it for each kind of work."""

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.tick")

Item = TypeVar("Item")

ROWS, SECONDS = 500, 0.2
"""How many rows, or how long, one kind of work may take before it is the next one's turn."""

PATIENCE = timedelta(milliseconds=200)
"""How long a pass waits for a row that somebody else has locked."""


def each_row(
    rt: Runtime,
    what: str,
    rows: Iterable[Item],
    work: Callable[[Tx, Item], int],
    instead: Callable[[Tx, Item], int] | None = None,
) -> int:
    """Do *work* for each of these rows in a transaction of its own, and add up what it returns.

    A row that fails is logged and hides no other; the next pass finds it again. A row that somebody else has
    locked for long fails. When the time of this kind of work is over, the rest is left for later.

    Args:
        rt: The runtime.
        what: The work, for the log: "could not …".
        rows: May be read while they are worked on.
        work: Returns how many rows it has changed, or whether it has changed this one.
        instead: Done for a row whose *work* has failed.
    """
    done, until = 0, rt.clock.elapsed() + SECONDS
    for row in rows:
        if rt.clock.elapsed() > until:
            break
        for attempt in (work, instead):
            if attempt is None:
                continue
            try:
                done += rt.db.transact(_patient(attempt, row))
                break
            except Exception as error:
                logger.error("could not %s; the next pass tries again: %s", what, trace_of(error))
    return done


def _patient(work: Callable[[Tx, Item], int], row: Item) -> Callable[[Tx], int]:
    def in_transaction(tx: Tx) -> int:
        tx.wait_at_most(PATIENCE)
        return work(tx, row)

    return in_transaction
