"""Schedules and their slots as their users see them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from think_celery import serialization
from think_celery.domain.reading import as_record
from think_celery.ids import AgentRef
from think_celery.states import SlotStatus


class ScheduleKind(StrEnum):
    """How often a schedule comes, and who made it."""

    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    CRON = "cron"
    INTERVAL = "interval"
    WALL = "wall"
    DECLARED = "declared"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A schedule as it stood when it was read.

    ``kind`` is ``scheduled`` (an instant), ``delayed``, ``cron``, ``interval``, ``wall`` or ``declared``.
    ``schedule`` is what it was made from: the text, or the seconds of an interval; ``None`` where it comes once.
    ``accepted`` is for the call that makes it: True where it did, False where an earlier one had; everywhere else it is
    ``None``. ``next_run_at`` is ``None`` and ``ended_at`` is set once it
    has no further slot. ``error`` is why it could not be fired when it was due last.
    """

    schedule_id: str
    agent: AgentRef
    kind: ScheduleKind
    schedule: str | float | None
    timezone: str | None
    method: str | None
    task_id: str | None
    prompt: str | None
    metadata: dict[str, Any] | None
    next_run_at: datetime | None
    last_slot_at: datetime | None
    created_at: datetime
    ended_at: datetime | None
    accepted: bool | None
    error_type: str | None
    error: str | None
    _payload: str | None

    @property
    def payload(self) -> Any:
        """What the method is called with.

        Raises:
            UnreadableValue: A class of it can't be found here.
        """
        return None if self._payload is None else serialization.loads(self._payload)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSlot:
    """One instant of a schedule that has come, as it stood when it was read.

    ``status`` is ``open``, ``done``, ``failed`` or ``skipped``, and ``reason`` says why it is one of the last two.
    ``missed_from`` is the first of the earlier instants that nobody fired in time and that this one stands for.
    """

    schedule_id: str
    scheduled_for: datetime
    status: SlotStatus
    reason: str | None
    missed_from: datetime | None
    job_id: str | None
    submission_id: str | None
    created_at: datetime
    completed_at: datetime | None


def as_schedule(row: Any, *, accepted: bool | None = None) -> Schedule:
    """A row as its users see it."""
    kind = ScheduleKind(row.kind)
    return as_record(Schedule, row, schedule_id=row.id, kind=kind, schedule=row.spec, accepted=accepted)


def as_slot(row: Any) -> ScheduleSlot:
    """A row as its users see it."""
    return as_record(ScheduleSlot, row, status=SlotStatus(row.status))
