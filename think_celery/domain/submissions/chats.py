"""Accept what clients say: one message after the other, or as the agent's ``message_concurrency`` wants it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from think_celery import serialization
from think_celery.concurrency import Debounce, MessageConcurrency
from think_celery.domain.submissions import lines, submissions
from think_celery.errors import InsideTransaction, PayloadTooLarge
from think_celery.ids import AgentRef
from think_celery.messages import Messages, UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, TurnKind
from think_celery.store import agents, chats, heads
from think_celery.store import submissions as submission_rows
from think_celery.store.database import Tx

DROPPED = "The agent was busy, and its message_concurrency is 'drop'."


def receive(
    rt: Runtime,
    agent: AgentRef,
    given: Messages,
    how: MessageConcurrency,
    *,
    idempotency_key: str | None = None,
    metadata: dict[str, Any] | None = None,
    queue: str | None = None,
) -> tuple[Any, bool, bool]:
    """Accept a client's messages: the row, whether it is new, and whether its payload is this one.

    All but ``queue`` look at what else waits, so of one agent they come one after the other. A row that waits and is
    not yet to run may be replaced: it ends as skipped, and its messages go into the turn of the newer one.
    """
    options: dict[str, Any] = {"idempotency_key": idempotency_key, "metadata": metadata, "queue": queue}
    if how == "queue":
        return submissions.submit(rt, agent, given, kind=TurnKind.CHAT, **options)
    if rt.db.inside_joined:
        why = (
            "looks at the turns that wait, and may replace some, as the class's message_concurrency (not 'queue') "
            "wants it; for that it needs a transaction of its own"
        )
        raise InsideTransaction("receive_messages()", why)
    messages = as_messages(given)
    submissions.check_names(idempotency_key, None)

    def work(tx: Tx) -> tuple[Any, bool]:
        agents.make(tx, agent)
        agents.lock(tx, agent.id)
        known = None if idempotency_key is None else submission_rows.by_key(tx, agent.id, idempotency_key)
        if known is not None:
            return known, False
        return _receive(rt, tx, agent, messages, how, options), True

    row, accepted = rt.db.transact(work)
    return row, accepted, row.fingerprint == submissions.payload_fingerprint(messages)


def _receive(
    rt: Runtime,
    tx: Tx,
    agent: AgentRef,
    messages: list[UIMessage],
    how: MessageConcurrency,
    options: dict[str, Any],
) -> Any:
    own = submissions.payload_fingerprint(messages)
    busy = heads.head_id(tx, agent.id) is not None
    if busy and how != "drop":
        messages = _with_replaced(rt, tx, agent, messages, merge=how == "merge")
    row, _ = submissions.accept(rt, tx, agent, messages, kind=TurnKind.CHAT, fingerprint=own, **options)
    if busy and how == "drop":
        submissions.skip(rt, tx, row.id, DROPPED)
        return submission_rows.get(tx, row.id)
    if busy and isinstance(how, Debounce):
        chats.begin_later(tx, row.id, timedelta(seconds=how.seconds))
    return row


def _with_replaced(
    rt: Runtime, tx: Tx, agent: AgentRef, messages: list[UIMessage], *, merge: bool
) -> list[UIMessage]:
    """The messages of those that these replace, and these. Where they are too many for one turn, none is replaced."""
    waiting = chats.replaceable(tx, agent.id)
    every = [message for row in waiting for message in as_messages(row.messages)] + messages
    every = _merged(every) if merge else every
    try:
        serialization.check_size("the messages", [each.to_dict() for each in every], rt.settings.max_payload)
    except PayloadTooLarge:
        return messages
    for row in waiting:
        lines.end(
            rt,
            tx,
            row,
            SubmissionStatus.SKIPPED,
            error="A later message of the client's has taken its place.",
        )
    return every


def _merged(messages: Sequence[UIMessage]) -> list[UIMessage]:
    """The same with neighbouring messages of users made one, which is the last of them with the parts of all."""
    merged: list[UIMessage] = []
    for message in messages:
        before = merged[-1] if merged else None
        if before is not None and before.role == message.role == "user":
            merged[-1] = message.model_copy(update={"parts": [*before.parts, *message.parts]})
        else:
            merged.append(message)
    return merged
