"""Rows of jobs: their status, their lease, their lanes.

A job's lease is in its own row. Jobs of one agent and lane run one at a time in the order in which they were
accepted: the claim asks that no earlier one of the lane is left, and an index has the last word. A job leaves its
lane when it has ended and nobody works on it any more; whoever makes it do so sees to the next one's knock.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, exists, func, null, or_, select, update

from think_celery.ids import AgentRef
from think_celery.retries import MISSED_AFTER
from think_celery.states import JOB_MOVES, JobStatus, is_terminal
from think_celery.store.database import Tx
from think_celery.store.destroyed import OF_AGENT, accepted_now, is_destroyed
from think_celery.store.leases import JOB_HELD, JOB_WORKED_ON, Lease
from think_celery.store.moves import Move, move, moved, moving
from think_celery.store.statements import AT_MOST, insert_new, now, span
from think_celery.store.tables import agents, jobs

TERMINAL = [status.value for status in JobStatus if is_terminal(status)]

KNOCK = (
    jobs.c.seq,
    jobs.c.id,
    jobs.c.agent_id,
    jobs.c.agent_class,
    jobs.c.agent_name,
    jobs.c.kind,
    jobs.c.lane,
    jobs.c.method,
    jobs.c.queue,
    jobs.c.status,
    jobs.c.slot_id,
    jobs.c.started_at,
)
"""What a knock needs, and what follows from a job's end."""

MINE = jobs.c.id == bindparam("job")
WAITS = or_(
    jobs.c.status == JobStatus.PENDING,
    and_(jobs.c.status == JobStatus.RUNNING, jobs.c.process_id.is_(None)),  # taken from a holder that died
)
IS_DUE = or_(jobs.c.due_at.is_(None), jobs.c.due_at <= now())

_before = jobs.alias("before")
IN_FRONT = exists().where(
    _before.c.agent_id == jobs.c.agent_id,
    _before.c.lane == jobs.c.lane,
    _before.c.seq < jobs.c.seq,
    _before.c.lane.is_not(None),
)
"""Whether an earlier one of its lane is left."""

# --- accepting and looking ------------------------------------------------------------------------

_UNTIL = bindparam("until", type_=jobs.c.due_at.type)
_INSERT = insert_new(
    jobs,
    status=JobStatus.PENDING,
    created_at=accepted_now(),
    due_at=_UNTIL,
    knock_at=func.coalesce(_UNTIL, now(MISSED_AFTER)),
)


def insert(tx: Tx, agent: AgentRef, *, due_at: datetime | None, **values: Any) -> Row[Any] | None:
    """Add a pending job, and return its row; ``None`` where its id or key is taken.

    No row of ``agents`` is made or locked: a second caller of a new agent would wait for the first's transaction.
    """
    own = {"agent_id": agent.id, "agent_class": agent.agent_class, "agent_name": agent.name}
    return tx.execute(_INSERT, {**own, **values, OF_AGENT: agent.id, "until": due_at}).first()


_GET = select(jobs).where(MINE)
_LOCK = _GET.with_for_update(key_share=True)
_LOCK_IF_FREE = _GET.with_for_update(key_share=True, skip_locked=True)
_BY_KEY = select(jobs).where(
    jobs.c.agent_id == bindparam("agent"),
    jobs.c.kind == bindparam("of_kind"),
    jobs.c.idempotency_key == bindparam("key"),
)


def get(tx: Tx, job_id: str) -> Row[Any] | None:
    """The job of that id."""
    return tx.execute(_GET, {"job": job_id}).first()


def lock(tx: Tx, job_id: str, *, patient: bool = True) -> Row[Any] | None:
    """The job of that id, locked for this transaction.

    ``None`` where there is none or, without *patient*, where another transaction has it locked.
    """
    return tx.execute(_LOCK if patient else _LOCK_IF_FREE, {"job": job_id}).first()


def by_key(tx: Tx, agent_id: str, kind: str, idempotency_key: str) -> Row[Any] | None:
    """The agent's job of that kind with that key."""
    return tx.execute(_BY_KEY, {"agent": agent_id, "of_kind": kind, "key": idempotency_key}).first()


def find(
    tx: Tx,
    *,
    agent_id: str | None = None,
    kinds: Sequence[str] | None = None,
    statuses: Sequence[str] | None = None,
    method: str | None = None,
    after: int | None = None,
    limit: int = 100,
) -> Sequence[Row[Any]]:
    """Jobs, newest first."""
    statement = select(jobs).order_by(jobs.c.seq.desc()).limit(limit)
    for column, wanted in ((jobs.c.agent_id, agent_id), (jobs.c.method, method)):
        if wanted is not None:
            statement = statement.where(column == wanted)
    for column, several in ((jobs.c.kind, kinds), (jobs.c.status, statuses)):
        if several is not None:
            statement = statement.where(column.in_(several))
    if after is not None:
        statement = statement.where(jobs.c.seq < after)
    return tx.execute(statement).all()


# --- claiming -------------------------------------------------------------------------------------

_CANDIDATE = (
    select(
        jobs,
        agents.c.id.is_not(None).label("agent_is_made"),
        agents.c.started_version,
        is_destroyed(jobs).label("outdated"),
        or_(jobs.c.lane.is_(None), ~IN_FRONT).label("is_head"),
        IS_DUE.label("due"),
    )
    .select_from(jobs.outerjoin(agents, agents.c.id == jobs.c.agent_id))
    .where(MINE)
)


def candidate(tx: Tx, job_id: str) -> Row[Any] | None:
    """A job that somebody would run, with what decides on whether it can be, and how far its agent is."""
    return tx.execute(_CANDIDATE, {"job": job_id}).first()


_CLAIM = moving(
    jobs,
    and_(
        MINE,
        jobs.c.token == bindparam("seen_token"),
        WAITS,
        IS_DUE,
        or_(jobs.c.lane.is_(None), ~IN_FRONT),
    ),
    JobStatus.RUNNING,
    allowed=JOB_MOVES,
    returning=(jobs.c.token, jobs.c.attempts, jobs.c.takeovers),
    token=jobs.c.token + 1,
    attempts=jobs.c.attempts + 1,
    takeovers=jobs.c.takeovers + 1,
    started_at=func.coalesce(jobs.c.started_at, now()),
    waits_for=None,
    due_at=None,
    knock_at=None,
    knocks=0,
)


def claim(tx: Tx, job_id: str, process_id: str, seen_token: int) -> Row[Any] | None:
    """Take a job that waits for a worker, and count the attempt; ``None`` if it can't be taken now.

    Only if nobody has had it since *seen_token* was seen: then what was seen with it still holds.

    Raises:
        Refused: Another one of its lane runs.
    """
    return moved(tx, _CLAIM, job=job_id, process_id=process_id, seen_token=seen_token)


# --- what a holder does ---------------------------------------------------------------------------


def _leaving(to: JobStatus, **changes: Any) -> Move:
    return moving(jobs, JOB_HELD, to, allowed=JOB_MOVES, returning=KNOCK, process_id=None, **changes)


_OVER = {"lane": None, "completed_at": now(), "knock_at": None, "due_at": None}
_ENDS = {
    status: _leaving(status, **_OVER) for status in (JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.ABORTED)
}


def end(tx: Tx, lease: Lease, status: JobStatus, **values: Any) -> bool:
    """End a job in hand, and say whether this call did. See ``domain.jobs.jobs`` for what follows."""
    return move(tx, _ENDS[status], **lease.parameters, **values)


_AGAIN = _leaving(
    JobStatus.PENDING,
    attempts=0,
    failures=jobs.c.failures + 1,
    due_at=now(span("after")),
    knock_at=now(span("after")),
    knocks=0,
)


def try_again(tx: Tx, lease: Lease, after: timedelta, error_type: str, error: str) -> Row[Any] | None:
    """Put a job whose attempt failed back, to be tried again *after* so long; ``None`` if the lease is lost."""
    return moved(tx, _AGAIN, **lease.parameters, after=after, error_type=error_type, error=error)


_HAND_OVER = _leaving(JobStatus.PENDING, attempts=0, knock_at=now(span("after")), knocks=0)
_PUT_BACK = _leaving(JobStatus.PENDING, knock_at=now(span("after")), knocks=0)


def hand_over(tx: Tx, lease: Lease, *, orderly: bool, after: timedelta = MISSED_AFTER) -> Row[Any] | None:
    """Put a job in hand back for another worker; ``None`` if the lease is lost. *orderly*: no failed attempt."""
    return moved(tx, _HAND_OVER if orderly else _PUT_BACK, **lease.parameters, after=after)


_INTERRUPT = _leaving(JobStatus.INTERRUPTED, attempts=0)


def interrupt(tx: Tx, lease: Lease, **values: Any) -> bool:
    """Leave a fiber that was interrupted as that, and say whether this call did."""
    return move(tx, _INTERRUPT, **lease.parameters, **values)


_STASH = update(jobs).where(JOB_HELD).values(attempts=1).returning(jobs.c.id)


def stash(tx: Tx, lease: Lease, snapshot: str) -> bool:
    """Store what a fiber goes on from, and say whether the lease is still held. It is progress, too."""
    return tx.execute(_STASH, {**lease.parameters, "snapshot": snapshot}).first() is not None


_RELEASE = (
    update(jobs)
    .where(JOB_WORKED_ON, jobs.c.status.in_([bindparam(f"over_{name}", name) for name in TERMINAL]))
    .values(process_id=null(), lane=null())
    .returning(*KNOCK)
)


def release(tx: Tx, lease: Lease) -> Row[Any] | None:
    """Give up a job that was cancelled, once nobody works on it any more; ``None``: it is not ours, or not over."""
    return tx.execute(_RELEASE, lease.parameters).first()


_SEIZE = (
    update(jobs)
    .where(JOB_HELD)
    .values(process_id=null(), token=jobs.c.token + 1, knock_at=now(), knocks=0)
    .returning(*KNOCK)
)


def seize(tx: Tx, lease: Lease) -> Row[Any] | None:
    """Take a running job from that holder, for whoever claims it next; ``None`` if it no longer had it."""
    return tx.execute(_SEIZE, lease.parameters).first()


# --- what anybody does ----------------------------------------------------------------------------

_CANCEL_WAITING = moving(
    jobs,
    and_(MINE, jobs.c.process_id.is_(None)),
    JobStatus.ABORTED,
    allowed=JOB_MOVES,
    returning=(*KNOCK, jobs.c.process_id),
    **_OVER,
)
# Its lane goes on when it has stopped: one that was told to may still be at it.
_CANCEL_RUNNING = moving(
    jobs,
    and_(MINE, jobs.c.process_id.is_not(None)),
    JobStatus.ABORTED,
    allowed=JOB_MOVES,
    returning=(*KNOCK, jobs.c.process_id),
    completed_at=now(),
    knock_at=None,
    due_at=None,
)


def cancel(tx: Tx, job_id: str, reason: str | None) -> Row[Any] | None:
    """End a job that has not ended as aborted, and return its row; ``None`` where there is none.

    Of one that runs, ``process_id`` is who works on it still.
    """
    said = {"job": job_id, "error_type": None, "error": reason}
    return moved(tx, _CANCEL_WAITING, **said) or moved(tx, _CANCEL_RUNNING, **said)


_RESOLVE = {
    status: moving(
        jobs,
        and_(MINE, jobs.c.status == JobStatus.INTERRUPTED),
        status,
        allowed=JOB_MOVES,
        returning=KNOCK,
        **({"knock_at": now(MISSED_AFTER), "knocks": 0} if status is JobStatus.PENDING else _OVER),
    )
    for status in (JobStatus.PENDING, JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.ABORTED)
}


def resolve(tx: Tx, job_id: str, status: JobStatus, **values: Any) -> Row[Any] | None:
    """Decide on an interrupted fiber, and return its row; ``None`` if it is not interrupted."""
    return moved(tx, _RESOLVE[status], job=job_id, **values)


_NOW = (
    update(jobs)
    .where(MINE, jobs.c.status == JobStatus.PENDING)
    .values(due_at=null(), knock_at=now(MISSED_AFTER), knocks=0)
    .returning(*KNOCK)
)


def make_due(tx: Tx, job_id: str) -> Row[Any] | None:
    """Let a pending job wait no longer for its time, and return its row; ``None`` if it is not pending."""
    return tx.execute(_NOW, {"job": job_id}).first()


_LOOK_AGAIN = update(jobs).where(MINE, WAITS).values(knock_at=now(span("after")), knocks=0)


def look_again(tx: Tx, job_id: str, after: timedelta) -> None:
    """Knock again *after* so long for a job that can't begin just now."""
    tx.execute(_LOOK_AGAIN, {"job": job_id, "after": after})


# --- the end --------------------------------------------------------------------------------------


def statuses_of(tx: Tx, job_ids: Iterable[str]) -> dict[str, str]:
    """How these jobs stand; those that are gone are left out."""
    rows = tx.execute(_STATUSES, {"several": list(job_ids)})
    return {row.id: row.status for row in rows}


_STATUSES = select(jobs.c.id, jobs.c.status).where(jobs.c.id.in_(bindparam("several", expanding=True)))
_REMOVE_ALL = delete(jobs).where(jobs.c.agent_id == bindparam("agent"))
_REMOVE = (
    delete(jobs)
    .where(MINE, jobs.c.process_id.is_(None), jobs.c.status != JobStatus.RUNNING)
    .returning(*KNOCK, jobs.c.completed_at)
)


def remove_all(tx: Tx, agent_id: str) -> None:
    """Delete every job of an agent; whoever works on one has lost it."""
    tx.execute(_REMOVE_ALL, {"agent": agent_id})


def remove(tx: Tx, job_id: str) -> Row[Any] | None:
    """Delete a job that nobody works on, and return what it was; ``None`` where there is none."""
    return tx.execute(_REMOVE, {"job": job_id}).first()


_ENDED = and_(
    jobs.c.completed_at.is_not(None),
    jobs.c.process_id.is_(None),
    jobs.c.status.in_([bindparam(f"over_{name}", name) for name in TERMINAL]),
)
_OLD = (
    select(jobs.c.seq)
    .where(_ENDED, jobs.c.completed_at < now(span("age")))
    .order_by(jobs.c.completed_at)
    .limit(AT_MOST)
    .with_for_update(key_share=True, skip_locked=True)
)
_DELETE_OLD = delete(jobs).where(jobs.c.seq.in_(_OLD))


def delete_old(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete jobs that ended so long ago, and say how many."""
    return tx.execute(_DELETE_OLD, {"age": -age, "at_most": limit}).rowcount
