"""What somebody else than its holder does with a workflow: pause, resume, terminate, restart and delete it.

Each of them locks the workflow's row first, and then makes one conditional UPDATE. Whoever takes a run away from its
holder raises the token in that same statement.

A deleted workflow leaves its emptied row behind for a while. A workflow that is started under the same id counts its
runs and its tokens on from there: so nobody takes what belonged to the one for the other's.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BindParameter, Row, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery import serialization
from think_celery.ids import AgentRef
from think_celery.retries import MISSED_AFTER
from think_celery.states import WORKFLOW_MOVES, WORKFLOW_RESTARTS, StepStatus, WorkflowStatus
from think_celery.store.database import Tx
from think_celery.store.leases import WORKFLOW_HELD, Lease
from think_celery.store.moves import move, moved, moving
from think_celery.store.statements import AT_MOST, now, span
from think_celery.store.tables import events, steps, submissions, workflows
from think_celery.store.workflows import KNOCK, TERMINAL, queueing, releasing

_MINE = workflows.c.key == bindparam("of_key")
_THERE = and_(_MINE, workflows.c.deleted_at.is_(None))
_IN_HAND = and_(workflows.c.status == WorkflowStatus.RUNNING, workflows.c.process_id.is_not(None))

_LOCK = select(workflows).where(_THERE).with_for_update(key_share=True)


def lock(tx: Tx, key: str) -> Row[Any] | None:
    """The workflow of that key, locked for this transaction: nobody writes under its lease meanwhile."""
    return tx.execute(_LOCK, {"of_key": key}).first()


# --- pause and resume -----------------------------------------------------------------------------

_PAUSE = moving(
    workflows,
    and_(_THERE, or_(workflows.c.status != WorkflowStatus.RUNNING, workflows.c.process_id.is_(None))),
    WorkflowStatus.PAUSED,
    allowed=WORKFLOW_MOVES,
    pause_at=now(),
    wake_at=None,
    knock_at=None,
    knocks=0,
)


def pause(tx: Tx, key: str) -> bool:
    """Pause a run that nobody has in hand, and say whether this call did."""
    return move(tx, _PAUSE, of_key=key)


_WANT_PAUSE = update(workflows).where(_THERE, _IN_HAND, workflows.c.pause_at.is_(None)).values(pause_at=now())


def want_pause(tx: Tx, key: str) -> bool:
    """Store that a run in hand shall pause at its next step; False if that is stored, or nobody has it in hand."""
    return tx.execute(_WANT_PAUSE, {"of_key": key}).rowcount == 1


_PAUSE_MINE = releasing(
    WorkflowStatus.PAUSED,
    workflows.c.pause_at.is_not(None),
    attempts=0,
    takeovers=0,
    wake_at=None,
    knock_at=None,
)


def pause_mine(tx: Tx, lease: Lease) -> bool:
    """Give a run in hand back as paused; False if nobody wants that any more, or the lease is lost."""
    return move(tx, _PAUSE_MINE, **lease.parameters)


_RESUME = queueing(workflows.c.status == WorkflowStatus.PAUSED, pause_at=None)
_WITHDRAW = update(workflows).where(_THERE, _IN_HAND, workflows.c.pause_at.is_not(None)).values(pause_at=None)


def resume(tx: Tx, key: str) -> Row[Any] | None:
    """Put a paused run back into the queue and clear its error; ``None`` if it isn't paused."""
    return moved(tx, _RESUME, of_key=key)


def withdraw_pause(tx: Tx, key: str) -> bool:
    """Let a run in hand not pause after all, and say whether somebody had wanted that."""
    return tx.execute(_WITHDRAW, {"of_key": key}).rowcount == 1


# --- progress -------------------------------------------------------------------------------------

_REPORT = update(workflows).where(WORKFLOW_HELD)


def report_progress(tx: Tx, lease: Lease, progress: str) -> bool:
    """Store how far a run in hand has come, and say whether it still was in that hand."""
    return tx.execute(_REPORT, {**lease.parameters, "progress": progress}).rowcount == 1


# --- terminate, restart, delete -------------------------------------------------------------------

_TERMINATE = moving(
    workflows,
    _THERE,
    WorkflowStatus.TERMINATED,
    allowed=WORKFLOW_MOVES,
    returning=workflows.c,
    token=workflows.c.token + 1,
    process_id=None,
    pause_at=None,
    wake_at=None,
    knock_at=None,
    knocks=0,
    completed_at=now(),
)


def terminate(
    tx: Tx, key: str, *, error_type: str | None = None, error: str | None = None
) -> Row[Any] | None:
    """End a run that has not ended, and return its row; ``None`` if it has. Its holder can't write any more."""
    return moved(tx, _TERMINATE, of_key=key, error_type=error_type, error=error)


_GIVEN = ("queue", "metadata", *(c.name for c in workflows.c if c.name.startswith("parent_")))
"""Columns that may be empty and are what the workflow was started with: a restart leaves them as they are."""

_ANEW: dict[str, Any] = {
    **{column.name: None for column in workflows.c if column.nullable and column.name not in _GIVEN},
    "run": workflows.c.run + 1,
    "token": workflows.c.token + 1,
    "wakes": 0,
    "attempts": 0,
    "takeovers": 0,
    "knock_at": now(MISSED_AFTER),
    "knocks": 0,
}
"""What a new run of a workflow that was there begins with."""

_RESTART = moving(
    workflows, _THERE, WorkflowStatus.QUEUED, allowed=WORKFLOW_RESTARTS, returning=KNOCK, **_ANEW
)


def restart(tx: Tx, key: str, version: str, queue: str | None) -> Row[Any] | None:
    """Begin a new run of the workflow, whatever became of the one before it; ``None``: there is no such workflow."""
    return moved(tx, _RESTART, of_key=key, version=version, queue=queue)


_IS_PAST = or_(
    workflows.c.deleted_at.is_not(None),
    and_(  # a child of an earlier run of the workflow that asks for it again
        workflows.c.parent_key == bindparam("of_parent"),
        workflows.c.parent_run < bindparam("of_parents_run"),
        workflows.c.status.in_([bindparam(f"ended_{name}", name) for name in TERMINAL]),
    ),
)
_REVIVE = moving(
    workflows,
    and_(_MINE, _IS_PAST),
    WorkflowStatus.QUEUED,
    allowed=WORKFLOW_RESTARTS,
    returning=KNOCK,
    created_at=now(),
    **_ANEW,
)


def revive(tx: Tx, key: str, agent: AgentRef, **values: Any) -> Row[Any] | None:
    """Start a workflow in the row of one that was deleted; ``None``, and nothing is changed, if that is not there.

    So does a workflow that was restarted, in the row of a child of its earlier run.
    """
    own = {"agent_class": agent.agent_class, "agent_name": agent.name}
    given = {**dict.fromkeys(_GIVEN), **own, **values}
    asker = {"of_parent": given["parent_key"], "of_parents_run": given["parent_run"]}
    return moved(tx, _REVIVE, of_key=key, **asker, **given)


_EMPTIED = {
    column.name: None
    for column in workflows.c
    if column.nullable and column.name not in ("queue", "started_at", "completed_at")
}
_REMOVE = (
    update(workflows)
    .where(_THERE, workflows.c.status.in_([bindparam(f"ended_{name}", name) for name in TERMINAL]))
    .values({**_EMPTIED, "params": "{}", "deleted_at": now()})
)


def remove(tx: Tx, key: str) -> bool:
    """Empty the row of a workflow that has ended, so that it is there no more, and say whether this call did."""
    return tx.execute(_REMOVE, {"of_key": key}).rowcount == 1


_FORGOTTEN = (
    select(workflows.c.key)
    .where(workflows.c.deleted_at.is_not(None), workflows.c.deleted_at < now(span("age")))
    .order_by(workflows.c.deleted_at)
    .limit(AT_MOST)
    .with_for_update(skip_locked=True)
)
_FORGET = delete(workflows).where(workflows.c.key.in_(_FORGOTTEN))


def forget(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete the empty rows of workflows that were deleted so long ago, and say how many."""
    return tx.execute(_FORGET, {"age": -age, "at_most": limit}).rowcount


# --- what belongs to a run ------------------------------------------------------------------------

PROMPT = "prompt-submit"
"""The kind of the entry that is stored with the submission of a prompt."""

_PROMPTS = select(steps.c.workflow_key, steps.c.output).where(
    steps.c.workflow_key.in_(bindparam("keys", expanding=True)),
    steps.c.kind == PROMPT,
    steps.c.status == StepStatus.DONE,
)
_PROMPTS_OF_RUN = _PROMPTS.where(steps.c.run == bindparam("of_run"))


def prompted(tx: Tx, keys: Sequence[str], *, run: int | None = None) -> list[str]:
    """The ids of the submissions that prompts of these workflows have made, as far as their journals are kept.

    With *run* only those of the runs of that number.
    """
    given: dict[str, Any] = {"keys": list(keys)}
    outputs = (
        tx.execute(_PROMPTS, given) if run is None else tx.execute(_PROMPTS_OF_RUN, {**given, "of_run": run})
    )
    return sorted({str(serialization.loads(row.output)["submission_id"]) for row in outputs})


_RELEASE = (
    update(submissions)
    .where(submissions.c.id.in_(bindparam("ids", expanding=True)), submissions.c.idempotency_key.is_not(None))
    .values(released_key=submissions.c.idempotency_key, idempotency_key=None)
)


def release_keys(tx: Tx, submission_ids: Sequence[str]) -> None:
    """Let the idempotency keys of these submissions be new again; which those were stays in ``released_key``."""
    if submission_ids:
        tx.execute(_RELEASE, {"ids": list(submission_ids)})


_OF_KEY: BindParameter[str] = bindparam("of_key")
_BEFORE = func.coalesce(bindparam("before", type_=steps.c.run.type), steps.c.run + 1)
_DELETE_STEPS = delete(steps).where(steps.c.workflow_key == _OF_KEY, steps.c.run < _BEFORE)
_DELETE_EVENTS = [
    delete(events).where(events.c.workflow_key == _OF_KEY, events.c.run > 0, is_its)  # one index for each
    for is_its in (events.c.consumed_by.is_(None), events.c.consumed_by.is_not(None))
]


def clear(tx: Tx, key: str, *, before: int | None = None) -> None:
    """Delete the events of a workflow, and its journals: all of them, or those of the runs *before* that one.

    Events that have come before their run stay: they are for the one to come.
    """
    tx.execute(_DELETE_STEPS, {"of_key": key, "before": before})
    for statement in _DELETE_EVENTS:
        tx.execute(statement, {"of_key": key})


# --- those that have ended ------------------------------------------------------------------------


def ended(
    tx: Tx,
    *,
    statuses: Sequence[str],
    agent: AgentRef | None,
    workflow: str | None,
    completed_before: datetime | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[Row[Any]]:
    """Workflows that have ended, oldest end first, from behind one on: when each ended, and its key."""
    w = workflows.c
    wanted = _ended(statuses, agent, workflow, completed_before)
    statement = select(w.completed_at, w.key).where(*wanted).order_by(w.completed_at, w.key).limit(limit)
    if after is not None:
        since, key = after
        statement = statement.where(w.completed_at >= since, or_(w.completed_at > since, w.key > key))
    return tx.execute(statement).all()


def count_ended(
    tx: Tx,
    *,
    statuses: Sequence[str],
    agent: AgentRef | None,
    workflow: str | None,
    completed_before: datetime | None,
) -> int:
    """How many workflows have ended and match."""
    wanted = _ended(statuses, agent, workflow, completed_before)
    return int(tx.execute(select(func.count()).select_from(workflows).where(*wanted)).scalar_one())


def _ended(
    statuses: Sequence[str], agent: AgentRef | None, workflow: str | None, completed_before: datetime | None
) -> list[ColumnElement[bool]]:
    w = workflows.c
    wanted: list[ColumnElement[bool]] = [
        w.completed_at.is_not(None),
        w.deleted_at.is_(None),
        w.status.in_(statuses),
    ]
    if agent is not None:
        wanted += [w.agent_class == agent.agent_class, w.agent_name == agent.name]
    if workflow is not None:
        wanted.append(w.workflow == workflow)
    if completed_before is not None:
        wanted.append(w.completed_at < completed_before)
    return wanted
