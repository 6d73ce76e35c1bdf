"""The tables of jobs. ``store.tables`` has them, too, beside all others."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from think_celery.store.columns import Id, Name, Sequence, metadata
from think_celery.store.columns import partial as _partial
from think_celery.store.types import JsonText, UtcDateTime

# A job's lease is in its own row. Those of one agent and lane run one at a time, in the order of ``seq``; a row leaves
# its lane (``lane`` becomes null) when it has ended and nobody works on it any more.
jobs = Table(
    "think_jobs",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("id", Id, nullable=False),
    Column("agent_id", Id, nullable=False),
    Column("agent_class", Name, nullable=False),
    Column("agent_name", Name, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("lane", String(20)),
    Column("method", Name),
    Column("task_id", Name),
    Column("payload", Text),
    Column("metadata", JsonText),
    Column("idempotency_key", Text),
    Column("status", String(20), nullable=False),
    Column("snapshot", Text),
    Column("retry", JsonText),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("takeovers", Integer, nullable=False, server_default="0"),
    Column("timeout_seconds", Float),
    Column("due_at", UtcDateTime),
    Column("queue", Name),
    Column("error_type", Name),
    Column("error", Text),
    Column("output", Text),
    Column("slot_id", Id),
    Column("process_id", Id),
    Column("waits_for", JsonText),
    Column("token", BigInteger, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("completed_at", UtcDateTime),
    Column("knock_at", UtcDateTime),
    Column("knocks", Integer, nullable=False, server_default="0"),
    UniqueConstraint("id"),
    UniqueConstraint("agent_id", "kind", "idempotency_key"),
    Index("ix_think_jobs_agent", "agent_id", "seq"),
    _partial("ix_think_jobs_lane", "agent_id", "lane", "seq", where="lane IS NOT NULL"),
    _partial(
        "uq_think_jobs_lane",
        "agent_id",
        "lane",
        where="lane IS NOT NULL AND process_id IS NOT NULL",
        unique=True,
    ),
    _partial("ix_think_jobs_knock", "queue", "knock_at", where="knock_at IS NOT NULL"),
    _partial("ix_think_jobs_due", "due_at", where="due_at IS NOT NULL"),
    _partial("ix_think_jobs_process", "process_id", where="process_id IS NOT NULL"),
    _partial("ix_think_jobs_slot", "slot_id", where="slot_id IS NOT NULL"),
    _partial("ix_think_jobs_ended", "completed_at", where="completed_at IS NOT NULL"),
    sqlite_autoincrement=True,
)
