"""The order of an agent's turns: how one ends, how the line is given back, and who is knocked next."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from think_celery import serialization
from think_celery.described import MAX_ERROR, MAX_TYPE, storable
from think_celery.domain import knocks
from think_celery.domain.schedules import slots
from think_celery.domain.submissions import statuses
from think_celery.ids import AgentRef, new_id
from think_celery.retries import MISSED_AFTER
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus
from think_celery.store import agents, endings, heads, lines, outbox, submissions, workflows
from think_celery.store.database import Tx
from think_celery.store.endings import TurnEnd
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.lines")

Deliver = Callable[[str], None]
"""Takes the id of news that is stored, to deliver it at once."""


def knock_head(rt: Runtime, agent_id: str) -> None:
    """Knock for the agent's next submission, if its line is free and it may run now.

    Called after a commit, in a fresh look: the head is whatever is visible now. Two knocks are harmless.
    """
    head = rt.db.read(lambda tx: heads.head(tx, agent_id))
    if head is not None and not head.held and head.due:
        rt.knock(knocks.for_submission(head))


def expect_next_after(rt: Runtime, tx: Tx, row: Any) -> None:
    """Let the head that follows this ended one be knocked after this transaction, by us at once and else by the tick.

    Where a caller has that head locked (it cancels it, and has not committed) it is not waited for: two callers
    could wait for each other. The ended row stays for the tick to look for the head again.
    """
    if not heads.expect_knock(tx, row.agent_id):
        heads.look_later(tx, row.seq)
    tx.after_commit(lambda: knock_head(rt, row.agent_id))


def expect_next_on(rt: Runtime, tx: Tx, agent_id: str) -> None:
    """The same for whoever has the agent's line locked: the line is what the tick looks at again."""
    if not heads.expect_knock(tx, agent_id):
        lines.look_later(tx, agent_id, MISSED_AFTER)
    tx.after_commit(lambda: knock_head(rt, agent_id))


def end(
    rt: Runtime,
    tx: Tx,
    row: Any,
    status: SubmissionStatus,
    *,
    error_type: str | None = None,
    error: str | None = None,
    output: Any = None,
    holding: bool = False,
    tell: bool = True,
) -> bool:
    """End a submission, and say whether this call did: so any of them ends, but for those that a reset ends.

    In the same transaction: the news for the workflow that waits for it, and the end of the schedule's slot that it
    comes from. The next head is expected and,
    after the commit, knocked; with *holding* that is left to :func:`free`, which follows. The agent is
    told; without *tell* that is left to the caller, too. One that stood
    behind a head leaves the head alone: waiting for its row, which others may be ending just now, could
    end in a circle of waits.
    """
    error_type = None if error_type is None else storable(error_type, MAX_TYPE)
    error = None if error is None else storable(error, MAX_ERROR)
    was_head = not holding and heads.head_id(tx, row.agent_id) == row.id
    if not submissions.end(tx, row.seq, status, error_type=error_type, error=error):
        return False
    began = row.applied_at is not None
    _tell(rt, tx, row, status, began=began, error_type=error_type, error=error, output=output)
    if tell:
        statuses.tell_after(rt, tx, row, status, error_type=error_type, error=error)
    if was_head:
        expect_next_after(rt, tx, row)
    return True


def finish(
    rt: Runtime, tx: Tx, row: Any, turn_end: TurnEnd, *, output: Any = None, deliver: Deliver | None = None
) -> bool:
    """End a turn in hand: its message, its status, the news of it, the line, and who is next.

    False if it had been ended before: then its message is stored, and the line given back, all the same. A line that
    is kept its holder gives back with :func:`free` when what follows the turn is over.
    *deliver* is given the news after the commit, instead of the broker.

    Raises:
        LeaseLost: The line is another's. Nothing is written.
    """
    ended = endings.end_turn(tx, turn_end)
    if ended:
        why = {"error_type": turn_end.error_type, "error": turn_end.error}
        _tell(rt, tx, row, turn_end.status, began=True, output=output, deliver=deliver, **why)
    if not turn_end.keep:
        expect_next_on(rt, tx, turn_end.lease.key)
    return ended


def finish_at_once(
    rt: Runtime, row: Any, turn_end: TurnEnd, *, output: Any = None, deliver: Deliver
) -> bool | None:
    """Do what :func:`finish` does in one statement, where no other turn of the agent waits: nearly always.

    ``None``, and nothing is changed: one waits, or the line is another's. A transaction then finds out.
    """
    if not rt.db.on_postgres or row.slot_id is not None:
        return None
    news: dict[str, Any] | None = None
    if row.workflow_key is not None:
        news = {"id": new_id(), **_news(row, turn_end.status, turn_end.error_type, turn_end.error, output)}
        rt.failpoint("outbox:stored")
    rt.failpoint("turn:before-commit")

    def work(tx: Tx) -> bool | None:
        found = endings.end_at_once(tx, turn_end, news)
        if found is None:
            return None
        ended, outbox_id = found
        if ended:
            _log_end(row, turn_end.status, turn_end.error_type)
        if outbox_id is not None:
            tx.after_commit(partial(deliver, outbox_id))
        if not turn_end.keep:
            tx.after_commit(lambda: knock_head(rt, turn_end.lease.key))
        return ended

    return rt.db.single(work)


def _tell(
    rt: Runtime,
    tx: Tx,
    row: Any,
    status: SubmissionStatus,
    *,
    began: bool,
    error_type: str | None,
    error: str | None,
    output: Any,
    deliver: Deliver | None = None,
) -> None:
    slots.turn_ended(tx, row, status, began=began, error_type=error_type, error=error)
    tell_workflow(rt, tx, row, status, error_type=error_type, error=error, output=output, deliver=deliver)
    _log_end(row, status, error_type)


def _log_end(row: Any, status: SubmissionStatus, error_type: str | None) -> None:
    logger.info(
        "submission %s is %s%s",
        row.id,
        status,
        f" ({error_type})" if error_type else "",
        extra={"think_event": f"submission.{status}", "think_submission": row.id},
    )


def tell_workflow(
    rt: Runtime,
    tx: Tx,
    row: Any,
    status: SubmissionStatus,
    *,
    error_type: str | None = None,
    error: str | None = None,
    output: Any = None,
    deliver: Deliver | None = None,
) -> None:
    """Store the news of a submission's end for the workflow that prompted it, if one did.

    After the commit *deliver* is given its id; without it, the broker has a message for whoever delivers it.
    """
    if row.workflow_key is None:
        return
    queue = None if deliver else workflows.queue_of(tx, row.workflow_key)
    outbox_id = outbox.insert(tx, queue=queue, **_news(row, status, error_type, error, output))
    rt.failpoint("outbox:stored")
    if outbox_id is not None and deliver is not None:
        tx.after_commit(partial(deliver, outbox_id))
    elif outbox_id is not None:
        knock = knocks.for_outbox(outbox_id, row.workflow_key, row.workflow_run, queue)
        tx.after_commit(lambda: rt.knock(knock))


def _news(
    row: Any, status: SubmissionStatus, error_type: str | None, error: str | None, output: Any
) -> dict[str, Any]:
    news = {
        "submission_id": row.id,
        "status": str(status),
        "error_type": error_type,
        "error": error,
        "output": output,
    }
    return {
        "dedupe_key": f"submission:{row.id}:{row.workflow_run}",
        "workflow_key": row.workflow_key,
        "run": row.workflow_run,
        "event_type": row.event_type,
        "payload": serialization.dumps(news, what="the news of a submission"),
        "submission_id": row.id,
    }


def free(rt: Runtime, tx: Tx, lease: Lease) -> bool:
    """Give a line back, and say whether it was still the holder's. The next head is expected and knocked."""
    if not lines.free_line(tx, lease):
        return False
    expect_next_on(rt, tx, lease.key)
    return True


def look_later(tx: Tx, row: Any) -> None:
    """Let the tick look again at the line of this head, which a caller has locked.

    Locks agent and line, so this transaction may not have locked a submission yet.
    """
    agent = AgentRef.of(row)
    agents.make(tx, agent)
    lines.make_line(tx, agent.id)
    lines.look_later(tx, agent.id, MISSED_AFTER)


def remind(tx: Tx, agent_id: str) -> bool:
    """See that whoever holds the line looks when it gives it back; False where it is free, or locked just now.

    A turn that is just ending may not have seen those who wait: it finds the line locked, or changed.
    """
    line = lines.lock_line(tx, agent_id, patient=False)
    if line is None or line.process_id is None:
        return False
    lines.look_later(tx, agent_id, MISSED_AFTER)
    return True


def look_at(rt: Runtime, tx: Tx, agent_id: str) -> bool:
    """Look again at a line whose head a caller had locked, and say whether there was something to do."""
    line = lines.lock_line(tx, agent_id)
    lines.looked(tx, agent_id)
    if line is None or line.process_id is not None:  # whoever holds it looks when it gives it back
        return False
    expect_next_on(rt, tx, agent_id)
    return True
