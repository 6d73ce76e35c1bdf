"""Add to a conversation from outside, without a turn."""

from collections.abc import Sequence
from typing import Any, Literal

from think_celery import serialization
from think_celery.domain.conversation import conversation, live
from think_celery.errors import InvalidValue
from think_celery.ids import AgentRef
from think_celery.messages import Messages, UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.store import messages as message_rows
from think_celery.store.database import Tx
from think_celery.wording import shown

Mode = Literal["upsert", "append"]


def persist(rt: Runtime, agent: AgentRef, given: Messages, mode: Mode) -> list[str]:
    """Store these messages, tell listeners, and return the ids of those that were added or changed.

    In a caller's joined transaction they are part of it, and listeners are told after its commit.

    Raises:
        InvalidValue: *mode* is none.
        EmptySubmission, InvalidMessage, PayloadTooLarge: The messages can't be stored.
    """
    store: Any = {"upsert": message_rows.upsert, "append": message_rows.append}
    if not isinstance(mode, str) or mode not in store:
        raise InvalidValue(f"mode={shown(mode)}: it must be 'upsert' or 'append'.")
    messages = as_messages(given)
    stored = [message.to_dict() for message in messages]
    serialization.check_size("the messages", stored, rt.settings.max_payload)
    return rt.db.accept(lambda tx: _persist(rt, tx, agent, messages, store[mode]))


def _persist(rt: Runtime, tx: Tx, agent: AgentRef, messages: Sequence[UIMessage], store: Any) -> list[str]:
    done = [message.id for message in messages if store(tx, agent.id, conversation.as_row(message))]
    if done:
        tx.after_commit(lambda: live.tell_of_messages(rt, agent.id, done))
    return done
