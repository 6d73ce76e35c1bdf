"""Wait for a database that is away for a moment, for as long as the work in hand may still be ours."""

import logging
from collections.abc import Callable
from typing import TypeVar

from think_celery.domain.leases import LET_GO_SECONDS, Hold
from think_celery.errors import LeaseLost
from think_celery.runtime import Runtime
from think_celery.store.database import is_away

logger = logging.getLogger("think_celery.leases")

T = TypeVar("T")

FIRST_SECONDS, LONGEST_SECONDS = 0.1, 2.0
STOPPING_SECONDS = 5.0
"""How long a process that is told to stop waits; whoever takes its work over finds what is stored."""


def patiently(rt: Runtime, hold: Hold, work: Callable[[], T]) -> T:
    """Do *work*, and do it again while the database is away. It must be safe to repeat.

    A commit whose answer was lost is met by the fence: if it freed the line, the repeat finds the lease gone.

    Raises:
        LeaseLost: It is another worker's meanwhile.
    """
    began, pause = rt.clock.elapsed(), FIRST_SECONDS
    while True:
        try:
            return work()
        except Exception as error:
            now = rt.clock.elapsed()
            if hold.lost:
                raise LeaseLost(str(hold.lease)) from error
            stopping = rt.stopping.signal.aborted and now >= began + STOPPING_SECONDS
            if not is_away(error) or stopping or now >= hold.deadline + LET_GO_SECONDS:
                raise
            if pause == FIRST_SECONDS:
                logger.warning("the database is away (%s); %s waits for it", type(error).__name__, hold.lease)
        rt.clock.sleep(pause)
        pause = min(pause * 2, LONGEST_SECONDS)
