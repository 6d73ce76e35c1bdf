"""``step.run_workflow``: another workflow whose result this one waits for.

Two entries, as a prompt has: ``<name>:start`` is stored with the child's row in one transaction, ``<name>:wait`` ends
with the news of the child's end, which comes through the outbox into the inbox.
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from think_celery import serialization
from think_celery.domain.steps.waits import Found, Settled, Wait, wait, waited_seconds
from think_celery.domain.workflows import children, inbox, workflows
from think_celery.domain.workflows.journal import Asked, Failure, own_failure
from think_celery.domain.workflows.replay import Replay, asked_agent
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import ChildWorkflowError, ChildWorkflowTimeoutError, WorkflowExists
from think_celery.ids import WorkflowRef, short_hash
from think_celery.states import OutboxStatus, StepStatus, WorkflowStatus
from think_celery.store import children as child_rows
from think_celery.store import control, events, outbox, steps
from think_celery.store.database import Tx

EVENT_TYPE = "think-child-"
START, WAIT = "child-start", "child-wait"
"""The kinds of the two entries."""

TIMED_OUT = "The workflow that waited for it had no more time"


def run_workflow(
    replay: Replay,
    name: str,
    workflow: Any,
    params: Any,
    *,
    workflow_id: str | None,
    metadata: Mapping[str, Any] | None,
    timeout: Duration | None,
    cancel_on_timeout: bool,
    agent: Any,
) -> Any:
    """Start a child and return what it returns; see ``Step.run_workflow``."""
    replay.check(name)
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    whom = asked_agent(replay, name, agent)
    given = workflows.reference(workflow, workflow_id or workflows.new_workflow_id())
    new = None
    if not replay.journal.holds(f"{name}:start", START):
        new = workflows.check(replay.rt, whom, workflow, params, metadata)
    asked = replay.ask(f"{name}:start", START)
    text = replay.recorded(asked)
    if text is None:
        assert new is not None
        replay.before_effect(asked)
        replay.go_to(asked, None)
        text = _start(replay, asked, given, whom, new)
    child = WorkflowRef(*replay.value(asked, text))
    waiting = replay.ask(f"{name}:wait", WAIT)
    news = Wait(
        event_type=_event_type(asked),
        timeout=span,
        any_time=True,  # what it has returned counts: what the deadline ends is the waiting for it
        read=lambda at, event: _judge(at, event, child),
        late=lambda tx, at: _late(replay, tx, at, child, span, cancel=cancel_on_timeout),
    )
    return replay.value(waiting, replay.recorded(waiting) or wait(replay, waiting, news))


def _event_type(asked: Asked) -> str:
    return EVENT_TYPE + short_hash(asked.ref.step)


def _start(replay: Replay, asked: Asked, child: WorkflowRef, agent: Any, new: workflows.New) -> str:
    """Store the child with this entry, and return the entry's text: which one it is."""
    recorded = serialization.dumps([child.workflow, child.workflow_id], what="the child's id")
    parent = {
        "parent_key": replay.workflow.key,
        "parent_run": replay.run,
        "parent_event": _event_type(asked),
    }

    def store(tx: Tx, _: int) -> Failure | None:
        if not workflows.insert(replay.rt, tx, child, agent, new, **parent):
            taken = own_failure(_taken(asked, child))
            replay.must(steps.insert(tx, asked.ref, StepStatus.FAILED, attempts=1, **taken.columns()))
            return taken
        replay.must(steps.insert(tx, asked.ref, StepStatus.DONE, output=recorded))
        replay.rt.failpoint(f"step:{asked.ref.step}:before-commit")
        return None

    failure = replay.write(asked, store)
    replay.rt.failpoint(f"step:{asked.ref.step}:committed")
    if failure is not None:
        raise replay.failed(asked, failure, 1)
    return recorded


def _taken(asked: Asked, child: WorkflowRef) -> ChildWorkflowError:
    return ChildWorkflowError(
        asked.ref.step,
        child.workflow,
        child.workflow_id,
        "not started",
        WorkflowExists.__name__,
        "a run of that id exists already, which this run did not start. Pass another workflow_id, or none",
    )


def _judge(asked: Asked, event: Any, child: WorkflowRef) -> Settled:
    """How a child's news ends the wait: with the text of its output, or with the error for its status."""
    told = json.loads(event.payload)
    news = told["news"]
    if news["status"] == WorkflowStatus.COMPLETE:
        # Decoding it could fail for a class of the user's: that is for the caller.
        return json.dumps(told["output"])
    return own_failure(_ended(asked, child, news["status"], news["error_type"], news["error"]))


def _ended(
    asked: Asked, child: WorkflowRef, status: str, error_type: str | None, error: str | None
) -> ChildWorkflowError:
    return ChildWorkflowError(
        asked.ref.step,
        child.workflow,
        child.workflow_id,
        status,
        error_type,
        error or "it ended without an error",
    )


def _late(
    replay: Replay, tx: Tx, asked: Asked, child: WorkflowRef, span: timedelta | None, *, cancel: bool
) -> Settled | Found:
    """The deadline has passed: terminate the child, or let it go; if it has ended already, its end counts.

    Nobody can deliver the news meanwhile: delivery locks this workflow's row first, and this transaction has it.
    """
    status = "deleted"
    row = control.lock(tx, child.key)
    if row is None or (row.parent_key, row.parent_run) != (replay.workflow.key, replay.run):
        pass  # it was deleted, and another may stand in its place
    elif cancel and children.terminate(replay.rt, tx, child.key, TIMED_OUT):
        status = str(WorkflowStatus.TERMINATED)
    else:
        status = str(row.status)
        event = _take_news(replay, tx, asked, row)
        if event is not None:
            return Found(event)
        child_rows.let_go(tx, child.key)
    seconds = waited_seconds(asked, span)
    return own_failure(
        ChildWorkflowTimeoutError(asked.ref.step, child.workflow, child.workflow_id, status, seconds)
    )


def _take_news(replay: Replay, tx: Tx, asked: Asked, row: Any) -> Any:
    news = outbox.by_dedupe_key(tx, child_rows.news_key(row))
    if news is None or news.status != OutboxStatus.PENDING or news.run != replay.run:
        return None
    inbox.take(replay.rt, tx, news)
    return events.first_unread(tx, replay.workflow.key, replay.run, news.event_type)
