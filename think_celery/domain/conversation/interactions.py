"""Calls that wait for a person's approval or for a client's answer: what is open, and what others are told of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from think_celery import serialization
from think_celery.clock import to_milliseconds
from think_celery.domain.pages import check_limit, class_name
from think_celery.domain.reading import as_record
from think_celery.ids import AgentRef, named_id
from think_celery.messages import Part, ToolPart, UIMessage, dump_parts, load_parts
from think_celery.names import can_be_a_name
from think_celery.runtime import Runtime
from think_celery.states import InteractionStatus, SubmissionStatus, is_terminal
from think_celery.store import interactions as rows
from think_celery.store import messages as message_rows
from think_celery.store.database import Tx

Kind = Literal["approval", "client"]

LATER = "Don't repeat it: its result comes later."
WAITS_FOR_APPROVAL = f"The call has not been made yet, for it waits for somebody's approval. {LATER}"
WAITS_FOR_CLIENT = f"The call has not been answered yet, for it waits for the client. {LATER}"
WILL_RUN = f"The call has been approved and will be made soon. {LATER}"
WITHDRAWN = "The call was withdrawn before anybody decided on it. It was not made."


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingInteraction:
    """A tool call that waits: for a person's approval (``kind`` is ``approval``), or for a ``client`` to answer it.

    ``interaction_id`` is what listeners know as ``approvalId``; it is unique over all agents. ``submission_id`` is the
    turn that asked, and ``message_id`` the answer in which the call stands.
    """

    interaction_id: str
    agent: AgentRef
    tool_call_id: str
    tool_name: str
    input: Any = field(repr=False)
    kind: Kind
    message_id: str
    submission_id: str
    created_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """The same in JSON values and JavaScript spelling."""
        return {
            "interactionId": self.interaction_id,
            "agentClass": self.agent.agent_class,
            "agentName": self.agent.name,
            "toolCallId": self.tool_call_id,
            "toolName": self.tool_name,
            "input": self.input,
            "kind": self.kind,
            "messageId": self.message_id,
            "submissionId": self.submission_id,
            "createdAt": to_milliseconds(self.created_at),
        }


# --- looking --------------------------------------------------------------------------------------


def any_open(rt: Runtime, agent: AgentRef) -> bool:
    """Whether a call of the agent waits for somebody. (In a transaction: ``store.interactions.any_open``.)"""
    return rt.db.look(lambda tx: rows.any_open(tx, agent.id))


def pending(rt: Runtime, agent: AgentRef) -> list[PendingInteraction]:
    """The agent's calls that wait, oldest first."""
    return rt.db.look(lambda tx: _with_inputs(tx, rows.open_of(tx, agent.id)))


def pending_of_all(
    rt: Runtime, *, agent_class: Any = None, newest_first: bool = False, limit: int = 100
) -> list[PendingInteraction]:
    """The calls of all agents that wait, or those of one class or its name, oldest first unless told otherwise.

    Raises:
        InvalidValue: *limit* is no whole number between 1 and 1000.
        InvalidType: *agent_class* is neither an agent class nor a name.
    """
    check_limit(limit)
    name = class_name(agent_class)
    if name is not None and not can_be_a_name(name, 200):
        return []
    return rt.db.look(
        lambda tx: _with_inputs(
            tx, rows.open_of_all(tx, agent_class=name, newest_first=newest_first, limit=limit)
        )
    )


def _with_inputs(tx: Tx, found: Sequence[Any]) -> list[PendingInteraction]:
    inputs = {}
    for agent_id, message_id in {(row.agent_id, row.message_id) for row in found}:
        message = message_rows.get(tx, agent_id, message_id)
        for part in [] if message is None else calls_in(load_parts(message.parts)):
            inputs[agent_id, message_id, part.tool_call_id] = part.input
    return [_as_pending(row, inputs.get((row.agent_id, row.message_id, row.tool_call_id))) for row in found]


def waiting_in(rt: Runtime, agent: AgentRef, message: UIMessage | None) -> list[PendingInteraction]:
    """Those of the agent's calls that wait which stand in that message; without a look if none can."""
    if message is None or not any(_may_wait(part) for part in calls_in(message.parts)):
        return []
    return [each for each in pending(rt, agent) if each.message_id == message.id]


def _as_pending(row: Any, given: Any) -> PendingInteraction:
    return as_record(PendingInteraction, row, interaction_id=row.id, tool_name=row.tool, input=given)


def calls_in(parts: Iterable[Part]) -> list[ToolPart]:
    """The tool calls among these parts."""
    return [part for part in parts if isinstance(part, ToolPart)]


def fingerprint(part: ToolPart) -> str:
    """What tells this call, with these arguments, from any other."""
    return serialization.fingerprint([part.tool_name, part.input])


# --- asking ---------------------------------------------------------------------------------------


def interaction_id(agent_id: str, message_id: str, part: ToolPart) -> str:
    """The id of what a call waits for: the same after a crash."""
    return named_id("interaction", agent_id, message_id, part.tool_call_id)


def ask(tx: Tx, submission: Any, message_id: str, parts: Sequence[ToolPart]) -> None:
    """These calls wait from now on. In the transaction that ends their turn, so that no decision comes before that."""
    for part in parts:
        rows.insert(
            tx,
            id=interaction_id(submission.agent_id, message_id, part),
            agent_id=submission.agent_id,
            agent_class=submission.agent_class,
            agent_name=submission.agent_name,
            submission_id=submission.id,
            message_id=message_id,
            tool_call_id=part.tool_call_id,
            tool=part.tool_name,
            kind="approval" if part.state == "approval-requested" else "client",
            fingerprint=fingerprint(part),
        )


# --- what the model and the transcript are told ---------------------------------------------------


def told(rt: Runtime, agent: AgentRef, messages: Sequence[UIMessage]) -> list[UIMessage]:
    """The messages as a model is told of them: each call that waits says for what. Nothing is stored."""
    waiting = [message.id for message in messages if any(_may_wait(part) for part in calls_in(message.parts))]
    if not waiting:
        return list(messages)
    found = rt.db.look(lambda tx: rows.of_messages(tx, agent.id, waiting))
    notes = {(row.message_id, row.tool_call_id): _note(row) for row in found}
    return [_noted(message, notes) if message.id in waiting else message for message in messages]


def _may_wait(part: ToolPart) -> bool:
    return not part.settled and not part.started and part.state != "input-streaming"


def _note(row: Any) -> str | None:
    match InteractionStatus(row.status):
        case InteractionStatus.OPEN:
            return WAITS_FOR_CLIENT if row.kind == "client" else WAITS_FOR_APPROVAL
        case InteractionStatus.APPROVED:
            ended = row.continuation_status is None or is_terminal(SubmissionStatus(row.continuation_status))
            return None if ended and row.continuation_id is not None else WILL_RUN
        case _:
            return WITHDRAWN


def _noted(message: UIMessage, notes: Mapping[tuple[str, str], str | None]) -> UIMessage:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolPart) and _may_wait(part):
            text = notes.get((message.id, part.tool_call_id))
            part = part if text is None else settled_as(part, text)
        parts.append(part)
    return message.model_copy(update={"parts": parts})


def settled_as(part: ToolPart, error_text: str) -> ToolPart:
    """A copy of the call with this error for a result."""
    return part.model_copy(update={"state": "output-error", "error_text": error_text})


# --- withdrawing ----------------------------------------------------------------------------------


def withdraw(tx: Tx, agent_id: str, submission_id: str) -> None:
    """What that submission's turn asked for does not wait any more; its calls say so.

    That goes for one that was approved, too, as long as others of its answer wait: no turn would ever make it.
    """
    for message_id in sorted({row.message_id for row in rows.unmade(tx, agent_id, submission_id)}):
        rows.lock_open_of(tx, agent_id, message_id)  # whoever decides on one of them comes before
    gone = rows.unmade(tx, agent_id, submission_id)
    rows.withdraw_of(tx, agent_id, submission_id)
    _say_so(tx, agent_id, gone)


def withdraw_all(tx: Tx, agent_id: str) -> None:
    """Nothing of the agent waits any more; its calls say so. Whoever calls this has locked all that waited."""
    gone = rows.unmade(tx, agent_id)
    rows.withdraw_all(tx, agent_id)
    _say_so(tx, agent_id, gone)


def _say_so(tx: Tx, agent_id: str, gone: Sequence[Any]) -> None:
    for message_id in sorted({row.message_id for row in gone}):
        message = message_rows.lock(tx, agent_id, message_id)
        if message is not None:
            mine = {row.tool_call_id for row in gone if row.message_id == message_id}
            parts = [
                settled_as(part, WITHDRAWN)
                if isinstance(part, ToolPart) and part.state in _ASKED and part.tool_call_id in mine
                else part
                for part in load_parts(message.parts)
            ]
            message_rows.update_parts(tx, agent_id, message_id, dump_parts(parts))


_ASKED = ("approval-requested", "approval-responded")


def without_requests(parts: Sequence[Part]) -> list[Part]:
    """The parts, with each request for an approval that nobody can give any more settled as withdrawn."""
    return [
        settled_as(part, WITHDRAWN)
        if isinstance(part, ToolPart) and part.state == "approval-requested"
        else part
        for part in parts
    ]
