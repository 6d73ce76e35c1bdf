"""Jobs and fibers as their users see them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from think_celery import serialization
from think_celery.domain.reading import as_record
from think_celery.domain.submissions.receipts import milliseconds
from think_celery.ids import AgentRef
from think_celery.states import JobStatus, is_terminal


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What is known of a durable call of an agent's method, whatever made it."""

    agent: AgentRef
    status: JobStatus
    accepted: bool | None
    attempts: int
    idempotency_key: str | None
    metadata: dict[str, Any] | None
    error_type: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    _output: str | None = field(repr=False)

    @property
    def output(self) -> Any:
        """What its method returned, if it is completed and that can be stored; else ``None``."""
        return None if self._output is None else serialization.loads(self._output)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(_Call):
    """One durable call of an agent's method, as it stood when it was read.

    ``kind`` says where it comes from: ``queue``, ``scheduled``, ``fiber``, or ``hook`` (a workflow tells its agent).
    ``accepted`` is for :meth:`~Think.queue`: True where that call stored it, False where an earlier one had;
    everywhere else it is ``None``. ``attempts`` counts how often it was begun, not
    counting those that a worker handed over in order. ``error`` is the reason of one that was cancelled, too, and that
    of the last attempt of one that is tried again: not before ``due_at``.
    """

    job_id: str
    kind: str
    method: str | None
    task_id: str | None
    due_at: datetime | None
    _payload: str | None = field(repr=False)

    @property
    def payload(self) -> Any:
        """What the method is called with, as it is stored: JSON values where the method asks for a model."""
        return None if self._payload is None else serialization.loads(self._payload)

    def to_dict(self) -> dict[str, Any]:
        """A receipt in JSON values and JavaScript spelling, without the payload; what is not set is left out."""
        receipt = {
            "jobId": self.job_id,
            "kind": self.kind,
            "method": self.method,
            "taskId": self.task_id,
            "status": str(self.status),
            "accepted": self.accepted,
            "attempts": self.attempts,
            "idempotencyKey": self.idempotency_key,
            "metadata": self.metadata,
            "errorType": self.error_type,
            "error": self.error,
            "dueAt": milliseconds(self.due_at),
            "createdAt": milliseconds(self.created_at),
            "startedAt": milliseconds(self.started_at),
            "completedAt": milliseconds(self.completed_at),
        }
        return {name: value for name, value in receipt.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class FiberRun(_Call):
    """A fiber as it stood when it was read.

    ``accepted`` is for the call that starts it: True where it did, False where an earlier one had; everywhere else it
    is ``None``. ``interrupted`` is a status of its own: the worker died,
    and nobody has decided what becomes of it. ``error`` is the reason of one that was cancelled, too, and what
    ``on_fiber_recovered`` raised for one that is interrupted.
    """

    fiber_id: str
    method: str
    _snapshot: str | None = field(repr=False)

    @property
    def snapshot(self) -> Any:
        """What it stashed last; ``None`` if nothing."""
        return None if self._snapshot is None else serialization.loads(self._snapshot)

    @property
    def settled(self) -> bool:
        """Whether it has ended: nothing changes it any more."""
        return is_terminal(self.status)

    def to_dict(self) -> dict[str, Any]:
        """A receipt in JSON values and JavaScript spelling, without snapshot; what is not set is left out."""
        receipt = {
            "fiberId": self.fiber_id,
            "name": self.method,
            "status": str(self.status),
            "accepted": self.accepted,
            "idempotencyKey": self.idempotency_key,
            "metadata": self.metadata,
            "errorType": self.error_type,
            "error": self.error,
            "createdAt": milliseconds(self.created_at),
            "startedAt": milliseconds(self.started_at),
            "settledAt": milliseconds(self.completed_at),
        }
        return {name: value for name, value in receipt.items() if value is not None}


def as_job(row: Any, *, accepted: bool | None = None) -> Job:
    """A row as its users see it."""
    status, attempts = JobStatus(row.status), times_begun(row)
    return as_record(Job, row, job_id=row.id, status=status, accepted=accepted, attempts=attempts)


def as_fiber(row: Any, *, accepted: bool | None = None) -> FiberRun:
    """A row as its users see it."""
    status, attempts = JobStatus(row.status), times_begun(row)
    return as_record(FiberRun, row, fiber_id=row.id, status=status, accepted=accepted, attempts=attempts)


def times_begun(row: Any) -> int:
    """How often a job was begun, not counting the times that a worker handed it over in order."""
    return int(row.takeovers if row.kind == "fiber" else row.attempts + row.failures)
