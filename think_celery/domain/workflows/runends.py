"""The end of a run in the hands of its holder, and what is stored together with it."""

from collections.abc import Callable
from typing import Any

from think_celery import serialization
from think_celery.domain.workflows import children, hooks
from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus
from think_celery.store import workflows
from think_celery.store.database import Tx
from think_celery.store.leases import Lease

Follow = Callable[[Tx], object]
"""What is stored in the transaction of a run's end."""


def complete(rt: Runtime, row: Any, lease: Lease, output: str) -> bool:
    """End the run with its result, and say whether this call did. *row* is that of the claim."""
    follows = _telling_parent(rt, row, WorkflowStatus.COMPLETE, output=output)
    if hooks.is_wanted(AgentRef.of(row), "complete"):
        follows.append(_telling_agent(rt, row, "complete", serialization.loads(output)))
    return _end(rt, lambda tx: workflows.complete(tx, lease, output), follows)


def fail(rt: Runtime, row: Any, lease: Lease, error_type: str, error: str, *, given_up: bool = False) -> bool:
    """End the run in error, and say whether this call did.

    With *given_up* its code was not asked, and may wait for children that have nobody to answer to now.
    """
    told = {"error_type": error_type, "error": error}
    follows: list[Follow] = [lambda tx: children.terminate_all(rt, tx, row)] if given_up else []
    follows += _telling_parent(rt, row, WorkflowStatus.ERRORED, **told)
    if hooks.is_wanted(AgentRef.of(row), "error"):
        follows.append(_telling_agent(rt, row, "error", told))
    return _end(rt, lambda tx: workflows.fail(tx, lease, error_type, error), follows)


def _telling_parent(rt: Runtime, row: Any, status: WorkflowStatus, **told: Any) -> list[Follow]:
    if row.parent_key is None:
        return []
    return [lambda tx: children.tell_parent(rt, tx, row, status, **told)]


def _telling_agent(rt: Runtime, row: Any, what: str, payload: Any) -> Follow:
    return lambda tx: hooks.enqueue(rt, tx, AgentRef.of(row), row, what, payload)


def _end(rt: Runtime, move: Callable[[Tx], bool], follows: list[Follow]) -> bool:
    """Make the move and store what follows; False, and nothing is stored, if it was not made.

    Nearly always nothing follows, and then one statement is all it takes.
    """
    if not follows:
        return rt.db.single(move)

    def work(tx: Tx) -> bool:
        if not move(tx):
            return False
        for follow in follows:
            follow(tx)
        return True

    return rt.db.transact(work)
