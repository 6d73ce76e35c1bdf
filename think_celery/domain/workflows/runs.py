"""Workflow runs as their users see them: looked up by id, with what they returned."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from think_celery import serialization
from think_celery.described import kept_reason
from think_celery.domain.reading import as_record
from think_celery.domain.steps.waits import APPROVAL, ReceivedEvent
from think_celery.domain.workflows import workflows as domain
from think_celery.errors import AmbiguousWorkflow, WorkflowError, WorkflowNotFound
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.names import RESERVED, can_be_a_name
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus
from think_celery.store import events, workflows


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowRun:
    """A workflow as it stood when it was read.

    ``run`` counts from 1. ``status`` ``paused`` with an ``error`` means: it stopped, and can be resumed.
    ``error`` is the text of what ended or stopped it. ``progress`` is what ``self.report_progress`` said last.
    """

    workflow: str
    workflow_id: str
    run: int
    version: str
    agent: AgentRef
    status: WorkflowStatus
    metadata: dict[str, Any] | None
    error_type: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    _output: str | None = field(repr=False)
    _progress: str | None = field(repr=False, default=None)

    @property
    def progress(self) -> Any:
        """What the run reported last with ``self.report_progress``; ``None`` where it has reported nothing."""
        return None if self._progress is None else serialization.loads(self._progress)

    @property
    def output(self) -> Any:
        """What ``run`` returned.

        Raises:
            WorkflowError: The workflow is not complete; the text says how it stands.
        """
        if self.status is not WorkflowStatus.COMPLETE or self._output is None:
            why = "" if self.error_type is None else f": {self.error_type}: {self.error}"
            raise WorkflowError(f"{self} is {self.status}, so it has no output{why}")
        return serialization.loads(self._output)

    def __str__(self) -> str:
        return str(WorkflowRef(self.workflow, self.workflow_id))


def as_run(row: Any) -> WorkflowRun:
    """A row as its users see it."""
    return as_record(WorkflowRun, row, status=WorkflowStatus(row.status))


def find_row(rt: Runtime, workflow_id: str, workflow: Any = None, agent: AgentRef | None = None) -> Any:
    """The row of the workflow of that id, of whatever class it is unless *workflow* says it; with *agent*, of its own.

    Raises:
        WorkflowNotFound: There is none.
        AmbiguousWorkflow: Several classes have one.
    """
    name = None if workflow is None else domain.name_of(workflow)
    if not can_be_a_name(workflow_id, 200):  # comes from outside, perhaps, and not every text fits a database
        raise WorkflowNotFound(workflow_id, name)
    rows = rt.db.look(lambda tx: workflows.by_id(tx, workflow_id))
    named = [row for row in rows if name in (None, row.workflow)]
    found = [row for row in named if agent in (None, AgentRef.of(row))]
    if not found:
        raise WorkflowNotFound(
            workflow_id, name, None if agent is None else str(agent), others=len(named) > 0
        )
    if len(found) > 1:
        raise AmbiguousWorkflow(workflow_id, sorted(row.workflow for row in found))
    return found[0]


def find_ref(
    rt: Runtime, workflow_id: str, workflow: Any = None, agent: AgentRef | None = None
) -> WorkflowRef:
    """Which workflow that is. Raises what :func:`find_row` raises."""
    return WorkflowRef.of(find_row(rt, workflow_id, workflow, agent))


def look_up(rt: Runtime, workflow_id: str, workflow: Any = None) -> WorkflowRun:
    """The workflow of that id, as it stands now. Raises what :func:`find_row` raises."""
    return as_run(find_row(rt, workflow_id, workflow))


def unhandled_events(rt: Runtime, workflow_id: str, workflow: Any = None) -> list[ReceivedEvent]:
    """The events that were sent to the present run and that no step has taken. Raises what :func:`find_row` raises."""
    row = find_row(rt, workflow_id, workflow)
    found = rt.db.look(lambda tx: events.unread(tx, row.key, row.run))
    return [
        ReceivedEvent(type=event.type, payload=serialization.loads(event.payload), sent_at=event.created_at)
        for event in found
        if not event.type.startswith(RESERVED)
    ]


def send_event(
    rt: Runtime,
    workflow_id: str,
    workflow: Any = None,
    *,
    type: str,
    payload: Any = None,
    idempotency_key: str | None = None,
) -> bool:
    """Send an event to the workflow of that id, and say whether it can still take it.

    Only with its *workflow* it is kept for a run that is yet to come.

    Raises what :func:`find_row` raises without *workflow*, and what ``workflows.send_event`` raises.
    """
    if workflow is None:
        row = find_row(rt, workflow_id)
        ref = WorkflowRef.of(row)
    else:
        ref = domain.reference(workflow, workflow_id)
    return domain.send_event(rt, ref, type=type, payload=payload, idempotency_key=idempotency_key)


def decide(
    rt: Runtime,
    workflow_id: str,
    workflow: Any = None,
    *,
    approved: bool,
    reason: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> bool:
    """Approve or reject what a workflow waits for, or will wait for, and say whether it can still take that.

    Raises what :func:`find_row` raises.

    Raises:
        InvalidType: The reason is no text, or the metadata no dict.
        NotSerializable, PayloadTooLarge: The metadata can't be stored.
    """
    said = kept_reason(reason)
    row = find_row(rt, workflow_id, workflow)
    kept = serialization.json_metadata(metadata, rt.settings.max_payload)
    decision = {"approved": approved, "reason": said, "metadata": kept}
    ref = WorkflowRef.of(row)
    return domain.send_event(rt, ref, type=APPROVAL, payload=decision)
