"""Submissions and jobs of an agent that is being destroyed."""

from sqlalchemy import and_, bindparam, delete, exists, null, or_, select, update

from think_celery.states import OutboxStatus
from think_celery.store.database import Tx
from think_celery.store.statements import AT_MOST
from think_celery.store.submissions import TERMINAL
from think_celery.store.tables import jobs, outbox, submissions

_BEFORE = and_(
    submissions.c.agent_id == bindparam("agent"),
    submissions.c.epoch < bindparam("before"),
    or_(*(submissions.c.status == status for status in TERMINAL)),
)
UNTOLD = exists().where(outbox.c.submission_id == submissions.c.id, outbox.c.status == OutboxStatus.PENDING)
"""Whether the workflow that prompted a submission has yet to get its news."""

_REMOVABLE = (
    select(submissions.c.seq)
    .where(_BEFORE, ~UNTOLD)
    .limit(AT_MOST)
    .with_for_update(key_share=True, skip_locked=True, of=submissions)
)
_LEFT_BEFORE = select(submissions.c.id).where(_BEFORE, ~UNTOLD).limit(1)
_REMOVE_BEFORE = delete(submissions).where(submissions.c.seq.in_(_REMOVABLE)).returning(submissions.c.id)
_EMPTY_BEFORE = (
    update(submissions)
    .where(_BEFORE)
    .values(
        idempotency_key=null(),
        metadata=null(),
        structure=null(),
        error=null(),
        input_tokens=0,
        output_tokens=0,
        total_tokens=0,
    )
)


def remove_before(tx: Tx, agent_id: str, epoch: int, limit: int) -> int:
    """Delete ended submissions of an agent from before that epoch, with their news, and say how many.

    Those whose news is undelivered stay, and those that somebody has locked.
    """
    values = {"agent": agent_id, "before": epoch, "at_most": limit}
    removed = list(tx.execute(_REMOVE_BEFORE, values).scalars())
    if removed:
        tx.execute(_FORGET_NEWS, {"of_submissions": removed})
    return len(removed)


def left_before(tx: Tx, agent_id: str, epoch: int) -> str | None:
    """The id of one that :func:`remove_before` has left because somebody had it locked, if there is one."""
    return tx.execute(_LEFT_BEFORE, {"agent": agent_id, "before": epoch}).scalar()


_FORGET_NEWS = delete(outbox).where(outbox.c.submission_id.in_(bindparam("of_submissions", expanding=True)))


def empty_before(tx: Tx, agent_id: str, epoch: int) -> int:
    """Empty those that stay, and say how many there are."""
    return tx.execute(_EMPTY_BEFORE, {"agent": agent_id, "before": epoch}).rowcount


_JOBS = select(jobs.c.id).where(jobs.c.agent_id == bindparam("agent"))
_FREE_JOBS = _JOBS.with_for_update(skip_locked=True)


def lock_jobs(tx: Tx, agent_id: str) -> str | None:
    """Lock every job of an agent but those that another transaction has locked; the id of one of those, if any."""
    there = set(tx.execute(_JOBS, {"agent": agent_id}).scalars())
    locked = set(tx.execute(_FREE_JOBS, {"agent": agent_id}).scalars())
    return min(there - locked, default=None)
