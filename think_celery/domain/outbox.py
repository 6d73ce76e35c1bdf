"""Deliver stored news to the inbox of the workflow that waits for it."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from think_celery.described import describe
from think_celery.domain import calls, knocks
from think_celery.domain.outcomes import Outcome
from think_celery.domain.pages import check_limit, status_names
from think_celery.domain.passes import each_row, worth_a_knock
from think_celery.domain.workflows import inbox
from think_celery.logs import trace_of
from think_celery.names import can_be_a_name
from think_celery.protocols import Knock
from think_celery.retries import LONGEST_AGAIN, doubled, knock_again_after
from think_celery.runtime import Runtime
from think_celery.states import OutboxStatus
from think_celery.store import outbox
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.outbox")

FIRST_RETRY = timedelta(seconds=1)


def find(rt: Runtime, *, status: str | Sequence[str] | None = None, limit: int = 100) -> list[Any]:
    """Rows of news, newest first, with the workflow that each one is for.

    Raises:
        ValueError: A status is unknown, or *limit* is not between 1 and 1000.
    """
    check_limit(limit)
    names = status_names(status, OutboxStatus)
    return rt.db.look(lambda tx: outbox.find(tx, statuses=names, limit=limit))


def get(rt: Runtime, outbox_id: str) -> Any:
    """A row of news with its workflow, or ``None``."""
    return rt.db.look(lambda tx: outbox.get_named(tx, outbox_id)) if can_be_a_name(outbox_id, 200) else None


def deliver(rt: Runtime, outbox_id: str) -> Outcome:
    """Put the news into its workflow's inbox and wake the workflow; once, however often this is called.

    News for a workflow that is gone, has ended or is in a later run is dropped. A delivery that fails is
    tried again, for ever, after 1 s, 2 s, 4 s … up to 5 min. What comes from outside, such as Celery's soft time limit,
    goes on upwards, and counts as no failure: the tick knocks for the news again.
    """
    outcome = _at_once(rt, outbox_id)
    if outcome is not None:
        return outcome
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
        if calls.interrupts(error):
            raise
        _failed(rt, news, error)
        return Outcome("failed-delivery")
    rt.failpoint("outbox:delivered")
    return _ended(outbox_id, word)


def _at_once(rt: Runtime, outbox_id: str) -> Outcome | None:
    """Deliver in one statement; ``None``, and nothing was changed, where there is none for it: find out why."""
    if not rt.db.on_postgres:
        return None

    def work(tx: Tx) -> Any:
        row = outbox.deliver(tx, outbox_id)
        if row is not None and row.key is not None:
            inbox.knock(rt, tx, row)
        return row

    try:
        rt.failpoint("outbox:before-delivery")
        row = rt.db.single(work, repeatable=True)
    except Exception as error:
        if calls.interrupts(error):
            raise
        news = rt.db.read(lambda tx: outbox.get(tx, outbox_id))
        if news is not None and news.status == OutboxStatus.PENDING:
            _failed(rt, news, error)
        return Outcome("failed-delivery")
    if row is None:
        return None
    if row.became is None:
        return Outcome("ended-before")
    rt.failpoint("outbox:delivered")
    return _ended(outbox_id, OutboxStatus(row.became))


def _ended(outbox_id: str, became: OutboxStatus) -> Outcome:
    return Outcome("delivered" if became is OutboxStatus.DELIVERED else "dropped", ended=True, row=outbox_id)


def deliver_now(rt: Runtime, outbox_id: str) -> None:
    """Deliver the news of a turn's end by whoever ended it: that saves the way through the broker.

    Where that fails, or this worker dies before it, the tick knocks for it as for all news that nobody delivers.
    """
    try:
        outcome = deliver(rt, outbox_id)
    except Exception as error:
        if calls.interrupts(error):
            raise
        logger.warning("news %s waits for the tick: %s", outbox_id, trace_of(error))
    else:
        logger.info("news %s: %s", outbox_id, outcome.word)


def _failed(rt: Runtime, news: Any, error: Exception) -> None:
    error_type, text = describe(error)
    after = doubled(FIRST_RETRY, news.attempts, LONGEST_AGAIN)
    logger.warning("news %s could not be delivered (%s); next try in %s", news.id, error_type, after)
    try:
        rt.db.transact(lambda tx: outbox.failed(tx, news.id, f"{error_type}: {text}", after))
    except Exception as again:
        if calls.interrupts(again):
            raise
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
        tx.after_commit(lambda: rt.knock(knock_for(news)))
        return True

    def knock_for(news: Any) -> Knock:
        return knocks.for_outbox(news.id, news.workflow_key, news.run, news.queue)

    missed = rt.db.read(lambda tx: outbox.missed(tx, limit))
    return each_row(rt, "knock for news", worth_a_knock(rt, missed, knock_for, "id", outbox.put_off), work)
