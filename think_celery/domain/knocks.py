"""What is sent to the broker: a task's name, ids, and nothing that a user wrote."""

from typing import Any

from think_celery.ids import WorkflowRef, advance_task_id
from think_celery.protocols import Knock

RUN_SUBMISSION = "think.submission.run"
ADVANCE_WORKFLOW = "think.workflow.advance"
DELIVER_NEWS = "think.outbox.deliver"

SHOWN_AS = {"submission": "submission_id", "id": "workflow_id", "outbox": "outbox_id"}
"""What Flower shows an argument as, and what it is called."""

SHOWN_BESIDE = {"agent", "at"}


def ids_in(arguments: dict[str, str]) -> dict[str, str]:
    """The ids in a task's arguments, or in what Flower shows of them: whoever sends that again means the same."""
    return {SHOWN_AS.get(name, name): value for name, value in arguments.items() if name not in SHOWN_BESIDE}


def for_submission(row: Any) -> Knock:
    """The knock that runs a submission."""
    return Knock(
        task=RUN_SUBMISSION,
        task_id=row.id,
        kwargs={"submission_id": row.id},
        queue=row.queue,
        shows={"submission": row.id, "agent": f"{row.agent_class}/{row.agent_name}"},
    )


def for_workflow(row: Any, *, at: str | None = None) -> Knock:
    """The knock that takes a workflow further; *at* is the step that it waited at."""
    ref = WorkflowRef(row.workflow, row.workflow_id)
    shows = {"workflow": row.workflow, "id": row.workflow_id}
    return Knock(
        task=ADVANCE_WORKFLOW,
        task_id=advance_task_id(ref, row.run, row.wakes),
        kwargs={"workflow": row.workflow, "workflow_id": row.workflow_id},
        queue=row.queue,
        root_id=advance_task_id(ref, row.run, 0),
        shows=shows if at is None else {**shows, "at": at},
    )


def for_outbox(outbox_id: str, queue: str | None = None) -> Knock:
    """The knock that delivers a piece of news."""
    return Knock(
        task=DELIVER_NEWS,
        task_id=outbox_id,
        kwargs={"outbox_id": outbox_id},
        queue=queue,
        shows={"outbox": outbox_id},
    )
