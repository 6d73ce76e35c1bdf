"""News for workflows, stored with the change that made it and delivered later."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, select, update

from think_celery.ids import new_id
from think_celery.retries import MISSED_AFTER
from think_celery.states import OUTBOX_MOVES, OutboxStatus
from think_celery.store.database import Tx
from think_celery.store.moves import move
from think_celery.store.tables import outbox


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
    outbox_id = new_id()
    statement = (
        tx.insert(outbox)
        .values(
            id=outbox_id,
            dedupe_key=dedupe_key,
            workflow_key=workflow_key,
            run=run,
            event_type=event_type,
            payload=payload,
            submission_id=submission_id,
            queue=queue,
            status=OutboxStatus.PENDING,
            created_at=tx.now(),
            knock_at=tx.now(MISSED_AFTER),
        )
        .on_conflict_do_nothing()
        .returning(outbox.c.id)  # the count of rows of an INSERT is not known on PostgreSQL
    )
    return tx.execute(statement).scalar()


def get(tx: Tx, outbox_id: str) -> Row[Any] | None:
    """The news of that id."""
    return tx.execute(select(outbox).where(outbox.c.id == outbox_id)).first()


def of_submission(tx: Tx, submission_id: str) -> Row[Any] | None:
    """The newest news of a submission's end."""
    statement = (
        select(outbox).where(outbox.c.submission_id == submission_id).order_by(outbox.c.created_at.desc())
    )
    return tx.execute(statement.limit(1)).first()


def settle(tx: Tx, outbox_id: str, status: OutboxStatus) -> bool:
    """Mark the news delivered or dropped and empty it, and say whether this call did."""
    return move(
        tx,
        outbox,
        outbox.c.id == outbox_id,
        status,
        allowed=OUTBOX_MOVES,
        payload=None,
        delivered_at=tx.now(),
        knock_at=None,
        attempts=outbox.c.attempts + 1,
    )


def failed(tx: Tx, outbox_id: str, error: str, after: timedelta) -> None:
    """Note a failed delivery and when to try again."""
    tx.execute(
        update(outbox)
        .where(outbox.c.id == outbox_id, outbox.c.status == OutboxStatus.PENDING)
        .values(attempts=outbox.c.attempts + 1, last_error=error[:2000], knock_at=tx.now(after))
    )


def missed(tx: Tx, limit: int) -> list[Row[Any]]:
    """News whose knock seems lost, or whose next try is due."""
    statement = (
        select(
            outbox.c.id,
            outbox.c.workflow_key,
            outbox.c.run,
            outbox.c.queue,
            outbox.c.knock_at,
            outbox.c.knocks,
        )
        .where(outbox.c.knock_at <= tx.now())
        .order_by(outbox.c.knock_at)
        .limit(limit)
    )
    return list(tx.execute(statement))


def knock_again(tx: Tx, outbox_id: str, seen: datetime, after: timedelta, knocks: int) -> bool:
    """Set when to knock next, if nobody else has since *seen*."""
    statement = (
        update(outbox)
        .where(outbox.c.id == outbox_id, outbox.c.knock_at == seen)
        .values(knock_at=tx.now(after), knocks=knocks)
    )
    return tx.execute(statement).rowcount == 1


def knock_now(tx: Tx) -> None:
    """Let the tick knock for all undelivered news at once."""
    tx.execute(
        update(outbox).where(outbox.c.status == OutboxStatus.PENDING).values(knock_at=tx.now(), knocks=0)
    )


def forget(tx: Tx, submission_id: str) -> bool:
    """Delete a submission's settled news; False when some is undelivered still, and nothing is deleted."""
    mine = outbox.c.submission_id == submission_id
    pending = select(outbox.c.id).where(mine, outbox.c.status == OutboxStatus.PENDING)
    if tx.execute(pending).first() is not None:
        return False
    tx.execute(delete(outbox).where(mine))
    return True
