"""``think-celery outbox``."""

from typing import Any

import click

from think_celery.cli.common import Failure, Group, runtime_of
from think_celery.cli.options import App, app_options, json_option, limit_option, status_option
from think_celery.cli.printing import Column, print_list, print_one
from think_celery.domain import outbox as domain
from think_celery.domain.pages import MAX_PAGE
from think_celery.plain import plain_value
from think_celery.runtime import Runtime
from think_celery.states import OutboxStatus

COLUMNS: list[Column] = [
    "outbox_id",
    ("for", lambda news: f"{news['workflow']}:{news['workflow_id']}" if news["workflow"] else None),
    "event_type",
    "status",
    "attempts",
    "created_at",
    ("next try", "next_try_at"),
    "last_error",
]

TOLD = {
    "delivered": "delivered.",
    "dropped": "dropped: its workflow has ended, is gone, or is in a later run.",
    "ended-before": "settled before.",
}


@click.group(cls=Group)
def outbox() -> None:
    """News for workflows, such as the end of a turn that one waits for: stored, and delivered until it has arrived."""


@outbox.command("list")
@status_option(OutboxStatus)
@limit_option
@app_options
@json_option
def list_(
    status: list[str] | None, limit: int, app: App | None, database_url: str | None, as_json: bool
) -> None:
    """List news that is not delivered yet, newest first; with --status that of other ends, kept for a day."""
    rows = domain.find(runtime_of(app, database_url), status=status or OutboxStatus.PENDING, limit=limit)
    nothing = "There is no such news." if status else "Nothing is undelivered."
    print_list(map(_as_dict, rows), COLUMNS, as_json, nothing=nothing, limit=limit)


@outbox.command()
@click.argument("outbox_id")
@app_options
@json_option
def show(outbox_id: str, app: App | None, database_url: str | None, as_json: bool) -> None:
    """Show one piece of news, with what it says as long as it is undelivered."""
    row = _require(runtime_of(app, database_url), outbox_id)
    print_one(_as_dict(row) | {"payload": plain_value(row.payload)}, as_json)


@outbox.command()
@click.argument("outbox_ids", nargs=-1, metavar="[OUTBOX_ID]...")
@click.option("--all", "everything", is_flag=True, help="All that is undelivered, 1000 at most.")
@app_options
def retry(outbox_ids: tuple[str, ...], everything: bool, app: App | None, database_url: str | None) -> None:
    """Deliver news now, instead of at its next try. Exits with 1 if some of it can't be delivered."""
    if bool(outbox_ids) == everything:
        raise click.UsageError("Name what to deliver, or all of it with --all.")
    rt = runtime_of(app, database_url)
    failed = 0
    for outbox_id in _undelivered(rt) if everything else outbox_ids:
        _require(rt, outbox_id)
        word = domain.deliver(rt, outbox_id).word
        failed += word not in TOLD
        click.echo(f"{outbox_id} was {TOLD[word]}" if word in TOLD else _failure(rt, outbox_id))
    if failed:
        raise Failure(f"{failed} could not be delivered. They are tried again by themselves.")


def _undelivered(rt: Runtime) -> list[str]:
    return [row.id for row in domain.find(rt, status=OutboxStatus.PENDING, limit=MAX_PAGE)]


def _failure(rt: Runtime, outbox_id: str) -> str:
    row = domain.get(rt, outbox_id)
    return f"{outbox_id} could not be delivered: {'it is gone' if row is None else row.last_error}"


def _require(rt: Runtime, outbox_id: str) -> Any:
    row = domain.get(rt, outbox_id)
    if row is None:
        raise Failure(
            f"There is no news {outbox_id!r}. What is delivered is kept for a day. See: think-celery outbox list"
        )
    return row


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        "outbox_id": row.id,
        "workflow": row.workflow,
        "workflow_id": row.workflow_id,
        "run": row.run,
        "event_type": row.event_type,
        "submission_id": row.submission_id,
        "status": row.status,
        "attempts": row.attempts,
        "last_error": row.last_error,
        "created_at": row.created_at,
        "next_try_at": row.knock_at,
        "delivered_at": row.delivered_at,
    }
