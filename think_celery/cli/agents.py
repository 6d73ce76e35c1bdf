"""``think-celery agents``."""

from types import SimpleNamespace
from typing import Any

import click

from think_celery.cli.common import Failure, Group, runtime_of
from think_celery.cli.options import (
    App,
    agent_argument,
    agents_of,
    app_options,
    be_sure,
    json_option,
    limit_option,
    yes_option,
)
from think_celery.cli.printing import Column, print_list, print_one
from think_celery.domain.agents import removal, starts
from think_celery.domain.conversation import interactions
from think_celery.domain.turns import usage
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
@limit_option
@app_options
@json_option
def list_(
    agent_class: str | None, limit: int, app: App | None, database_url: str | None, as_json: bool
) -> None:
    """List agents, newest first. One is among them from its first turn, start or state on."""
    rt = runtime_of(app, database_url)
    found = rt.db.read(lambda tx: rows.find(tx, agent_class=agent_class, limit=limit))
    columns: list[Column] = [
        ("class", "agent_class"),
        "name",
        ("since", "created_at"),
        ("state changed", "state_version"),
        ("started", "started_version"),
        ("start failed", "start_error_type"),
    ]
    print_list(map(_as_dict, found), columns, as_json, nothing="There are no such agents.", limit=limit)


@agents.command()
@agent_argument
@app_options
@json_option
def show(agent: AgentRef, app: App | None, database_url: str | None, as_json: bool) -> None:
    """Show one agent: its state, its turn in hand or the next one, how it started, and the tokens it used."""
    print_one(_told(runtime_of(app, database_url), agent), as_json)


@agents.command()
@agent_argument
@click.option("--messages", is_flag=True, help="Empty its conversation, too.")
@yes_option
@app_options
def reset(agent: AgentRef, messages: bool, yes: bool, app: App | None, database_url: str | None) -> None:
    """End every turn of an agent that has not ended. Its conversation stays, unless --messages is given."""
    rt = runtime_of(app, database_url)
    _must_exist(rt, agent)
    be_sure(f"End the turns of {agent}{' and delete its messages' if messages else ''}?", yes)
    ended = removal.clear_messages(rt, agent) if messages else removal.reset_turn_state(rt, agent)
    click.echo(f"{ended} {'turn was' if ended == 1 else 'turns were'} ended.")


@agents.command()
@agent_argument
@yes_option
@app_options
def destroy(agent: AgentRef, yes: bool, app: App | None, database_url: str | None) -> None:
    """Remove an agent: messages, state, turns and jobs, schedules, approvals, usage. Can't be undone.

    Its workflows are not ended. Given work again, it begins anew.
    """
    rt = runtime_of(app, database_url)
    _must_exist(rt, agent)
    be_sure(f"Remove all that there is of {agent}?", yes)
    removal.destroy(rt, agent)
    click.echo(f"{agent} is gone.")


@agents.command()
@click.argument(
    "names", nargs=-1, metavar="[CLASS:NAME]...", callback=lambda ctx, param, given: agents_of(given)
)
@click.option("every", "--all", is_flag=True, help="Every agent that a class names in `autostart`.")
@app_options
def start(names: list[AgentRef], every: bool, app: App | None, database_url: str | None) -> None:
    """Start agents: those named, or all that `autostart` names.

    Each one's row is stored, and a worker runs its `on_start` soon, unless this version of the class has started. The
    tasks that its class declares are brought up to date. Needs --app: the classes must be known.
    """
    if bool(names) == every:
        raise click.UsageError("Name agents, CLASS:NAME, or start --all that `autostart` names.")
    rt = runtime_of(app, database_url)
    for agent in names:
        starts.start(rt, agent)
    started = starts.start_declared(rt) if every else names
    for agent in started:
        click.echo(f"{agent} is there.")
    if not started:
        click.echo("No class names an agent in `autostart`.")


_NO_ROW = dict.fromkeys(
    ("created_at", "queue", "state", "started_version", "start_error_type", "start_error", "start_failed_at")
) | {"state_version": 0}


def _must_exist(rt: Runtime, agent: AgentRef) -> None:
    if not rt.db.read(lambda tx: rows.is_there(tx, agent.id)):
        raise Failure(f"There is no agent {agent}. See: think-celery agents list")


def _told(rt: Runtime, agent: AgentRef) -> dict[str, Any]:
    _must_exist(rt, agent)
    found, head = rt.db.read(lambda tx: (rows.get(tx, agent.id), heads.head(tx, agent.id)))
    row: Any = found
    if found is None:  # nothing of it has begun yet
        row = SimpleNamespace(**(_NO_ROW | {"agent_class": agent.agent_class, "name": agent.name}))
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
