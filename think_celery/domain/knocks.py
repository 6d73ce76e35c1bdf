"""What is sent to the broker: a task's name, ids, and nothing that a user wrote."""

from typing import Any

from think_celery.ids import advance_task_id, named_id
from think_celery.protocols import Knock

RUN_SUBMISSION = "think.submission.run"
ADVANCE_WORKFLOW = "think.workflow.advance"
DELIVER_NEWS = "think.outbox.deliver"
START_AGENT = "think.agent.start"
RUN_JOB = "think.job.run"

SHOWN_AS = {"submission": "submission_id", "id": "workflow_id", "outbox": "outbox_id", "job": "job_id"}
"""What Flower shows an argument as, and what it is called."""

SHOWN_BESIDE = {"agent", "at", "calls"}


def ids_in(arguments: dict[str, str]) -> dict[str, str]:
    """The ids in a task's arguments, or in what Flower shows of them: whoever sends that again means the same."""
    return {SHOWN_AS.get(name, name): value for name, value in arguments.items() if name not in SHOWN_BESIDE}


def for_submission(row: Any) -> Knock:
    """The knock that runs a submission. It belongs to the run that waits for it, whoever knocks."""
    return Knock(
        task=RUN_SUBMISSION,
        task_id=row.id,
        kwargs={"submission_id": row.id},
        queue=row.queue,
        root_id=_root(row.workflow_key, row.workflow_run) or row.id,
        shows={"submission": row.id, "agent": f"{row.agent_class}/{row.agent_name}"},
    )


def for_workflow(row: Any, *, at: str | None = None) -> Knock:
    """The knock that takes a workflow further; *at* is the step that it waited at.

    Where its next step has a queue of its own, the message names it, so that no other worker takes the run.
    """
    shows = {"workflow": row.workflow, "id": row.workflow_id}
    kwargs = {"workflow": row.workflow, "workflow_id": row.workflow_id}
    if row.step_queue is not None:
        shows["queue"] = kwargs["queue"] = row.step_queue
    return Knock(
        task=ADVANCE_WORKFLOW,
        task_id=advance_task_id(row.key, row.run, row.wakes),
        kwargs=kwargs,
        queue=row.step_queue or row.queue,
        root_id=_root(row.key, row.run),
        shows=shows if at is None else {**shows, "at": at},
    )


def for_outbox(outbox_id: str, workflow_key: str, run: int, queue: str | None) -> Knock:
    """The knock that delivers a piece of news to that run of a workflow."""
    return Knock(
        task=DELIVER_NEWS,
        task_id=outbox_id,
        kwargs={"outbox_id": outbox_id},
        queue=queue,
        root_id=_root(workflow_key, run),
        shows={"outbox": outbox_id},
    )


def for_start(row: Any) -> Knock:
    """The knock that starts an agent."""
    names = {"agent_class": row.agent_class, "name": row.name}
    return Knock(
        task=START_AGENT,
        task_id=named_id("start", row.id),
        kwargs=names,
        queue=row.queue,
        shows=names,
    )


def for_job(row: Any) -> Knock:
    """The knock that runs a job."""
    shows = {"job": row.id, "agent": f"{row.agent_class}/{row.agent_name}"}
    return Knock(
        task=RUN_JOB,
        task_id=row.id,
        kwargs={"job_id": row.id},
        queue=row.queue,
        shows=shows if row.method is None else {**shows, "calls": row.method},
    )


def _root(workflow_key: str | None, run: int | None) -> str | None:
    """The first task of a run: all of the run's tasks are its chain."""
    return advance_task_id(workflow_key, run, 0) if workflow_key is not None and run else None
