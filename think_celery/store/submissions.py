"""Rows of accepted turns."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, case, delete, func, or_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery.ids import AgentRef, new_id
from think_celery.retries import MISSED_AFTER
from think_celery.states import SUBMISSION_MOVES, SubmissionStatus, is_terminal
from think_celery.store.database import Tx
from think_celery.store.leases import TURNS
from think_celery.store.moves import move
from think_celery.store.tables import agents, lines, submissions

TERMINAL = [status.value for status in SubmissionStatus if is_terminal(status)]
UNFINISHED = [SubmissionStatus.PENDING.value, SubmissionStatus.RUNNING.value]

_KNOCK = (
    submissions.c.id,
    submissions.c.queue,
    submissions.c.agent_id,
    submissions.c.agent_class,
    submissions.c.agent_name,
    submissions.c.status,
)


def insert(tx: Tx, agent: AgentRef, **values: Any) -> Row[Any] | None:
    """Add a pending submission, and return it; ``None`` where its id or key is taken: nothing is changed.

    It belongs to the agent's present epoch. No row of ``agents`` is made or locked, for a second caller
    of a new agent would wait for the first one's transaction.
    """
    present = select(agents.c.epoch).where(agents.c.id == agent.id).scalar_subquery()
    statement = (
        tx.insert(submissions)
        .values(
            agent_id=agent.id,
            agent_class=agent.agent_class,
            agent_name=agent.name,
            status=SubmissionStatus.PENDING,
            epoch=func.coalesce(present, 0),
            created_at=tx.now(),
            knock_at=tx.now(MISSED_AFTER),
            **values,
        )
        .on_conflict_do_nothing()
        .returning(submissions)
    )
    return tx.execute(statement).first()


def get(tx: Tx, submission_id: str) -> Row[Any] | None:
    """The submission of that id."""
    return tx.execute(select(submissions).where(submissions.c.id == submission_id)).first()


def lock(tx: Tx, submission_id: str, *, patient: bool = True) -> Row[Any] | None:
    """The submission of that id, locked for this transaction.

    ``None`` where there is none or, without *patient*, where another transaction has it locked.
    """
    statement = select(submissions).where(submissions.c.id == submission_id)
    return tx.execute(statement.with_for_update(key_share=True, skip_locked=not patient)).first()


def by_key(tx: Tx, agent_id: str, idempotency_key: str) -> Row[Any] | None:
    """The agent's submission with that idempotency key."""
    statement = select(submissions).where(
        submissions.c.agent_id == agent_id, submissions.c.idempotency_key == idempotency_key
    )
    return tx.execute(statement).first()


def give_key(tx: Tx, row: Row[Any], idempotency_key: str) -> bool:
    """Store a key with a submission that has none; False, and nothing is changed, if either is taken now.

    An UPDATE that meets another's key raises, and a caller's transaction would be lost with it. So the key
    is taken by an INSERT first, which waits for whoever else is storing it and then says whether it could.
    """
    placeholder = {
        "id": new_id(),
        "agent_id": row.agent_id,
        "agent_class": row.agent_class,
        "agent_name": row.agent_name,
        "kind": row.kind,
        "status": SubmissionStatus.ABORTED,
        "epoch": row.epoch,
        "fingerprint": row.fingerprint,
        "idempotency_key": idempotency_key,
        "created_at": row.created_at,
    }
    taken = tx.insert(submissions).values(placeholder).on_conflict_do_nothing().returning(submissions.c.seq)
    seq = tx.execute(taken).scalar()
    if seq is None:
        return False
    tx.execute(delete(submissions).where(submissions.c.seq == seq))
    statement = (
        update(submissions)
        .where(submissions.c.seq == row.seq, submissions.c.idempotency_key.is_(None))
        .values(idempotency_key=idempotency_key)
    )
    return tx.execute(statement).rowcount == 1


def _head_id(agent_id: str) -> ColumnElement[str]:
    # The head is looked for among the rows that are visible now: a lower number can still be committed.
    running = select(submissions.c.id).where(
        submissions.c.agent_id == agent_id, submissions.c.status == SubmissionStatus.RUNNING
    )
    # Between "pending" and "pending": with an equals sign PostgreSQL may walk the whole table by number, for it
    # takes an agent of whom much waits to be met soon.
    status, pending = submissions.c.status, SubmissionStatus.PENDING.value
    first = (
        select(submissions.c.id)
        .where(submissions.c.agent_id == agent_id, status.between(pending, pending))
        .order_by(status, submissions.c.seq)
        .limit(1)
    )
    return func.coalesce(running.limit(1).scalar_subquery(), first.scalar_subquery())


def head_id(tx: Tx, agent_id: str) -> str | None:
    """The id of the agent's running submission, else of the first pending one."""
    return tx.execute(select(_head_id(agent_id))).scalar()


def head(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The agent's running submission, else the first pending one, with ``held``: whether its line is held."""
    statement = (
        select(*_KNOCK, lines.c.process_id.is_not(None).label("held"), _due(tx).label("due"))
        .select_from(submissions.outerjoin(lines, and_(lines.c.agent_id == agent_id, lines.c.kind == TURNS)))
        .where(submissions.c.id == _head_id(agent_id))
    )
    return tx.execute(statement).first()


def _due(tx: Tx) -> ColumnElement[bool]:
    return or_(submissions.c.not_before.is_(None), submissions.c.not_before <= tx.now())


def expect_knock(tx: Tx, agent_id: str, *, patient: bool = True) -> bool:
    """Let the tick knock for the agent's head unless it is claimed soon, and say whether that was done.

    A head that another transaction is ending just now is waited for, and then passed over: the one after
    it must not be left without anybody who knocks. Without *patient* it is not waited for: a caller may
    keep its transaction open for long.
    """
    wait = func.coalesce(submissions.c.not_before, tx.now(MISSED_AFTER))
    while (found := head_id(tx, agent_id)) is not None:
        if not patient and lock(tx, found, patient=False) is None:
            return False
        statement = (
            update(submissions)
            .where(submissions.c.id == found, submissions.c.status.in_(UNFINISHED))
            .values(knock_at=wait, knocks=0)
        )
        if tx.execute(statement).rowcount == 1:
            return True
    return True


def begin(tx: Tx, submission_id: str, message_id: str) -> bool:
    """Count an attempt and set ``running``, from pending or, at a takeover, from running."""
    return move(
        tx,
        submissions,
        submissions.c.id == submission_id,
        SubmissionStatus.RUNNING,
        allowed=SUBMISSION_MOVES,
        attempts=submissions.c.attempts + 1,
        takeovers=submissions.c.takeovers + 1,
        message_id=func.coalesce(submissions.c.message_id, message_id),
        applied_at=func.coalesce(submissions.c.applied_at, tx.now()),
        started_at=func.coalesce(submissions.c.started_at, tx.now()),
        messages=None,
        not_before=None,
        knock_at=None,
        knocks=0,
    )


def end(tx: Tx, seq: int, status: SubmissionStatus, **changes: Any) -> bool:
    """Move the submission to a terminal status, and say whether this call did.

    By its number, not by its id: that can be another's by now, if this one was deleted meanwhile. Only
    ``domain.lines.end`` calls this: it also stores the news for a waiting workflow.
    """
    return move(
        tx,
        submissions,
        submissions.c.seq == seq,
        status,
        allowed=SUBMISSION_MOVES,
        completed_at=tx.now(),
        knock_at=None,
        messages=None,
        **changes,
    )


def put_back(
    tx: Tx, submission_id: str, *, not_before: timedelta | None = None, model_attempts: int | None = None
) -> bool:
    """Make a running submission pending again (handed over in order), and say whether this call did."""
    wait = None if not_before is None else tx.now(not_before)
    changes: dict[str, Any] = {} if model_attempts is None else {"model_attempts": model_attempts}
    return move(
        tx,
        submissions,
        submissions.c.id == submission_id,
        SubmissionStatus.PENDING,
        allowed=SUBMISSION_MOVES,
        attempts=0,
        not_before=wait,
        **changes,
    )


def progress(tx: Tx, submission_id: str) -> None:
    """Note durable progress: the deaths before it no longer count as attempts, nor do failed requests."""
    tx.execute(
        update(submissions).where(submissions.c.id == submission_id).values(attempts=1, model_attempts=0)
    )


def count_model_attempts(tx: Tx, submission_id: str, attempts: int) -> None:
    """Store how many model requests of the present step have failed."""
    tx.execute(update(submissions).where(submissions.c.id == submission_id).values(model_attempts=attempts))


def end_all(tx: Tx, agent_id: str, reason: str) -> list[Row[Any]]:
    """End every unfinished submission of an agent in one UPDATE: pending ones skipped, running ones aborted.

    The rows as they are then. Only ``conversation.reset`` calls this, and stores the news of each.
    """
    was_pending = submissions.c.status == SubmissionStatus.PENDING
    statement = (
        update(submissions)
        .where(submissions.c.agent_id == agent_id, submissions.c.status.in_(UNFINISHED))
        .values(
            status=case((was_pending, SubmissionStatus.SKIPPED.value), else_=SubmissionStatus.ABORTED.value),
            error=case((was_pending, reason), else_=None),
            completed_at=tx.now(),
            knock_at=None,
            messages=None,
        )
        .returning(submissions)
    )
    return list(tx.execute(statement))


def missed(tx: Tx, limit: int) -> list[Row[Any]]:
    """Submissions whose knock seems lost."""
    statement = (
        select(*_KNOCK, submissions.c.knock_at, submissions.c.knocks)
        .where(submissions.c.knock_at <= tx.now())
        .order_by(submissions.c.knock_at)
        .limit(limit)
    )
    return list(tx.execute(statement))


def knock_again(tx: Tx, submission_id: str, seen: datetime, after: timedelta, knocks: int) -> bool:
    """Set when to knock next, if nobody else has since *seen* and nobody is changing the row just now."""
    mine = and_(submissions.c.id == submission_id, submissions.c.knock_at == seen)
    statement = update(submissions).where(mine, _unlocked(mine)).values(knock_at=tx.now(after), knocks=knocks)
    return tx.execute(statement).rowcount == 1


def expect_again(tx: Tx, submission_id: str, after: timedelta) -> bool:
    """Set when to knock next for a row of which no knock is expected; False where one is."""
    mine = and_(
        submissions.c.id == submission_id,
        submissions.c.knock_at.is_(None),
        submissions.c.status.in_(UNFINISHED),
    )
    statement = update(submissions).where(mine, _unlocked(mine)).values(knock_at=tx.now(after), knocks=0)
    return tx.execute(statement).rowcount == 1


def expect_none(tx: Tx, submission_ids: Sequence[str], seen: datetime) -> int:
    """Let the tick forget rows that stand behind a head; say how many.

    Only those whose knock was due at *seen* or before: whoever has made one of them the head since then
    has set a later time. Rows that somebody is changing just now are left for the next pass.
    """
    stale = and_(submissions.c.id.in_(submission_ids), submissions.c.knock_at <= seen)
    statement = update(submissions).where(stale, _unlocked(stale)).values(knock_at=None, knocks=0)
    return tx.execute(statement).rowcount


def _unlocked(where: ColumnElement[bool]) -> ColumnElement[bool]:
    # Waiting for a caller's slow transaction would hold up the whole pass. (SQLite has one writer anyway.)
    free = select(submissions.c.seq).where(where).with_for_update(key_share=True, skip_locked=True)
    return submissions.c.seq.in_(free)


def knock_now(tx: Tx) -> None:
    """Let the tick knock for every head whose line is free, at once: the broker has lost all messages.

    One that a caller has locked is left out: it must not keep the others from being knocked for.
    """
    held = select(lines.c.agent_id).where(lines.c.process_id.is_not(None), lines.c.kind == TURNS)
    pending = submissions.c.status == SubmissionStatus.PENDING
    first = select(func.min(submissions.c.seq)).where(pending).group_by(submissions.c.agent_id)
    head = or_(submissions.c.status == SubmissionStatus.RUNNING, submissions.c.seq.in_(first))
    waiting = select(submissions.c.id).where(head, _due(tx), submissions.c.agent_id.not_in(held))
    free = waiting.with_for_update(key_share=True, skip_locked=True)
    tx.execute(update(submissions).where(submissions.c.id.in_(free)).values(knock_at=tx.now(), knocks=0))


def running_of(tx: Tx, submission_ids: list[str]) -> dict[str, str]:
    """The status of each of these submissions that still exists."""
    rows = tx.execute(
        select(submissions.c.id, submissions.c.status).where(submissions.c.id.in_(submission_ids))
    )
    return {row.id: row.status for row in rows}


def find(
    tx: Tx,
    *,
    agent_id: str | None = None,
    statuses: list[str] | None = None,
    limit: int = 100,
) -> list[Row[Any]]:
    """Submissions, newest first."""
    statement = select(submissions).order_by(submissions.c.seq.desc()).limit(limit)
    if agent_id is not None:
        statement = statement.where(submissions.c.agent_id == agent_id)
    if statuses is not None:
        statement = statement.where(submissions.c.status.in_(statuses))
    return list(tx.execute(statement))


def ended(
    tx: Tx,
    agent_id: str,
    *,
    statuses: list[str],
    completed_before: datetime | None = None,
    after_seq: int = 0,
    limit: int,
) -> list[tuple[int, str]]:
    """Numbers and ids of ended submissions of an agent, oldest first, from behind a number on."""
    statement = (
        select(submissions.c.seq, submissions.c.id)
        .where(
            submissions.c.agent_id == agent_id,
            submissions.c.status.in_(statuses),
            submissions.c.seq > after_seq,
        )
        .order_by(submissions.c.seq)
        .limit(limit)
    )
    if completed_before is not None:
        statement = statement.where(submissions.c.completed_at < completed_before)
    return [(row.seq, row.id) for row in tx.execute(statement)]


def remove(tx: Tx, submission_id: str) -> bool:
    """Delete an ended submission, and say whether there was one."""
    statement = delete(submissions).where(
        submissions.c.id == submission_id, submissions.c.status.in_(TERMINAL)
    )
    return tx.execute(statement).rowcount == 1


def next_not_before(tx: Tx) -> datetime | None:
    """The first instant that a pending submission waits for."""
    statement = select(func.min(submissions.c.not_before)).where(
        submissions.c.status == SubmissionStatus.PENDING
    )
    return tx.execute(statement).scalar()
