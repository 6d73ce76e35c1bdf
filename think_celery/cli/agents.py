"""``think-celery agents``."""

from typing import Any

import click

from think_celery.cli.common import (
    Failure,
    Group,
    app_options,
    json_option,
    print_fields,
    print_json,
    print_table,
    runtime_of,
)
from think_celery.domain import interactions, starts, usage
from think_celery.domain.pages import MAX_PAGE
from think_celery.ids import AgentRef
from think_celery.plain import plain_value
from think_celery.runtime import Runtime
from think_celery.store import agents as rows
from think_celery.store import heads


@click.group(cls=Group)
def agents() -> None:
    """Agents: those that have had work, or were started."""


@agents.command("list")
@click.option("--class", "agent_class", metavar="CLASS", help="Only this class's.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True)
@app_options
@json_option
def list_(
    agent_class: str | None, limit: int, app: str | None, database_url: str | None, as_json: bool
) -> None:
    """List agents, newest first. One is there from its first turn, or from its start."""
    rt = runtime_of(app, database_url)
    found = rt.db.read(lambda tx: rows.find(tx, agent_class=agent_class, limit=limit))
    if as_json:
        print_json([_as_dict(row) for row in found])
        return
    print_table(
        ["class", "name", "since", "state changed", "started", "on_start failed"],
        [
            (
                row.agent_class,
                row.name,
                row.created_at,
                row.state_version,
                row.started_version,
                row.start_error_type,
            )
            for row in found
        ],
        nothing="There are no such agents.",
    )


@agents.command()
@click.argument("agent_class", metavar="CLASS")
@click.argument("name")
@app_options
@json_option
def show(agent_class: str, name: str, app: str | None, database_url: str | None, as_json: bool) -> None:
    """Show one agent: its state, its turn in hand or the next one, how it started, and the tokens it used."""
    rt = runtime_of(app, database_url)
    agent = AgentRef(agent_class, name)
    told = _told(rt, agent)
    if as_json:
        print_json(told)
        return
    print_fields(told)


@agents.command()
@click.argument("agent_class", metavar="[CLASS NAME]", required=False)
@click.argument("name", metavar="", required=False)
@app_options
def start(agent_class: str | None, name: str | None, app: str | None, database_url: str | None) -> None:
    """Start an agent, or, without names, every agent that a class's `autostart` names.

    Its row is stored, and a worker runs its `on_start` soon, unless this version of the class has started. Needs
    --app: the classes must be known.
    """
    if agent_class is not None and name is None:
        raise click.UsageError("Give the agent's class and its name, or neither.")
    rt = runtime_of(app, database_url)
    if agent_class is not None and name is not None:
        started = [AgentRef(agent_class, name)]
        starts.start(rt, started[0])
    else:
        started = starts.start_declared(rt)
    for agent in started:
        click.echo(f"{agent} is there.")
    if not started:
        click.echo("No class names an agent in `autostart`.")


def _told(rt: Runtime, agent: AgentRef) -> dict[str, Any]:
    row, head = rt.db.read(lambda tx: (rows.get(tx, agent.id), heads.head(tx, agent.id)))
    if row is None or (row.destroyed_at is not None and head is None):
        raise Failure(f"There is no agent {agent}. See: think-celery agents list")
    used, calls = usage.of_agent(rt, agent), interactions.pending(rt, agent)
    return {
        **_as_dict(row),
        "queue": row.queue,
        "head": None if head is None else f"{head.id} ({head.status})",
        "waiting_calls": len(calls),
        "state": plain_value(row.state),
        "start_error": row.start_error,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
    }


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        "agent_class": row.agent_class,
        "name": row.name,
        "created_at": row.created_at,
        "state_version": row.state_version,
        "started_version": row.started_version,
        "start_error_type": row.start_error_type,
        "start_failed_at": row.start_failed_at,
    }
