"""One pass over everything that is due or lost. Recovery is this repeated look, never a one-shot at start-up."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from think_celery.domain import knocks, outbox, recovery, workflows
from think_celery.ids import AgentRef
from think_celery.store import outbox as outbox_rows
from think_celery.store import processes, submissions
from think_celery.store import workflows as workflow_rows
from think_celery.store.database import Tx

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.tick")

EVERY = timedelta(seconds=1)
ROWS, SECONDS = 500, 0.2
"""How many rows, or how long, one kind of work may take in a pass; what is left comes in the next."""

FIRST_AGAIN, LONGEST_AGAIN = timedelta(seconds=2), timedelta(minutes=5)
DEAD_KEPT = timedelta(days=1)


def run(rt: "Runtime") -> int:
    """Make the passes that are due in this database, and say how many rows were moved or knocked for.

    Any number of processes may call this at any time: each kind of pass is admitted once a second.
    """
    done = 0
    if _admitted(rt, processes.LIVENESS):
        rt.monitor.beat()  # a process that was held up renews itself before it judges others
        done += recovery.sweep(rt, ROWS)
    if _admitted(rt, "work"):
        for kind, work in KINDS.items():
            done += _guarded(rt, kind, work)
    return done


def _admitted(rt: "Runtime", kind: str) -> bool:
    return rt.db.transact(lambda tx: processes.admit(tx, kind, EVERY))


def _guarded(rt: "Runtime", kind: str, work: Callable[["Runtime", int], int]) -> int:
    try:
        return work(rt, ROWS)
    except Exception:
        logger.exception("the tick's work on %s failed; the next pass tries again", kind)
        return 0


def knock_missed_heads(rt: "Runtime", limit: int) -> int:
    """Knock again for heads whose knock seems lost; a row behind a head needs none until it is one.

    The distance doubles with each knock, from 2 seconds to 5 minutes.
    """
    knocked, until = 0, rt.clock.elapsed() + SECONDS
    for row in rt.db.read(lambda tx: submissions.missed(tx, limit)):
        if rt.clock.elapsed() > until:
            break
        knocked += rt.db.transact(lambda tx, row=row: _knock_missed(rt, tx, row))  # type: ignore[misc]
    return knocked


def _knock_missed(rt: "Runtime", tx: Tx, missed: Any) -> bool:
    head = submissions.head(tx, AgentRef(missed.agent_class, missed.agent_name).id)
    if head is None or head.id != missed.id:
        submissions.knock_again(tx, missed.id, missed.knock_at, None, 0)
        return False
    again = min(FIRST_AGAIN * 2**missed.knocks, LONGEST_AGAIN)
    if not submissions.knock_again(tx, head.id, missed.knock_at, again, missed.knocks + 1):
        return False
    if head.held:
        return False
    tx.after_commit(lambda: rt.knock(knocks.for_submission(head)))
    return True


def forget_dead_processes(rt: "Runtime", limit: int) -> int:
    """Delete processes that died a day ago."""
    return rt.db.transact(lambda tx: processes.forget_dead(tx, DEAD_KEPT, limit))


def trim_live_log(rt: "Runtime", limit: int) -> int:
    """Drop old frames of the live log."""
    return rt.events.trim()


KINDS: dict[str, Callable[["Runtime", int], int]] = {
    "heads": knock_missed_heads,
    "due workflows": workflows.wake_due,
    "unread events": workflows.wake_unread,
    "queued workflows": workflows.knock_missed,
    "early events": lambda rt, limit: workflows.adopt_early(rt),
    "news": outbox.knock_missed,
    "dead processes": forget_dead_processes,
    "live log": trim_live_log,
}


def knock_now(rt: "Runtime") -> None:
    """Treat every knock as lost: the broker is new or was emptied. The next pass knocks for all that waits."""

    def work(tx: Tx) -> None:
        submissions.knock_now(tx)
        workflow_rows.knock_now(tx)
        outbox_rows.knock_now(tx)

    rt.db.transact(work)


def next_due(rt: "Runtime") -> datetime | None:
    """The next instant at which waiting work falls due by itself; ``None`` if none does."""
    return rt.db.read(lambda tx: earliest(workflow_rows.next_wake(tx), submissions.next_not_before(tx)))


def is_due(rt: "Runtime") -> bool:
    """Whether waiting work is due now."""
    due = next_due(rt)
    return due is not None and due <= rt.clock.now()


def earliest(*moments: datetime | None) -> datetime | None:
    """The first of those that are set."""
    return min((moment for moment in moments if moment is not None), default=None)
