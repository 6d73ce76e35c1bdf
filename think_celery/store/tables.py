"""All tables and their indexes.

Ids are text. Instants are microseconds (:class:`UtcDateTime`). What users pass is JSON text: plain
(:class:`JsonText`) where only JSON is allowed, or ``Text`` written by ``serialization.dumps`` where
typed values must come back equal.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from think_celery.store.columns import Id, Name, Sequence
from think_celery.store.columns import metadata as metadata
from think_celery.store.columns import partial as _partial
from think_celery.store.job_tables import jobs as jobs
from think_celery.store.schedule_tables import schedules as schedules
from think_celery.store.schedule_tables import slots as slots
from think_celery.store.types import JsonText, UtcDateTime

UNPLACED = 2**62
"""The position of a message whose turn has not ended: after every other one."""


processes = Table(
    "think_processes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("until", UtcDateTime, nullable=False),
    Column("suspect_since", UtcDateTime),
    Column("dead", Boolean, nullable=False, server_default=false()),
    Column("host", JsonText, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Index("ix_think_processes_until", "until"),
)

# When each kind of regular pass was made last, and since when they have come steadily. And, as "ping" with the hash of
# a queue, when a worker took a ping of the doctor's from it last.
ticks = Table(
    "think_ticks",
    metadata,
    Column("kind", String(40), primary_key=True),
    Column("last_at", UtcDateTime, nullable=False),
    Column("steady_since", UtcDateTime, nullable=False),
)

agents = Table(
    "think_agents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("agent_class", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("state", Text),
    Column("state_version", Integer, nullable=False, server_default="0"),
    Column("queue", Name),
    Column("started_version", Name),
    Column("start_version", Name),
    Column("start_attempts", Integer, nullable=False, server_default="0"),
    Column("start_error_type", Name),
    Column("start_error", Text),
    Column("start_failed_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("destroyed_at", UtcDateTime),
    Column("jobs_since", UtcDateTime),
    Column("sweep_at", UtcDateTime),
    Column("knock_at", UtcDateTime),
    Column("knocks", Integer, nullable=False, server_default="0"),
    Index("ix_think_agents_name", "agent_class", "name"),
    _partial("ix_think_agents_failed", "start_failed_at", where="start_failed_at IS NOT NULL"),
    _partial("ix_think_agents_sweep", "sweep_at", where="sweep_at IS NOT NULL"),
    _partial("ix_think_agents_knock", "knock_at", where="knock_at IS NOT NULL"),
)

# Tokens that were used by submissions which are deleted. A row is only ever added, so nobody waits for another.
past_usage = Table(
    "think_past_usage",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("agent_id", Id, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Index("ix_think_past_usage_agent_id", "agent_id"),
    sqlite_autoincrement=True,
)

lines = Table(
    "think_lines",
    metadata,
    Column("agent_id", Id, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("process_id", Id),
    Column("token", BigInteger, nullable=False, server_default="0"),
    Column("look_at", UtcDateTime),
    Column("waits_for", JsonText),
    PrimaryKeyConstraint("agent_id", "kind"),
    _partial("ix_think_lines_process", "process_id", where="process_id IS NOT NULL"),
    _partial("ix_think_lines_look", "look_at", where="look_at IS NOT NULL"),
)

messages = Table(
    "think_messages",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("agent_id", Id, nullable=False),
    Column("message_id", Id, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("role", String(20), nullable=False),
    Column("parts", JsonText, nullable=False),
    Column("metadata", JsonText),
    Column("status", String(20), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("agent_id", "message_id"),
    Index("ix_think_messages_order", "agent_id", "position", "seq"),
    sqlite_autoincrement=True,
)

submissions = Table(
    "think_submissions",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("id", Id, nullable=False),
    Column("agent_id", Id, nullable=False),
    Column("agent_class", Name, nullable=False),
    Column("agent_name", Name, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("idempotency_key", Text),
    Column("released_key", Text),
    Column("status", String(20), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("messages", JsonText),
    Column("metadata", JsonText),
    Column("fingerprint", String(64), nullable=False),
    Column("structure", JsonText),
    Column("based_on", String(64)),
    Column("workflow_key", Id),
    Column("workflow_run", Integer),
    Column("event_type", Name),
    Column("slot_id", Id),
    Column("message_id", Id),
    Column("continues", Id),
    Column("steps_before", Integer, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("takeovers", Integer, nullable=False, server_default="0"),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("progress_at", UtcDateTime),
    Column("model_attempts", Integer, nullable=False, server_default="0"),
    Column("model_position", Integer, nullable=False, server_default="0"),
    Column("cancel_intent", Text),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("total_tokens", BigInteger, nullable=False, server_default="0"),
    Column("not_before", UtcDateTime),
    Column("queue", Name),
    Column("error_type", Name),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("applied_at", UtcDateTime),
    Column("started_at", UtcDateTime),
    Column("completed_at", UtcDateTime),
    Column("slimmed_at", UtcDateTime),
    Column("knock_at", UtcDateTime),
    Column("knocks", Integer, nullable=False, server_default="0"),
    UniqueConstraint("id"),
    UniqueConstraint("agent_id", "idempotency_key"),
    Index("ix_think_submissions_agent", "agent_id", "status", "seq"),
    _partial("uq_think_submissions_running", "agent_id", where="status = 'running'", unique=True),
    _partial("ix_think_submissions_knock", "queue", "knock_at", where="knock_at IS NOT NULL"),
    _partial("ix_think_submissions_ended", "completed_at", where="completed_at IS NOT NULL"),
    _partial(
        "ix_think_submissions_whole", "completed_at", where="completed_at IS NOT NULL AND slimmed_at IS NULL"
    ),
    sqlite_autoincrement=True,
)

interactions = Table(
    "think_interactions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("agent_id", Id, nullable=False),
    Column("agent_class", Name, nullable=False),
    Column("agent_name", Name, nullable=False),
    Column("submission_id", Id, nullable=False),
    Column("message_id", Id, nullable=False),
    Column("tool_call_id", Id, nullable=False),
    Column("tool", Name, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", Text),
    Column("output", JsonText),
    Column("error", Text),
    Column("continuation_id", Id),
    Column("created_at", UtcDateTime, nullable=False),
    Column("decided_at", UtcDateTime),
    UniqueConstraint("agent_id", "message_id", "tool_call_id"),
    _partial("ix_think_interactions_open", "agent_id", "created_at", where="status = 'open'"),
    _partial("ix_think_interactions_decided", "decided_at", where="decided_at IS NOT NULL"),
)

workflows = Table(
    "think_workflows",
    metadata,
    Column("key", Id, primary_key=True),
    Column("workflow", Name, nullable=False),
    Column("workflow_id", Id, nullable=False),
    Column("run", Integer, nullable=False, server_default="1"),
    Column("version", String(100), nullable=False),
    Column("agent_class", Name, nullable=False),
    Column("agent_name", Name, nullable=False),
    Column("queue", Name),
    Column("step_queue", Name),
    Column("parent_key", Id),
    Column("parent_run", Integer),
    Column("parent_event", Name),
    Column("params", Text, nullable=False),
    Column("metadata", JsonText),
    Column("status", String(20), nullable=False),
    Column("output", Text),
    Column("error_type", Name),
    Column("error", Text),
    Column("progress", Text),
    Column("pause_at", UtcDateTime),
    Column("wake_at", UtcDateTime),
    Column("wakes", Integer, nullable=False, server_default="0"),
    Column("inbox", Integer, nullable=False, server_default="0"),
    Column("parked_inbox", Integer, nullable=False, server_default="0"),
    Column("process_id", Id),
    Column("token", BigInteger, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("takeovers", Integer, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("completed_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),
    Column("knock_at", UtcDateTime),
    Column("knocks", Integer, nullable=False, server_default="0"),
    UniqueConstraint("workflow_id", "workflow"),  # in this order: calls by id know no class
    _partial("ix_think_workflows_created", "created_at", "key", where="deleted_at IS NULL"),
    _partial(
        "ix_think_workflows_agent",
        "agent_class",
        "agent_name",
        "created_at",
        "key",
        where="deleted_at IS NULL",
    ),
    _partial("ix_think_workflows_deleted", "deleted_at", where="deleted_at IS NOT NULL"),
    _partial(
        "ix_think_workflows_knock", "queue", "knock_at", where="knock_at IS NOT NULL AND step_queue IS NULL"
    ),
    _partial(
        "ix_think_workflows_knock_step",
        "step_queue",
        "knock_at",
        where="knock_at IS NOT NULL AND step_queue IS NOT NULL",
    ),
    _partial("ix_think_workflows_wake", "wake_at", where="wake_at IS NOT NULL"),
    _partial("ix_think_workflows_process", "process_id", where="process_id IS NOT NULL"),
    _partial("ix_think_workflows_ended", "completed_at", where="completed_at IS NOT NULL"),
    _partial("ix_think_workflows_parent", "parent_key", "parent_run", where="parent_key IS NOT NULL"),
    _partial("ix_think_workflows_unread", "key", where="status = 'waiting' AND inbox > parked_inbox"),
)

steps = Table(
    "think_steps",
    metadata,
    Column("workflow_key", Id, nullable=False),
    Column("run", Integer, nullable=False),
    Column("step", Name, nullable=False),
    Column("position", Integer, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("output", Text),
    Column("error_type", Name),
    Column("error", Text),
    Column("trace", Text),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("timeout_seconds", Float),
    Column("deadline_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("completed_at", UtcDateTime),
    PrimaryKeyConstraint("workflow_key", "run", "step"),
)

events = Table(
    "think_events",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("workflow_key", Id, nullable=False),
    Column("run", Integer, nullable=False),
    Column("type", Name, nullable=False),
    Column("payload", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("consumed_by", Name),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("dedupe_key"),
    _partial("ix_think_events_unread", "workflow_key", "run", "type", "seq", where="consumed_by IS NULL"),
    _partial("ix_think_events_read", "workflow_key", where="consumed_by IS NOT NULL"),
    _partial("ix_think_events_early", "created_at", where="run = 0"),
    sqlite_autoincrement=True,
)

outbox = Table(
    "think_outbox",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dedupe_key", Text, nullable=False),
    Column("workflow_key", Id, nullable=False),
    Column("run", Integer, nullable=False),
    Column("event_type", Name, nullable=False),
    Column("payload", Text),
    Column("submission_id", Id),
    Column("queue", Name),
    Column("status", String(20), nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("last_error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("delivered_at", UtcDateTime),
    Column("knock_at", UtcDateTime),
    Column("knocks", Integer, nullable=False, server_default="0"),
    UniqueConstraint("dedupe_key"),
    _partial("ix_think_outbox_knock", "queue", "knock_at", where="knock_at IS NOT NULL"),
    _partial("ix_think_outbox_delivered", "delivered_at", where="delivered_at IS NOT NULL"),
    _partial("ix_think_outbox_submission", "submission_id", where="submission_id IS NOT NULL"),
)

live_heads = Table(
    "think_live_heads",
    metadata,
    Column("agent_id", Id, primary_key=True),
    Column("incarnation", Id, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("trimmed", BigInteger, nullable=False, server_default="0"),
)

live = Table(
    "think_live",
    metadata,
    Column("agent_id", Id, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("submission_id", Id, nullable=False),
    Column("message_id", Id, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("first", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("event", JsonText, nullable=False),
    Column("written_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("agent_id", "position"),
    Index("ix_think_live_written", "written_at"),
)
