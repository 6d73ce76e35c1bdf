"""``think-celery submissions``."""

from collections.abc import Sequence
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
from think_celery.domain import conversation
from think_celery.domain import submissions as domain
from think_celery.domain.pages import MAX_PAGE
from think_celery.errors import SubmissionNotFound
from think_celery.ids import AgentRef
from think_celery.messages import UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus

LOOK_BACK, LONGEST_QUESTION = 50, 5
"""Among how many messages before the answer the question is looked for, and of how many it may be."""


@click.group(cls=Group)
def submissions() -> None:
    """Accepted turns of agents."""


@submissions.command("list")
@click.option(
    "--status",
    type=click.Choice([status.value for status in SubmissionStatus]),
    multiple=True,
    help="May be given again.",
)
@click.option("--agent", metavar="CLASS:NAME", help="Only this agent's, such as TriageAgent:issue-42.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True)
@app_options
@json_option
def list_(
    status: tuple[str, ...],
    agent: str | None,
    limit: int,
    app: str | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """List submissions, newest first."""
    rt = runtime_of(app, database_url)
    rows = domain.find(rt, _agent(agent), status=list(status) or None, limit=limit)
    if as_json:
        print_json([_as_dict(row) for row in rows])
        return
    print_table(
        ["submission", "agent", "status", "attempts", "accepted", "error"],
        [
            (
                row.id,
                f"{row.agent_class}:{row.agent_name}",
                row.status,
                row.attempts,
                row.created_at,
                row.error,
            )
            for row in rows
        ],
        nothing="There are no such submissions.",
    )


@submissions.command()
@click.argument("submission_id")
@app_options
@json_option
def show(submission_id: str, app: str | None, database_url: str | None, as_json: bool) -> None:
    """Show one submission, with what was asked and the answer, as far as they are stored."""
    rt = runtime_of(app, database_url)
    row = domain.require(rt, submission_id)
    question, answer = _question(rt, row), _answer(rt, row)
    if as_json:
        print_json(_as_dict(row) | {"question": question, "answer": answer})
        return
    print_fields({name: value for name, value in _as_dict(row).items() if name != "submission_id"})
    for name, text in (("Question", question), ("Answer", answer)):
        if text is not None:
            click.echo(f"\n{name}:\n{text}")


@submissions.command()
@click.argument("submission_id")
@click.option("--reason", help="Kept with the submission.")
@app_options
def cancel(submission_id: str, reason: str | None, app: str | None, database_url: str | None) -> None:
    """End a submission as aborted; its worker stops within a second. Exits with 1 if it had ended."""
    rt = runtime_of(app, database_url)
    if domain.cancel_by_id(rt, submission_id, reason):
        click.echo(f"{submission_id} is aborted.")
        return
    row = domain.get(rt, submission_id)
    if row is None:
        raise SubmissionNotFound(submission_id)
    raise Failure(f"{submission_id} had ended before: {row.status}.")


def _agent(given: str | None) -> AgentRef | None:
    if given is None:
        return None
    agent_class, colon, name = given.partition(":")
    if not colon or not agent_class or not name:
        raise click.BadParameter(
            f"{given!r} is no CLASS:NAME, such as TriageAgent:issue-42.", param_hint="--agent"
        )
    return AgentRef(agent_class, name)


def _question(rt: Runtime, row: Any) -> str | None:
    """What was asked: in the row until the turn begins, then in the conversation, unless that was reset."""
    if row.messages:
        return _texts(as_messages(row.messages))
    history = conversation.history(rt, AgentRef(row.agent_class, row.agent_name))
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
    message = conversation.get_message(rt, AgentRef(row.agent_class, row.agent_name), row.message_id)
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
