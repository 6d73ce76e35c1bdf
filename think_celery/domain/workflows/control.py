"""Pause, resume, terminate, restart and delete workflows, whoever has them in hand.

Each is one transaction that locks the workflow's row first. What a run has asked for and waits for (prompts, children)
ends in the same transaction in which the run ends. All of it joins a caller's transaction.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from think_celery.domain.inhand import all_in_hand
from think_celery.domain.pages import Before, as_instant, status_names
from think_celery.domain.workflows import children, inbox, workflows
from think_celery.domain.workflows.replay import inside
from think_celery.errors import ConfigurationError, StepMisuse, WorkflowNotFound
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.names import can_be_a_name
from think_celery.runtime import Runtime, workflow_classes
from think_celery.states import WorkflowStatus
from think_celery.store import children as family
from think_celery.store import control
from think_celery.store.database import Tx
from think_celery.store.workflows import TERMINAL

logger = logging.getLogger("think_celery.workflows")

T = TypeVar("T")

TERMINATED = "The workflow was terminated"
RESTARTED = "The workflow was restarted"
DELETED = "The workflow was deleted"
ENDED_FROM_OUTSIDE = "WorkflowTerminated"
"""The type of error of which the parent of such a run is told."""

BATCH = 500


def _locked(rt: Runtime, ref: WorkflowRef, work: Callable[[Tx, Any], T]) -> T:
    """What *work* returns, which gets the workflow's row, locked.

    Raises:
        WorkflowNotFound: There is no such workflow.
    """

    def with_row(tx: Tx) -> T:
        row = control.lock(tx, ref.key)
        if row is None:
            raise WorkflowNotFound(ref.workflow_id, ref.workflow)
        tx.after_commit(lambda: rt.failpoint("control:committed"))
        result = work(tx, row)
        rt.failpoint("control:before-commit")
        return result

    return rt.db.accept(with_row)


def _say(tx: Tx, ref: WorkflowRef, event: str, text: str) -> None:
    about = {"think_event": f"workflow.{event}", "think_workflow": ref.workflow_id}
    tx.after_commit(lambda: logger.info("%s %s", ref, text, extra=about))


# --- pause and resume -----------------------------------------------------------------------------


def pause(rt: Runtime, ref: WorkflowRef) -> bool:
    """Let a workflow stop until it is resumed, and say whether this call brought that about.

    One that waits, for a worker too, is paused at once; one in hand at its next step. False where it has ended, or is
    paused or about to be.

    Raises:
        WorkflowNotFound: There is no such workflow.
    """

    def work(tx: Tx, row: Any) -> bool:
        if control.pause(tx, ref.key):
            _say(tx, ref, "paused", "is paused until it is resumed")
            return True
        return control.want_pause(tx, ref.key)

    return _locked(rt, ref, work)


def resume(rt: Runtime, ref: WorkflowRef) -> bool:
    """Let a paused workflow go on, and say whether it was paused, or about to be.

    Raises:
        WorkflowNotFound: There is no such workflow.
    """

    def work(tx: Tx, row: Any) -> bool:
        queued = control.resume(tx, ref.key)
        if queued is None:
            return control.withdraw_pause(tx, ref.key)
        inbox.knock(rt, tx, queued)
        _say(tx, ref, "resumed", "was resumed")
        return True

    return _locked(rt, ref, work)


# --- terminate, restart, delete -------------------------------------------------------------------


def _not_in_its_own_transaction(rt: Runtime, ref: WorkflowRef) -> None:
    """Refuse what would take away the lease under which its own transaction is to be committed.

    Raises:
        StepMisuse: Called in a ``step.transaction`` of that very run, or of one that ends with it: its child, or a
            child of that.
    """
    if not rt.db.inside_joined:
        return
    mine = [work.hold.lease.key for work in all_in_hand() if work.hold.lease.kind == "workflow"]
    if any(ref.key in rt.db.look(lambda tx, key=key: family.ends_with(tx, key)) for key in mine):  # type: ignore[misc]
        raise StepMisuse(
            inside.get() or "transaction",
            "a run can't end itself, or the run that waits for it, in the transaction of its own step, which could not "
            "be committed then. Do it in a step.do, or return from run().",
        )


def terminate(rt: Runtime, ref: WorkflowRef) -> bool:
    """End a workflow where it stands, and say whether it had not ended.

    Its holder can't write any more and is told so within a second. Its unfinished prompts and children end with it.

    Raises:
        WorkflowNotFound: There is no such workflow.
    """

    _not_in_its_own_transaction(rt, ref)

    def work(tx: Tx, row: Any) -> bool:
        return _end(rt, tx, ref, row, TERMINATED)

    return _locked(rt, ref, work)


def _end(
    rt: Runtime, tx: Tx, ref: WorkflowRef, row: Any, reason: str, status: str = WorkflowStatus.TERMINATED
) -> bool:
    """Terminate a locked run, of which its parent is told as *status*; False where it had ended."""
    if control.terminate(tx, ref.key) is None:
        return False
    _drop_what_it_asked_for(rt, tx, row, reason)
    children.tell_parent(rt, tx, row, status, error_type=ENDED_FROM_OUTSIDE, error=reason)
    _say(tx, ref, "terminated", "was terminated")
    return True


def restart(rt: Runtime, ref: WorkflowRef) -> int:
    """Begin a workflow anew with the params that it was started with, however it stands; the number of the new run.

    The new run has a journal and an inbox of its own. What the old one had asked for ends, and none of it reaches the
    new run. Where its class is known here, the new run is one of the class as it is now.

    Raises:
        WorkflowNotFound: There is no such workflow.
    """

    _not_in_its_own_transaction(rt, ref)

    def work(tx: Tx, row: Any) -> int:
        version, queue = _as_of_now(rt, row)
        begun = control.restart(tx, ref.key, version, queue)
        assert begun is not None, "its row is locked"
        _drop_what_it_asked_for(rt, tx, row, RESTARTED)
        control.release_keys(tx, control.prompted(tx, [ref.key]))
        control.clear(tx, ref.key, before=row.run)
        inbox.knock(rt, tx, begun)
        _say(tx, ref, "restarted", f"was restarted: run {begun.run}")
        return int(begun.run)

    return _locked(rt, ref, work)


def _as_of_now(rt: Runtime, row: Any) -> tuple[str, str | None]:
    """Version and queue of a new run."""
    try:
        cls = workflow_classes.get(row.workflow)
    except ConfigurationError:  # a process that only controls workflows need not import them
        return row.version, row.queue
    return cls.version, cls.queue or rt.settings.queue


def delete(rt: Runtime, ref: WorkflowRef) -> bool:
    """Remove a workflow with its journal and its events, and say whether there was one. One that goes on ends first."""

    _not_in_its_own_transaction(rt, ref)

    def work(tx: Tx, row: Any) -> bool:
        return _delete(rt, tx, ref, row)

    try:
        return _locked(rt, ref, work)
    except WorkflowNotFound:
        return False


def _delete(rt: Runtime, tx: Tx, ref: WorkflowRef, row: Any) -> bool:
    _end(rt, tx, ref, row, DELETED, "deleted")
    control.release_keys(tx, control.prompted(tx, [ref.key]))
    control.clear(tx, ref.key)
    control.remove(tx, ref.key)
    _say(tx, ref, "deleted", "was deleted")
    return True


def _drop_what_it_asked_for(rt: Runtime, tx: Tx, row: Any, reason: str) -> None:
    """Cancel what the locked run of that row has asked for: its children, and then its prompts."""
    children.terminate_all(rt, tx, row)
    children.cancel_prompts(rt, tx, row.key, row.run, reason)


# --- many -----------------------------------------------------------------------------------------


def delete_all(
    rt: Runtime,
    agent: AgentRef | None,
    *,
    status: str | Sequence[str] | None = None,
    workflow: Any = None,
    completed_before: Before | None = None,
) -> int:
    """Delete every workflow that has ended and matches, oldest first, each by itself, and say how many."""
    chosen = _chosen(rt, agent, status, workflow, completed_before)
    if chosen is None:
        return 0
    after: tuple[datetime, str] | None = None
    deleted = 0
    while True:
        found = rt.db.look(
            lambda tx, after=after: control.ended(tx, **chosen, after=after, limit=BATCH)  # type: ignore[misc]
        )
        deleted += sum(_delete_ended(rt, row) for row in found)
        if len(found) < BATCH:
            return deleted
        after = (found[-1].completed_at, found[-1].key)


def count_ended(
    rt: Runtime,
    agent: AgentRef | None,
    *,
    status: str | Sequence[str] | None = None,
    workflow: Any = None,
    completed_before: Before | None = None,
) -> int:
    """How many :func:`delete_all` would delete now."""
    chosen = _chosen(rt, agent, status, workflow, completed_before)
    return 0 if chosen is None else rt.db.look(lambda tx: control.count_ended(tx, **chosen))


def _chosen(
    rt: Runtime,
    agent: AgentRef | None,
    status: str | Sequence[str] | None,
    workflow: Any,
    completed_before: Before | None,
) -> dict[str, Any] | None:
    """Which of those that have ended are meant; ``None`` where no workflow can be."""
    names = status_names(status, WorkflowStatus)
    name = None if workflow is None else workflows.name_of(workflow)
    before = as_instant("completed_before", completed_before, rt.clock.now())
    if name is not None and not can_be_a_name(name, 200):  # not every text fits a database
        return None
    return {
        "agent": agent,
        "statuses": [name for name in (TERMINAL if names is None else names) if name in TERMINAL],
        "workflow": name,
        "completed_before": before,
    }


def _delete_ended(rt: Runtime, seen: Any) -> bool:
    """Delete a workflow unless it was restarted since it was seen."""

    def work(tx: Tx) -> bool:
        row = control.lock(tx, seen.key)
        if row is None or row.completed_at != seen.completed_at:
            return False
        return _delete(rt, tx, WorkflowRef.of(row), row)

    return rt.db.accept(work)
