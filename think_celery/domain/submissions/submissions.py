"""Accept, look up, cancel and delete turns. Claiming them is in ``claims``."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from think_celery import serialization
from think_celery.described import kept_reason
from think_celery.domain import knocks
from think_celery.domain.conversation import conversation, interactions
from think_celery.domain.pages import (
    Before,
    Page,
    as_instant,
    check_limit,
    page_of,
    read_number,
    status_names,
)
from think_celery.domain.submissions import lines, statuses
from think_celery.errors import SubmissionConflict, SubmissionNotFound, ThinkError
from think_celery.ids import AgentRef, new_id, submission_id_for
from think_celery.messages import Messages, UIMessage, as_messages
from think_celery.names import MAX_KEY, check_name, name_problem
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, TurnKind, is_terminal
from think_celery.store import counts, heads, outbox, submissions, usage
from think_celery.store import lines as line_rows
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.submissions")

BATCH = 500

Statuses = str | Sequence[str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The workflow that waits for a submission's end, and the event type it waits for."""

    workflow_key: str
    run: int
    event_type: str


# --- accepting ------------------------------------------------------------------------------------


def submit(
    rt: Runtime,
    agent: AgentRef,
    messages: Messages,
    *,
    idempotency_key: str | None = None,
    submission_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    queue: str | None = None,
    kind: TurnKind = TurnKind.SUBMIT,
) -> tuple[Any, bool, bool]:
    """Accept one turn for a user: the row, whether it is new, and whether its payload is this one."""
    given = as_messages(messages)
    check_names(idempotency_key, submission_id)
    new = _new(rt, given, kind=kind, idempotency_key=idempotency_key, metadata=metadata, queue=queue)
    chosen = _id_for(agent, idempotency_key, submission_id)
    # Nearly always it is new, and then one statement is all it takes.
    row, accepted = rt.db.accept_single(lambda tx: _insert(rt, tx, agent, chosen, new)), True
    if row is None:
        row, accepted = rt.db.accept(
            lambda tx: _find_or_insert(rt, tx, agent, chosen, new, by_id=submission_id is not None)
        )
    return row, accepted, warn_if_other(row, new["fingerprint"])


def warn_if_other(row: Any, fingerprint: str) -> bool:
    """Whether that submission was accepted with the payload of this fingerprint; the log tells where it was not."""
    same = bool(row.fingerprint == fingerprint)
    if not same:
        logger.warning(
            "submission %s of %s was accepted before with other messages; those stand",
            row.id,
            AgentRef.of(row),
            extra={"think_event": "submission.differs", "think_submission": row.id},
        )
    return same


def accept(
    rt: Runtime,
    tx: Tx,
    agent: AgentRef,
    messages: Sequence[UIMessage],
    *,
    kind: str,
    idempotency_key: str | None = None,
    metadata: dict[str, Any] | None = None,
    structure: dict[str, Any] | None = None,
    waiting: Waiting | None = None,
    fingerprint: str | None = None,
    based_on: str | None = None,
    queue: str | None = None,
    continues: str | None = None,
    slot_id: str | None = None,
) -> tuple[Any, bool]:
    """Store one turn in this transaction, and return its row and whether it is new.

    A key that is known returns the row that has it. The knock follows the commit. A turn that *continues* goes on with
    that message: in it, if it is still the last one then. *based_on* is the fingerprint of the conversation that the
    messages were made for: the turn is skipped if it is another when the turn begins. *slot_id* is the slot of a
    schedule that ends with the turn.

    Raises:
        PayloadTooLarge: The messages or the metadata are.
        InvalidType: The metadata is no dict.
        NotSerializable: The metadata isn't JSON.
    """
    new = _new(
        rt,
        messages,
        kind=kind,
        idempotency_key=idempotency_key,
        metadata=metadata,
        fingerprint=fingerprint,
        structure=structure,
        based_on=based_on,
        workflow_key=None if waiting is None else waiting.workflow_key,
        workflow_run=None if waiting is None else waiting.run,
        event_type=None if waiting is None else waiting.event_type,
        queue=queue,
        continues=continues,
        message_id=continues,
        slot_id=slot_id,
    )
    chosen = _id_for(agent, idempotency_key, None)
    row = _insert(rt, tx, agent, chosen, new)
    return (row, True) if row is not None else _find_or_insert(rt, tx, agent, chosen, new)


def _new(
    rt: Runtime,
    messages: Sequence[UIMessage],
    *,
    metadata: dict[str, Any] | None,
    fingerprint: str | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """The columns of a new submission."""
    stored = [message.to_dict() for message in messages]
    serialization.check_size("the messages", stored, rt.settings.max_payload)
    return {
        "messages": stored,
        "metadata": serialization.json_metadata(metadata, rt.settings.max_payload),
        "fingerprint": fingerprint or _fingerprint(stored),
        **columns,
    }


def _id_for(agent: AgentRef, key: str | None, submission_id: str | None) -> str:
    return submission_id or (submission_id_for(agent, key) if key else new_id())


def _insert(rt: Runtime, tx: Tx, agent: AgentRef, chosen: str, new: dict[str, Any]) -> Any:
    row = submissions.insert(tx, agent, id=chosen, **new)
    if row is not None:
        tx.after_commit(lambda: _knock_accepted(rt, row))
        statuses.tell_after(rt, tx, row, SubmissionStatus.PENDING)
    return row


def _find_or_insert(
    rt: Runtime, tx: Tx, agent: AgentRef, chosen: str, new: dict[str, Any], *, by_id: bool = False
) -> tuple[Any, bool]:
    """The row with the id or the key of one that could not be inserted; *by_id*: its caller has chosen the id.

    Raises:
        SubmissionConflict: Id and key refer to different submissions.
    """
    key = new["idempotency_key"]
    made_here = key is None and not by_id  # then nobody else has it: it was inserted, and the answer got lost
    for _ in range(3):
        row = _find_accepted(tx, agent, key, chosen if by_id or made_here else None)
        if row is not None:
            return row, made_here
        # It was deleted just now; or the key's own id is that of a row which gave the key up.
        row = _insert(rt, tx, agent, chosen if by_id else new_id(), new)
        if row is not None:
            return row, True
    raise ThinkError(
        f"could not accept a submission for {agent}: its row was deleted each time it was looked at"
    )


def _knock_accepted(rt: Runtime, row: Any) -> None:
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
        other = AgentRef.of(by_id)
        raise SubmissionConflict(submission_id, key, f"the id belongs to a submission of {other}")
    if key is not None and by_id.idempotency_key is None:
        # If another call was faster (with this key or for this row), the next look tells what it means.
        return submissions.get(tx, submission_id) if submissions.give_key(tx, by_id, key) else None
    if key is not None and by_id.idempotency_key != key:
        raise SubmissionConflict(
            submission_id, key, f"the id was stored with the key {by_id.idempotency_key!r}"
        )
    return by_id


def payload_fingerprint(messages: Sequence[UIMessage]) -> str:
    """What tells one payload from another: roles and parts, without ids and times, which are often made."""
    return _fingerprint([message.to_dict() for message in messages])


def _fingerprint(stored: list[dict[str, Any]]) -> str:
    return serialization.fingerprint([{"role": each["role"], "parts": each["parts"]} for each in stored])


def check_names(idempotency_key: Any, submission_id: Any) -> None:
    """Make sure that a key and an id of a user's can be ones.

    Raises:
        InvalidValue: They can't.
    """
    if idempotency_key is not None:
        check_name("idempotency_key", idempotency_key, MAX_KEY, reserved=True)
    if submission_id is not None:
        check_name("submission_id", submission_id, 200, ascii_only=True)


def _can_be_an_id(text: str) -> bool:
    return name_problem(text, 200, ascii_only=True) is None


# --- looking, cancelling, deleting ----------------------------------------------------------------


def get(rt: Runtime, submission_id: str) -> Any:
    """The row of a submission, or ``None``."""
    if not _can_be_an_id(submission_id):  # comes from outside, perhaps, and not every text fits a database
        return None
    return rt.db.look(lambda tx: submissions.get(tx, submission_id))


def get_by_key(rt: Runtime, agent: AgentRef, idempotency_key: str) -> Any:
    """The row of an agent's submission with that key, or ``None``."""
    if not isinstance(idempotency_key, str) or not idempotency_key.isprintable():
        return None
    return rt.db.look(lambda tx: submissions.by_key(tx, agent.id, idempotency_key))


def find(
    rt: Runtime,
    agent: AgentRef | None,
    *,
    status: Statuses = None,
    key: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Any]:
    """Rows of submissions, newest first."""
    check_limit(limit)
    names = status_names(status, SubmissionStatus)
    agent_id, after = None if agent is None else agent.id, read_number(cursor, "submissions")
    if key is not None and not key.isprintable():
        return Page()
    which: dict[str, Any] = {"agent_id": agent_id, "statuses": names, "key": key, "after": after}
    rows = rt.db.look(lambda tx: submissions.find(tx, **which, limit=limit + 1))
    return page_of(rows, limit, "submissions", lambda row: row.seq)


def cancel_by_id(rt: Runtime, submission_id: str, reason: str | None = None) -> bool:
    """End a submission as aborted, from any process, and say whether this call did. InvalidType: unfit *reason*."""
    said = kept_reason(reason)
    if not _can_be_an_id(submission_id):
        return False
    return rt.db.accept(lambda tx: cancel(rt, tx, submission_id, said))


def cancel(
    rt: Runtime, tx: Tx, submission_id: str, reason: str | None = None, *, patient: bool = True
) -> bool:
    """End a submission as aborted in this transaction, and say whether this call did.

    A running one keeps its line's lease: its worker sees the cancel within a second, stores the partial
    text and gives the line back; the next turn begins only then. One that had been handed over, or whose worker
    is known to be dead, has no worker: the text that it has so far takes its place at once. Without *patient*, one
    that another transaction has locked is left alone.
    """
    row = submissions.lock(tx, submission_id, patient=patient)
    if row is None:
        return False
    # Nobody takes the line for this submission, or from its worker, as long as it is locked here.
    worked_on = row.status == SubmissionStatus.RUNNING and line_rows.is_held(tx, row.agent_id)
    if row.message_id is not None and not (worked_on or is_terminal(SubmissionStatus(row.status))):
        conversation.place_unfinished(tx, row.agent_id, row.message_id)
    # Else the worker tells, when it gives the turn up.
    return lines.end(rt, tx, row, SubmissionStatus.ABORTED, error=reason, tell=not worked_on)


def skip(rt: Runtime, tx: Tx, submission_id: str, reason: str) -> bool:
    """End a submission whose turn has never begun as skipped in this transaction, and say whether this call did."""
    row = submissions.lock(tx, submission_id)
    return row is not None and lines.end(rt, tx, row, SubmissionStatus.SKIPPED, error=reason)


INTENDED = "cancelled at its interruption"


def intend_to_cancel(rt: Runtime, submission_id: str, reason: str | None = None) -> bool:
    """Store that a submission shall end at its next interruption; False if it has ended.

    Raises:
        InvalidType: *reason* is no text.
    """
    why = kept_reason(reason) or INTENDED
    return _can_be_an_id(submission_id) and rt.db.accept(
        lambda tx: submissions.intend_to_cancel(tx, submission_id, why)
    )


def delete(rt: Runtime, submission_id: str) -> bool:
    """Delete an ended submission, and say whether there was one.

    Its messages stay in the transcript; calls in them that still wait for somebody are withdrawn. Refused (False)
    while a workflow has not got its news, and for the moment in which the tick has yet to see, by this row, to the
    turn after it.
    """
    return _can_be_an_id(submission_id) and rt.db.accept(lambda tx: _delete(tx, submission_id))


def _delete(tx: Tx, submission_id: str) -> bool:
    row = submissions.lock(tx, submission_id)
    if row is None or not is_terminal(SubmissionStatus(row.status)):
        return False
    if row.knock_at is not None and not heads.expect_knock(tx, row.agent_id):
        return False
    if not outbox.forget(tx, submission_id):
        return False
    usage.keep(tx, [row.seq])
    interactions.withdraw(tx, row.agent_id, submission_id)
    return submissions.remove(tx, submission_id)


def count_ended(
    rt: Runtime, agent: AgentRef, *, status: Statuses = None, completed_before: Before | None = None
) -> int:
    """How many :func:`delete_all` would look at now."""
    wanted = _ended(rt, status, completed_before)
    return rt.db.look(lambda tx: counts.ended_submissions(tx, agent.id, **wanted))


def delete_all(
    rt: Runtime, agent: AgentRef, *, status: Statuses = None, completed_before: Before | None = None
) -> int:
    """Delete every ended submission that matches, oldest first, and say how many."""
    wanted = _ended(rt, status, completed_before)

    def batch(tx: Tx, after_seq: int) -> list[tuple[int, str]]:
        return submissions.ended(tx, agent.id, **wanted, after_seq=after_seq, limit=BATCH)

    deleted, last = 0, 0
    while found := rt.db.look(lambda tx, last=last: batch(tx, last)):  # type: ignore[misc]
        deleted += sum(delete(rt, submission_id) for _, submission_id in found)
        last = found[-1][0]
    return deleted


def _ended(rt: Runtime, status: Statuses, completed_before: Before | None) -> dict[str, Any]:
    before = as_instant("completed_before", completed_before, rt.clock.now())
    names = status_names(status, SubmissionStatus)
    wanted = [s for s in (submissions.TERMINAL if names is None else names) if s in submissions.TERMINAL]
    return {"statuses": wanted, "completed_before": before}


def require(rt: Runtime, submission_id: str) -> Any:
    """The row of a submission that must be there.

    Raises:
        SubmissionNotFound: It is not.
    """
    row = get(rt, submission_id)
    if row is None:
        raise SubmissionNotFound(submission_id)
    return row
