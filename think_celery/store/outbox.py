"""News for workflows, stored with the change that made it and delivered later."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, delete, select, update

from think_celery.ids import new_id
from think_celery.retries import MISSED_AFTER
from think_celery.states import OUTBOX_MOVES, OutboxStatus
from think_celery.store.database import Tx
from think_celery.store.moves import move, moving
from think_celery.store.statements import AT_MOST, insert_new, now, span
from think_celery.store.tables import outbox

_MINE = outbox.c.id == bindparam("outbox_id")
_OF_SUBMISSION = outbox.c.submission_id == bindparam("of_submission")
_PENDING = outbox.c.status == OutboxStatus.PENDING

_INSERT = insert_new(
    outbox, outbox.c.id, status=OutboxStatus.PENDING, created_at=now(), knock_at=now(MISSED_AFTER)
)


def insert(
    tx: Tx,
    *,
    dedupe_key: str,
    workflow_key: str,
    run: int,
    event_type: str,
    payload: str,
    submission_id: str | None = None,
    queue: str | None = None,
) -> str | None:
    """Store news, and give its id; ``None`` if this news is stored already."""
    values = {
        "id": new_id(),
        "dedupe_key": dedupe_key,
        "workflow_key": workflow_key,
        "run": run,
        "event_type": event_type,
        "payload": payload,
        "submission_id": submission_id,
        "queue": queue,
    }
    return tx.execute(_INSERT, values).scalar()


_GET = select(outbox).where(_MINE)


def get(tx: Tx, outbox_id: str) -> Row[Any] | None:
    """The news of that id."""
    return tx.execute(_GET, {"outbox_id": outbox_id}).first()


_NEWEST = select(outbox).where(_OF_SUBMISSION).order_by(outbox.c.created_at.desc()).limit(1)


def of_submission(tx: Tx, submission_id: str) -> Row[Any] | None:
    """The newest news of a submission's end."""
    return tx.execute(_NEWEST, {"of_submission": submission_id}).first()


_SETTLE = {
    status: moving(
        outbox,
        _MINE,
        status,
        allowed=OUTBOX_MOVES,
        payload=None,
        delivered_at=now(),
        knock_at=None,
        attempts=outbox.c.attempts + 1,
    )
    for status in (OutboxStatus.DELIVERED, OutboxStatus.DROPPED)
}


def settle(tx: Tx, outbox_id: str, status: OutboxStatus) -> bool:
    """Mark the news delivered or dropped and empty it, and say whether this call did."""
    return move(tx, _SETTLE[status], outbox_id=outbox_id)


_FAILED = (
    update(outbox).where(_MINE, _PENDING).values(attempts=outbox.c.attempts + 1, knock_at=now(span("after")))
)


def failed(tx: Tx, outbox_id: str, error: str, after: timedelta) -> None:
    """Note a failed delivery and when to try again."""
    tx.execute(_FAILED, {"outbox_id": outbox_id, "last_error": error[:2000], "after": after})


_MISSED = (
    select(
        outbox.c.id,
        outbox.c.workflow_key,
        outbox.c.run,
        outbox.c.queue,
        outbox.c.knock_at,
        outbox.c.knocks,
    )
    .where(outbox.c.knock_at <= now())
    .order_by(outbox.c.knock_at)
    .limit(AT_MOST)
)


def missed(tx: Tx, limit: int) -> list[Row[Any]]:
    """News whose knock seems lost, or whose next try is due."""
    return list(tx.execute(_MISSED, {"at_most": limit}))


_KNOCK_AGAIN = (
    update(outbox).where(_MINE, outbox.c.knock_at == bindparam("seen")).values(knock_at=now(span("after")))
)


def knock_again(tx: Tx, outbox_id: str, seen: datetime, after: timedelta, knocks: int) -> bool:
    """Set when to knock next, if nobody else has since *seen*."""
    values = {"outbox_id": outbox_id, "seen": seen, "after": after, "knocks": knocks}
    return tx.execute(_KNOCK_AGAIN, values).rowcount == 1


_KNOCK_NOW = update(outbox).where(_PENDING).values(knock_at=now(), knocks=0)


def knock_now(tx: Tx) -> None:
    """Let the tick knock for all undelivered news at once."""
    tx.execute(_KNOCK_NOW)


_UNDELIVERED = select(outbox.c.id).where(_OF_SUBMISSION, _PENDING).limit(1)
_FORGET = delete(outbox).where(_OF_SUBMISSION)


def forget(tx: Tx, submission_id: str) -> bool:
    """Delete a submission's settled news; False when some is undelivered still, and nothing is deleted."""
    mine = {"of_submission": submission_id}
    if tx.execute(_UNDELIVERED, mine).first() is not None:
        return False
    tx.execute(_FORGET, mine)
    return True
