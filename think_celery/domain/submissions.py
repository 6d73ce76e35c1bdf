"""Accept, claim, run, look up, cancel and delete turns."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from think_celery import serialization
from think_celery.domain import conversation, knocks, lines, turns
from think_celery.domain.outcomes import Outcome
from think_celery.domain.turns import Claim
from think_celery.errors import (
    NothingToAnswer,
    NotSerializable,
    PayloadTooLarge,
    SubmissionConflict,
    SubmissionNotFound,
    ThinkError,
    TooManyAttempts,
)
from think_celery.ids import AgentRef, new_id, submission_id_for
from think_celery.messages import Messages, UIMessage, as_messages
from think_celery.runtime import agent_classes
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import agents, outbox, submissions
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store.database import Refused, Tx

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.submissions")

MAX_TAKEOVERS = 100
MAX_PAGE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The workflow that waits for a submission's end, and the event type it waits for."""

    workflow_key: str
    run: int
    event_type: str


# --- accepting ------------------------------------------------------------------------------------


def submit(
    rt: "Runtime",
    agent: AgentRef,
    messages: Messages,
    *,
    idempotency_key: str | None = None,
    submission_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    queue: str | None = None,
) -> tuple[Any, bool, bool]:
    """Accept one turn for a user: the row, whether it is new, and whether its payload is this one."""
    given = as_messages(messages)
    _check_names(idempotency_key, submission_id)
    mark = payload_fingerprint(given)

    def work(tx: Tx) -> tuple[Any, bool]:
        return accept(
            rt,
            tx,
            agent,
            given,
            kind="submit",
            idempotency_key=idempotency_key,
            submission_id=submission_id,
            metadata=metadata,
            fingerprint=mark,
            queue=queue,
        )

    row, accepted = rt.db.accept(work)
    same = row.fingerprint == mark
    if not same:
        logger.warning(
            "submission %s of %s was accepted before with other messages; those stand",
            row.id,
            agent,
            extra={"think_event": "submission.differs", "think_submission": row.id},
        )
    return row, accepted, same


def accept(
    rt: "Runtime",
    tx: Tx,
    agent: AgentRef,
    messages: Sequence[UIMessage],
    *,
    kind: str,
    idempotency_key: str | None = None,
    submission_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    structure: dict[str, Any] | None = None,
    waiting: Waiting | None = None,
    fingerprint: str | None = None,
    queue: str | None = None,
) -> tuple[Any, bool]:
    """Store one turn in this transaction, and return its row and whether it is new.

    An id or a key that is known returns the row that has it. The knock follows the commit.

    Raises:
        SubmissionConflict: Id and key refer to different submissions.
        PayloadTooLarge: The messages or the metadata are.
        NotSerializable: The metadata isn't JSON.
    """
    stored = [message.to_dict() for message in messages]
    _check_size("the messages", stored, rt.settings.max_payload)
    if metadata is not None:
        _check_size("the metadata", metadata, rt.settings.max_payload)
    chosen = submission_id or (submission_id_for(agent, idempotency_key) if idempotency_key else new_id())
    for _ in range(3):
        row = submissions.insert(
            tx,
            agent,
            id=chosen,
            kind=kind,
            idempotency_key=idempotency_key,
            messages=stored,
            metadata=metadata,
            fingerprint=fingerprint or payload_fingerprint(messages),
            structure=structure,
            workflow_key=None if waiting is None else waiting.workflow_key,
            workflow_run=None if waiting is None else waiting.run,
            event_type=None if waiting is None else waiting.event_type,
            queue=queue,
        )
        if row is not None:
            tx.after_commit(lambda row=row: _knock_accepted(rt, row))  # type: ignore[misc]
            return row, True
        row = _find_accepted(tx, agent, idempotency_key, submission_id)
        if row is not None:
            return row, False
        if submission_id is None:
            chosen = new_id()  # the key's own id is taken by a row that gave the key up
    raise ThinkError(
        f"could not accept a submission for {agent}: its row was deleted each time it was looked at"
    )


def _knock_accepted(rt: "Runtime", row: Any) -> None:
    rt.failpoint("submit:committed")
    rt.knock(knocks.for_submission(row))


def _find_accepted(tx: Tx, agent: AgentRef, key: str | None, submission_id: str | None) -> Any:
    by_key = None if key is None else submissions.by_key(tx, agent.id, key)
    if submission_id is None:
        return by_key
    by_id = submissions.get(tx, submission_id)
    if by_key is not None and by_key.id != submission_id:
        raise SubmissionConflict(submission_id, key, f"the key belongs to submission {by_key.id!r}")
    if by_id is None:
        return by_key
    if by_id.agent_id != agent.id:
        other = AgentRef(by_id.agent_class, by_id.agent_name)
        raise SubmissionConflict(submission_id, key, f"the id belongs to a submission of {other}")
    if key is not None and by_id.idempotency_key is None:
        submissions.give_key(tx, submission_id, key)
        return submissions.get(tx, submission_id)
    if key is not None and by_id.idempotency_key != key:
        raise SubmissionConflict(
            submission_id, key, f"the id was stored with the key {by_id.idempotency_key!r}"
        )
    return by_id


def payload_fingerprint(messages: Sequence[UIMessage]) -> str:
    """What tells one payload from another: roles and parts, without ids and times, which are often made."""
    return serialization.fingerprint([{"role": m.role, "parts": m.to_dict()["parts"]} for m in messages])


def _check_names(idempotency_key: str | None, submission_id: str | None) -> None:
    if idempotency_key is not None:
        if not idempotency_key.strip():
            raise ValueError(
                "idempotency_key is blank. Pass a name of your own for this job, or leave it out."
            )
        if idempotency_key.startswith("think-"):
            raise ValueError(
                f"idempotency_key={idempotency_key!r}: keys that begin with 'think-' are reserved for workflows and "
                "schedules. Choose another beginning."
            )
    if submission_id is not None and not (
        1 <= len(submission_id) <= 200 and submission_id.isascii() and submission_id.isprintable()
    ):
        raise ValueError(
            f"submission_id={submission_id[:60]!r}: it must be 1 to 200 printable ASCII characters."
        )


def _check_size(what: str, value: Any, limit: int) -> None:
    try:
        size = len(json.dumps(value, allow_nan=False, separators=(",", ":")))
    except (TypeError, ValueError) as error:
        raise NotSerializable(
            what, str(error), "Pass JSON values only: dicts, lists, texts, numbers."
        ) from None
    if size > limit:
        raise PayloadTooLarge(what, size, limit)


# --- running --------------------------------------------------------------------------------------


def run(rt: "Runtime", submission_id: str) -> Outcome:
    """Run that submission if its turn has come, and say how it went. It runs no other."""
    claimed = claim(rt, submission_id)
    return claimed if isinstance(claimed, Outcome) else turns.run(rt, claimed)


def claim(rt: "Runtime", submission_id: str) -> Claim | Outcome:
    """Take the line for a submission whose turn has come; else say why not.

    In one transaction: the lease, ``running``, one more attempt, the id of the answer, and (once) the
    submitted messages at the end of the transcript.
    """
    seen = rt.db.read(lambda tx: submissions.get(tx, submission_id))
    if seen is None:
        return Outcome("not-found")
    if is_terminal(SubmissionStatus(seen.status)):
        return Outcome("ended-before")
    if seen.agent_class not in agent_classes:
        logger.error(
            "submission %s waits: no agent class %r is imported in this worker. Add its module to "
            "`think_imports` or to Celery's `imports`.",
            submission_id,
            seen.agent_class,
        )
        return Outcome("unknown-class")
    agent = AgentRef(seen.agent_class, seen.agent_name)
    process_id = rt.monitor.process_id()
    message_id = new_id()
    try:
        claimed = rt.db.transact(lambda tx: _claim(rt, tx, agent, submission_id, process_id, message_id))
    except Refused:
        return Outcome("busy")  # the index of one running submission per agent has the last word
    rt.failpoint("turn:claimed")
    return claimed


def _claim(
    rt: "Runtime", tx: Tx, agent: AgentRef, submission_id: str, process_id: str, message_id: str
) -> Claim | Outcome:
    line = line_rows.lock_line(tx, agent.id)
    if line is None:
        agents.make(tx, agent)
        line_rows.make_line(tx, agent.id)
        line = line_rows.lock_line(tx, agent.id)
    if line.process_id is not None:
        return Outcome("busy")
    head = submissions.head(tx, agent.id)
    if head is None:
        return Outcome("ended-before")
    if head.id != submission_id:
        tx.after_commit(lambda: lines.knock_head(rt, agent.id))
        return Outcome("not-head")
    if not head.due:
        return Outcome("waiting")
    row = submissions.lock(tx, submission_id)
    if row is None or is_terminal(SubmissionStatus(row.status)):
        tx.after_commit(lambda: lines.knock_head(rt, agent.id))
        return Outcome("ended-before")
    if row.epoch < agents.epoch(tx, agent.id):
        lines.end(rt, tx, row, SubmissionStatus.SKIPPED, error=conversation.SKIPPED_BY_RESET)
        return Outcome("skipped", ended=True, row=row.id)
    if row.attempts >= rt.settings.max_attempts or row.takeovers >= MAX_TAKEOVERS:
        return _end_in_error(rt, tx, row, TooManyAttempts(f"Submission {row.id!r}", row.attempts))
    if row.applied_at is None and not _apply(tx, agent, row):
        return _end_in_error(rt, tx, row, NothingToAnswer())
    lease = line_rows.take_line(tx, agent.id, process_id, timedelta(seconds=rt.settings.turn_timeout_seconds))
    if lease is None or not submissions.begin(tx, submission_id, message_id):
        raise ThinkError(f"submission {submission_id} could not be claimed under its line's lock")
    return Claim(
        row=row,
        lease=lease,
        agent=agent,
        message_id=row.message_id or message_id,
        attempt=row.attempts + 1,
    )


def _apply(tx: Tx, agent: AgentRef, row: Any) -> bool:
    """Append the submitted messages, and say whether there is something to answer then."""
    added = False
    for message in row.messages or []:
        added |= message_rows.append(tx, agent.id, conversation.as_row(UIMessage.model_validate(message)))
    if added:
        return True
    transcript = message_rows.of(tx, agent.id)
    return bool(transcript) and transcript[-1].role != "assistant"


def _end_in_error(rt: "Runtime", tx: Tx, row: Any, error: ThinkError) -> Outcome:
    name = type(error).__name__
    message_rows.settle_all(tx, row.agent_id)
    lines.end(rt, tx, row, SubmissionStatus.ERROR, error_type=name, error=str(error))
    return Outcome("error", ended=True, row=row.id, error_type=name)


# --- looking, cancelling, deleting ----------------------------------------------------------------


def get(rt: "Runtime", submission_id: str) -> Any:
    """The row of a submission, or ``None``."""
    return rt.db.look(lambda tx: submissions.get(tx, submission_id))


def get_by_key(rt: "Runtime", agent: AgentRef, idempotency_key: str) -> Any:
    """The row of an agent's submission with that key, or ``None``."""
    return rt.db.look(lambda tx: submissions.by_key(tx, agent.id, idempotency_key))


def find(
    rt: "Runtime",
    agent: AgentRef | None,
    *,
    status: str | Sequence[str] | None = None,
    limit: int = 100,
) -> list[Any]:
    """Rows of submissions, newest first."""
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit={limit}: it must be between 1 and {MAX_PAGE}.")
    statuses = None if status is None else _statuses(status)
    agent_id = None if agent is None else agent.id
    return rt.db.look(lambda tx: submissions.find(tx, agent_id=agent_id, statuses=statuses, limit=limit))


def _statuses(given: str | Sequence[str]) -> list[str]:
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in list(SubmissionStatus):
            raise ValueError(f"status={name!r} is none of {', '.join(SubmissionStatus)}.")
    return [str(name) for name in names]


def cancel_by_id(rt: "Runtime", submission_id: str, reason: str | None = None) -> bool:
    """End a submission as aborted, from any process, and say whether this call did."""
    return rt.db.accept(lambda tx: cancel(rt, tx, submission_id, reason))


def cancel(rt: "Runtime", tx: Tx, submission_id: str, reason: str | None = None) -> bool:
    """End a submission as aborted in this transaction, and say whether this call did.

    A running one keeps its line's lease: its worker sees the cancel within a second, stores the partial
    text and gives the line back; the next turn begins only then.
    """
    row = submissions.lock(tx, submission_id)
    if row is None:
        return False
    return lines.end(rt, tx, row, SubmissionStatus.ABORTED, error=reason)


def delete(rt: "Runtime", submission_id: str) -> bool:
    """Delete an ended submission, and say whether there was one.

    Its messages stay in the transcript. Refused (False) while a workflow has not got its news.
    """

    def work(tx: Tx) -> bool:
        row = submissions.lock(tx, submission_id)
        if row is None or not is_terminal(SubmissionStatus(row.status)):
            return False
        return outbox.forget(tx, submission_id) and submissions.remove(tx, submission_id)

    return rt.db.transact(work)


def delete_all(
    rt: "Runtime",
    agent: AgentRef,
    *,
    status: str | Sequence[str] | None = None,
    completed_before: datetime | None = None,
) -> int:
    """Delete every ended submission that matches, oldest first, and say how many."""
    wanted = [
        s
        for s in (submissions.TERMINAL if status is None else _statuses(status))
        if s in submissions.TERMINAL
    ]
    found = rt.db.read(
        lambda tx: submissions.ended(
            tx, agent.id, statuses=wanted, completed_before=completed_before, limit=1_000_000
        )
    )
    return sum(delete(rt, submission_id) for submission_id in found)


def require(rt: "Runtime", submission_id: str) -> Any:
    """The row of a submission that must be there.

    Raises:
        SubmissionNotFound: It is not.
    """
    row = get(rt, submission_id)
    if row is None:
        raise SubmissionNotFound(submission_id)
    return row
