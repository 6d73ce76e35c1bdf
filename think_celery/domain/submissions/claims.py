"""Claim a turn and run it: only when its time has come, and by one worker at a time."""

import logging
from typing import Any

from think_celery.domain import lacking
from think_celery.domain.conversation import conversation
from think_celery.domain.outcomes import Ended, Outcome, Word
from think_celery.domain.passes import PATIENCE
from think_celery.domain.submissions import lines, statuses
from think_celery.domain.submissions.claimed import Claim
from think_celery.domain.turns import afterwards, continuations, takeover, turns
from think_celery.errors import (
    ConversationMoved,
    InvalidMessage,
    NothingToAnswer,
    ThinkError,
    UnreadableValue,
)
from think_celery.ids import AgentRef, new_id
from think_celery.messages import UIMessage, as_messages
from think_celery.retries import MISSED_AFTER
from think_celery.runtime import Runtime, agent_classes
from think_celery.signals import AbortSignal
from think_celery.states import SubmissionStatus, TurnKind, is_terminal
from think_celery.store import agents, beginnings, heads, submissions
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store.database import Refused, Tx, is_locked
from think_celery.store.leases import Lease, fence
from think_celery.store.tables import UNPLACED

logger = logging.getLogger("think_celery.submissions")


def run(rt: Runtime, submission_id: str) -> Outcome:
    """Run that submission if its turn has come, and say how it went. It runs no other.

    What its agent does about the end, in ``on_chat_response``, comes before this returns.
    """
    claimed = claim(rt, submission_id)
    outcome = claimed if isinstance(claimed, Outcome) else turns.run(rt, claimed)
    if outcome.after is not None:
        afterwards.call_hooks(rt, outcome.after, claim_next)
    return outcome


def claim(rt: Runtime, submission_id: str) -> Claim | Outcome:
    """Take the line for a submission whose turn has come; else say why not.

    In one transaction: the lease, ``running``, one more attempt, the id of the answer, and (once) the
    submitted messages at the end of the transcript.
    """
    process_id = rt.monitor.process_id()
    claimed: Claim | Outcome | None
    try:
        claimed = _claim_at_once(rt, submission_id, process_id)
        if claimed is None:
            claimed = rt.db.transact(lambda tx: _claim(rt, tx, submission_id, process_id))
    except _NotNow as reason:
        if reason.knock_for is not None:
            lines.knock_head(rt, reason.knock_for)
        return Outcome(reason.word)
    except Refused:
        return Outcome("busy")  # the index of one running submission per agent has the last word
    except Exception as error:
        if not is_locked(error):
            raise
        return Outcome("busy")
    rt.failpoint("turn:claimed")
    return claimed


def claim_next(rt: Runtime, lease: Lease, stop: AbortSignal) -> Claim | Outcome | None:
    """Under a lease that is held: claim the line's next submission; ``None`` if there is none.

    Raises:
        LeaseLost: The lease is another's now.
    """

    def work(tx: Tx) -> Claim | Outcome | None:
        fence(tx, lease)
        head = heads.head_id(tx, lease.key)
        row = None if head is None else heads.lock_candidate(tx, lease.key, head)
        if row is None:
            return None if head is None else Outcome("busy")
        return _begin(rt, tx, row, lease, stop=stop)

    try:
        claimed = rt.db.transact(work)
    except _NotNow as reason:
        return Outcome(reason.word)
    rt.failpoint("turn:claimed")
    return claimed


class _NotNow(Exception):
    """The submission does not run now, and what was written to claim it is undone.

    ``knock_for``: the agent whose head is to run instead.
    """

    def __init__(self, word: Word, knock_for: str | None = None) -> None:
        super().__init__(word, knock_for)
        self.word, self.knock_for = word, knock_for


def _claim_at_once(rt: Runtime, submission_id: str, process_id: str) -> Claim | None:
    """Claim a turn that has never begun, with one message, on a line that is free: nearly every turn is so.

    ``None``, and nothing is changed: it is not so, or somebody else was here meanwhile. A transaction then finds out.
    """
    if not rt.db.on_postgres:
        return None
    row = rt.db.read(lambda tx: beginnings.look(tx, submission_id))
    if row is None or row.status != SubmissionStatus.PENDING or row.held_by is not None:
        return None
    if not (row.is_head and row.due) or row.outdated or row.agent_class not in agent_classes:
        return None
    if row.applied_at is not None or row.kind == TurnKind.CONTINUE or row.based_on is not None:
        return None
    if len(row.messages or ()) != 1 or takeover.given_up(rt, row) is not None:
        return None
    try:
        (message,) = as_messages(row.messages)
    except InvalidMessage:
        return None
    token = row.line_token
    if token is None:
        rt.db.single(lambda tx: beginnings.make_line(tx, submission_id, PATIENCE), repeatable=True)
        token = 0
    place, stored = continuations.Place(message_id=row.message_id or new_id()), conversation.as_row(message)
    lease = rt.db.single(lambda tx: beginnings.begin(tx, row, token, process_id, place.message_id, stored))
    if lease is None:
        return None
    agent = AgentRef.of(row)
    return Claim(row=row, lease=lease, agent=agent, place=place, attempt=row.attempts + 1)


def _claim(rt: Runtime, tx: Tx, submission_id: str, process_id: str) -> Claim | Outcome:
    lease = line_rows.take_line(tx, submission_id, process_id) or _first_lease(
        rt, tx, submission_id, process_id
    )
    row = heads.lock_candidate(tx, lease.key, submission_id)
    if row is None:  # a caller has it locked, for as long as it likes
        line_rows.free_line(tx, lease)
        line_rows.look_later(tx, lease.key, MISSED_AFTER)
        return Outcome("busy")
    return _begin(rt, tx, row, lease)


def _begin(
    rt: Runtime, tx: Tx, row: Any, lease: Lease, *, stop: AbortSignal | None = None
) -> Claim | Outcome:
    """Make a candidate the one that runs, if it can be. With *stop*, inside a hook that keeps the line."""
    _refuse(rt, row)
    if not row.is_head:
        raise _NotNow("not-head", knock_for=lease.key)
    if not row.due:
        raise _NotNow("waiting")
    if row.outdated:
        return _skip(rt, tx, row, lease, conversation.SKIPPED_BY_RESET, inner=stop is not None)
    agent = AgentRef.of(row)
    if row.based_on is not None and row.applied_at is None and _has_moved(tx, row):
        reason = ConversationMoved()
        return _skip(rt, tx, row, lease, str(reason), type(reason).__name__, inner=stop is not None)
    error = _unfit(rt, tx, agent, row)
    if error is not None:
        return _end_in_error(rt, tx, row, lease, error, inner=stop is not None)
    place = continuations.place(tx, row)
    if isinstance(place, str):
        return _skip(rt, tx, row, lease, place, inner=stop is not None)
    if not submissions.begin(
        tx, row.id, place.message_id, continues=place.continues, steps_before=place.steps_before
    ):
        raise ThinkError(f"submission {row.id} could not be claimed under its line's lock")
    return Claim(row=row, lease=lease, agent=agent, place=place, attempt=row.attempts + 1, stop=stop)


def _skip(
    rt: Runtime,
    tx: Tx,
    row: Any,
    lease: Lease,
    why: str,
    error_type: str | None = None,
    *,
    inner: bool,
) -> Outcome:
    lines.end(rt, tx, row, SubmissionStatus.SKIPPED, error_type=error_type, error=why, holding=True)
    if not inner:
        lines.free(rt, tx, lease)
    return Outcome("skipped", ended=True, row=row.id)


def _first_lease(rt: Runtime, tx: Tx, submission_id: str, process_id: str) -> Lease:
    """Make a line where there was none, and take it; else it is another's, who knocks when it gives it back.

    A line that is there is not touched: its holder has it locked while an end of its turn waits for a caller. Where
    the agent's row is just being made by a caller, who may keep that open for long, the tick comes again.
    """
    if not line_rows.is_made(tx, submission_id):
        tx.wait_at_most(PATIENCE)
        agents.make_for(tx, submission_id)
        lease = line_rows.make_and_take_line(tx, submission_id, process_id)
        if lease is not None:
            return lease
    row = submissions.get(tx, submission_id)
    if row is None:
        raise _NotNow("not-found")
    _refuse(rt, row)
    raise _NotNow("busy")


def _refuse(rt: Runtime, row: Any) -> None:
    """Raise if the submission can't be run here at all."""
    if is_terminal(SubmissionStatus(row.status)):
        raise _NotNow("ended-before")
    if not lacking.has_agent(rt, row.agent_class, f"submission {row.id}"):
        raise _NotNow("unknown-class")


def _has_moved(tx: Tx, row: Any) -> bool:
    """Whether the conversation is another than the one that the submitted messages were made for."""
    stored = [each for each in message_rows.of(tx, row.agent_id) if each.position != UNPLACED]
    present = conversation.fingerprint(conversation.from_row(each) for each in stored)
    return bool(present != row.based_on)


def _unfit(rt: Runtime, tx: Tx, agent: AgentRef, row: Any) -> ThinkError | None:
    """Append the submitted messages, once; returns why there can be no answer, if there can't."""
    if (why := takeover.given_up(rt, row)) is not None:
        return why
    if row.applied_at is not None or row.kind == TurnKind.CONTINUE:
        return None
    try:
        messages = as_messages(row.messages) if row.messages else []
    except InvalidMessage as error:  # of another version, perhaps: no later claim here would fare better
        return UnreadableValue(f"Submission {row.id!r}", f"{error.path}: {error.problem}")
    return None if _apply(tx, agent, messages) else NothingToAnswer()


def _apply(tx: Tx, agent: AgentRef, messages: list[UIMessage]) -> bool:
    """Append the submitted messages, and say whether there is something to answer then."""
    added = False
    for message in messages:
        added |= message_rows.append(tx, agent.id, conversation.as_row(message))
    if added:
        return True
    last = message_rows.last(tx, agent.id)
    return last is not None and last.role != "assistant"


def _end_in_error(rt: Runtime, tx: Tx, row: Any, lease: Lease, error: ThinkError, *, inner: bool) -> Outcome:
    """End a submission that there can be no turn for; the line is kept for the hooks that are told."""
    name, keep = type(error).__name__, inner or statuses.follows(row.agent_class)
    message = None if row.message_id is None else message_rows.get(tx, row.agent_id, row.message_id)
    conversation.place_unfinished(tx, row.agent_id)
    lines.end(
        rt, tx, row, SubmissionStatus.ERROR, error_type=name, error=str(error), holding=True, tell=not keep
    )
    if not keep:
        lines.free(rt, tx, lease)
        return Outcome("error", ended=True, row=row.id, error_type=name)
    stored = None if message is None else conversation.from_row(message)
    after = Ended.without_turn(row, lease, stored, name)
    return Outcome("error", ended=True, row=row.id, error_type=name, after=after)
