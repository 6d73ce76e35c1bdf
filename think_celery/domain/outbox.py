"""Deliver stored news to the inbox of the workflow that waits for it."""

import logging
from datetime import timedelta
from typing import Any

from think_celery.described import describe
from think_celery.domain import inbox, knocks
from think_celery.domain.outcomes import Outcome
from think_celery.domain.passes import each_row
from think_celery.logs import trace_of
from think_celery.retries import LONGEST_AGAIN, doubled, knock_again_after
from think_celery.runtime import Runtime
from think_celery.states import OutboxStatus
from think_celery.store import outbox
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.outbox")

FIRST_RETRY = timedelta(seconds=1)


def deliver(rt: Runtime, outbox_id: str) -> Outcome:
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
        word = rt.db.transact(lambda tx: inbox.take(rt, tx, news))
    except inbox.SettledMeanwhile:
        return Outcome("ended-before")
    except Exception as error:
        _failed(rt, news, error)
        return Outcome("failed-delivery")
    rt.failpoint("outbox:delivered")
    return Outcome("delivered" if word is OutboxStatus.DELIVERED else "dropped", ended=True, row=outbox_id)


def _failed(rt: Runtime, news: Any, error: Exception) -> None:
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


def knock_missed(rt: Runtime, limit: int) -> int:
    """Knock again for news whose knock seems lost or whose next try is due, and say how often."""

    def work(tx: Tx, news: Any) -> bool:
        after = knock_again_after(news.knocks, watched=rt.broker_is_watched)
        if not outbox.knock_again(tx, news.id, news.knock_at, after, news.knocks + 1):
            return False
        tx.after_commit(lambda: rt.knock(knocks.for_outbox(news.id, news.workflow_key, news.run, news.queue)))
        return True

    return each_row(rt, "knock for news", rt.db.read(lambda tx: outbox.missed(tx, limit)), work)
