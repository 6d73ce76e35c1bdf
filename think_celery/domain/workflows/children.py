"""A workflow that another one has started and waits for: what it owes its parent, and what the parent's end does.

The child's row names its parent's row and run, and the type of the event that the parent waits for. Each end of the
child stores news for the parent in the same transaction, as the end of a prompt's submission does.
"""

import json
from typing import Any

from think_celery.described import MAX_ERROR, MAX_TYPE, storable
from think_celery.domain import knocks
from think_celery.domain.submissions import submissions
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus
from think_celery.store import children as child_rows
from think_celery.store import control, outbox, workflows
from think_celery.store.database import Tx

PARENT_ENDED = "ParentEnded"
"""The type of error that a child has whose parent no longer waits for it."""

ASKER_TERMINATED = "The workflow that had asked was terminated"


def tell_parent(
    rt: Runtime,
    tx: Tx,
    row: Any,
    status: WorkflowStatus | str,
    *,
    error_type: str | None = None,
    error: str | None = None,
    output: str | None = None,
) -> None:
    """Store, in the transaction that ends (or deletes) a run, the news for the workflow that waits for it, if one does.

    Args:
        rt: The runtime.
        tx: The transaction.
        row: The run that ends: ``key``, ``run``, ``workflow``, ``workflow_id`` and the ``parent_…`` columns.
        status: How it ends; ``"deleted"`` where its row is deleted before it has ended.
        error_type: What kind of error ends it.
        error: That error's text.
        output: The stored text of what it returned.
    """
    if row.parent_key is None:
        return
    news = json.dumps(
        {
            "workflow": row.workflow,
            "workflow_id": row.workflow_id,
            "status": str(status),
            "error_type": None if error_type is None else storable(error_type, MAX_TYPE),
            "error": None if error is None else storable(error, MAX_ERROR),
        }
    )
    queue = workflows.queue_of(tx, row.parent_key)
    outbox_id = outbox.insert(
        tx,
        dedupe_key=child_rows.news_key(row),
        workflow_key=row.parent_key,
        run=row.parent_run,
        event_type=row.parent_event,
        payload=f'{{"news":{news},"output":{output or "null"}}}',  # decoding it is the parent's, who has its classes
        queue=queue,
    )
    rt.failpoint("outbox:stored")
    if outbox_id is not None:
        knock = knocks.for_outbox(outbox_id, row.parent_key, row.parent_run, queue)
        tx.after_commit(lambda: rt.knock(knock))


def terminate_all(rt: Runtime, tx: Tx, row: Any) -> int:
    """Terminate the unfinished children of a run that ends, theirs too, with their prompts; say how many there were.

    Called in the transaction that has ended the run (or begins another one of it), before that touches a submission:
    rows of workflows are locked before those. Of the run itself ``key`` and ``run`` are used; its own prompts are
    for :func:`cancel_prompts`.
    """
    ended: list[Any] = []
    above = [(row.key, row.run)]
    while above:
        key, run = above.pop()
        for child_key in child_rows.live(tx, key, run):
            child = control.terminate(
                tx,
                child_key,
                error_type=PARENT_ENDED,
                error="The workflow that had started it ended, or was started anew.",
            )
            if child is not None:
                ended.append(child)
                above.append((child.key, child.run))
    for child in ended:
        cancel_prompts(rt, tx, child.key, child.run, ASKER_TERMINATED)
    return len(ended)


def terminate(rt: Runtime, tx: Tx, key: str, error: str) -> bool:
    """Terminate a run, its children and its prompts, and say whether it had not ended. Its parent is not told."""
    row = control.terminate(tx, key, error_type=PARENT_ENDED, error=error)
    if row is None:
        return False
    terminate_all(rt, tx, row)
    cancel_prompts(rt, tx, row.key, row.run, ASKER_TERMINATED)
    return True


def cancel_prompts(rt: Runtime, tx: Tx, key: str, run: int, reason: str) -> int:
    """Cancel the unfinished prompts of a run, and say how many there were.

    Called in a transaction that has locked the workflow's row: then no further prompt is submitted.
    """
    ids = control.prompted(tx, [key], run=run)
    unfinished = child_rows.unfinished(tx, ids) if ids else []
    return sum(submissions.cancel(rt, tx, submission_id, reason) for submission_id in unfinished)
