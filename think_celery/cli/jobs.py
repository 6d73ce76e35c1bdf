"""``think-celery jobs``."""

from collections.abc import Mapping
from typing import Any

import click

from think_celery.cli.common import Failure, Group, runtime_of
from think_celery.cli.options import (
    App,
    agent_option,
    app_options,
    be_sure,
    cursor_option,
    json_option,
    limit_option,
    status_option,
    yes_option,
)
from think_celery.cli.printing import AGENT, Column, print_list, print_one
from think_celery.domain.jobs import control
from think_celery.domain.jobs.control import KINDS
from think_celery.domain.jobs.records import times_begun
from think_celery.errors import JobNotFound
from think_celery.ids import AgentRef
from think_celery.plain import plain_value
from think_celery.runtime import Runtime
from think_celery.states import JobStatus

COLUMNS: list[Column] = [
    "job_id",
    AGENT,
    "kind",
    ("calls", lambda fields: _called(fields)),
    "status",
    "attempts",
    ("accepted", "created_at"),
    ("due", "due_at"),
    "error",
]


@click.group(cls=Group)
def jobs() -> None:
    """Calls of agents' methods: queued and scheduled ones, fibers, and what workflows tell their agents."""


@jobs.command("list")
@status_option(JobStatus)
@click.option("--kind", type=click.Choice(list(KINDS)), multiple=True, help="May be given again.")
@click.option("--method", metavar="NAME", help="Only calls of this method.")
@agent_option
@limit_option
@cursor_option
@app_options
@json_option
def list_(
    status: list[str] | None,
    kind: tuple[str, ...],
    method: str | None,
    agent: AgentRef | None,
    limit: int,
    cursor: str | None,
    app: App | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    page = control.find_rows(
        runtime_of(app, database_url),
        agent_id=None if agent is None else agent.id,
        kind=list(kind) or None,
        status=status,
        method=method,
        limit=limit,
        cursor=cursor,
    )
    nothing = "There are no such jobs."
    print_list(map(_as_dict, page), COLUMNS, as_json, nothing=nothing, cursor=page.cursor)


@jobs.command()
@click.argument("job_id")
@app_options
@json_option
def show(job_id: str, app: App | None, database_url: str | None, as_json: bool) -> None:
    """Show one job, with its payload, what it stashed and what it returned."""
    row = _require(runtime_of(app, database_url), job_id)
    told = _as_dict(row) | {
        "payload": plain_value(row.payload),
        "snapshot": plain_value(row.snapshot),
        "output": plain_value(row.output),
    }
    print_one(told, as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--reason", help="Kept with the job.")
@app_options
def cancel(job_id: str, reason: str | None, app: App | None, database_url: str | None) -> None:
    """End a job as aborted. Exits with 1 if it had ended."""
    rt = runtime_of(app, database_url)
    row = _require(rt, job_id)
    if not control.cancel(rt, job_id, reason):
        raise Failure(f"{job_id} had ended before: {row.status}.")
    click.echo(f"{job_id} is aborted.")


@jobs.command()
@click.argument("job_id")
@yes_option
@app_options
def retry(job_id: str, yes: bool, app: App | None, database_url: str | None) -> None:
    """Let a job run again, or at once.

    One that waits to be tried again need not wait; an interrupted fiber begins anew, with its snapshot. One that has
    ended stays as it is, and the same call is queued once more; it asks first where the call was completed.
    """
    rt = runtime_of(app, database_url)
    if _require(rt, job_id).status == JobStatus.COMPLETED:
        be_sure(f"{job_id} is completed: nothing failed. Make the same call once more?", yes)
    again = control.retry(rt, job_id)
    if again.job_id == job_id:
        click.echo(f"{job_id} runs as soon as a worker is free.")
    else:
        click.echo(f"{job_id} has ended; the same call is queued as {again.job_id}.")


@jobs.command()
@click.argument("job_id")
@yes_option
@app_options
def delete(job_id: str, yes: bool, app: App | None, database_url: str | None) -> None:
    """Delete a job and its key; one that waits never runs. Exits with 1 while a worker has it."""
    rt = runtime_of(app, database_url)
    row = _require(rt, job_id)
    be_sure(f"Delete the job {job_id} ({row.status})?", yes)
    if not control.delete(rt, job_id):
        raise Failure(f"A worker has {job_id} just now. End it first: think-celery jobs cancel {job_id}")
    click.echo(f"Deleted {job_id}.")


def _called(told: Mapping[str, Any]) -> str:
    """What a job calls: a method, or the handler of a declared task, which has no name but the task's."""
    return f"{told['method']}()" if told["task_id"] is None else f"task {told['task_id']}"


def _require(rt: Runtime, job_id: str) -> Any:
    row = control.row_of(rt, job_id)
    if row is None:
        raise JobNotFound(job_id)
    return row


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        "job_id": row.id,
        "agent_class": row.agent_class,
        "agent_name": row.agent_name,
        "kind": row.kind,
        "method": row.method,
        "task_id": row.task_id,
        "status": row.status,
        "attempts": times_begun(row),
        "idempotency_key": row.idempotency_key,
        "metadata": row.metadata,
        "queue": row.queue,
        "due_at": row.due_at,
        "error_type": row.error_type,
        "error": row.error,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "completed_at": row.completed_at,
    }
