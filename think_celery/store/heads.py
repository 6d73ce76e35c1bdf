"""Which of an agent's submissions is the next to run, and when the tick knocks for it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, func, null, or_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery.retries import MISSED_AFTER
from think_celery.states import SubmissionStatus
from think_celery.store.database import Tx
from think_celery.store.leases import TURNS
from think_celery.store.missed import Missed, PutOff
from think_celery.store.statements import now, span, unlocked
from think_celery.store.submissions import IS_UNFINISHED, MINE, epoch_of, lock
from think_celery.store.tables import agents, lines, submissions

_KNOCK = (
    submissions.c.id,
    submissions.c.queue,
    submissions.c.agent_id,
    submissions.c.agent_class,
    submissions.c.agent_name,
    submissions.c.workflow_key,
    submissions.c.workflow_run,
    submissions.c.status,
)


def _head_id(agent: ColumnElement[Any]) -> ColumnElement[Any]:
    # The head is looked for among the rows that are visible now: a lower number can still be committed.
    rows = submissions.alias()
    running = select(rows.c.id).where(rows.c.agent_id == agent, rows.c.status == SubmissionStatus.RUNNING)
    # Between "pending" and "pending": with an equals sign PostgreSQL may walk the whole table by number, for it
    # takes an agent of whom much waits to be met soon.
    first_pending = (
        select(rows.c.id)
        .where(
            rows.c.agent_id == agent,
            rows.c.status.between(SubmissionStatus.PENDING.value, SubmissionStatus.PENDING.value),
        )
        .order_by(rows.c.status, rows.c.seq)
        .limit(1)
    )
    return func.coalesce(running.limit(1).scalar_subquery(), first_pending.scalar_subquery())


_AGENT: ColumnElement[Any] = bindparam("agent")
HEAD_ID = _head_id(_AGENT)
_DUE = or_(submissions.c.not_before.is_(None), submissions.c.not_before <= now())

_HEAD = (
    select(
        *_KNOCK,
        lines.c.process_id.is_not(None).label("held"),
        _DUE.label("due"),
        submissions.c.knock_at.is_not(None).label("expected"),
    )
    .select_from(
        submissions.outerjoin(lines, and_(lines.c.agent_id == submissions.c.agent_id, lines.c.kind == TURNS))
    )
    .where(submissions.c.id == HEAD_ID)
)


_SELECT_HEAD_ID = select(HEAD_ID)


def head_id(tx: Tx, agent_id: str) -> str | None:
    """The id of the agent's running submission, else of the first pending one."""
    return tx.execute(_SELECT_HEAD_ID, {"agent": agent_id}).scalar()


def head(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The agent's running submission, else the first pending one.

    With ``held``: whether its line is held, and ``expected``: whether somebody sees to its knock.
    """
    return tx.execute(_HEAD, {"agent": agent_id}).first()


def candidate(agent: ColumnElement[Any], *more: ColumnElement[Any]) -> Select[Any]:
    """What a claim asks of a submission of that agent; and *more*."""
    started = select(agents.c.started_version).where(agents.c.id == agent).scalar_subquery()
    return select(
        submissions.c.seq,
        submissions.c.id,
        submissions.c.agent_id,
        submissions.c.agent_class,
        submissions.c.agent_name,
        submissions.c.kind,
        submissions.c.status,
        submissions.c.messages,
        submissions.c.metadata,
        submissions.c.structure,
        submissions.c.based_on,
        submissions.c.workflow_key,
        submissions.c.workflow_run,
        submissions.c.event_type,
        submissions.c.slot_id,
        submissions.c.message_id,
        submissions.c.continues,
        submissions.c.steps_before,
        submissions.c.attempts,
        submissions.c.takeovers,
        submissions.c.tries,
        submissions.c.progress_at,
        submissions.c.model_attempts,
        submissions.c.model_position,
        submissions.c.not_before,
        submissions.c.applied_at,
        now().label("now"),
        submissions.c.started_at,
        submissions.c.input_tokens,
        submissions.c.output_tokens,
        submissions.c.total_tokens,
        started.label("started_version"),
        (submissions.c.id == _head_id(agent)).label("is_head"),
        _DUE.label("due"),
        (submissions.c.epoch < epoch_of(agent)).label("outdated"),
        *more,
    )


_CANDIDATE = candidate(_AGENT).where(MINE).with_for_update(key_share=True, skip_locked=True, of=submissions)


def lock_candidate(tx: Tx, agent_id: str, submission_id: str) -> Row[Any] | None:
    """A submission that might run now, locked; ``None`` where there is none or another has it locked.

    With ``is_head``, ``due``, ``outdated``: whether the conversation was reset since it was accepted, and the version
    of its class with which the agent has started. Whoever
    calls this has the agent's line, so what it sees is not older than the line's last holder.
    """
    return tx.execute(_CANDIDATE, {"agent": agent_id, "submission": submission_id}).first()


_EXPECT = (
    update(submissions)
    .where(MINE, IS_UNFINISHED)
    .values(knock_at=func.coalesce(submissions.c.not_before, now(MISSED_AFTER)), knocks=0)
)


def expect_knock(tx: Tx, agent_id: str) -> bool:
    """Let the tick knock for the agent's head unless it is claimed soon, and say whether that was done.

    A head that another transaction has locked is not waited for: a caller may keep its transaction open for
    long. Then somebody must look again, for whoever has it may end it, or leave it as it is.
    """
    while (found := head_id(tx, agent_id)) is not None:
        if lock(tx, found, patient=False) is None:
            return False
        if tx.execute(_EXPECT, {"submission": found}).rowcount == 1:
            return True
    return True


_LOOK_LATER = (
    update(submissions)
    .where(submissions.c.seq == bindparam("number"))
    .values(knock_at=now(MISSED_AFTER), knocks=0)
)


def look_later(tx: Tx, seq: int) -> None:
    """Let the tick look for the agent's head by this row, which has just ended: nobody could expect the head."""
    tx.execute(_LOOK_LATER, {"number": seq})


missed = Missed(submissions, *_KNOCK)
"""Submissions whose knock seems lost."""

put_off_knocked = PutOff(submissions, submissions.c.id)


_AS_SEEN = and_(MINE, submissions.c.knock_at == bindparam("seen"))
_KNOCK_AGAIN = (
    update(submissions)
    .where(_AS_SEEN, unlocked(submissions.c.seq, _AS_SEEN))
    .values(knock_at=now(span("after")))
)


def knock_again(tx: Tx, submission_id: str, seen: datetime, after: timedelta, knocks: int) -> bool:
    """Set when to knock next, if nobody else has since *seen* and nobody is changing the row just now."""
    values = {"submission": submission_id, "seen": seen, "after": after, "knocks": knocks}
    return tx.execute(_KNOCK_AGAIN, values).rowcount == 1


_UNEXPECTED = and_(MINE, submissions.c.knock_at.is_(None), IS_UNFINISHED)
_EXPECT_AGAIN = (
    update(submissions)
    .where(_UNEXPECTED, unlocked(submissions.c.seq, _UNEXPECTED))
    .values(knock_at=now(span("after")), knocks=0)
)


def expect_again(tx: Tx, submission_id: str, after: timedelta) -> bool:
    """Set when to knock next for a row of which no knock is expected; False where one is."""
    return tx.execute(_EXPECT_AGAIN, {"submission": submission_id, "after": after}).rowcount == 1


_STALE = and_(
    submissions.c.id.in_(bindparam("submissions", expanding=True)),
    submissions.c.knock_at <= bindparam("seen"),
)
_STALE_AND_FREE = update(submissions).where(_STALE, unlocked(submissions.c.seq, _STALE))
_EXPECT_NONE = _STALE_AND_FREE.values(knock_at=null(), knocks=0)
_PUT_OFF = _STALE_AND_FREE.values(knock_at=now(span("after")))


def expect_none(tx: Tx, submission_ids: Sequence[str], seen: datetime) -> int:
    """Let the tick forget rows that stand behind a head; say how many.

    Only those whose knock was due at *seen* or before: whoever has made one of them the head since then
    has set a later time. Rows that somebody is changing just now are left for the next pass.
    """
    return tx.execute(_EXPECT_NONE, {"submissions": submission_ids, "seen": seen}).rowcount


def put_off(tx: Tx, submission_ids: Sequence[str], seen: datetime, after: timedelta) -> int:
    """Let the tick look at such rows again only *after* so long; say how many."""
    return tx.execute(_PUT_OFF, {"submissions": submission_ids, "seen": seen, "after": after}).rowcount


def knock_now(tx: Tx) -> None:
    """Let the tick knock for every head whose line is free, at once: the broker has lost all messages.

    One that a caller has locked is left out: it must not keep the others from being knocked for.
    """
    held = select(lines.c.agent_id).where(lines.c.process_id.is_not(None), lines.c.kind == TURNS)
    pending = submissions.c.status == SubmissionStatus.PENDING
    first = select(func.min(submissions.c.seq)).where(pending).group_by(submissions.c.agent_id)
    head = or_(submissions.c.status == SubmissionStatus.RUNNING, submissions.c.seq.in_(first))
    waiting = select(submissions.c.id).where(head, _DUE, submissions.c.agent_id.not_in(held))
    free = waiting.with_for_update(key_share=True, skip_locked=True)
    tx.execute(update(submissions).where(submissions.c.id.in_(free)).values(knock_at=now(), knocks=0))


_NEXT_NOT_BEFORE = select(func.min(submissions.c.not_before)).where(
    submissions.c.status == SubmissionStatus.PENDING
)


def next_not_before(tx: Tx) -> datetime | None:
    """The first instant that a pending submission waits for."""
    return tx.execute(_NEXT_NOT_BEFORE).scalar()
