"""News for workflows, stored with the change that made it and delivered later."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CTE, Row, Select, and_, bindparam, case, delete, func, literal, null, select, update
from sqlalchemy.dialects import postgresql

from think_celery.ids import new_id
from think_celery.retries import MISSED_AFTER
from think_celery.states import OUTBOX_MOVES, OutboxStatus
from think_celery.store.database import Tx
from think_celery.store.events import EARLY
from think_celery.store.missed import Missed, PutOff
from think_celery.store.moves import move, moving
from think_celery.store.statements import insert_new, now, span, unlocked
from think_celery.store.tables import events, outbox, workflows
from think_celery.store.workflows import LIVE, waking

SENT = "event:"
"""The beginning of the keys by which sent events are known."""

_MINE = outbox.c.id == bindparam("outbox_id")
_OF_SUBMISSION = outbox.c.submission_id == bindparam("of_submission")
_PENDING = outbox.c.status == OutboxStatus.PENDING

_QUEUE = select(workflows.c.queue).where(workflows.c.key == bindparam("of_key")).scalar_subquery()
_INSERT = insert_new(
    outbox,
    outbox.c.id,
    status=OutboxStatus.PENDING,
    queue=func.coalesce(bindparam("given_queue", type_=outbox.c.queue.type), _QUEUE),
    created_at=now(),
    knock_at=now(MISSED_AFTER),
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
    """Store news, and give its id; ``None`` if this news is stored already.

    Messages for it go to *queue*, else to that of the workflow.
    """
    values = {
        "id": new_id(),
        "dedupe_key": dedupe_key,
        "workflow_key": workflow_key,
        "run": run,
        "event_type": event_type,
        "payload": payload,
        "submission_id": submission_id,
        "of_key": workflow_key,
        "given_queue": queue,
    }
    return tx.execute(_INSERT, values).scalar()


GIVEN = ("id", "dedupe_key", "workflow_key", "run", "event_type", "payload", "submission_id")


def inserting(ended: CTE) -> CTE:
    """The same as a part of a statement on PostgreSQL, for each row of *ended*: the ids of what was stored.

    Its parameters are ``news_…`` for each of :data:`GIVEN`.
    """
    given = {name: bindparam(f"news_{name}", type_=outbox.c[name].type) for name in GIVEN}
    values: dict[str, Any] = {
        **given,
        "queue": select(workflows.c.queue).where(workflows.c.key == given["workflow_key"]).scalar_subquery(),
        "status": literal(OutboxStatus.PENDING.value, outbox.c.status.type),
        "created_at": now(),
        "knock_at": now(MISSED_AFTER),
    }
    rows = select(*values.values()).select_from(ended)
    stored = postgresql.insert(outbox).from_select([*values], rows).on_conflict_do_nothing()
    return stored.returning(outbox.c.id).cte("told")


_GET = select(outbox).where(_MINE)


def get(tx: Tx, outbox_id: str) -> Row[Any] | None:
    """The news of that id."""
    return tx.execute(_GET, {"outbox_id": outbox_id}).first()


_OF = (workflows.c.workflow, workflows.c.workflow_id)
_NAMED = select(outbox, *_OF).outerjoin(workflows, workflows.c.key == outbox.c.workflow_key)


def find(tx: Tx, *, statuses: list[str] | None = None, limit: int = 100) -> list[Row[Any]]:
    """News, the newest first, with the ``workflow`` and ``workflow_id`` that it is for, where those are there."""
    statement = _NAMED.order_by(outbox.c.created_at.desc(), outbox.c.id.desc()).limit(limit)
    if statuses is not None:
        statement = statement.where(outbox.c.status.in_(statuses))
    return list(tx.execute(statement))


_GET_NAMED = _NAMED.where(_MINE)


def get_named(tx: Tx, outbox_id: str) -> Row[Any] | None:
    """The news of that id, as :func:`find` gives it."""
    return tx.execute(_GET_NAMED, {"outbox_id": outbox_id}).first()


_NEWEST = select(outbox).where(_OF_SUBMISSION).order_by(outbox.c.created_at.desc()).limit(1)


def of_submission(tx: Tx, submission_id: str) -> Row[Any] | None:
    """The newest news of a submission's end."""
    return tx.execute(_NEWEST, {"of_submission": submission_id}).first()


_BY_DEDUPE_KEY = select(outbox).where(outbox.c.dedupe_key == bindparam("of_dedupe_key"))


def by_dedupe_key(tx: Tx, dedupe_key: str) -> Row[Any] | None:
    """The news of that key."""
    return tx.execute(_BY_DEDUPE_KEY, {"of_dedupe_key": dedupe_key}).first()


_SETTLED: dict[str, Any] = {
    "payload": null(),
    "delivered_at": now(),
    "knock_at": null(),
    "attempts": outbox.c.attempts + 1,
}
_SETTLE = {
    status: moving(outbox, _MINE, status, allowed=OUTBOX_MOVES, **_SETTLED)
    for status in (OutboxStatus.DELIVERED, OutboxStatus.DROPPED)
}


def settle(tx: Tx, outbox_id: str, status: OutboxStatus) -> bool:
    """Mark the news delivered or dropped and empty it, and say whether this call did."""
    return move(tx, _SETTLE[status], outbox_id=outbox_id)


def _delivering() -> Select[Any]:
    # The workflow's row is locked first, as by every sender. Whoever had it locked may have delivered the same news:
    # then the row was woken once more, which is a look too many, and nothing is stored.
    # The key of a sent event is another one in the inbox (``domain.workflows.inbox``), so that takes the longer way.
    was_sent = func.substr(outbox.c.dedupe_key, 1, len(SENT)) == SENT
    seen = select(outbox).where(_MINE, _PENDING, outbox.c.run != EARLY, ~was_sent).cte("seen")
    woken = waking(
        workflows.c.run.in_(select(seen.c.run)),
        LIVE,
        mine=workflows.c.key.in_(select(seen.c.workflow_key)),
    ).cte("woken")
    count = select(func.count()).select_from(woken).scalar_subquery()
    outcome = case((count > 0, OutboxStatus.DELIVERED.value), else_=OutboxStatus.DROPPED.value)
    settled = (
        update(outbox)
        .where(_MINE, _PENDING, outbox.c.id.in_(select(seen.c.id)), count >= 0)
        .values(status=outcome, **_SETTLED)
        .returning(outbox.c.workflow_key, outbox.c.status.label("became"))
        .cte("settled")
    )
    event = {
        "workflow_key": seen.c.workflow_key,
        "run": seen.c.run,
        "type": seen.c.event_type,
        "payload": seen.c.payload,
        "dedupe_key": seen.c.dedupe_key,
        "created_at": seen.c.created_at,
    }
    arrives = settled.c.became == OutboxStatus.DELIVERED.value
    rows = select(*event.values()).select_from(seen.join(settled, arrives))
    stored = postgresql.insert(events).from_select([*event], rows).on_conflict_do_nothing().cte("stored")
    both = settled.outerjoin(woken, settled.c.workflow_key == woken.c.key, full=True)
    return select(settled.c.became, woken).select_from(both).add_cte(stored)


_DELIVER = _delivering()


def deliver(tx: Tx, outbox_id: str) -> Row[Any] | None:
    """Put news into the inbox of the run that it is for, wake that, and settle the news, in one statement.

    The row is the workflow's, if it was woken, with what ``became`` of the news: nothing where another was faster.
    ``None`` where there is no such news, for sent events, and for news of a workflow that did not exist; and always
    on SQLite, which has no such statement.
    """
    return tx.execute(_DELIVER, {"outbox_id": outbox_id}).first() if tx.postgres else None


_FAILED = (
    update(outbox).where(_MINE, _PENDING).values(attempts=outbox.c.attempts + 1, knock_at=now(span("after")))
)


def failed(tx: Tx, outbox_id: str, error: str, after: timedelta) -> None:
    """Note a failed delivery and when to try again."""
    tx.execute(_FAILED, {"outbox_id": outbox_id, "last_error": error[:2000], "after": after})


missed = Missed(outbox, outbox.c.id, outbox.c.workflow_key, outbox.c.run, outbox.c.queue)
"""News whose knock seems lost, or whose next try is due."""

put_off = PutOff(outbox, outbox.c.id)


_SEEN = and_(_MINE, outbox.c.knock_at == bindparam("seen"))
_KNOCK_AGAIN = update(outbox).where(_SEEN, unlocked(outbox.c.id, _SEEN)).values(knock_at=now(span("after")))


def knock_again(tx: Tx, outbox_id: str, seen: datetime, after: timedelta, knocks: int) -> bool:
    """Set when to knock next, if nobody else has since *seen*."""
    values = {"outbox_id": outbox_id, "seen": seen, "after": after, "knocks": knocks}
    return tx.execute(_KNOCK_AGAIN, values).rowcount == 1


_TO_KNOCK = select(outbox.c.id).where(_PENDING).with_for_update(key_share=True, skip_locked=True)
_KNOCK_NOW = update(outbox).where(outbox.c.id.in_(_TO_KNOCK)).values(knock_at=now(), knocks=0)


def knock_now(tx: Tx) -> None:
    """Let the tick knock for all undelivered news at once, but for what somebody has locked."""
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
