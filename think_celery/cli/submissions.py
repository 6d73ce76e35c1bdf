"""``think-celery submissions``."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from think_celery.cli.common import Failure, Group, runtime_of
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
from think_celery.cli.printing import AGENT, Column, print_fields, print_json, print_list, print_text
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import submissions as domain
from think_celery.errors import SubmissionNotFound
from think_celery.ids import AgentRef
from think_celery.messages import UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal

COLUMNS: list[Column] = [
    "submission_id",
    AGENT,
    "status",
    "attempts",
    ("accepted", "created_at"),
    "error",
]

LOOK_BACK, LONGEST_QUESTION = 50, 5
"""Among how many messages before the answer the question is looked for, and of how many it may be."""


@click.group(cls=Group)
def submissions() -> None:
    """Accepted turns of agents."""


@submissions.command("list")
@status_option(SubmissionStatus)
@agent_option
@limit_option
@cursor_option
@app_options
@json_option
def list_(
    status: list[str] | None,
    agent: AgentRef | None,
    limit: int,
    cursor: str | None,
    app: App | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """List submissions, newest first."""
    page = domain.find(runtime_of(app, database_url), agent, status=status, limit=limit, cursor=cursor)
    nothing = "There are no such submissions."
    print_list(map(_as_dict, page), COLUMNS, as_json, nothing=nothing, cursor=page.cursor)


@submissions.command()
@click.option("--key", required=True, help="The idempotency key that it was accepted with.")
@agent_option
@limit_option
@cursor_option
@app_options
@json_option
def find(
    key: str,
    agent: AgentRef | None,
    limit: int,
    cursor: str | None,
    app: App | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """Find submissions by their idempotency key.

    Keys are per agent: without --agent those of all agents are found, and the whole table is looked through.
    """
    page = domain.find(runtime_of(app, database_url), agent, key=key, limit=limit, cursor=cursor)
    nothing = f"No submission was accepted with the key {key!r}."
    print_list(map(_as_dict, page), COLUMNS, as_json, nothing=nothing, cursor=page.cursor)


@submissions.command()
@click.argument("submission_id")
@app_options
@json_option
def show(submission_id: str, app: App | None, database_url: str | None, as_json: bool) -> None:
    """Show one submission, with what was asked and the answer, as far as they are stored."""
    rt = runtime_of(app, database_url)
    row = domain.require(rt, submission_id)
    question, answer = _question(rt, row), _answer(rt, row)
    if as_json:
        print_json(_as_dict(row) | {"question": question, "answer": answer})
        return
    print_fields(_as_dict(row))
    print_text("Question", question)
    print_text("Answer", answer)


@submissions.command()
@click.argument("submission_id")
@click.option("--reason", help="Kept with the submission.")
@app_options
def cancel(submission_id: str, reason: str | None, app: App | None, database_url: str | None) -> None:
    """End a submission as aborted; its worker stops within a second. Exits with 1 if it had ended."""
    rt = runtime_of(app, database_url)
    if domain.cancel_by_id(rt, submission_id, reason):
        click.echo(f"{submission_id} is aborted.")
        return
    row = domain.get(rt, submission_id)
    if row is None:
        raise SubmissionNotFound(submission_id)
    raise Failure(f"{submission_id} had ended before: {row.status}.")


@submissions.command()
@click.argument("submission_id", required=False)
@status_option([status for status in SubmissionStatus if is_terminal(status)])
@agent_option
@click.option(
    "--older-than", type=Span(), metavar="SPAN", help="Only those that ended so long ago, such as '30 days'."
)
@yes_option
@app_options
def delete(
    submission_id: str | None,
    status: list[str] | None,
    agent: AgentRef | None,
    older_than: timedelta | None,
    yes: bool,
    app: App | None,
    database_url: str | None,
) -> None:
    """Delete an ended submission, or with --agent all of that agent's that match. Messages stay.

    With it goes its idempotency key: the same key is a new submission then. One that a workflow has not heard of
    yet stays.
    """
    if (submission_id is None) == (agent is None):
        raise click.UsageError("Name a submission, or an agent with --agent.")
    if submission_id is not None and (status or older_than):
        raise click.UsageError(
            "--status and --older-than choose among an agent's submissions; leave the id away."
        )
    rt = runtime_of(app, database_url)
    if submission_id is not None:
        _delete_one(rt, submission_id)
        return
    assert agent is not None
    before = None if older_than is None else rt.clock.now() - older_than
    if not yes:
        many = domain.count_ended(rt, agent, status=status, completed_before=before)
        be_sure(f"Delete the ended submissions of {agent} that match ({many} just now)?", yes)
    deleted = domain.delete_all(rt, agent, status=status, completed_before=before)
    click.echo(f"{deleted} {'submission was' if deleted == 1 else 'submissions were'} deleted.")


def _delete_one(rt: Runtime, submission_id: str) -> None:
    row = domain.require(rt, submission_id)
    if not is_terminal(SubmissionStatus(row.status)):
        raise Failure(f"{submission_id} is {row.status}. Cancel it first.")
    if not domain.delete(rt, submission_id):
        raise Failure(
            f"{submission_id} stays for now: a workflow has not got the news of its end, or the turn behind it has "
            "not begun. Try again in a moment; see: think-celery outbox list"
        )
    click.echo(f"{submission_id} was deleted.")


def _question(rt: Runtime, row: Any) -> str | None:
    """What was asked: in the row until the turn begins, then in the conversation, unless that was reset."""
    if row.messages:
        return _texts(as_messages(row.messages))
    history = conversation.history(rt, AgentRef.of(row))
    ids = [message.id for message in history]
    end = ids.index(row.message_id) if row.message_id in ids else len(history)
    asked_before = history[max(0, end - LOOK_BACK) : end]
    for last in range(len(asked_before), 0, -1):  # others may have added messages meanwhile
        for first in range(last - 1, max(-1, last - 1 - LONGEST_QUESTION), -1):
            messages = asked_before[first:last]
            if domain.payload_fingerprint(messages) == row.fingerprint:
                return _texts(messages)
    return None


def _texts(messages: Sequence[UIMessage]) -> str | None:
    return "\n".join(message.text for message in messages if message.text) or None


def _answer(rt: Runtime, row: Any) -> str | None:
    if row.message_id is None:
        return None
    message = conversation.get_message(rt, AgentRef.of(row), row.message_id)
    return None if message is None else message.text or None


def _as_dict(row: Any) -> dict[str, Any]:
    return {
        "submission_id": row.id,
        "agent_class": row.agent_class,
        "agent_name": row.agent_name,
        "kind": row.kind,
        "status": row.status,
        "idempotency_key": row.idempotency_key,
        "metadata": row.metadata,
        "attempts": row.attempts,
        "message_id": row.message_id,
        "error_type": row.error_type,
        "error": row.error,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "completed_at": row.completed_at,
    }
