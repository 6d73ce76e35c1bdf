"""Make, look up and cancel schedules. Firing them is in ``firing``."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from think_celery import serialization
from think_celery.domain.agents import methods
from think_celery.domain.jobs import jobs
from think_celery.domain.pages import (
    Page,
    check_instant,
    check_limit,
    class_name,
    page_of,
    read_place,
    status_names,
)
from think_celery.domain.schedules import firing
from think_celery.domain.schedules.firing import fire_due as fire_due
from think_celery.domain.schedules.firing import next_due as next_due
from think_celery.domain.schedules.records import Schedule, ScheduleKind, as_schedule
from think_celery.domain.schedules.slots import CANCELLED
from think_celery.domain.schedules.specs import Rule
from think_celery.errors import ThinkError
from think_celery.ids import AgentRef, named_id, new_id
from think_celery.names import can_be_a_name
from think_celery.recurrence import Recurrence
from think_celery.retries import Retry, check_retry
from think_celery.runtime import Runtime
from think_celery.states import SlotStatus
from think_celery.store import jobs as job_rows
from think_celery.store import schedules, slots
from think_celery.store import submissions as submission_rows
from think_celery.store.database import Tx
from think_celery.store.health import now

SKIPPED_AS_CANCELLED = "Its schedule was cancelled before it had begun."
LOCKED_AT_MOST = timedelta(seconds=2)
"""How long a cancellation waits for the turn or the job of a slot that somebody has locked just then."""
DECLARED_AGAIN = timedelta(minutes=1)
"""How often it is noted that a task is still declared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What a schedule calls, and how."""

    method: str
    payload: str | None
    retry: Retry | None = None
    metadata: dict[str, Any] | None = None
    queue: str | None = None


# --- making ---------------------------------------------------------------------------------------


def of_method(
    agent: Any,
    rule: Rule,
    method: Any,
    payload: Any,
    idempotent: bool | None,
    retry: Retry | None,
    metadata: dict[str, Any] | None,
) -> Schedule:
    """Schedule a call of a method of this agent object, for a user.

    Raises:
        InvalidType: *retry* or *metadata* is something else.
        InvalidMethod: The method is none of the agent's, or can't be called so.
        NotSerializable, PayloadTooLarge: The payload or the metadata can't be stored.
    """
    rt, limit = agent._rt, agent._rt.settings.max_payload
    check_retry(retry)
    named = methods.named(agent, method, payload, call="schedule()", limit=limit)
    call = Call(
        method=named.name,
        payload=named.payload_text,
        retry=retry,
        metadata=serialization.json_metadata(metadata, limit),
        queue=agent._celery_queue,
    )
    row, new = schedule(rt, agent._ref, rule, call, idempotent=idempotent)
    return as_schedule(row, accepted=new)


def schedule(
    rt: Runtime, agent: AgentRef, rule: Rule, call: Call, *, idempotent: bool | None
) -> tuple[Any, bool]:
    """Store a schedule of a call: its row, and whether it is new.

    An *idempotent* one is made once for its method, payload and time, as long as it has not ended; a repeat brings its
    zone, retries, metadata and queue up to date. Rules that recur are idempotent unless it is said otherwise.
    """
    once = rule.recurrence is not None if idempotent is None else idempotent
    return rt.db.accept(lambda tx: _store(tx, agent, rule, call, once=once))


def _store(tx: Tx, agent: AgentRef, rule: Rule, call: Call, *, once: bool) -> tuple[Any, bool]:
    for _ in range(3):
        schedule_id = new_id()
        key = f"call:{named_id(call.method, call.payload, rule.kind, rule.key)}" if once else schedule_id
        columns = {"key": key, "kind": rule.kind, **_columns(rule, call)}
        row = _insert(tx, agent, schedule_id, rule, columns)
        if row is not None:
            return row, True
        row = schedules.by_key(tx, agent.id, key)
        if row is not None and not row.destroyed:
            return _up_to_date(tx, row, rule, _columns(rule, call)), False
        if row is not None:  # it was made before its agent was destroyed, and committed after that
            schedules.end(tx, row.id)
    raise ThinkError(
        f"could not schedule {call.method} of {agent}: its row was removed each time it was looked at"
    )


def _columns(rule: Rule, call: Call) -> dict[str, Any]:
    return {
        "spec": rule.spec,
        "timezone": None if rule.recurrence is None else rule.recurrence.timezone,
        "method": call.method,
        "payload": call.payload,
        "retry": None if call.retry is None else jobs.stored_retry(call.retry),
        "metadata": call.metadata,
        "queue": call.queue,
    }


def _insert(tx: Tx, agent: AgentRef, schedule_id: str, rule: Rule, columns: dict[str, Any]) -> Any:
    if rule.delay is not None:
        return schedules.insert_delayed(tx, agent, schedule_id, rule.delay, **columns)
    present = now(tx)
    first = rule.at if rule.recurrence is None else rule.recurrence.next_after(present, present)
    assert first is not None
    return schedules.insert(tx, agent, schedule_id, next_run_at=first, anchor_at=present, **columns)


def _up_to_date(tx: Tx, row: Any, rule: Rule, columns: dict[str, Any]) -> Any:
    """What may change of a schedule that is there; another zone gives it another next slot, from now on."""
    changed = {
        name: columns[name]
        for name in ("timezone", "retry", "metadata", "queue")
        if columns[name] != getattr(row, name)
    }
    if not changed and row.due_at is not None:
        return row
    locked = schedules.lock(tx, row.id)
    if locked is None or locked.ended_at is not None:
        return row
    if "timezone" in changed or locked.due_at is None:
        changed |= {"spec": columns["spec"], **_armed(rule.recurrence, locked)}
    schedules.change(tx, row.id, **changed)
    return schedules.get(tx, row.id)


def _armed(rule: Recurrence | None, row: Any) -> dict[str, Any]:
    if rule is None:
        return {"due_at": row.next_run_at}
    following = firing.following(rule, row, row.now)
    return {"next_run_at": following, "due_at": following}


# --- tasks that a class declares ------------------------------------------------------------------


def upsert_declared(
    rt: Runtime,
    tx: Tx,
    agent: AgentRef,
    task_id: str,
    rule: Recurrence,
    spec: str | float,
    *,
    digest: str,
    version: str,
    prompt: str | None = None,
    retry: Retry | None = None,
    metadata: dict[str, Any] | None = None,
    queue: str | None = None,
) -> bool:
    """Store what a class declares under this task id, and say whether something changed.

    One with the same *digest* stays as it is, but it is armed again if it had come to have no next slot. Else, where
    its time is another now, that counts from now on; what it has fired is never fired again. A task without a prompt
    has a handler.

    Args:
        rt: The runtime.
        tx: The transaction; other rows than schedules may not be locked after this.
        agent: Whose task.
        task_id: Its id.
        rule: Its time.
        spec: What the rule was parsed from.
        digest: A hash of all that is declared, 64 characters at most.
        version: The version of the agent's class.
        prompt: The text of its turn.
        retry: How a handler that raises is tried again.
        metadata: The task's own.
        queue: Where its work goes.
    """
    declared = {
        "spec": spec,
        "timezone": rule.timezone,
        "prompt": prompt,
        "retry": None if retry is None else jobs.stored_retry(retry),
        "metadata": metadata,
        "queue": queue,
        "hash": digest,
        "version": version,
    }
    key = f"task:{task_id}"
    row = schedules.by_key(tx, agent.id, key)
    if row is not None and row.destroyed:
        schedules.end(tx, row.id)  # it was made before its agent was destroyed, and committed after that
        row = None
    if row is None:
        present = now(tx)
        first = rule.next_after(present, present)
        own = {"key": key, "kind": "declared", "task_id": task_id, **declared}
        new = schedules.insert(tx, agent, new_id(), next_run_at=first, anchor_at=present, **own)
        if new is not None:
            return True
    elif row.hash == digest and row.version == version and row.due_at is not None and _is_fresh(tx, row):
        return False
    row = schedules.lock_by_key(tx, agent.id, key)
    if row is None:  # removed just now: whoever does that knows better, or the next start declares it again
        return False
    return _declare_again(tx, row, rule, declared)


def _is_fresh(tx: Tx, row: Any) -> bool:
    return row.declared_at is not None and now(tx) - row.declared_at < DECLARED_AGAIN


def _declare_again(tx: Tx, row: Any, rule: Recurrence, declared: dict[str, Any]) -> bool:
    if row.hash == declared["hash"]:
        armed = _armed(rule, row) if row.next_run_at is None else {}
        armed = {"due_at": row.next_run_at} if not armed and row.due_at is None else armed
        schedules.declare(tx, row.id, version=declared["version"], **armed)
        return bool(armed)
    before = firing.rule_of(row)
    same_time = before is not None and before.canonical == rule.canonical and row.timezone == rule.timezone
    if same_time and row.next_run_at is not None:
        schedules.declare(
            tx, row.id, **declared, due_at=row.next_run_at, failures=0, error_type=None, error=None
        )
        return True
    anchor = {} if same_time else {"anchor_at": row.now}
    first = rule.next_after(
        max(row.now, row.last_slot_at or row.now), row.anchor_at if same_time else row.now
    )
    times = {"next_run_at": first, "due_at": first, "failures": 0, "error_type": None, "error": None}
    schedules.declare(tx, row.id, **declared, **anchor, **times)
    return True


# --- looking and cancelling -----------------------------------------------------------------------


def get(rt: Runtime, schedule_id: str, agent: AgentRef | None = None) -> Any:
    """The row of a schedule (of that agent), or ``None``."""
    if not can_be_a_name(schedule_id, 200):
        return None
    row = rt.db.look(lambda tx: schedules.get(tx, schedule_id))
    return None if row is None or (agent is not None and row.agent_id != agent.id) else row


def find(
    rt: Runtime,
    agent: AgentRef | None = None,
    *,
    kind: str | Sequence[str] | None = None,
    agent_class: Any = None,
    method: Any = None,
    task_id: str | None = None,
    due_after: datetime | None = None,
    due_before: datetime | None = None,
    ended: bool = False,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Any]:
    """Rows of schedules, the one that is due next first; *ended*: those that have ended, the latest first.

    Raises:
        InvalidType: *agent_class* is neither a class nor a name.
        ValueError: A kind is unknown, *limit* is not between 1 and 1000, or an instant has no time zone.
    """
    check_limit(limit)
    for name, instant in (("due_after", due_after), ("due_before", due_before)):
        check_instant(name, instant)
    kinds = status_names(kind, ScheduleKind, "kind")
    names = {
        "agent_class": class_name(agent_class),
        "method": getattr(method, "__name__", method),
        "task_id": task_id,
    }
    if not all(name is None or can_be_a_name(name, 200) for name in names.values()):
        return Page()
    agent_id, times = None if agent is None else agent.id, {"due_after": due_after, "due_before": due_before}
    wanted = {"agent_id": agent_id, "kinds": kinds, **names, **times, "ended": ended}
    order = "ended schedules" if ended else "schedules"
    after = read_place(cursor, order)
    rows = rt.db.look(lambda tx: schedules.find(tx, **wanted, after=after, limit=limit + 1))
    return page_of(rows, limit, order, lambda row: (row.ended_at if ended else row.next_run_at, row.id))


def find_slots(
    rt: Runtime,
    schedule_id: str,
    agent: AgentRef | None = None,
    *,
    status: str | Sequence[str] | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Any]:
    """Rows of a schedule's slots, the latest first.

    Raises:
        ValueError: A status is unknown, or *limit* is not between 1 and 1000.
    """
    check_limit(limit)
    statuses, place = status_names(status, SlotStatus), read_place(cursor, "slots")
    if get(rt, schedule_id, agent) is None:
        return Page()
    before = None if place is None else place[0]  # no two slots of a schedule are at one instant
    rows = rt.db.look(
        lambda tx: slots.find(tx, schedule_id, statuses=statuses, before=before, limit=limit + 1)
    )
    return page_of(rows, limit, "slots", lambda row: (row.scheduled_for, row.id))


def cancel(rt: Runtime, schedule_id: str, agent: AgentRef | None = None) -> bool:
    """End a schedule, and say whether this call stopped anything.

    A slot that has come and has not begun is skipped; one that runs goes on to its end.
    """
    if not can_be_a_name(schedule_id, 200):
        return False
    return rt.db.accept(lambda tx: end(rt, tx, schedule_id, agent))


def end(rt: Runtime, tx: Tx, schedule_id: str, agent: AgentRef | None = None) -> bool:
    """The same in this transaction."""
    row = schedules.lock(tx, schedule_id)
    if row is None or (agent is not None and row.agent_id != agent.id):
        return False
    ended = schedules.end(tx, row.id)
    slot = slots.open_of(tx, row.id)
    if slot is None:
        return ended
    way = firing.overtake(rt, tx, slot, CANCELLED, SKIPPED_AS_CANCELLED)
    if way == "locked":  # perhaps only by a tick that knocks for it, and nobody else will look at it again
        tx.after_commit(lambda: rt.db.transact(lambda tx: _skip(rt, tx, slot)))
    return way == "free" or ended


def _skip(rt: Runtime, tx: Tx, slot: Any) -> None:
    """Skip the work of a slot of a schedule that has ended, if it has not begun. This may wait: no other is locked."""
    tx.wait_at_most(LOCKED_AT_MOST)
    if slot.submission_id is None:
        job_rows.lock(tx, slot.job_id)
    else:
        submission_rows.lock(tx, slot.submission_id)
    firing.overtake(rt, tx, slot, CANCELLED, SKIPPED_AS_CANCELLED)
