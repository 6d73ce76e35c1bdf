"""Claim a turn and run it: only when its time has come, and by one worker at a time."""

import logging
from typing import Any

from think_celery.domain import conversation, lines, turns
from think_celery.domain.outcomes import Outcome
from think_celery.domain.turns import Claim
from think_celery.errors import InvalidMessage, NothingToAnswer, ThinkError, TooManyAttempts, UnreadableValue
from think_celery.ids import AgentRef, new_id
from think_celery.messages import UIMessage, as_messages
from think_celery.retries import MISSED_AFTER
from think_celery.runtime import Runtime, agent_classes
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import agents, submissions
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store.database import Refused, Tx

logger = logging.getLogger("think_celery.submissions")

MAX_TAKEOVERS = 100


def run(rt: Runtime, submission_id: str) -> Outcome:
    """Run that submission if its turn has come, and say how it went. It runs no other."""
    claimed = claim(rt, submission_id)
    return claimed if isinstance(claimed, Outcome) else turns.run(rt, claimed)


def claim(rt: Runtime, submission_id: str) -> Claim | Outcome:
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
    rt: Runtime, tx: Tx, agent: AgentRef, submission_id: str, process_id: str, message_id: str
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
    row = submissions.lock(tx, submission_id, patient=False)
    if row is None:  # a caller has it locked, for as long as it likes
        line_rows.look_later(tx, agent.id, MISSED_AFTER)
        return Outcome("busy")
    if is_terminal(SubmissionStatus(row.status)):
        tx.after_commit(lambda: lines.knock_head(rt, agent.id))
        return Outcome("ended-before")
    if row.epoch < agents.epoch(tx, agent.id):
        lines.end(rt, tx, row, SubmissionStatus.SKIPPED, error=conversation.SKIPPED_BY_RESET, holding=True)
        lines.expect_next_on(rt, tx, agent.id)
        return Outcome("skipped", ended=True, row=row.id)
    if row.attempts >= rt.settings.max_attempts or row.takeovers >= MAX_TAKEOVERS:
        times = row.takeovers if row.attempts < rt.settings.max_attempts else row.attempts
        return _end_in_error(rt, tx, row, TooManyAttempts(f"Submission {row.id!r}", times))
    if row.applied_at is None:
        try:
            messages = as_messages(row.messages) if row.messages else []
        except InvalidMessage as error:  # of another version, perhaps: no later claim here would fare better
            problem = f"{error.path}: {error.problem}"
            return _end_in_error(rt, tx, row, UnreadableValue(f"Submission {row.id!r}", problem))
        if not _apply(tx, agent, messages):
            return _end_in_error(rt, tx, row, NothingToAnswer())
    lease = line_rows.take_line(tx, agent.id, process_id)
    if lease is None or not submissions.begin(tx, submission_id, message_id):
        raise ThinkError(f"submission {submission_id} could not be claimed under its line's lock")
    return Claim(
        row=row,
        lease=lease,
        agent=agent,
        message_id=row.message_id or message_id,
        attempt=row.attempts + 1,
    )


def _apply(tx: Tx, agent: AgentRef, messages: list[UIMessage]) -> bool:
    """Append the submitted messages, and say whether there is something to answer then."""
    added = False
    for message in messages:
        added |= message_rows.append(tx, agent.id, conversation.as_row(message))
    if added:
        return True
    transcript = message_rows.of(tx, agent.id)
    return bool(transcript) and transcript[-1].role != "assistant"


def _end_in_error(rt: Runtime, tx: Tx, row: Any, error: ThinkError) -> Outcome:
    name = type(error).__name__
    message_rows.settle_all(tx, row.agent_id)
    lines.end(rt, tx, row, SubmissionStatus.ERROR, error_type=name, error=str(error), holding=True)
    lines.expect_next_on(rt, tx, row.agent_id)
    return Outcome("error", ended=True, row=row.id, error_type=name)
