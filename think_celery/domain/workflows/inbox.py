"""The inbox of a workflow: how news gets into it, and who is knocked for then.

The workflow's row is locked before anything is put in: that is the order in which rows are locked. A holder that
looks at its inbox reads the events and their count in one statement. So it sees both, or neither.
"""

from typing import Any

from think_celery.domain import knocks
from think_celery.runtime import Runtime
from think_celery.states import OutboxStatus, WorkflowStatus
from think_celery.store import events, outbox, workflows
from think_celery.store.database import Tx


class SettledMeanwhile(Exception):
    """Another delivery was faster: this one changes nothing."""


def take(rt: Runtime, tx: Tx, news: Any) -> OutboxStatus:
    """Put a piece of news into its workflow's inbox and wake the workflow; say what became of the news.

    It is dropped where the workflow is gone, has ended or is in a later run.

    Raises:
        SettledMeanwhile: It was delivered or dropped before; the transaction must be rolled back.
    """
    any_run = news.run == events.EARLY
    woken = workflows.wake(tx, news.workflow_key, run=None if any_run else news.run, live=True)
    early = woken is None and any_run and workflows.get(tx, news.workflow_key) is None
    status = OutboxStatus.DROPPED if woken is None and not early else OutboxStatus.DELIVERED
    if not outbox.settle(tx, news.id, status):
        raise SettledMeanwhile
    if status is OutboxStatus.DELIVERED:
        events.insert(
            tx,
            workflow_key=news.workflow_key,
            run=events.EARLY if woken is None else woken.run,
            type=news.event_type,
            payload=news.payload,
            dedupe_key=_key_of_event(news.dedupe_key),
            sent_at=news.created_at,
        )
        tell(rt, tx, news.workflow_key, woken)
    return status


SENT = outbox.SENT


def key_of_news(key: str, run: int) -> str:
    """The key under which an event with that key is stored as news: of each run of its workflow another.

    A run that is restarted shall get what is sent to it, though the run before it was sent the same.
    """
    return f"{key}@{run}"


def _key_of_event(key: str) -> str:
    return key.rpartition("@")[0] if key.startswith(SENT) else key


def tell(rt: Runtime, tx: Tx, workflow_key: str, woken: Any) -> None:
    """Tell a workflow, after this transaction, of the event that it was woken for; ``None``: it does not exist yet."""
    if woken is None:
        _adopt_later(rt, tx, workflow_key)
    else:
        knock(rt, tx, woken)


def knock(rt: Runtime, tx: Tx, row: Any) -> None:
    """Knock for a workflow after this transaction, if it waits for a worker."""
    if row.status == WorkflowStatus.QUEUED:
        tx.after_commit(lambda: rt.knock(knocks.for_workflow(row)))


# --- events that come before their workflow -------------------------------------------------------


def _adopt_later(rt: Runtime, tx: Tx, workflow_key: str) -> None:
    """Look, after this transaction, whether the workflow of an early event has begun meanwhile."""

    def look() -> None:
        rt.failpoint("event:early")
        adopt(rt, workflow_key)

    tx.after_commit(look)


def adopt(rt: Runtime, workflow_key: str) -> bool:
    """Move events that came before their workflow into its inbox, and say whether there were any.

    Called after its commit by whoever starts a workflow and by whoever sends such an event: the later one
    of two that race finds what the other has committed.
    """
    if not rt.db.read(lambda tx: events.has_early(tx, workflow_key)):
        return False
    return rt.db.transact(lambda tx: adopt_now(rt, tx, workflow_key))


def adopt_now(rt: Runtime, tx: Tx, workflow_key: str) -> bool:
    """Do the same in this transaction."""
    row = workflows.wake(tx, workflow_key)
    if row is None:
        return False
    knock(rt, tx, row)
    return events.adopt(tx, workflow_key, row.run) > 0
