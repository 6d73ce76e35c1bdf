"""``think-celery workflows``."""

import json
from typing import Any

import click

from think_celery.cli import standing, timeline
from think_celery.cli.classnames import tell_unknown
from think_celery.cli.common import Failure, Given, Group, Unusable, runtime_of, workflow_words
from think_celery.cli.options import (
    App,
    Span,
    agent_option,
    app_options,
    be_sure,
    cursor_option,
    json_option,
    limit_option,
    status_option,
    yes_option,
)
from think_celery.cli.printing import AGENT, Column, print_fields, print_json, print_list
from think_celery.domain.workflows import control, listing, runs
from think_celery.domain.workflows import workflows as domain
from think_celery.domain.workflows.runs import WorkflowRun, as_run, find_ref, find_row
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.plain import plain_value
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus, is_terminal
from think_celery.store import steps

COLUMNS: list[Column] = ["workflow", ("id", "workflow_id"), "run", AGENT, "status", "created_at", "error"]


@click.group(cls=Group)
def workflows() -> None:
    """Runs of workflows."""


def workflow_option(command: Any) -> Any:
    """Add ``--workflow``."""
    return click.option(
        "--workflow", metavar="NAME", help="The workflow's class, where several have the id."
    )(command)


def one_workflow(command: Any) -> Any:
    """Take a workflow's id, its class, and where it is."""
    return click.argument("workflow_id")(workflow_option(app_options(command)))


# --- looking --------------------------------------------------------------------------------------


@workflows.command("list")
@status_option(WorkflowStatus)
@click.option("--workflow", metavar="NAME", help="Only this class's.")
@agent_option
@click.option(
    "--metadata", "pairs", multiple=True, metavar="KEY=JSON", help="Only with this metadata, such as order=7."
)
@limit_option
@cursor_option
@app_options
@json_option
def list_(
    status: list[str] | None,
    workflow: str | None,
    agent: AgentRef | None,
    pairs: tuple[str, ...],
    limit: int,
    cursor: str | None,
    app: App | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    rt = runtime_of(app, database_url)
    page = listing.find(
        rt,
        agent,
        status=status,
        workflow=workflow,
        metadata=dict(map(_pair, pairs)) or None,
        limit=limit,
        cursor=cursor,
    )
    nothing = "There are no such workflows."
    print_list(map(_outline, page), COLUMNS, as_json, nothing=nothing, cursor=page.cursor)
    if workflow is not None and not page and not listing.find(rt, workflow=workflow, limit=1):
        tell_unknown(workflow)


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise click.BadParameter(f"{text!r} is no KEY=JSON, such as order=7.", param_hint="--metadata")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value  # a text without its quotes


@workflows.command()
@one_workflow
@json_option
def show(
    workflow_id: str, workflow: str | None, app: App | None, database_url: str | None, as_json: bool
) -> None:
    """Show one run: how it stands, its steps as a timeline, and what it waits for."""
    rt = runtime_of(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    journal = rt.db.read(lambda tx: steps.of_run(tx, row.key, row.run))
    in_hand = standing.is_in_hand(rt, row)
    waits = timeline.waits_for(rt, row, journal, Given(app, database_url).command, in_hand=in_hand)
    now = standing.of_code(rt, row, journal, in_hand=in_hand)
    if as_json:
        steps_told = timeline.steps_of(row, journal)
        print_json(_as_dict(row) | {"now": now, "waits_for": waits, "steps": steps_told})
        return
    print_fields(_as_dict(row))
    click.echo()
    timeline.print_timeline(row, journal)
    if now is not None:
        click.echo(f"\n{now}")
    for each in waits:
        click.echo(f"\nWaits for {each}")


def _outline(run: WorkflowRun) -> dict[str, Any]:
    return {
        "workflow": run.workflow,
        "workflow_id": run.workflow_id,
        "agent_class": run.agent.agent_class,
        "agent_name": run.agent.name,
        "run": run.run,
        "version": run.version,
        "status": run.status,
        "metadata": run.metadata,
        "error_type": run.error_type,
        "error": run.error,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
    }


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        **_outline(as_run(row)),
        "wake_at": row.wake_at,
        "pause_at": row.pause_at,
        "params": plain_value(row.params),
        "progress": plain_value(row.progress),
        "output": plain_value(row.output),
    }


# --- events ---------------------------------------------------------------------------------------


@workflows.command("send-event")
@one_workflow
@click.option("--type", "event_type", required=True, help="What the workflow waits for, such as approval.")
@click.option("--payload", help="JSON, such as '{\"approved\": true}'.")
@click.option("--idempotency-key", metavar="KEY", help="The same one twice is one event.")
def send_event(
    workflow_id: str,
    event_type: str,
    payload: str | None,
    idempotency_key: str | None,
    workflow: str | None,
    app: App | None,
    database_url: str | None,
) -> None:
    """Send an event to a run. With --workflow one that comes before its run is kept for it, for 24 hours.

    Exits with 1 and sends nothing if the run has ended.
    """
    value = None if payload is None else _json(payload, "--payload")
    rt, given = runtime_of(app, database_url), Given(app, database_url)
    reference = domain.reference(workflow, workflow_id) if workflow else find_ref(rt, workflow_id)
    found = domain.get(rt, reference)
    if found is not None:
        _still_goes_on(found, given, "the event")
    try:
        domain.send_event(rt, reference, type=event_type, payload=value, idempotency_key=idempotency_key)
    except ValueError as error:
        raise Unusable(str(error)) from error
    if found is None:
        tell_unknown(reference.workflow)
        click.echo(
            f"There is no run {reference} yet: {event_type!r} is kept for 24 hours for one that comes.",
            err=True,
        )
    else:
        click.echo(f"Sent {event_type!r} to {reference}.")


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: nested too deep
        raise click.BadParameter(f"it is no JSON: {error}", param_hint=option) from None


@workflows.command()
@one_workflow
@click.option("--reason", help="What the workflow gets as the reason.")
@click.option("--metadata", help='JSON, such as \'{"by": "Ada"}\'.')
def approve(
    workflow_id: str,
    reason: str | None,
    metadata: str | None,
    workflow: str | None,
    app: App | None,
    database_url: str | None,
) -> None:
    """Approve what a run waits for, or will wait for. Exits with 1 if the run has ended."""
    said = None if metadata is None else _json(metadata, "--metadata")
    _decide(workflow_id, workflow, app, database_url, approved=True, reason=reason, metadata=said)


@workflows.command()
@one_workflow
@click.option("--reason", help="What the workflow gets as the reason.")
def reject(
    workflow_id: str, reason: str | None, workflow: str | None, app: App | None, database_url: str | None
) -> None:
    """Reject what a run waits for, or will wait for. Exits with 1 if the run has ended."""
    _decide(workflow_id, workflow, app, database_url, approved=False, reason=reason)


def _decide(
    workflow_id: str,
    workflow: str | None,
    app: App | None,
    database_url: str | None,
    *,
    approved: bool,
    reason: str | None,
    metadata: Any = None,
) -> None:
    rt = runtime_of(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    _still_goes_on(row, Given(app, database_url), "the decision")
    runs.decide(rt, workflow_id, row.workflow, approved=approved, reason=reason, metadata=metadata)
    click.echo(f"{'Approved' if approved else 'Rejected'} {workflow_id!r}.")


def _still_goes_on(row: Any, given: Given, what: str) -> None:
    if is_terminal(WorkflowStatus(row.status)):
        reference = WorkflowRef.of(row)
        raise Failure(
            f"{reference} has ended ({row.status}): nobody will take {what}. Nothing was sent. To run it again: "
            f"{given.command(f'workflows restart {workflow_words(row)}')}"
        )


# --- control --------------------------------------------------------------------------------------


@workflows.command()
@one_workflow
def pause(workflow_id: str, workflow: str | None, app: App | None, database_url: str | None) -> None:
    """Let a run stop until it is resumed: at once if it waits, at its next step if a worker has it in hand.

    Exits with 1 if there is nothing to pause.
    """
    rt, given = runtime_of(app, database_url), Given(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    if not control.pause(rt, WorkflowRef.of(row)):
        raise Failure(
            f"{workflow_id!r} is {row.status}, so there is nothing to pause. See "
            f"{given.command(f'workflows show {workflow_words(row)}')}"
        )
    now = _status(rt, row)
    if now == WorkflowStatus.PAUSED:
        click.echo(f"Paused {workflow_id!r}.")
    else:
        click.echo(f"{workflow_id!r} is in a worker's hands, and pauses before its next step.")


@workflows.command()
@one_workflow
def resume(workflow_id: str, workflow: str | None, app: App | None, database_url: str | None) -> None:
    """Let a paused run go on; one whose code did not fit its journal, once the right code is deployed.

    Exits with 1 if it is not paused.
    """
    rt, given = runtime_of(app, database_url), Given(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    if not control.resume(rt, WorkflowRef.of(row)):
        raise Failure(
            f"{workflow_id!r} is not paused ({row.status}), so there is nothing to resume. See "
            f"{given.command(f'workflows show {workflow_words(row)}')}"
        )
    click.echo(f"Resumed {workflow_id!r}.")


@workflows.command()
@one_workflow
@yes_option
def terminate(
    workflow_id: str, yes: bool, workflow: str | None, app: App | None, database_url: str | None
) -> None:
    """End a run where it stands, with its unfinished prompts and children. Exits with 1 if it had ended."""
    rt, given = runtime_of(app, database_url), Given(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    reference = WorkflowRef.of(row)
    be_sure(f"Terminate {reference}, which is {row.status}?", yes)
    if not control.terminate(rt, reference):
        raise Failure(
            f"{workflow_id!r} has ended ({_status(rt, row)}), so there is nothing to terminate. To run it again: "
            f"{given.command(f'workflows restart {workflow_words(row)}')}"
        )
    click.echo(f"Terminated {workflow_id!r}.")


@workflows.command()
@one_workflow
@yes_option
def restart(
    workflow_id: str, yes: bool, workflow: str | None, app: App | None, database_url: str | None
) -> None:
    """Begin a workflow anew with its first params. Without --app the new run keeps the version of the old one."""
    rt = runtime_of(app, database_url)
    row = find_row(rt, workflow_id, workflow)
    reference = WorkflowRef.of(row)
    if not is_terminal(WorkflowStatus(row.status)):
        be_sure(f"{reference} is {row.status}. End that run, and begin anew?", yes)
    click.echo(f"Restarted {workflow_id!r}: run {control.restart(rt, reference)}.")


@workflows.command()
@click.argument("workflow_id", required=False)
@workflow_option
@status_option([status for status in WorkflowStatus if is_terminal(status)])
@agent_option
@click.option("--older-than", type=Span(), help="Without an id: only those that ended so long ago.")
@yes_option
@app_options
def delete(
    workflow_id: str | None,
    workflow: str | None,
    status: list[str] | None,
    agent: AgentRef | None,
    older_than: Any,
    yes: bool,
    app: App | None,
    database_url: str | None,
) -> None:
    """Remove a workflow with its journal and events; one that goes on ends first.

    Without an id: all that have ended and match --status, --workflow, --agent and --older-than.
    """
    rt = runtime_of(app, database_url)
    filters = (status, agent, older_than)
    if workflow_id is not None:
        if any(filters):
            raise click.UsageError(
                "Give an id, or --status, --agent and --older-than for all that match; not both."
            )
        row = find_row(rt, workflow_id, workflow)
        reference = WorkflowRef.of(row)
        be_sure(f"Delete {reference}, which is {row.status}?", yes)
        control.delete(rt, reference)
        click.echo(f"Deleted {workflow_id!r}.")
        return
    if not any(filters) and workflow is None:
        raise click.UsageError(
            "Name a workflow, or say which: --status, --workflow, --agent or --older-than."
        )
    before = None if older_than is None else rt.clock.now() - older_than
    if not yes:
        many = control.count_ended(rt, agent, status=status, workflow=workflow, completed_before=before)
        be_sure(f"Delete all workflows that have ended and match ({many} just now)?", yes)
    count = control.delete_all(rt, agent, status=status, workflow=workflow, completed_before=before)
    click.echo(f"Deleted {count} workflow{'' if count == 1 else 's'}.")


def _status(rt: Runtime, row: Any) -> str:
    found = domain.get(rt, WorkflowRef.of(row))
    return "gone" if found is None else str(found.status)
