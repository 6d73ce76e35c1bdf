"""The workflows of all agents, by their ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from think_celery import runtime
from think_celery.agents.arguments import Workflow
from think_celery.domain.pages import Before, Page
from think_celery.domain.steps.waits import ReceivedEvent
from think_celery.domain.workflows import control, listing, runs
from think_celery.domain.workflows.runs import WorkflowRun
from think_celery.ids import WorkflowRef
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus


class WorkflowClient:
    """What a process can ask for by a workflow's id, without knowing who has started it."""

    @property
    def _rt(self) -> Runtime:
        return runtime.current()

    def get_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> WorkflowRun:
        """A workflow as it stands now, with its ``output`` once it is complete.

        Args:
            workflow_id: The id that ``run_workflow`` returned.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises:
            WorkflowNotFound: There is none.
            AmbiguousWorkflow: Several classes have one.
        """
        return runs.look_up(self._rt, workflow_id, workflow)

    def get_workflows(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: Workflow | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[WorkflowRun]:
        """The workflows of all agents, newest first, a page at a time. Takes and raises what the agent's method does.

        Args:
            status: Only those that stand so; one status or several.
            workflow: Only those of this class, or of the class of this name.
            metadata: Only those whose metadata has these keys with these values.
            limit: How many at most, from 1 to 1000.
            cursor: The ``cursor`` of the page before.
        """
        return listing.find(
            self._rt, status=status, workflow=workflow, metadata=metadata, limit=limit, cursor=cursor
        )

    def get_workflow_status(self, workflow_id: str, *, workflow: Workflow | None = None) -> WorkflowStatus:
        """How a workflow stands now. Raises what :meth:`get_workflow` raises."""
        return runs.look_up(self._rt, workflow_id, workflow).status

    def unhandled_events(self, workflow_id: str, *, workflow: Workflow | None = None) -> list[ReceivedEvent]:
        """The events that were sent to a workflow and that no step has taken (yet), oldest first.

        Raises what :meth:`get_workflow` raises.
        """
        return runs.unhandled_events(self._rt, workflow_id, workflow)

    # --- control ----------------------------------------------------------------------------------

    def pause_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Let a workflow stop until it is resumed, as the agent's method does.

        Raises what :meth:`get_workflow` raises.
        """
        return control.pause(self._rt, self._which(workflow_id, workflow))

    def resume_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Let a workflow go on that is paused, and say whether it was. Raises what :meth:`get_workflow` raises."""
        return control.resume(self._rt, self._which(workflow_id, workflow))

    def terminate_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """End a workflow where it stands, as the agent's method does, and say whether it had not ended.

        Raises what :meth:`get_workflow` raises.
        """
        return control.terminate(self._rt, self._which(workflow_id, workflow))

    def restart_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> int:
        """Begin a workflow anew, as the agent's method does; the number of the new run.

        Raises what :meth:`get_workflow` raises.
        """
        return control.restart(self._rt, self._which(workflow_id, workflow))

    def delete_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Remove a workflow with its journal and its events, as the agent's method does.

        Raises what :meth:`get_workflow` raises.
        """
        return control.delete(self._rt, self._which(workflow_id, workflow))

    def delete_workflows(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: Workflow | None = None,
        completed_before: Before | None = None,
    ) -> int:
        """Delete all workflows that have ended and match, whosever they are, and say how many.

        Takes and raises what the agent's method does.

        Args:
            status: Only those that ended so.
            workflow: Only those of this class, or of the class of this name.
            completed_before: Only those that ended before that: an aware datetime, or how long ago ("90 days").
        """
        return control.delete_all(
            self._rt, None, status=status, workflow=workflow, completed_before=completed_before
        )

    def _which(self, workflow_id: str, workflow: Workflow | None) -> WorkflowRef:
        return runs.find_ref(self._rt, workflow_id, workflow)

    # --- what is sent to them ---------------------------------------------------------------------

    def approve_workflow(
        self,
        workflow_id: str,
        reason: str | None = None,
        *,
        metadata: dict[str, Any] | None = None,
        workflow: Workflow | None = None,
    ) -> bool:
        """Approve what a workflow waits for; a decision that comes before its wait is kept.

        False says that its run has ended: nobody will take it.

        Raises what :meth:`get_workflow` raises, and InvalidType, NotSerializable or PayloadTooLarge for
        unfit arguments.
        """
        return runs.decide(self._rt, workflow_id, workflow, approved=True, reason=reason, metadata=metadata)

    def reject_workflow(
        self, workflow_id: str, reason: str | None = None, *, workflow: Workflow | None = None
    ) -> bool:
        """Reject what a workflow waits for; false says that the run has ended, and nobody will take it.

        Raises what :meth:`get_workflow` raises, and InvalidType.
        """
        return runs.decide(self._rt, workflow_id, workflow, approved=False, reason=reason)

    def send_workflow_event(
        self,
        workflow_id: str,
        *,
        type: str,
        payload: Any = None,
        workflow: Workflow | None = None,
        idempotency_key: str | None = None,
    ) -> bool:
        """Send an event to a workflow; one that comes before its wait is kept.

        False says that its run has ended: nobody will take it.

        Args:
            workflow_id: The run's id.
            type: What ``wait_for_event(type=…)`` asks for.
            payload: Any value that a step could return.
            workflow: The workflow class or its registered name. Only with it an event is kept for a run to come.
            idempotency_key: The same key twice is one event.

        Raises:
            WorkflowNotFound: Without *workflow*: there is no run of that id.
            AmbiguousWorkflow: Without *workflow*: several classes have one.
            NotSerializable, PayloadTooLarge: The payload can't be stored.
            ValueError: *type* or *idempotency_key* is unfit; or no workflow can have that name or id.
        """
        return runs.send_event(
            self._rt, workflow_id, workflow, type=type, payload=payload, idempotency_key=idempotency_key
        )
