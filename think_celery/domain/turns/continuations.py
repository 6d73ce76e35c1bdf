"""Turns that go on with an answer that was there before: where their own answer goes, and what comes first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from think_celery.domain.conversation.conversation import INTERRUPTED, UNKNOWN_OUTCOME
from think_celery.domain.conversation.interactions import WITHDRAWN, fingerprint, settled_as
from think_celery.ids import new_id
from think_celery.messages import Part, StepStartPart, ToolPart, UIMessage, load_parts
from think_celery.states import InteractionStatus, TurnKind
from think_celery.store import interactions, messages
from think_celery.store.database import Tx

NOTHING_TO_CONTINUE = "The conversation does not end with an answer that could be continued."
STILL_WAITS = (
    "The answer has tool calls that still wait for somebody: decide on them, and it goes on by itself."
)

CONTINUE = (
    "Continue your answer above: go on where it ends, repeat nothing, and add no remark about being asked to."
)
DECIDED = (
    "Tool calls that had to wait have got their results by now; they stand where the calls were made, above. "
    "Take them into account and tell what follows from them."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the answer of a turn goes, which message it goes on with, and how many steps that has already."""

    message_id: str
    continues: str | None = None
    steps_before: int = 0


def place(tx: Tx, row: Any) -> Place | str:
    """Where the answer of a claimed turn goes; or why there is nothing to go on with.

    A turn that continues does so in the last message, which is its own until it ends. Where other turns came in
    between, what was decided is done in the message that asked, and the answer is a new message. It stays so, whoever
    takes the turn over.
    """
    if row.kind != TurnKind.CONTINUE:
        return Place(message_id=row.message_id or new_id())
    if row.applied_at is not None:
        return Place(message_id=row.message_id, continues=row.continues, steps_before=row.steps_before)
    last = messages.last(tx, row.agent_id)
    if row.continues is None:
        if last is None or last.role != "assistant":
            return NOTHING_TO_CONTINUE
        if interactions.any_open_in(tx, row.agent_id, last.message_id):
            return STILL_WAITS
    elif last is None or last.message_id != row.continues:
        return Place(message_id=new_id(), continues=row.continues)
    messages.reopen(tx, row.agent_id, last.message_id)
    return Place(
        message_id=last.message_id,
        continues=last.message_id,
        steps_before=_whole_steps(load_parts(last.parts)),
    )


def _whole_steps(parts: Sequence[Part]) -> int:
    """How many model steps there are, without one that was cut: that one goes on."""
    cut = any(getattr(part, "state", None) in ("streaming", "input-streaming") for part in parts)
    return max(sum(isinstance(part, StepStartPart) for part in parts) - cut, 0)


def approved(tx: Tx, agent_id: str, message_id: str, submission_id: str) -> dict[str, str]:
    """The calls of that message which this turn may make, and for each what it was approved as."""
    decided = interactions.decided_for(tx, agent_id, message_id, submission_id)
    return {row.tool_call_id: row.fingerprint for row in decided if row.status == InteractionStatus.APPROVED}


def resumed(
    parts: Sequence[Part], approved: Mapping[str, str], steps_before: int | None = None
) -> list[Part]:
    """The parts of an answer as a turn goes on with them: what an earlier turn left open, and nobody approved, is over.

    Only the first *steps_before* steps are an earlier turn's, or all.
    """
    step, kept = 0, []
    for part in parts:
        step += isinstance(part, StepStartPart)
        earlier = steps_before is None or step <= steps_before
        if isinstance(part, ToolPart) and earlier and _is_over(part, approved):
            part = settled_as(part, _why(part))
        kept.append(part)
    return kept


def _is_over(part: ToolPart, approved: Mapping[str, str]) -> bool:
    return not part.settled and part.state != "input-streaming" and not is_approved(part, approved)


def is_approved(part: ToolPart, approved: Mapping[str, str]) -> bool:
    """Whether just this call, with just these arguments, was approved."""
    return part.state == "approval-responded" and approved.get(part.tool_call_id) == fingerprint(part)


def _why(part: ToolPart) -> str:
    if part.started:
        return UNKNOWN_OUTCOME
    return WITHDRAWN if part.state == "approval-requested" else INTERRUPTED


def nudge(place: Place) -> str | None:
    """What the model is told, without being stored, if it is asked just after an answer of its own."""
    if place.continues is None:
        return None
    return CONTINUE if place.continues == place.message_id else DECIDED


def ends_with_an_answer(messages: Sequence[UIMessage]) -> bool:
    """Whether the last thing in the conversation is a text of the model's own: no results, and nobody else's words."""
    if not messages or messages[-1].role != "assistant":
        return False
    parts = messages[-1].parts
    start = max((at for at, part in enumerate(parts) if isinstance(part, StepStartPart)), default=0)
    return not any(isinstance(part, ToolPart) for part in parts[start:])
