"""Deliver stored news to the inbox of the workflow that waits for it."""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from think_celery.domain import knocks
from think_celery.domain.journal import describe
from think_celery.domain.outcomes import Outcome
from think_celery.domain.passes import each_row
from think_celery.logs import trace_of
from think_celery.retries import LONGEST_AGAIN, doubled, knock_again_after
from think_celery.states import OutboxStatus, WorkflowStatus
from think_celery.store import events, outbox, workflows
from think_celery.store.database import Tx

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.outbox")

FIRST_RETRY = timedelta(seconds=1)


class _SettledMeanwhile(Exception):
    """Another delivery was faster: this one changes nothing."""


def deliver(rt: "Runtime", outbox_id: str) -> Outcome:
    """Put the news into its workflow's inbox and wake the workflow; once, however often this is called.

    News for a workflow that is gone, has ended or is in a later run is dropped. A delivery that fails is
    tried again, for ever, after 1 s, 2 s, 4 s … up to 5 min.
    """
    news = rt.db.read(lambda tx: outbox.get(tx, outbox_id))
    if news is None:
        return Outcome("not-found")
    if news.status != OutboxStatus.PENDING:
        return Outcome("ended-before")
    try:
        rt.failpoint("outbox:before-delivery")
        word = rt.db.transact(lambda tx: _deliver(rt, tx, news))
    except _SettledMeanwhile:
        return Outcome("ended-before")
    except Exception as error:
        _failed(rt, news, error)
        return Outcome("failed-delivery")
    rt.failpoint("outbox:delivered")
    return Outcome("delivered" if word is OutboxStatus.DELIVERED else "dropped", ended=True, row=outbox_id)


def _deliver(rt: "Runtime", tx: Tx, news: Any) -> OutboxStatus:
    # The workflow's row first: that is the order in which rows are locked, and what a holder looking at its
    # inbox has locked, too.
    any_run = news.run == events.EARLY
    woken = workflows.wake(tx, news.workflow_key, run=None if any_run else news.run, live=True)
    early = woken is None and any_run and workflows.get(tx, news.workflow_key) is None
    status = OutboxStatus.DROPPED if woken is None and not early else OutboxStatus.DELIVERED
    if not outbox.settle(tx, news.id, status):
        raise _SettledMeanwhile
    if status is OutboxStatus.DROPPED:
        return status
    events.insert(
        tx,
        workflow_key=news.workflow_key,
        run=events.EARLY if woken is None else woken.run,
        type=news.event_type,
        payload=news.payload,
        dedupe_key=news.dedupe_key,
        sent_at=news.created_at,
    )
    if woken is None:
        adopt_later(rt, tx, news.workflow_key)
    else:
        knock(rt, tx, woken)
    return status


def _failed(rt: "Runtime", news: Any, error: Exception) -> None:
    error_type, text = describe(error)
    after = doubled(FIRST_RETRY, news.attempts, LONGEST_AGAIN)
    logger.warning("news %s could not be delivered (%s); next try in %s", news.id, error_type, after)
    try:
        rt.db.transact(lambda tx: outbox.failed(tx, news.id, f"{error_type}: {text}", after))
    except Exception as again:
        logger.error(
            "could not note the failed delivery of %s; the tick knocks for it all the same: %s",
            news.id,
            trace_of(again),
        )


def knock(rt: "Runtime", tx: Tx, row: Any, *, at: str | None = None) -> None:
    """Knock for a workflow after this transaction, if it waits for a worker."""
    if row.status == WorkflowStatus.QUEUED:
        tx.after_commit(lambda: rt.knock(knocks.for_workflow(row, at=at)))


def adopt_later(rt: "Runtime", tx: Tx, workflow_key: str) -> None:
    """Look, after this transaction, whether the workflow of an early event has begun meanwhile."""

    def look() -> None:
        rt.failpoint("event:early")
        adopt(rt, workflow_key)

    tx.after_commit(look)


def adopt(rt: "Runtime", workflow_key: str) -> bool:
    """Move events that came before their workflow into its inbox, and say whether there were any.

    Called after its commit by whoever starts a workflow and by whoever sends such an event: the later one
    of two that race finds what the other has committed.
    """
    if not rt.db.read(lambda tx: events.has_early(tx, workflow_key)):
        return False
    return rt.db.transact(lambda tx: adopt_now(rt, tx, workflow_key))


def adopt_now(rt: "Runtime", tx: Tx, workflow_key: str) -> bool:
    """Do the same in this transaction."""
    row = workflows.wake(tx, workflow_key)
    if row is None:
        return False
    knock(rt, tx, row)
    return events.adopt(tx, workflow_key, row.run) > 0


def knock_missed(rt: "Runtime", limit: int) -> int:
    """Knock again for news whose knock seems lost or whose next try is due, and say how often."""

    def work(tx: Tx, news: Any) -> bool:
        after = knock_again_after(news.knocks)
        if not outbox.knock_again(tx, news.id, news.knock_at, after, news.knocks + 1):
            return False
        tx.after_commit(lambda: rt.knock(knocks.for_outbox(news.id, news.queue)))
        return True

    return each_row(rt, "knock for news", rt.db.read(lambda tx: outbox.missed(tx, limit)), work)
