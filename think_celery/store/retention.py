"""What is old enough to go. Each statement takes some rows, oldest first; nothing that has not ended is among them.

Rows that somebody has locked just now are left for the next look.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import BindParameter, and_, bindparam, delete, exists, func, null, or_, select, update

from think_celery.states import InteractionStatus, OutboxStatus, is_terminal
from think_celery.store import children, control, usage
from think_celery.store.database import Tx
from think_celery.store.removals import UNTOLD
from think_celery.store.statements import AT_MOST, now, span
from think_celery.store.submissions import TERMINAL
from think_celery.store.tables import events, interactions, outbox, steps, submissions, workflows
from think_celery.store.workflows import TERMINAL as ENDED_RUNS

_AGE = now(span("age"))


def _ago(age: timedelta, limit: int) -> Mapping[str, Any]:
    return {"age": -age, "at_most": limit}


# --- submissions ----------------------------------------------------------------------------------

_HAS_ENDED = or_(*(submissions.c.status == status for status in TERMINAL))
# The workflow that prompted it goes on: its answer may be asked for again.
_AWAITED = exists().where(
    workflows.c.key == submissions.c.workflow_key,
    workflows.c.run == submissions.c.workflow_run,
    workflows.c.status.not_in(ENDED_RUNS),
)
_OLD = and_(
    submissions.c.completed_at.is_not(None),
    submissions.c.completed_at < _AGE,
    _HAS_ENDED,
    submissions.c.knock_at.is_(None),  # the tick looks by this row for the agent's next turn
    ~UNTOLD,
    ~_AWAITED,
)


def _oldest(*where: Any) -> Any:
    return (
        select(submissions.c.seq)
        .where(*where)
        .order_by(submissions.c.completed_at)
        .limit(AT_MOST)
        .with_for_update(key_share=True, skip_locked=True, of=submissions)
    )


_WHOLE = _oldest(_OLD, submissions.c.slimmed_at.is_(None))
_SLIM = (
    update(submissions)
    .where(submissions.c.seq.in_(_WHOLE))
    .values(
        messages=null(),
        metadata=null(),
        structure=null(),
        error=null(),
        slimmed_at=now(),
    )
)
_EXPIRED = _oldest(_OLD)
_DELETE = delete(submissions).where(submissions.c.seq.in_(bindparam("numbers", expanding=True)))
_DELETE_NEWS = delete(outbox).where(outbox.c.submission_id.in_(bindparam("ids", expanding=True)))
_IDS = select(submissions.c.id).where(submissions.c.seq.in_(bindparam("numbers", expanding=True)))


def slim_submissions(tx: Tx, age: timedelta, limit: int) -> int:
    """Take from submissions that ended so long ago all but key, id, status, times and tokens; say from how many."""
    return tx.execute(_SLIM, _ago(age, limit)).rowcount


def delete_submissions(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete submissions that ended so long ago, and say how many. What they have used is kept."""
    numbers = list(tx.execute(_EXPIRED, _ago(age, limit)).scalars())
    if numbers:
        usage.keep(tx, numbers)
        ids = list(tx.execute(_IDS, {"numbers": numbers}).scalars())
        tx.execute(_DELETE_NEWS, {"ids": ids})
        tx.execute(_DELETE, {"numbers": numbers})
    return len(numbers)


# --- calls that waited ----------------------------------------------------------------------------

# One that was decided on counts until the turn that acts on it has ended, or as long as others of its message wait.
_OTHERS = interactions.alias()
_ACTED_ON = or_(
    and_(
        interactions.c.continuation_id.is_not(None),
        ~exists().where(submissions.c.id == interactions.c.continuation_id, ~_HAS_ENDED),
    ),
    and_(
        interactions.c.continuation_id.is_(None),
        ~exists().where(
            _OTHERS.c.agent_id == interactions.c.agent_id,
            _OTHERS.c.message_id == interactions.c.message_id,
            _OTHERS.c.status == InteractionStatus.OPEN,
        ),
    ),
)
_DONE_WITH = (
    select(interactions.c.id)
    .where(
        interactions.c.decided_at.is_not(None),
        interactions.c.decided_at < _AGE,
        or_(interactions.c.status == InteractionStatus.WITHDRAWN, _ACTED_ON),
    )
    .order_by(interactions.c.decided_at)
    .limit(AT_MOST)
    .with_for_update(key_share=True, skip_locked=True, of=interactions)
)
_DELETE_DECISIONS = delete(interactions).where(interactions.c.id.in_(_DONE_WITH))


def delete_decisions(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete calls that were decided on so long ago, and say how many. What came of them stands in the messages."""
    return tx.execute(_DELETE_DECISIONS, _ago(age, limit)).rowcount


# --- workflows ------------------------------------------------------------------------------------

MOST_STEPS = 5_000
"""How many journal entries one transaction deletes, unless a single run has more."""

_ENDED = (
    select(workflows.c.key)
    .where(
        workflows.c.completed_at.is_not(None),
        workflows.c.completed_at < _AGE,
        workflows.c.status.in_(ENDED_RUNS),
        ~children.UNTOLD,
    )
    .order_by(workflows.c.completed_at)
    .limit(AT_MOST)
    .with_for_update(skip_locked=True, of=workflows)
)
_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_COUNTS = (
    select(steps.c.workflow_key, func.count().label("entries"))
    .where(steps.c.workflow_key.in_(_KEYS))
    .group_by(steps.c.workflow_key)
)
_DELETE_RUNS = [
    delete(steps).where(steps.c.workflow_key.in_(_KEYS)),
    # One index for each.
    delete(events).where(events.c.workflow_key.in_(_KEYS), events.c.consumed_by.is_(None)),
    delete(events).where(events.c.workflow_key.in_(_KEYS), events.c.consumed_by.is_not(None)),
    delete(workflows).where(workflows.c.key.in_(_KEYS)),
]


def delete_workflows(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete workflows that ended so long ago with their journals and events, and say how many.

    The keys of their prompts are released: a workflow that is started under the same id prompts anew.
    """
    keys = list(tx.execute(_ENDED, _ago(age, limit)).scalars())
    keys = _few_enough(tx, keys) if keys else keys
    if keys:
        control.release_keys(tx, control.prompted(tx, keys))
        for statement in _DELETE_RUNS:
            tx.execute(statement, {"keys": keys})
    return len(keys)


def _few_enough(tx: Tx, keys: Sequence[str]) -> list[str]:
    counts = {row.workflow_key: row.entries for row in tx.execute(_COUNTS, {"keys": keys})}
    taken, entries = 0, 0
    for key in keys:
        entries += counts.get(key, 0)
        if taken and entries > MOST_STEPS:
            break
        taken += 1
    return list(keys[:taken])


# --- news -----------------------------------------------------------------------------------------

_SETTLED = [status.value for status in OutboxStatus if is_terminal(status)]
_OLD_NEWS = (
    select(outbox.c.id)
    .where(outbox.c.delivered_at.is_not(None), outbox.c.delivered_at < _AGE, outbox.c.status.in_(_SETTLED))
    .order_by(outbox.c.delivered_at)
    .limit(AT_MOST)
    .with_for_update(key_share=True, skip_locked=True)
)
_DELETE_OLD_NEWS = delete(outbox).where(outbox.c.id.in_(_OLD_NEWS))


def delete_news(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete news that was delivered or dropped so long ago, and say how much."""
    return tx.execute(_DELETE_OLD_NEWS, _ago(age, limit)).rowcount
