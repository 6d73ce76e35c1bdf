"""What an agent does with workflows: start them, send them events, look at them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from think_celery.agents.arguments import Workflow
from think_celery.agents.handle import AgentHandle
from think_celery.domain.pages import Page
from think_celery.domain.steps.waits import ReceivedEvent
from think_celery.domain.workflows import listing, runs, workflows
from think_celery.domain.workflows.runs import WorkflowRun
from think_celery.states import WorkflowStatus


class AgentWorkflows(AgentHandle, abstract=True):
    """Workflows that an agent starts, looks at and sends events to."""

    def run_workflow(
        self,
        workflow: Workflow,
        params: Any = None,
        *,
        workflow_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        on_conflict: Literal["return", "raise"] = "return",
    ) -> str:
        """Start a workflow with this agent as its ``self.agent``, and return its id at once.

        When this returns, the run is stored. The same *workflow_id* again gives the same run back; with
        other *params* it does, too, and a warning is logged.

        Args:
            workflow: The workflow class, or its registered name.
            params: What ``event.payload`` will be: of the class's params type, or a dict.
            workflow_id: An id of your own; without one each call starts a new run.
            metadata: JSON of yours, kept with the run.
            on_conflict: ``"return"`` the run of that id where there is one, or ``"raise"``.

        Raises:
            UnknownClass: No workflow of that name is registered.
            WorkflowExists: *workflow_id* is taken, and *on_conflict* is ``"raise"``; or another agent's run has it.
            InvalidValue: *params* does not fit the workflow's params type, or this agent is none of its agent type.
            NotSerializable, PayloadTooLarge: *params* or *metadata* can't be stored.
            ValueError: *workflow_id* or *on_conflict* is unfit.
        """
        return workflows.start(
            self._rt,
            self._ref,
            workflow,
            params,
            workflow_id=workflow_id,
            metadata=metadata,
            on_conflict=on_conflict,
        )

    def send_workflow_event(
        self,
        workflow: Workflow,
        workflow_id: str,
        *,
        type: str,
        payload: Any = None,
        idempotency_key: str | None = None,
    ) -> bool:
        """Send an event to a workflow; one that comes before its wait, or before its run, is kept.

        False says that its run has ended: nobody will take it.

        Args:
            workflow: The workflow class, or its registered name.
            workflow_id: The run's id.
            type: What ``wait_for_event(type=…)`` asks for.
            payload: Any value that a step could return.
            idempotency_key: The same key twice is one event.

        Raises:
            NotSerializable, PayloadTooLarge: The payload can't be stored.
            ValueError: *type* or *idempotency_key* is not 1 to 200 printable characters, or begins with ``think-``;
                or no workflow can have that name or id.
        """
        return workflows.send_event(
            self._rt,
            workflows.reference(workflow, workflow_id),
            type=type,
            payload=payload,
            idempotency_key=idempotency_key,
        )

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

        Args:
            workflow_id: The run's id.
            reason: What ``Approval.reason`` will be.
            metadata: What ``Approval.metadata`` will be.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises what :meth:`get_workflow` raises, and InvalidType, NotSerializable or PayloadTooLarge for
        unfit arguments.
        """
        return runs.decide(self._rt, workflow_id, workflow, approved=True, reason=reason, metadata=metadata)

    def reject_workflow(
        self,
        workflow_id: str,
        reason: str | None = None,
        *,
        workflow: Workflow | None = None,
    ) -> bool:
        """Reject what a workflow waits for: its wait raises ``WorkflowRejectedError`` with this *reason*.

        False says that its run has ended: nobody will take it.

        Raises what :meth:`get_workflow` raises, and InvalidType for an unfit reason.
        """
        return runs.decide(self._rt, workflow_id, workflow, approved=False, reason=reason)

    def get_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> WorkflowRun:
        """A workflow as it stands now, with its ``output`` once it is complete. Any process may ask.

        Args:
            workflow_id: The id that :meth:`run_workflow` returned.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises:
            WorkflowNotFound: There is none.
            AmbiguousWorkflow: Several classes have one.
        """
        return runs.look_up(self._rt, workflow_id, workflow)

    def get_workflow_status(self, workflow_id: str, *, workflow: Workflow | None = None) -> WorkflowStatus:
        """How a workflow stands now. Raises what :meth:`get_workflow` raises."""
        return runs.look_up(self._rt, workflow_id, workflow).status

    def get_workflows(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: Workflow | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[WorkflowRun]:
        """The workflows that this agent has started, newest first: a page, whose ``cursor`` gives the next one.

        Args:
            status: Only those that stand so; one status or several.
            workflow: Only those of this class, or of the class of this name.
            metadata: Only those whose metadata has these keys with these values. Such a page goes through 10,000
                workflows at most; it may be short, even empty, and have a cursor to go on from.
            limit: How many at most, from 1 to 1000.
            cursor: The ``cursor`` of the page before.

        Raises:
            InvalidValue: *status*, *limit* or *cursor* can't be.
            InvalidType: *metadata* is no dict.
        """
        return listing.find(
            self._rt,
            self._ref,
            status=status,
            workflow=workflow,
            metadata=metadata,
            limit=limit,
            cursor=cursor,
        )

    def unhandled_events(self, workflow_id: str, *, workflow: Workflow | None = None) -> list[ReceivedEvent]:
        """The events that were sent to a workflow and that no step has taken (yet), oldest first.

        Of a run that has ended, they are what nobody will take: none is lost without a trace.

        Raises what :meth:`get_workflow` raises.
        """
        return runs.unhandled_events(self._rt, workflow_id, workflow)
