"""``think-celery schedules``."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

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
    yes_option,
)
from think_celery.cli.printing import AGENT, Column, print_fields, print_json, print_list, print_table
from think_celery.domain.schedules import firing
from think_celery.domain.schedules import schedules as domain
from think_celery.ids import AgentRef
from think_celery.plain import plain_value
from think_celery.runtime import Runtime

SLOTS, LISTED = 10, 10
"""How many of its latest slots a schedule is shown with, and how many of the next ones are told."""

NOTHING = "There are no such schedules."


@click.group(cls=Group)
def schedules() -> None:
    """Schedules of agents: what fires when, and what became of it."""


@schedules.command("list")
@agent_option
@click.option("--class", "agent_class", metavar="CLASS", help="Only this class's.")
@click.option("--ended", is_flag=True, help="Those that were cancelled, or have no further slot.")
@limit_option
@cursor_option
@app_options
@json_option
def list_(
    agent: AgentRef | None,
    agent_class: str | None,
    ended: bool,
    limit: int,
    cursor: str | None,
    app: App | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """List schedules, the one that fires next first."""
    rt = runtime_of(app, database_url)
    page = domain.find(rt, agent, agent_class=agent_class, ended=ended, limit=limit, cursor=cursor)
    last = "ended_at" if ended else "error"
    columns = [
        "schedule_id",
        AGENT,
        ("does", _does),
        ("schedule", _when),
        "next_run_at",
        "last_slot_at",
        last,
    ]
    print_list(map(_as_dict, page), columns, as_json, nothing=NOTHING, cursor=page.cursor)


@schedules.command()
@click.argument("schedule_id")
@app_options
@json_option
def show(schedule_id: str, app: App | None, database_url: str | None, as_json: bool) -> None:
    """Show one schedule, and what became of its latest slots."""
    rt = runtime_of(app, database_url)
    told = _as_dict(_require(rt, schedule_id))
    slots = [_slot_as_dict(row) for row in domain.find_slots(rt, schedule_id, limit=SLOTS)]
    if as_json:
        print_json(told | {"slots": slots})
        return
    print_fields(told)
    click.echo()
    columns: list[Column] = [
        ("slot", "scheduled_for"),
        "status",
        ("job or submission", lambda slot: slot["job_id"] or slot["submission_id"]),
        "created_at",
        "completed_at",
        "reason",
    ]
    print_table(slots, columns, nothing="No slot of it has come yet.")


@schedules.command()
@click.argument("schedule_id")
@yes_option
@app_options
def cancel(schedule_id: str, yes: bool, app: App | None, database_url: str | None) -> None:
    """End a schedule. A slot that has come and has not begun is skipped; one that runs goes on.

    A task that a class declares is declared again when its agent starts: take it out of the class, too. Exits with 1
    if it had ended.
    """
    rt = runtime_of(app, database_url)
    row = _require(rt, schedule_id)
    be_sure(f"End the schedule {_does(_as_dict(row))} of {row.agent_class}:{row.agent_name}?", yes)
    if not domain.cancel(rt, schedule_id):
        raise Failure(f"{schedule_id} had ended before.")
    click.echo(f"{schedule_id} has ended.")


@schedules.command("next")
@click.argument("schedule_id", required=False)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=LISTED, show_default=True, help="How many at most."
)
@app_options
@json_option
def next_(
    schedule_id: str | None, limit: int, app: App | None, database_url: str | None, as_json: bool
) -> None:
    """Tell the next instants: of one schedule as its rule has them; else what fires next of all schedules."""
    rt = runtime_of(app, database_url)
    if schedule_id is None:
        rows = [_as_dict(row) for row in domain.find(rt, limit=limit)]
        columns = [("next", "next_run_at"), AGENT, ("does", _does), "schedule_id"]
        print_list(rows, columns, as_json, nothing="Nothing fires.")
        return
    row = _require(rt, schedule_id)
    instants = [
        {"scheduled_for": instant, "local": _local(instant, row)} for instant in _following(rt, row, limit)
    ]
    columns = [("next", "scheduled_for"), ("there", "local")]
    print_list(instants, columns, as_json, nothing="It has ended: it has no further slot.")


def _require(rt: Runtime, schedule_id: str) -> Any:
    row = domain.get(rt, schedule_id)
    if row is None:
        raise Failure(f"There is no schedule {schedule_id!r}. See: think-celery schedules list")
    return row


def _following(rt: Runtime, row: Any, limit: int) -> list[datetime]:
    if row.next_run_at is None:
        return []
    instants, rule = [row.next_run_at], firing.rule_of(row)
    while rule is not None and len(instants) < limit:
        instants.append(rule.next_after(instants[-1], row.anchor_at))
    return instants


def _local(instant: datetime, row: Any) -> str | None:
    """The same on the clocks of the schedule's zone."""
    if row.timezone is None:
        return None
    return f"{instant.astimezone(ZoneInfo(row.timezone)):%a %Y-%m-%d %H:%M} {row.timezone}"


def _does(told: Any) -> str:
    """What it does, in a word or two."""
    if told["task_id"] is not None:
        return f"task {told['task_id']}"
    return f"{told['method']}()"


def _when(told: Any) -> str:
    """Its rule, as it was written."""
    spec = told["schedule"]
    if spec is None:
        return "once"
    rule = spec if isinstance(spec, str) else f"every {spec:g} s"
    zone = told["timezone"]
    return rule if zone is None or zone in rule else f"{rule} in {zone}"


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        "schedule_id": row.id,
        "agent_class": row.agent_class,
        "agent_name": row.agent_name,
        "kind": row.kind,
        "schedule": row.spec,
        "timezone": row.timezone,
        "task_id": row.task_id,
        "method": row.method,
        "prompt": row.prompt,
        "payload": plain_value(row.payload),
        "metadata": row.metadata,
        "queue": row.queue,
        "next_run_at": row.next_run_at,
        "last_slot_at": row.last_slot_at,
        "created_at": row.created_at,
        "ended_at": row.ended_at,
        "failures": row.failures or None,
        "error_type": row.error_type,
        "error": row.error,
    }


def _slot_as_dict(row: Any) -> dict[str, Any]:
    return {
        "scheduled_for": row.scheduled_for,
        "status": row.status,
        "reason": row.reason,
        "missed_from": row.missed_from,
        "job_id": row.job_id,
        "submission_id": row.submission_id,
        "created_at": row.created_at,
        "completed_at": row.completed_at,
    }
