"""The tables of schedules and of their slots. ``store.tables`` has them, too, beside all others."""

from sqlalchemy import Column, Integer, String, Table, Text, UniqueConstraint

from think_celery.store.columns import Id, Name, metadata
from think_celery.store.columns import partial as _partial
from think_celery.store.types import JsonText, UtcDateTime

# The rules. `next_run_at` is the next slot; `due_at` is when somebody looks at the row: then, or later after a failure.
schedules = Table(
    "think_schedules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("agent_id", Id, nullable=False),
    Column("agent_class", Name, nullable=False),
    Column("agent_name", Name, nullable=False),
    Column("key", Id, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("spec", JsonText),
    Column("timezone", String(100)),
    Column("method", Name),
    Column("task_id", Name),
    Column("prompt", Text),
    Column("payload", Text),
    Column("retry", JsonText),
    Column("metadata", JsonText),
    Column("queue", Name),
    Column("hash", String(64)),
    Column("version", Name),
    Column("declared_at", UtcDateTime),
    Column("anchor_at", UtcDateTime, nullable=False),
    Column("next_run_at", UtcDateTime),
    Column("last_slot_at", UtcDateTime),
    Column("due_at", UtcDateTime),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("error_type", Name),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    UniqueConstraint("agent_id", "key"),
    _partial("ix_think_schedules_due", "due_at", "id", where="due_at IS NOT NULL"),
    _partial("ix_think_schedules_ended", "ended_at", where="ended_at IS NOT NULL"),
    _partial("ix_think_schedules_failing", "created_at", where="failures > 0"),
)

# The instants that came. `missed_from` is the first of the earlier ones that nobody fired in time, and that this one
# stands for.
slots = Table(
    "think_slots",
    metadata,
    Column("id", Id, primary_key=True),
    Column("schedule_id", Id, nullable=False),
    Column("scheduled_for", UtcDateTime, nullable=False),
    Column("missed_from", UtcDateTime),
    Column("status", String(20), nullable=False),
    Column("reason", Text),
    Column("job_id", Id),
    Column("submission_id", Id),
    Column("created_at", UtcDateTime, nullable=False),
    Column("completed_at", UtcDateTime),
    UniqueConstraint("schedule_id", "scheduled_for"),
    _partial("uq_think_slots_open", "schedule_id", where="status = 'open'", unique=True),
    _partial("ix_think_slots_ended", "completed_at", where="completed_at IS NOT NULL"),
)
