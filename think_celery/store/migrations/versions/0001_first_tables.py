"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "think_agents",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("agent_class", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("state_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("queue", sa.String(length=200), nullable=True),
        sa.Column("started_version", sa.String(length=200), nullable=True),
        sa.Column("start_version", sa.String(length=200), nullable=True),
        sa.Column("start_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("start_error_type", sa.String(length=200), nullable=True),
        sa.Column("start_error", sa.Text(), nullable=True),
        sa.Column("start_failed_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("destroyed_at", sa.BigInteger(), nullable=True),
        sa.Column("jobs_since", sa.BigInteger(), nullable=True),
        sa.Column("sweep_at", sa.BigInteger(), nullable=True),
        sa.Column("knock_at", sa.BigInteger(), nullable=True),
        sa.Column("knocks", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_think_agents")),
    )
    op.create_index("ix_think_agents_name", "think_agents", ["agent_class", "name"], unique=False)
    for column, index in (
        ("start_failed_at", "failed"),
        ("sweep_at", "sweep"),
        ("knock_at", "knock"),
    ):
        op.create_index(
            f"ix_think_agents_{index}",
            "think_agents",
            [column],
            unique=False,
            sqlite_where=sa.text(f"{column} IS NOT NULL"),
            postgresql_where=sa.text(f"{column} IS NOT NULL"),
        )
    op.create_table(
        "think_events",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("workflow_key", sa.String(length=200), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=200), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("consumed_by", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_think_events")),
        sa.UniqueConstraint("dedupe_key", name=op.f("uq_think_events_dedupe_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_think_events_early",
        "think_events",
        ["created_at"],
        unique=False,
        sqlite_where=sa.text("run = 0"),
        postgresql_where=sa.text("run = 0"),
    )
    op.create_index(
        "ix_think_events_unread",
        "think_events",
        ["workflow_key", "run", "type", "seq"],
        unique=False,
        sqlite_where=sa.text("consumed_by IS NULL"),
        postgresql_where=sa.text("consumed_by IS NULL"),
    )
    op.create_index(
        "ix_think_events_read",
        "think_events",
        ["workflow_key"],
        unique=False,
        sqlite_where=sa.text("consumed_by IS NOT NULL"),
        postgresql_where=sa.text("consumed_by IS NOT NULL"),
    )
    op.create_table(
        "think_interactions",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("agent_class", sa.String(length=200), nullable=False),
        sa.Column("agent_name", sa.String(length=200), nullable=False),
        sa.Column("submission_id", sa.String(length=200), nullable=False),
        sa.Column("message_id", sa.String(length=200), nullable=False),
        sa.Column("tool_call_id", sa.String(length=200), nullable=False),
        sa.Column("tool", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("continuation_id", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_think_interactions")),
        sa.UniqueConstraint(
            "agent_id",
            "message_id",
            "tool_call_id",
            name=op.f("uq_think_interactions_agent_id_message_id_tool_call_id"),
        ),
    )
    op.create_index(
        "ix_think_interactions_decided",
        "think_interactions",
        ["decided_at"],
        unique=False,
        sqlite_where=sa.text("decided_at IS NOT NULL"),
        postgresql_where=sa.text("decided_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_interactions_open",
        "think_interactions",
        ["agent_id", "created_at"],
        unique=False,
        sqlite_where=sa.text("status = 'open'"),
        postgresql_where=sa.text("status = 'open'"),
    )
    op.create_table(
        "think_jobs",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("agent_class", sa.String(length=200), nullable=False),
        sa.Column("agent_name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("lane", sa.String(length=20), nullable=True),
        sa.Column("method", sa.String(length=200), nullable=True),
        sa.Column("task_id", sa.String(length=200), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=True),
        sa.Column("retry", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("takeovers", sa.Integer(), server_default="0", nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("queue", sa.String(length=200), nullable=True),
        sa.Column("error_type", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("slot_id", sa.String(length=200), nullable=True),
        sa.Column("process_id", sa.String(length=200), nullable=True),
        sa.Column("waits_for", sa.Text(), nullable=True),
        sa.Column("token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("knock_at", sa.BigInteger(), nullable=True),
        sa.Column("knocks", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_think_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_think_jobs_id")),
        sa.UniqueConstraint(
            "agent_id",
            "kind",
            "idempotency_key",
            name=op.f("uq_think_jobs_agent_id_kind_idempotency_key"),
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_think_jobs_agent", "think_jobs", ["agent_id", "seq"], unique=False)
    op.create_index(
        "ix_think_jobs_lane",
        "think_jobs",
        ["agent_id", "lane", "seq"],
        unique=False,
        sqlite_where=sa.text("lane IS NOT NULL"),
        postgresql_where=sa.text("lane IS NOT NULL"),
    )
    op.create_index(
        "uq_think_jobs_lane",
        "think_jobs",
        ["agent_id", "lane"],
        unique=True,
        sqlite_where=sa.text("lane IS NOT NULL AND process_id IS NOT NULL"),
        postgresql_where=sa.text("lane IS NOT NULL AND process_id IS NOT NULL"),
    )
    op.create_index(
        "ix_think_jobs_knock",
        "think_jobs",
        ["queue", "knock_at"],
        unique=False,
        sqlite_where=sa.text("knock_at IS NOT NULL"),
        postgresql_where=sa.text("knock_at IS NOT NULL"),
    )
    for column, index in (
        ("due_at", "due"),
        ("process_id", "process"),
        ("slot_id", "slot"),
        ("completed_at", "ended"),
    ):
        op.create_index(
            f"ix_think_jobs_{index}",
            "think_jobs",
            [column],
            unique=False,
            sqlite_where=sa.text(f"{column} IS NOT NULL"),
            postgresql_where=sa.text(f"{column} IS NOT NULL"),
        )
    op.create_table(
        "think_lines",
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("process_id", sa.String(length=200), nullable=True),
        sa.Column("token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("look_at", sa.BigInteger(), nullable=True),
        sa.Column("waits_for", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("agent_id", "kind", name=op.f("pk_think_lines")),
    )
    op.create_index(
        "ix_think_lines_look",
        "think_lines",
        ["look_at"],
        unique=False,
        sqlite_where=sa.text("look_at IS NOT NULL"),
        postgresql_where=sa.text("look_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_lines_process",
        "think_lines",
        ["process_id"],
        unique=False,
        sqlite_where=sa.text("process_id IS NOT NULL"),
        postgresql_where=sa.text("process_id IS NOT NULL"),
    )
    op.create_table(
        "think_live",
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("submission_id", sa.String(length=200), nullable=False),
        sa.Column("message_id", sa.String(length=200), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "position", name=op.f("pk_think_live")),
    )
    op.create_index("ix_think_live_written", "think_live", ["written_at"], unique=False)
    op.create_table(
        "think_live_heads",
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("incarnation", sa.String(length=200), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("trimmed", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_think_live_heads")),
    )
    op.create_table(
        "think_messages",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("message_id", sa.String(length=200), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_think_messages")),
        sa.UniqueConstraint("agent_id", "message_id", name=op.f("uq_think_messages_agent_id_message_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_think_messages_order", "think_messages", ["agent_id", "position", "seq"], unique=False
    )
    op.create_table(
        "think_outbox",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("workflow_key", sa.String(length=200), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("event_type", sa.String(length=200), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("submission_id", sa.String(length=200), nullable=True),
        sa.Column("queue", sa.String(length=200), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("knock_at", sa.BigInteger(), nullable=True),
        sa.Column("knocks", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_think_outbox")),
        sa.UniqueConstraint("dedupe_key", name=op.f("uq_think_outbox_dedupe_key")),
    )
    op.create_index(
        "ix_think_outbox_delivered",
        "think_outbox",
        ["delivered_at"],
        unique=False,
        sqlite_where=sa.text("delivered_at IS NOT NULL"),
        postgresql_where=sa.text("delivered_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_outbox_knock",
        "think_outbox",
        ["queue", "knock_at"],
        unique=False,
        sqlite_where=sa.text("knock_at IS NOT NULL"),
        postgresql_where=sa.text("knock_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_outbox_submission",
        "think_outbox",
        ["submission_id"],
        unique=False,
        sqlite_where=sa.text("submission_id IS NOT NULL"),
        postgresql_where=sa.text("submission_id IS NOT NULL"),
    )
    op.create_table(
        "think_past_usage",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("total_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_think_past_usage")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_think_past_usage_agent_id", "think_past_usage", ["agent_id"], unique=False)
    op.create_table(
        "think_processes",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("suspect_since", sa.BigInteger(), nullable=True),
        sa.Column("dead", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_think_processes")),
    )
    op.create_index("ix_think_processes_until", "think_processes", ["until"], unique=False)
    op.create_table(
        "think_schedules",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("agent_class", sa.String(length=200), nullable=False),
        sa.Column("agent_name", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("spec", sa.Text(), nullable=True),
        sa.Column("timezone", sa.String(length=100), nullable=True),
        sa.Column("method", sa.String(length=200), nullable=True),
        sa.Column("task_id", sa.String(length=200), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("retry", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("queue", sa.String(length=200), nullable=True),
        sa.Column("hash", sa.String(length=64), nullable=True),
        sa.Column("version", sa.String(length=200), nullable=True),
        sa.Column("declared_at", sa.BigInteger(), nullable=True),
        sa.Column("anchor_at", sa.BigInteger(), nullable=False),
        sa.Column("next_run_at", sa.BigInteger(), nullable=True),
        sa.Column("last_slot_at", sa.BigInteger(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error_type", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_think_schedules")),
        sa.UniqueConstraint("agent_id", "key", name=op.f("uq_think_schedules_agent_id_key")),
    )
    for index, columns, where in (
        ("due", ["due_at", "id"], "due_at IS NOT NULL"),
        ("ended", ["ended_at"], "ended_at IS NOT NULL"),
        ("failing", ["created_at"], "failures > 0"),
    ):
        op.create_index(
            f"ix_think_schedules_{index}",
            "think_schedules",
            columns,
            unique=False,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    op.create_table(
        "think_slots",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("schedule_id", sa.String(length=200), nullable=False),
        sa.Column("scheduled_for", sa.BigInteger(), nullable=False),
        sa.Column("missed_from", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("job_id", sa.String(length=200), nullable=True),
        sa.Column("submission_id", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_think_slots")),
        sa.UniqueConstraint(
            "schedule_id", "scheduled_for", name=op.f("uq_think_slots_schedule_id_scheduled_for")
        ),
    )
    op.create_index(
        "uq_think_slots_open",
        "think_slots",
        ["schedule_id"],
        unique=True,
        sqlite_where=sa.text("status = 'open'"),
        postgresql_where=sa.text("status = 'open'"),
    )
    op.create_index(
        "ix_think_slots_ended",
        "think_slots",
        ["completed_at"],
        unique=False,
        sqlite_where=sa.text("completed_at IS NOT NULL"),
        postgresql_where=sa.text("completed_at IS NOT NULL"),
    )
    op.create_table(
        "think_steps",
        sa.Column("workflow_key", sa.String(length=200), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("step", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error_type", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("trace", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=True),
        sa.Column("deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("workflow_key", "run", "step", name=op.f("pk_think_steps")),
    )
    op.create_table(
        "think_submissions",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("agent_id", sa.String(length=200), nullable=False),
        sa.Column("agent_class", sa.String(length=200), nullable=False),
        sa.Column("agent_name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("released_key", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("messages", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("structure", sa.Text(), nullable=True),
        sa.Column("based_on", sa.String(length=64), nullable=True),
        sa.Column("workflow_key", sa.String(length=200), nullable=True),
        sa.Column("workflow_run", sa.Integer(), nullable=True),
        sa.Column("event_type", sa.String(length=200), nullable=True),
        sa.Column("slot_id", sa.String(length=200), nullable=True),
        sa.Column("message_id", sa.String(length=200), nullable=True),
        sa.Column("continues", sa.String(length=200), nullable=True),
        sa.Column("steps_before", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("takeovers", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("progress_at", sa.BigInteger(), nullable=True),
        sa.Column("model_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("model_position", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cancel_intent", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("total_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("queue", sa.String(length=200), nullable=True),
        sa.Column("error_type", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("applied_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("slimmed_at", sa.BigInteger(), nullable=True),
        sa.Column("knock_at", sa.BigInteger(), nullable=True),
        sa.Column("knocks", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_think_submissions")),
        sa.UniqueConstraint(
            "agent_id", "idempotency_key", name=op.f("uq_think_submissions_agent_id_idempotency_key")
        ),
        sa.UniqueConstraint("id", name=op.f("uq_think_submissions_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_think_submissions_agent", "think_submissions", ["agent_id", "status", "seq"], unique=False
    )
    op.create_index(
        "ix_think_submissions_knock",
        "think_submissions",
        ["queue", "knock_at"],
        unique=False,
        sqlite_where=sa.text("knock_at IS NOT NULL"),
        postgresql_where=sa.text("knock_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_submissions_ended",
        "think_submissions",
        ["completed_at"],
        unique=False,
        sqlite_where=sa.text("completed_at IS NOT NULL"),
        postgresql_where=sa.text("completed_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_submissions_whole",
        "think_submissions",
        ["completed_at"],
        unique=False,
        sqlite_where=sa.text("completed_at IS NOT NULL AND slimmed_at IS NULL"),
        postgresql_where=sa.text("completed_at IS NOT NULL AND slimmed_at IS NULL"),
    )
    op.create_index(
        "uq_think_submissions_running",
        "think_submissions",
        ["agent_id"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "think_ticks",
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("steady_since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_think_ticks")),
    )
    op.create_table(
        "think_workflows",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("workflow", sa.String(length=200), nullable=False),
        sa.Column("workflow_id", sa.String(length=200), nullable=False),
        sa.Column("run", sa.Integer(), server_default="1", nullable=False),
        sa.Column("version", sa.String(length=100), nullable=False),
        sa.Column("agent_class", sa.String(length=200), nullable=False),
        sa.Column("agent_name", sa.String(length=200), nullable=False),
        sa.Column("queue", sa.String(length=200), nullable=True),
        sa.Column("step_queue", sa.String(length=200), nullable=True),
        sa.Column("parent_key", sa.String(length=200), nullable=True),
        sa.Column("parent_run", sa.Integer(), nullable=True),
        sa.Column("parent_event", sa.String(length=200), nullable=True),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error_type", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("pause_at", sa.BigInteger(), nullable=True),
        sa.Column("wake_at", sa.BigInteger(), nullable=True),
        sa.Column("wakes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("inbox", sa.Integer(), server_default="0", nullable=False),
        sa.Column("parked_inbox", sa.Integer(), server_default="0", nullable=False),
        sa.Column("process_id", sa.String(length=200), nullable=True),
        sa.Column("token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("takeovers", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("knock_at", sa.BigInteger(), nullable=True),
        sa.Column("knocks", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_think_workflows")),
        sa.UniqueConstraint("workflow_id", "workflow", name=op.f("uq_think_workflows_workflow_id_workflow")),
    )
    op.create_index(
        "ix_think_workflows_created",
        "think_workflows",
        ["created_at", "key"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_think_workflows_agent",
        "think_workflows",
        ["agent_class", "agent_name", "created_at", "key"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_think_workflows_deleted",
        "think_workflows",
        ["deleted_at"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NOT NULL"),
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_workflows_knock",
        "think_workflows",
        ["queue", "knock_at"],
        unique=False,
        sqlite_where=sa.text("knock_at IS NOT NULL AND step_queue IS NULL"),
        postgresql_where=sa.text("knock_at IS NOT NULL AND step_queue IS NULL"),
    )
    op.create_index(
        "ix_think_workflows_knock_step",
        "think_workflows",
        ["step_queue", "knock_at"],
        unique=False,
        sqlite_where=sa.text("knock_at IS NOT NULL AND step_queue IS NOT NULL"),
        postgresql_where=sa.text("knock_at IS NOT NULL AND step_queue IS NOT NULL"),
    )
    op.create_index(
        "ix_think_workflows_parent",
        "think_workflows",
        ["parent_key", "parent_run"],
        unique=False,
        sqlite_where=sa.text("parent_key IS NOT NULL"),
        postgresql_where=sa.text("parent_key IS NOT NULL"),
    )
    op.create_index(
        "ix_think_workflows_process",
        "think_workflows",
        ["process_id"],
        unique=False,
        sqlite_where=sa.text("process_id IS NOT NULL"),
        postgresql_where=sa.text("process_id IS NOT NULL"),
    )
    op.create_index(
        "ix_think_workflows_ended",
        "think_workflows",
        ["completed_at"],
        unique=False,
        sqlite_where=sa.text("completed_at IS NOT NULL"),
        postgresql_where=sa.text("completed_at IS NOT NULL"),
    )
    op.create_index(
        "ix_think_workflows_unread",
        "think_workflows",
        ["key"],
        unique=False,
        sqlite_where=sa.text("status = 'waiting' AND inbox > parked_inbox"),
        postgresql_where=sa.text("status = 'waiting' AND inbox > parked_inbox"),
    )
    op.create_index(
        "ix_think_workflows_wake",
        "think_workflows",
        ["wake_at"],
        unique=False,
        sqlite_where=sa.text("wake_at IS NOT NULL"),
        postgresql_where=sa.text("wake_at IS NOT NULL"),
    )
