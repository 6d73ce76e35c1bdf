"""An agent's control over the workflows that it has started, and what it is told of them."""

from collections.abc import Sequence
from typing import ClassVar

from think_celery.agents.arguments import Workflow
from think_celery.agents.handle import AgentHandle
from think_celery.domain.pages import Before
from think_celery.domain.workflows import control, runs
from think_celery.hooks.workflows import WorkflowNews
from think_celery.ids import WorkflowRef


class AgentControl(AgentHandle, abstract=True):
    """An agent's control over its own workflows. Those of other agents are not found here: see ``current()``."""

    _hooks: ClassVar[tuple[str, ...]] = (
        "on_workflow_progress",
        "on_workflow_complete",
        "on_workflow_error",
        "on_workflow_event",
    )

    # --- what it is told --------------------------------------------------------------------------

    def on_workflow_progress(self, news: WorkflowNews) -> None:
        """Called at once, in the worker of the run, each time that a workflow of this agent reports its progress.

        A reaction: what it raises is logged and changes nothing. It is called again for what is reported again, after
        a crash.
        """

    def on_workflow_complete(self, news: WorkflowNews) -> None:
        """Called soon, once a run, when a workflow of this agent is complete: ``news.output`` is what it returned.

        It is a job of its own, which is stored together with the end of the run. Such calls of one agent come one
        after the other, beside its turns. A reaction: what it raises is logged and changes nothing. A worker that dies
        in it lets it be called again, so it must be safe to repeat.
        """

    def on_workflow_error(self, news: WorkflowNews) -> None:
        """Called like :meth:`on_workflow_complete` when a run ended in error: ``news.error_type`` and ``news.error``.

        Not for an error that the workflow has handled, nor for a run that was terminated, restarted or deleted.
        """

    def on_workflow_event(self, news: WorkflowNews) -> None:
        """Called like :meth:`on_workflow_complete` for what a workflow sends by ``step.send_event``: ``news.event``."""

    # --- control ----------------------------------------------------------------------------------

    def pause_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Let a workflow of this agent stop until it is resumed; tells whether this call brought that about.

        A run that waits, or has no worker yet, is paused at once. One that a worker has in hand stores the step that it
        is in, and pauses before the next one. Events that come meanwhile are kept. Deadlines go on: they are points in
        time.

        Args:
            workflow_id: The run's id.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises:
            WorkflowNotFound: This agent has started none of that id.
            AmbiguousWorkflow: Several classes have one.
        """
        return control.pause(self._rt, self._own(workflow_id, workflow))

    def resume_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Let a workflow of this agent go on that is paused, whoever or whatever has paused it; tells whether it was.

        Raises what :meth:`pause_workflow` raises.
        """
        return control.resume(self._rt, self._own(workflow_id, workflow))

    def terminate_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """End a workflow of this agent where it stands; tells whether it had not ended.

        The step that is under way is told so by its ``signal`` within a second, its result is dropped, and nothing
        starts after it. Prompts and child workflows that have not ended are cancelled with it. No hook is called.

        Raises what :meth:`pause_workflow` raises.
        """
        return control.terminate(self._rt, self._own(workflow_id, workflow))

    def restart_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> int:
        """Begin a workflow of this agent anew, with its first params, however it stands; the number of the new run.

        The new run has a journal and an inbox of its own, and asks each prompt again. A run that goes on ends with
        that, as :meth:`terminate_workflow` ends it, and none of its news reaches the new one.

        Raises what :meth:`pause_workflow` raises.
        """
        return control.restart(self._rt, self._own(workflow_id, workflow))

    def delete_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Remove a workflow of this agent with its journal and its events. One that goes on is terminated first.

        After that the same *workflow_id* starts a new workflow.

        Raises what :meth:`pause_workflow` raises.
        """
        return control.delete(self._rt, self._own(workflow_id, workflow))

    def delete_workflows(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: Workflow | None = None,
        completed_before: Before | None = None,
    ) -> int:
        """Delete all workflows of this agent that have ended and match, and say how many. None that goes on is touched.

        Args:
            status: Only those that ended so.
            workflow: Only those of this class, or of the class of this name.
            completed_before: Only those that ended before that: an aware datetime, or how long ago ("90 days").

        Raises:
            InvalidValue: *status* is unknown, or *completed_before* has no time zone or can't be read.
            InvalidType: *completed_before* is something else.
        """
        return control.delete_all(
            self._rt, self._ref, status=status, workflow=workflow, completed_before=completed_before
        )

    def _own(self, workflow_id: str, workflow: Workflow | None) -> WorkflowRef:
        return runs.find_ref(self._rt, workflow_id, workflow, self._ref)
