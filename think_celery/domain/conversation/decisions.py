"""Decide on calls that wait: approve, reject, answer. Each decision is taken once, from any process."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from think_celery.described import kept_reason
from think_celery.domain.conversation import live
from think_celery.domain.conversation.interactions import Kind, calls_in, fingerprint
from think_celery.domain.submissions import submissions
from think_celery.errors import InteractionMismatch, InteractionNotFound, InvalidValue
from think_celery.ids import AgentRef
from think_celery.messages import Part, ToolPart, dump_parts, load_parts
from think_celery.names import can_be_a_name
from think_celery.runtime import Runtime, agent_classes
from think_celery.serialization import check_size
from think_celery.states import InteractionStatus, TurnKind
from think_celery.store import interactions as rows
from think_celery.store import messages as message_rows
from think_celery.store import submissions as submission_rows
from think_celery.store.database import Tx
from think_celery.tools import dump_result
from think_celery.wording import shown

logger = logging.getLogger("think_celery.interactions")


@dataclass(frozen=True, kw_only=True, slots=True)
class InteractionResult:
    """What came of a decision. It is true where this call took it (``taken``).

    ``status`` is how the call stands now, whoever decided: ``approved``, ``rejected``, ``answered``, or ``withdrawn``.
    ``continuation_id`` is the submission that goes on with it; ``None`` while other calls of the same answer wait.
    """

    taken: bool
    status: InteractionStatus
    continuation_id: str | None

    def __bool__(self) -> bool:
        return self.taken


def approve(
    rt: Runtime, agent: AgentRef | None, which: str, *, reason: str | None, queue: str | None = None
) -> InteractionResult:
    """Let a call run that waits for an approval. *which* is the id of the call or of the interaction.

    Without an *agent* it is the interaction's, whosever it is, and the turn that goes on has the queue of the one that
    asked. The same goes for :func:`reject` and :func:`answer`.
    """
    reason = kept_reason(reason)

    def apply(part: ToolPart) -> None:
        part.state = "approval-responded"
        part.approval = _approval(part, approved=True, reason=reason)

    return _decide(rt, agent, which, "approval", InteractionStatus.APPROVED, apply, queue, reason=reason)


def reject(
    rt: Runtime, agent: AgentRef | None, which: str, *, reason: str | None, queue: str | None = None
) -> InteractionResult:
    """Let a call not run that waits for an approval."""
    reason = kept_reason(reason)

    def apply(part: ToolPart) -> None:
        part.state = "output-denied"
        part.approval = _approval(part, approved=False, reason=reason)

    return _decide(rt, agent, which, "approval", InteractionStatus.REJECTED, apply, queue, reason=reason)


def answer(
    rt: Runtime,
    agent: AgentRef | None,
    which: str,
    *,
    output: Any,
    error: str | None,
    queue: str | None = None,
) -> InteractionResult:
    """Store what a client answered to a call.

    Raises:
        InvalidToolResult: The output has no JSON form.
        PayloadTooLarge: It is too large.
        InvalidValue: Both an output and an error were given.
    """
    if error is not None and output is not None:
        raise InvalidValue(
            "provide_tool_result() takes an output or an error, not both. Leave one of them out."
        )
    output, error = dump_result(output), kept_reason(error, "error")
    check_size("The tool's result", output, rt.settings.max_payload)

    def apply(part: ToolPart) -> None:
        if error is None:
            part.output, part.state = output, "output-available"
        else:
            part.error_text, part.state = error.strip() or "the client gave no reason", "output-error"

    answered = InteractionStatus.ANSWERED
    return _decide(rt, agent, which, "client", answered, apply, queue, output=output, error=error)


def _approval(part: ToolPart, *, approved: bool, reason: str | None) -> dict[str, Any]:
    told = {**(part.approval or {}), "approved": approved}
    return told if reason is None else {**told, "reason": reason}


_REMEDY = {
    "approval": "It waits for an approval. Call approve_tool_call() or reject_tool_call().",
    "client": "It waits for a client's answer. Call provide_tool_result().",
}


def _decide(
    rt: Runtime,
    agent: AgentRef | None,
    which: str,
    kind: Kind,
    status: InteractionStatus,
    apply: Callable[[ToolPart], None],
    queue: str | None,
    **decision: Any,
) -> InteractionResult:
    """Take one decision, in one transaction with what it changes: the call, and the turn that goes on with it.

    Joins the caller's transaction where there is one. Of any number of calls one takes the decision.

    Raises:
        InteractionNotFound: There is no such call.
        InteractionMismatch: It waits for something else, or is not what was asked about any more.
    """

    def work(tx: Tx) -> InteractionResult:
        row = _find(tx, agent, which, kind)
        owner = AgentRef.of(row)
        waiting = rows.lock_open_of(tx, owner.id, row.message_id)
        if row.id not in {each.id for each in waiting}:
            row = _find(tx, agent, which, kind)
            return InteractionResult(
                taken=False, status=InteractionStatus(row.status), continuation_id=row.continuation_id
            )
        parts = _locked_parts(tx, owner.id, row)
        taken = rows.decide(tx, row.id, status, **decision)
        assert taken is not None, "it was locked, and open"
        apply(next(part for part in calls_in(parts) if part.tool_call_id == row.tool_call_id))
        message_rows.update_parts(tx, owner.id, row.message_id, dump_parts(parts))
        continuation = None
        if len(waiting) == 1:
            continuation = _go_on(rt, tx, owner, row.message_id, queue or _queue_of(rt, tx, row))
        tx.after_commit(lambda: live.tell_of_messages(rt, owner.id, [row.message_id]))
        tx.after_commit(lambda: _log(row, status, continuation))
        return InteractionResult(taken=True, status=status, continuation_id=continuation)

    return rt.db.accept(work)


def _find(tx: Tx, agent: AgentRef | None, which: str, kind: Kind) -> Any:
    row = _look(tx, agent, which) if can_be_a_name(which, 200) else None
    if row is None:
        raise InteractionNotFound(
            None if agent is None else str(agent), (which if isinstance(which, str) else shown(which))[:200]
        )
    if row.kind != kind:
        problem = "it needs no approval" if row.kind == "client" else "no client answers it"
        raise InteractionMismatch(row.tool_call_id, problem, _REMEDY[row.kind])
    return row


def _look(tx: Tx, agent: AgentRef | None, which: str) -> Any:
    """The agent's call of that id, else its interaction; without an agent anybody's interaction."""
    row = None if agent is None else rows.by_call(tx, agent.id, which)
    if row is None:
        row = rows.by_id(tx, which)
    return row if row is not None and (agent is None or row.agent_id == agent.id) else None


def _queue_of(rt: Runtime, tx: Tx, row: Any) -> str | None:
    """The queue of the class where this process knows it, else that of the turn that asked."""
    cls = agent_classes.get(row.agent_class) if row.agent_class in agent_classes else None
    asked = submission_rows.get(tx, row.submission_id)
    return (cls and cls.queue) or (asked and asked.queue) or rt.settings.queue


def _locked_parts(tx: Tx, agent_id: str, row: Any) -> list[Part]:
    """The parts of the message, locked, in which the call stands with the arguments that were asked about."""
    message = message_rows.lock(tx, agent_id, row.message_id)
    parts = [] if message is None else load_parts(message.parts)
    for part in calls_in(parts):
        if (
            part.tool_call_id == row.tool_call_id
            and not part.settled
            and fingerprint(part) == row.fingerprint
        ):
            return parts
    raise InteractionMismatch(
        row.tool_call_id,
        "its message was changed since, so it is not the call that was asked about",
        "Ask the agent again.",
    )


def _go_on(rt: Runtime, tx: Tx, agent: AgentRef, message_id: str, queue: str | None) -> str:
    """Accept the turn that goes on with a message of which no call waits any more."""
    row, _ = submissions.accept(rt, tx, agent, [], kind=TurnKind.CONTINUE, queue=queue, continues=message_id)
    rows.continue_with(tx, agent.id, message_id, row.id)
    return str(row.id)


def _log(row: Any, status: InteractionStatus, continuation: str | None) -> None:
    logger.info(
        "tool call %s of %s in submission %s is %s%s",
        row.tool_call_id,
        row.tool,
        row.submission_id,
        status,
        f"; submission {continuation} goes on" if continuation else "",
        extra={"think_event": f"interaction.{status}", "think_submission": row.submission_id},
    )
