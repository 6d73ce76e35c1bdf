"""``think-celery workflows``."""

import json
from typing import Any

import click

from think_celery.cli.common import (
    Failure,
    Group,
    Unusable,
    app_options,
    json_option,
    print_fields,
    print_json,
    print_table,
    runtime_of,
)
from think_celery.domain import runs
from think_celery.domain import workflows as domain
from think_celery.domain.pages import MAX_PAGE
from think_celery.domain.runs import find_row
from think_celery.ids import WorkflowRef
from think_celery.plain import plain_value
from think_celery.states import WorkflowStatus, is_terminal
from think_celery.store import steps


@click.group(cls=Group)
def workflows() -> None:
    """Runs of workflows."""


def workflow_option(command: Any) -> Any:
    """Add ``--workflow``."""
    return click.option(
        "--workflow", metavar="NAME", help="The workflow's class, where several have the id."
    )(command)


@workflows.command("list")
@click.option(
    "--status",
    type=click.Choice([status.value for status in WorkflowStatus]),
    multiple=True,
    help="May be given again.",
)
@click.option("--workflow", metavar="NAME", help="Only this class's.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True)
@app_options
@json_option
def list_(
    status: tuple[str, ...],
    workflow: str | None,
    limit: int,
    app: str | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    rt = runtime_of(app, database_url)
    rows = domain.find(rt, status=list(status) or None, workflow=workflow, limit=limit)
    if as_json:
        print_json([_as_dict(row) for row in rows])
        return
    print_table(
        ["workflow", "id", "agent", "status", "started", "error"],
        [
            (
                row.workflow,
                row.workflow_id,
                f"{row.agent_class}:{row.agent_name}",
                row.status,
                row.created_at,
                row.error,
            )
            for row in rows
        ],
        nothing="There are no such workflows.",
    )


@workflows.command()
@click.argument("workflow_id")
@workflow_option
@app_options
@json_option
def show(
    workflow_id: str, workflow: str | None, app: str | None, database_url: str | None, as_json: bool
) -> None:
    """Show one run and its journal: what it has done, and what it waits for."""
    rt = runtime_of(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    journal = rt.db.read(lambda tx: steps.of_run(tx, row.key, row.run))
    if as_json:
        print_json(_as_dict(row) | {"steps": [_step_as_dict(step) for step in journal]})
        return
    print_fields(_as_dict(row))
    click.echo()
    print_table(
        ["step", "kind", "status", "attempts", "ended", "until", "raised at", "error"],
        [
            (
                step.step,
                step.kind,
                step.status,
                step.attempts,
                step.completed_at,
                step.deadline_at if step.completed_at is None else None,
                _raised_at(step.trace),
                step.error if step.error_type is None else f"{step.error_type}: {step.error}",
            )
            for step in journal
        ],
        nothing="It has done nothing yet.",
    )


@workflows.command("send-event")
@click.argument("workflow_id")
@click.option("--type", "event_type", required=True, help="What the workflow waits for, such as approval.")
@click.option("--payload", help="JSON, such as '{\"approved\": true}'.")
@click.option("--key", help="An idempotency key: the same one twice is one event.")
@workflow_option
@app_options
def send_event(
    workflow_id: str,
    event_type: str,
    payload: str | None,
    key: str | None,
    workflow: str | None,
    app: str | None,
    database_url: str | None,
) -> None:
    """Send an event to a run. With --workflow one that comes before its run is kept for it, for 24 hours.

    Exits with 1 and sends nothing if the run has ended.
    """
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as error:
        raise click.BadParameter(f"it is no JSON: {error}", param_hint="--payload") from None
    rt = runtime_of(app, database_url)
    reference = (
        WorkflowRef(workflow, workflow_id) if workflow else _reference(find_row(rt, workflow_id, None))
    )
    found = domain.get(rt, reference)
    if found is not None and is_terminal(WorkflowStatus(found.status)):
        raise Failure(
            f"{reference} has ended ({found.status}): nobody will take the event. Nothing was sent; to run it "
            "again, start it under another workflow_id."
        )
    try:
        domain.send_event(rt, reference, type=event_type, payload=value, idempotency_key=key)
    except ValueError as error:
        raise Unusable(str(error)) from error
    if found is None:
        click.echo(
            f"There is no run {reference} yet: {event_type!r} is kept for 24 hours for one that comes.",
            err=True,
        )
    else:
        click.echo(f"Sent {event_type!r} to {reference}.")


@workflows.command()
@click.argument("workflow_id")
@workflow_option
@app_options
def resume(workflow_id: str, workflow: str | None, app: str | None, database_url: str | None) -> None:
    """Let a paused run go on: one whose code did not fit its journal, once the right code is deployed."""
    rt = runtime_of(app, database_url)
    if not runs.resume(rt, workflow_id, workflow):
        raise Unusable(f"{workflow_id!r} is not paused, so there is nothing to resume.")
    click.echo(f"Resumed {workflow_id!r}.")


def _reference(row: Any) -> WorkflowRef:
    return WorkflowRef(row.workflow, row.workflow_id)


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        "workflow": row.workflow,
        "workflow_id": row.workflow_id,
        "agent_class": row.agent_class,
        "agent_name": row.agent_name,
        "run": row.run,
        "version": row.version,
        "status": row.status,
        "metadata": row.metadata,
        "attempts": row.attempts,
        "wake_at": row.wake_at,
        "params": plain_value(row.params),
        "output": plain_value(row.output),
        "error_type": row.error_type,
        "error": row.error,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "completed_at": row.completed_at,
    }


def _raised_at(trace: str | None) -> str | None:
    """The last frame of a trace, such as ``File "shop.py", line 12, in charge``."""
    frames = [line.strip() for line in (trace or "").splitlines() if line.lstrip().startswith('File "')]
    return frames[-1] if frames else None


def _step_as_dict(step: Any) -> dict[str, Any]:
    return {
        "step": step.step,
        "kind": step.kind,
        "status": step.status,
        "attempts": step.attempts,
        "error_type": step.error_type,
        "error": step.error,
        "trace": step.trace,
        "created_at": step.created_at,
        "completed_at": step.completed_at,
        "deadline_at": step.deadline_at,
    }
