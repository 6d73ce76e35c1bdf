"""An agent's transcript: read it, repair it for a model, reset it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from think_celery import serialization
from think_celery.domain.conversation import interactions
from think_celery.domain.schedules import slots
from think_celery.domain.submissions import lines, statuses
from think_celery.errors import InsideTransaction
from think_celery.ids import AgentRef
from think_celery.messages import (
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
    UIMessage,
    clean,
    dump_parts,
    load_parts,
)
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus
from think_celery.store import agents, submissions
from think_celery.store import interactions as interaction_rows
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store.database import Tx
from think_celery.store.tables import UNPLACED

logger = logging.getLogger("think_celery.conversation")

Wait = Callable[[Tx], object]
"""How to wait, in a transaction of its own, for what somebody else has locked."""

SKIPPED_BY_RESET = "Submission was skipped by turn reset."
INTERRUPTED = "The tool call was interrupted before it ran; no result was recorded."
DENIED = "The call was denied, and it was not made."
UNKNOWN_OUTCOME = (
    "The tool was started and then interrupted before a result was recorded. Its outcome is unknown: it may "
    "or may not have taken effect."
)


def as_row(message: UIMessage) -> dict[str, Any]:
    """A message as the values of its row."""
    return {
        "message_id": message.id,
        "role": message.role,
        "parts": dump_parts(message.parts),
        "metadata": message.metadata,
        "created_at": message.created_at,
    }


def from_row(row: Any) -> UIMessage:
    """A row as a message. Only its parts are looked at again: the rest is as it was when it was stored."""
    return UIMessage.model_construct(
        id=row.message_id,
        role=row.role,
        parts=load_parts(row.parts),
        metadata=row.metadata,
        created_at=row.created_at,
    )


def history(rt: Runtime, agent: AgentRef, *, finished_only: bool = False) -> list[UIMessage]:
    """The agent's messages in order, read afresh. The message of a turn in progress stands last."""
    rows = rt.db.look(lambda tx: message_rows.of(tx, agent.id))
    return [from_row(row) for row in rows if not (finished_only and row.position == UNPLACED)]


def fingerprint(transcript: Iterable[UIMessage]) -> str:
    """What tells one state of a conversation from another."""
    return serialization.fingerprint([_told(as_row(message)) for message in transcript])


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("message_id", "role", "parts", "metadata")}


def get_message(rt: Runtime, agent: AgentRef, message_id: str) -> UIMessage | None:
    """One message, or ``None``."""
    if not isinstance(message_id, str) or "\0" in message_id or clean(message_id) != message_id:
        return None  # not every text fits a database, and no stored id is like that
    row = rt.db.look(lambda tx: message_rows.get(tx, agent.id, message_id))
    return None if row is None else from_row(row)


def repaired(messages: Iterable[UIMessage]) -> list[UIMessage]:
    """The messages as a provider accepts them: each tool call is whole and has exactly one result.

    A half-written call is left out, a call without result or one that was denied gets an error as its result, and
    an assistant's message that says nothing is left out. The stored messages are not changed.
    """
    fit: list[UIMessage] = []
    for message in messages:
        if message.role != "assistant":
            fit.append(message)
            continue
        parts = [_settled(part) for part in message.parts if not _half_written(part)]
        if says_something(parts):
            same = parts == message.parts
            fit.append(message if same else message.model_copy(update={"parts": parts}))
    return fit


def _half_written(part: Part) -> bool:
    return isinstance(part, ToolPart) and part.state == "input-streaming"


def _settled(part: Part) -> Part:
    if not isinstance(part, ToolPart):
        return part
    if part.state == "output-denied":
        return part.model_copy(update={"state": "output-error", "error_text": _denied(part)})
    if part.settled:
        return part
    text = UNKNOWN_OUTCOME if part.started else INTERRUPTED
    return part.model_copy(update={"state": "output-error", "error_text": text})


def _denied(part: ToolPart) -> str:
    reason = (part.approval or {}).get("reason")
    return f"{DENIED} Reason: {reason}" if reason else DENIED


def says_something(parts: Sequence[Part]) -> bool:
    """Whether there is anything in these parts but markers of steps."""
    return any(
        isinstance(part, ToolPart)
        or (isinstance(part, TextPart | ReasoningPart) and bool(part.text))
        or part.type not in ("step-start", "text", "reasoning")
        for part in parts
    )


def place_unfinished(tx: Tx, agent_id: str, message_id: str | None = None) -> None:
    """Give the agent's unfinished messages (or that one), as they are stored, their place in the order.

    Nobody goes on with them. What they had yet to ask somebody for, nobody is asked for any more.
    """
    for row in message_rows.unfinished(tx, agent_id, message_id):
        parts = load_parts(row.parts)
        settled = interactions.without_requests(parts)
        if settled != parts:
            message_rows.update_parts(tx, agent_id, row.message_id, dump_parts(settled))
    message_rows.settle_all(tx, agent_id, message_id)


class Reset:
    """Forget a conversation: end its unfinished turns, delete its messages, free its line.

    One transaction. Pending turns are skipped, a running one is aborted and its worker can write nothing more. What was
    accepted before and commits later is skipped when its turn comes. Calls that wait for somebody are withdrawn. Where
    somebody's open transaction has changed one of the turns, or decided on such a call, that is waited for first, with
    no lock held; so is the line, which a turn that ends may have locked while it waits for such a one.

    What else goes, or what stays, subclasses say by :meth:`remove`; what they need for it they lock in :meth:`lock`.
    """

    reason = SKIPPED_BY_RESET

    def __init__(self, rt: Runtime, agent: AgentRef) -> None:
        self.rt, self.agent = rt, agent

    def run(self) -> int:
        """How many turns were ended.

        Raises:
            InsideTransaction: The caller's transaction is joined. The line's lock must not wait for a caller.
        """
        if self.rt.db.inside_joined:
            raise InsideTransaction("Resetting a conversation")
        while not isinstance(ended := self.rt.db.transact(self._try), int):
            self.rt.db.transact(ended)
        logger.info("the conversation of %s was reset; %d unfinished turns ended", self.agent, ended)
        return ended

    def lock(self, tx: Tx) -> Wait | None:
        """Lock what the transaction changes; where somebody has it, how to wait for that."""
        locked = submissions.lock_all(tx, self.agent.id)
        if locked is not None:
            return lambda tx: submissions.lock(tx, locked)
        decided = interaction_rows.lock_all(tx, self.agent.id)
        return None if decided is None else lambda tx: interaction_rows.wait_for(tx, decided)

    def remove(self, tx: Tx) -> None:
        """Remove what was said. The turns have ended by then."""
        interaction_rows.withdraw_all(tx, self.agent.id)
        message_rows.remove_all(tx, self.agent.id)

    def _try(self, tx: Tx) -> int | Wait:
        rt, agent_id = self.rt, self.agent.id
        agents.make(tx, self.agent)
        agents.lock(tx, agent_id)
        if not line_rows.make_and_lock_line(tx, agent_id):
            return lambda tx: line_rows.lock_line(tx, agent_id)
        if (wait := self.lock(tx)) is not None:
            return wait
        line_rows.seize_line(tx, agent_id)
        agents.next_epoch(tx, agent_id)
        ended = submissions.end_all(tx, agent_id, self.reason)
        for row in ended:
            status = SubmissionStatus(row.status)
            slots.turn_ended(tx, row, status, began=True, error_type=None, error=row.error)
            lines.tell_workflow(rt, tx, row, status, error=row.error)
            statuses.tell_after(rt, tx, row, status, error=row.error)
        self.remove(tx)
        lines.expect_next_on(rt, tx, agent_id)
        return len(ended)


def reset(rt: Runtime, agent: AgentRef) -> int:
    """Forget the conversation, and say how many turns were ended. Raises what :meth:`Reset.run` raises."""
    return Reset(rt, agent).run()
