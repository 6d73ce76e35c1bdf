"""Fire the schedules that are due: each slot once, by however many processes at once.

A slot is one transaction: the rule's row goes on to its next slot, and the job or the turn and the row of the slot are
there. The row is locked for it, and where somebody else has it locked it is theirs: nobody waits. What is due goes by
the database's clock.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from think_celery.clock import MICROSECOND, to_milliseconds
from think_celery.described import describe
from think_celery.domain.jobs import jobs
from think_celery.domain.passes import ROWS, each_row
from think_celery.domain.schedules.slots import (
    LOST,
    OVERTAKEN,
    RAN_BEFORE,
    STILL_RUNNING,
    job_ended,
    turn_ended,
)
from think_celery.domain.submissions import lines, submissions
from think_celery.ids import AgentRef, new_id, short_hash
from think_celery.messages import as_messages
from think_celery.recurrence import Recurrence, parse
from think_celery.retries import LONGEST_AGAIN, Retry, doubled
from think_celery.runtime import Runtime
from think_celery.states import JobStatus, SlotStatus, SubmissionStatus, TurnKind, is_terminal
from think_celery.store import jobs as job_rows
from think_celery.store import schedules, slots
from think_celery.store import submissions as submission_rows
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.schedules")

BUSY_AGAIN = timedelta(seconds=1)
"""How soon a schedule is looked at again whose last turn somebody has locked just now."""
FAILED_AGAIN = timedelta(seconds=2)
"""How soon a schedule is looked at again that could not be fired; doubled each time, up to 5 minutes."""

SKIPPED_AS_OVERTAKEN = "It had not begun when the next slot of its schedule came."


Way = Literal["free", "running", "locked"]
"""How it stands with the work of an open slot, for who wants to put another in its place."""


def fire_due(rt: Runtime, limit: int = ROWS) -> int:
    """Fire the schedules that are due, *limit* of them at most, and say how many rows were moved.

    Any number of processes may do so at once. A schedule that fails is put off, the longer the more often, and hides
    no other; neither do those that somebody has locked.
    """
    errors: dict[str, Exception] = {}
    moved: list[str] = []

    def pages(page: Sequence[Any]) -> Iterator[Any]:
        while page:
            for row in page:
                if len(moved) < limit:
                    yield row
            if len(page) < limit or len(moved) == limit:
                return
            page = rt.db.read(lambda tx, last=page[-1]: schedules.due(tx, limit, last))  # type: ignore[misc]

    def work(tx: Tx, seen: Any) -> int:
        try:
            done = _fire(rt, tx, seen.id)
        except Exception as error:
            errors[seen.id] = error
            raise
        if done:
            moved.append(seen.id)
        return done

    def put_off(tx: Tx, seen: Any) -> int:
        return _put_off(tx, seen.id, errors[seen.id])

    due = rt.db.read(lambda tx: schedules.due(tx, limit))  # before the time of the pass is counted
    return each_row(rt, "fire a schedule", pages(due), work, otherwise=put_off)


def next_due(rt: Runtime) -> datetime | None:
    """The next instant at which a schedule is due; ``None`` if none is."""
    return rt.db.read(schedules.next_due)


def _put_off(tx: Tx, schedule_id: str, error: Exception) -> int:
    row = schedules.lock_due(tx, schedule_id)
    if row is None:
        return 0
    name, text = describe(error)
    after = doubled(FAILED_AGAIN, row.failures, LONGEST_AGAIN)
    return schedules.failed(tx, schedule_id, after, name, text)


# --- one slot -------------------------------------------------------------------------------------


def _fire(rt: Runtime, tx: Tx, schedule_id: str) -> int:
    row = schedules.lock_due(tx, schedule_id)
    if row is None:
        return 0
    if row.destroyed:  # made in a transaction that was open when its agent was destroyed
        schedules.end(tx, row.id)
        return 1
    slot, following = slot_of(row)
    if row.last_slot_at is not None and slot <= row.last_slot_at:
        return _move_on(tx, row, following)
    unfinished, there = slots.open_or_at(tx, row.id, slot)
    if there:
        return int(schedules.fire(tx, row.id, row.next_run_at, slot, following))
    way: Way = "free"
    if unfinished is not None:
        way = overtake(rt, tx, unfinished, OVERTAKEN, SKIPPED_AS_OVERTAKEN)
    if way == "locked":
        schedules.put_off(tx, row.id, BUSY_AGAIN)
        return 0
    if not schedules.fire(tx, row.id, row.next_run_at, slot, following):
        return 0
    rt.failpoint("schedule:fired")
    _store(rt, tx, row, slot, running=way == "running")
    tx.after_commit(lambda: rt.failpoint("schedule:committed"))
    return 1


def _move_on(tx: Tx, row: Any, following: datetime | None) -> int:
    return schedules.end(tx, row.id) if following is None else schedules.move_on(tx, row.id, following)


def rule_of(row: Any) -> Recurrence | None:
    """The rule of a schedule; ``None`` where it has one slot only."""
    return None if row.spec is None else parse(row.spec, timezone=row.timezone)


def slot_of(row: Any) -> tuple[datetime, datetime | None]:
    """The slot that a due schedule stands at, and the one after it.

    That is the latest that has come: of those that nobody fired in time, no other is made up for.
    """
    rule = rule_of(row)
    if rule is None:
        return row.next_run_at, None
    latest = rule.latest_until(row.next_run_at - MICROSECOND, row.now, row.anchor_at)
    slot = row.next_run_at if latest is None else latest
    return slot, following(rule, row, row.now)


def following(rule: Recurrence, row: Any, now: datetime) -> datetime:
    """The next slot of a schedule after now, and after each one that it has fired: a clock may have been set back."""
    after = now if row.last_slot_at is None else max(now, row.last_slot_at)
    return rule.next_after(after, row.anchor_at)


def overtake(rt: Runtime, tx: Tx, slot: Any, reason: str, error: str) -> Way:
    """Skip the work of an open slot, if it has not begun: then the way is free. What is locked is not waited for."""
    act = _overtake_job if slot.submission_id is None else _overtake_turn
    return act(rt, tx, slot, reason, error)


def _overtake_turn(rt: Runtime, tx: Tx, slot: Any, reason: str, error: str) -> Way:
    row = submission_rows.lock(tx, slot.submission_id, patient=False)
    if row is None:
        if submission_rows.get(tx, slot.submission_id) is not None:
            return "locked"
        slots.close(tx, slot.id, SlotStatus.FAILED, LOST)
        return "free"
    status = SubmissionStatus(row.status)
    if is_terminal(status):
        began = row.applied_at is not None
        turn_ended(tx, row, status, began=began, error_type=row.error_type, error=row.error)
        return "free"
    if row.applied_at is not None:
        return "running"
    slots.close(tx, slot.id, SlotStatus.SKIPPED, reason)
    lines.end(rt, tx, row, SubmissionStatus.SKIPPED, error=error)
    return "free"


def _overtake_job(rt: Runtime, tx: Tx, slot: Any, reason: str, error: str) -> Way:
    row = job_rows.lock(tx, slot.job_id, patient=False)
    if row is None:
        if job_rows.get(tx, slot.job_id) is not None:
            return "locked"
        slots.close(tx, slot.id, SlotStatus.FAILED, LOST)
        return "free"
    if is_terminal(JobStatus(row.status)):
        status, began = JobStatus(row.status), row.started_at is not None
        job_ended(tx, row, status, began=began, error_type=row.error_type, error=row.error)
        return "free"
    if row.started_at is not None:
        return "running"
    slots.close(tx, slot.id, SlotStatus.SKIPPED, reason)
    jobs.cancel(rt, tx, row.id, error)
    return "free"


def _store(rt: Runtime, tx: Tx, row: Any, slot: datetime, *, running: bool) -> None:
    """Store the slot, and what it makes."""
    slot_id, late = new_id(), row.next_run_at if row.next_run_at < slot else None
    work: Mapping[str, str] | None = {}
    if not running:
        work = _accept(rt, tx, row, slot, slot_id)
    reason = STILL_RUNNING if running else (RAN_BEFORE if work is None else None)
    status = SlotStatus.OPEN if reason is None else SlotStatus.SKIPPED
    slots.insert(tx, slot_id, row.id, slot, status, reason=reason, missed_from=late, **(work or {}))
    agent = AgentRef.of(row)
    logger.info(
        "schedule %s of %s: the slot of %s is %s",
        row.id,
        agent,
        slot.isoformat(),
        status if reason is None else f"{status} ({reason})",
        extra={"think_event": f"schedule.{status}", "think_schedule": row.id, "think_agent": str(agent)},
    )


def _accept(rt: Runtime, tx: Tx, row: Any, slot: datetime, slot_id: str) -> Mapping[str, str] | None:
    """Accept the turn or the job of a slot; ``None`` where there is one of its key already."""
    agent = AgentRef.of(row)
    key, metadata = idempotency_key(row, slot), _metadata(row, slot)
    if row.prompt is not None:
        turn, new = submissions.accept(
            rt,
            tx,
            agent,
            as_messages(row.prompt),
            kind=TurnKind.SCHEDULED,
            idempotency_key=key,
            metadata=metadata,
            queue=row.queue,
            slot_id=slot_id,
        )
        return {"submission_id": turn.id} if new else None
    job = jobs.insert(
        rt,
        tx,
        agent,
        kind="scheduled",
        method=row.method,
        task_id=row.task_id,
        payload_text=row.payload,
        retry=None if row.retry is None else Retry(**row.retry),
        metadata=metadata,
        idempotency_key=key,
        queue=row.queue,
        slot_id=slot_id,
    )
    return None if job is None else {"job_id": job.id}


# --- what a slot is called ------------------------------------------------------------------------


def idempotency_key(row: Any, slot: datetime) -> str:
    """The key of what a slot makes: the same in every process, and when a declared task is removed and comes again."""
    owner = row.id if row.task_id is None else f"{short_hash(row.agent_id)}:{row.task_id}"
    return f"think-schedule:{owner}:{to_milliseconds(slot)}"


def occurrence_key(row: Any, slot: datetime) -> str:
    """What tells a slot from the others of its agent."""
    return f"{row.task_id or row.id}:{to_milliseconds(slot)}"


def _metadata(row: Any, slot: datetime) -> dict[str, Any]:
    rule = rule_of(row)
    ours = {
        "source": "schedule" if row.task_id is None else "scheduled-task",
        "schedule_id": row.id,
        "task_id": row.task_id,
        "scheduled_for": slot.isoformat(),
        "occurrence_key": occurrence_key(row, slot),
        "schedule": row.spec,
        "schedule_kind": row.kind if rule is None else rule.kind,
        "timezone": row.timezone if rule is None else rule.timezone,
    }
    return {**(row.metadata or {}), **{name: value for name, value in ours.items() if value is not None}}
