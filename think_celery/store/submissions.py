"""Rows of accepted turns."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, delete, func, null, or_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery.ids import AgentRef, new_id
from think_celery.retries import MISSED_AFTER
from think_celery.states import SUBMISSION_MOVES, SubmissionStatus, is_terminal
from think_celery.store.database import Tx
from think_celery.store.moves import move, moving
from think_celery.store.statements import insert_new, now, span
from think_celery.store.tables import agents, submissions
from think_celery.store.usage import COUNTED

TERMINAL = [status.value for status in SubmissionStatus if is_terminal(status)]
UNFINISHED = [SubmissionStatus.PENDING.value, SubmissionStatus.RUNNING.value]

RECEIPT = (
    submissions.c.id,
    submissions.c.agent_id,
    submissions.c.agent_class,
    submissions.c.agent_name,
    submissions.c.queue,
    submissions.c.status,
    submissions.c.idempotency_key,
    submissions.c.metadata,
    submissions.c.fingerprint,
    submissions.c.message_id,
    submissions.c.error_type,
    submissions.c.error,
    submissions.c.created_at,
    submissions.c.started_at,
    submissions.c.completed_at,
    submissions.c.workflow_key,
    submissions.c.workflow_run,
)
"""What who asked for a turn is told of it, and what the knock for it needs."""


def epoch_of(agent: ColumnElement[Any]) -> ColumnElement[Any]:
    """How often an agent's conversation was reset."""
    return func.coalesce(select(agents.c.epoch).where(agents.c.id == agent).scalar_subquery(), 0)


_INSERT = insert_new(
    submissions,
    *RECEIPT,
    status=SubmissionStatus.PENDING,
    epoch=epoch_of(bindparam("agent")),
    created_at=now(),
    knock_at=now(MISSED_AFTER),
)


def insert(tx: Tx, agent: AgentRef, **values: Any) -> Row[Any] | None:
    """Add a pending submission, and return its :data:`RECEIPT`; ``None`` where its id or key is taken.

    It belongs to the agent's present epoch. No row of ``agents`` is made or locked, for a second caller
    of a new agent would wait for the first one's transaction.
    """
    agent_id = agent.id
    own = {"agent_id": agent_id, "agent_class": agent.agent_class, "agent_name": agent.name}
    return tx.execute(_INSERT, {"agent": agent_id, **own, **values}).first()


IS_UNFINISHED = or_(*(submissions.c.status == status for status in UNFINISHED))
MINE = submissions.c.id == bindparam("submission")
_GET = select(submissions).where(MINE)
_LOCK = _GET.with_for_update(key_share=True)
_LOCK_IF_FREE = _GET.with_for_update(key_share=True, skip_locked=True)


def get(tx: Tx, submission_id: str) -> Row[Any] | None:
    """The submission of that id."""
    return tx.execute(_GET, {"submission": submission_id}).first()


def lock(tx: Tx, submission_id: str, *, patient: bool = True) -> Row[Any] | None:
    """The submission of that id, locked for this transaction.

    ``None`` where there is none or, without *patient*, where another transaction has it locked.
    """
    return tx.execute(_LOCK if patient else _LOCK_IF_FREE, {"submission": submission_id}).first()


_BY_KEY = select(submissions).where(
    submissions.c.agent_id == bindparam("agent"), submissions.c.idempotency_key == bindparam("key")
)


def by_key(tx: Tx, agent_id: str, idempotency_key: str) -> Row[Any] | None:
    """The agent's submission with that idempotency key."""
    return tx.execute(_BY_KEY, {"agent": agent_id, "key": idempotency_key}).first()


_TAKE_KEY = insert_new(submissions, submissions.c.seq)
_GIVE_KEY = update(submissions).where(
    submissions.c.seq == bindparam("number"), submissions.c.idempotency_key.is_(None)
)


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
    seq = tx.execute(_TAKE_KEY, placeholder).scalar()
    if seq is None:
        return False
    tx.execute(delete(submissions).where(submissions.c.seq == seq))
    return tx.execute(_GIVE_KEY, {"number": row.seq, "idempotency_key": idempotency_key}).rowcount == 1


_WAITED = and_(  # one that begins later for another reason (a debounce) has not begun yet
    submissions.c.status == SubmissionStatus.PENDING,
    submissions.c.not_before.is_not(None),
    submissions.c.applied_at.is_not(None),
)
BEGUN: dict[str, Any] = {
    "attempts": submissions.c.attempts + 1,
    "takeovers": submissions.c.takeovers + 1,
    "tries": submissions.c.tries + case((_WAITED, 0), else_=1),  # waiting for a provider is no interruption
    "progress_at": func.coalesce(submissions.c.progress_at, now()),
    "applied_at": func.coalesce(submissions.c.applied_at, now()),
    "started_at": func.coalesce(submissions.c.started_at, now()),
    "messages": null(),
    "not_before": null(),
    "knock_at": null(),
    "knocks": 0,
}
"""What changes with the status ``running``."""

_BEGIN = moving(submissions, MINE, SubmissionStatus.RUNNING, allowed=SUBMISSION_MOVES, **BEGUN)


def begin(
    tx: Tx, submission_id: str, message_id: str, *, continues: str | None = None, steps_before: int = 0
) -> bool:
    """Count an attempt and set ``running``, from pending or, at a takeover, from running.

    *message_id* is where the answer goes. Whoever calls this has the row locked, and keeps what it has of that.
    """
    place = {"message_id": message_id, "continues": continues, "steps_before": steps_before}
    return move(tx, _BEGIN, submission=submission_id, **place)


USED: dict[str, Any] = {
    name: func.coalesce(bindparam(f"used_{name}", type_=submissions.c[name].type), submissions.c[name])
    for name in COUNTED
}
"""What a submission has used; with :func:`used` of nothing it stays as it is."""

ENDED: dict[str, Any] = {"completed_at": now(), "knock_at": null(), "messages": null(), **USED}
"""What changes with a terminal status."""


def used(tokens: Mapping[str, int] | None) -> dict[str, int | None]:
    """The parameters of :data:`USED`."""
    return {f"used_{name}": None if tokens is None else tokens[name] for name in COUNTED}


_END = {
    status: moving(
        submissions,
        submissions.c.seq == bindparam("number"),
        status,
        allowed=SUBMISSION_MOVES,
        **ENDED,
    )
    for status in SubmissionStatus
    if is_terminal(status)
}


def end(
    tx: Tx,
    seq: int,
    status: SubmissionStatus,
    *,
    error_type: str | None,
    error: str | None,
    tokens: Mapping[str, int] | None = None,
) -> bool:
    """Move the submission to a terminal status, and say whether this call did.

    By its number, not by its id: that can be another's by now, if this one was deleted meanwhile. Called by way of
    ``domain.submissions.lines`` only, which also stores the news for a waiting workflow.
    """
    return move(tx, _END[status], number=seq, error_type=error_type, error=error, **used(tokens))


_AFTER = now(span("after"))
_PUT_BACK = {
    counts: moving(
        submissions,
        MINE,
        SubmissionStatus.PENDING,
        allowed=SUBMISSION_MOVES,
        attempts=submissions.c.attempts if counts else 0,
        not_before=_AFTER,
        progress_at=func.coalesce(_AFTER, submissions.c.progress_at),
        model_attempts=func.coalesce(
            bindparam("failures", type_=submissions.c.model_attempts.type), submissions.c.model_attempts
        ),
    )
    for counts in (False, True)
}


def put_back(
    tx: Tx,
    submission_id: str,
    *,
    not_before: timedelta | None = None,
    model_attempts: int | None = None,
    counts: bool = False,
) -> bool:
    """Make a running submission pending again, and say whether this call did.

    Handed over in order, its attempts are forgotten; with *counts* the present one remains one.
    """
    return move(tx, _PUT_BACK[counts], submission=submission_id, after=not_before, failures=model_attempts)


_UPDATE = update(submissions).where(MINE)
_COUNT_USED = _UPDATE.where(submissions.c.seq == bindparam("number")).values(USED)


def count_used(tx: Tx, row: Any, tokens: Mapping[str, int]) -> None:
    """Store what a submission has used so far, also where it has ended meanwhile."""
    tx.execute(_COUNT_USED, {"submission": row.id, "number": row.seq, **used(tokens)})


_PROGRESS = _UPDATE.values(attempts=1, tries=0, model_attempts=0, progress_at=now())


def progress(tx: Tx, submission_id: str, tokens: Mapping[str, int] | None = None) -> None:
    """Note durable progress: the attempts before it no longer count, nor do failed requests."""
    tx.execute(_PROGRESS, {"submission": submission_id, **(tokens or {})})


def count_model_attempts(
    tx: Tx, submission_id: str, attempts: int, tokens: Mapping[str, int] | None = None
) -> None:
    """Store how many model requests of the present step have failed, and what the turn has used so far."""
    tx.execute(_UPDATE, {"submission": submission_id, "model_attempts": attempts, **(tokens or {})})


def go_to_model(tx: Tx, submission_id: str, position: int) -> None:
    """Store which of the agent's models is asked from now on; no request to it has failed yet."""
    tx.execute(_UPDATE, {"submission": submission_id, "model_position": position, "model_attempts": 0})


_INTEND = update(submissions).where(MINE, IS_UNFINISHED)


def intend_to_cancel(tx: Tx, submission_id: str, reason: str) -> bool:
    """Store that nobody shall take the submission up again once it is interrupted; False if it has ended."""
    return tx.execute(_INTEND, {"submission": submission_id, "cancel_intent": reason}).rowcount == 1


_UNFINISHED_OF = and_(submissions.c.agent_id == bindparam("agent"), IS_UNFINISHED)
_ALL = select(submissions.c.seq, submissions.c.id).where(_UNFINISHED_OF)
_FREE = select(submissions.c.seq).where(_UNFINISHED_OF).with_for_update(key_share=True, skip_locked=True)


def lock_all(tx: Tx, agent_id: str) -> str | None:
    """Lock every unfinished submission of an agent, but for those that another transaction has locked.

    The id of one of those, if there are any. Nobody is waited for: whoever waits here may hold what a caller
    waits for, who has another of these rows.
    """
    there = {row.seq: row.id for row in tx.execute(_ALL, {"agent": agent_id})}
    locked = set(tx.execute(_FREE, {"agent": agent_id}).scalars())
    return next((there[seq] for seq in there.keys() - locked), None)


_WAS_PENDING = submissions.c.status == SubmissionStatus.PENDING
_END_ALL = (
    update(submissions)
    .where(IS_UNFINISHED, submissions.c.seq.in_(_FREE))
    .values(
        status=case((_WAS_PENDING, SubmissionStatus.SKIPPED.value), else_=SubmissionStatus.ABORTED.value),
        error=case((_WAS_PENDING, bindparam("reason", type_=submissions.c.error.type)), else_=null()),
        completed_at=now(),
        knock_at=null(),
        messages=null(),
    )
    .returning(submissions)
)


def end_all(tx: Tx, agent_id: str, reason: str) -> list[Row[Any]]:
    """End every unfinished submission of an agent in one UPDATE: pending ones skipped, running ones aborted.

    The rows as they are then. Only ``conversation.reset`` calls this, after :func:`lock_all`, and stores the
    news of each. A row that was committed since, and that somebody has locked already, is left for the claim.
    """
    return list(tx.execute(_END_ALL, {"agent": agent_id, "reason": reason}))


_STATUSES = select(submissions.c.id, submissions.c.status).where(
    submissions.c.id.in_(bindparam("submissions", expanding=True))
)


def running_of(tx: Tx, submission_ids: list[str]) -> dict[str, str]:
    """The status of each of these submissions that still exists."""
    rows = tx.execute(_STATUSES, {"submissions": submission_ids})
    return {row.id: row.status for row in rows}


def find(
    tx: Tx,
    *,
    agent_id: str | None = None,
    statuses: list[str] | None = None,
    key: str | None = None,
    after: int | None = None,
    limit: int = 100,
) -> list[Row[Any]]:
    """Submissions, newest first. By their *key* without the agent it looks at all of them."""
    statement = select(submissions).order_by(submissions.c.seq.desc()).limit(limit)
    if agent_id is not None:
        statement = statement.where(submissions.c.agent_id == agent_id)
    if statuses is not None:
        statement = statement.where(submissions.c.status.in_(statuses))
    if key is not None:
        statement = statement.where(submissions.c.idempotency_key == key)
    if after is not None:
        statement = statement.where(submissions.c.seq < after)
    return list(tx.execute(statement))


_ENDED_LATELY = (
    select(submissions.c.id)
    .where(
        submissions.c.completed_at.is_not(None),
        submissions.c.completed_at >= now(span("age")),
        submissions.c.agent_id == bindparam("agent"),
        submissions.c.started_at.is_not(None),
    )
    .order_by(submissions.c.completed_at)
)


def ended_lately(tx: Tx, agent_id: str, within: timedelta) -> list[Row[Any]]:
    """The turns of an agent that had begun, and ended within that time."""
    return list(tx.execute(_ENDED_LATELY, {"agent": agent_id, "age": -within}))


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


_REMOVE = delete(submissions).where(MINE, or_(*(submissions.c.status == status for status in TERMINAL)))


def remove(tx: Tx, submission_id: str) -> bool:
    """Delete an ended submission, and say whether there was one."""
    return tx.execute(_REMOVE, {"submission": submission_id}).rowcount == 1
