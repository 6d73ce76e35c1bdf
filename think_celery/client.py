"""What a process can ask for by id, without knowing whose turn or workflow it is."""

from typing import Any

from think_celery import runtime
from think_celery.chatagent import ChatAgent
from think_celery.domain import decisions, interactions, runs, submissions, waiting
from think_celery.domain.decisions import InteractionResult
from think_celery.domain.interactions import PendingInteraction
from think_celery.domain.receipts import Submission, as_submission
from think_celery.domain.runs import WorkflowRun
from think_celery.durations import Duration
from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.workflow import ThinkWorkflow

Workflow = type[ThinkWorkflow[Any, Any]] | str


class ThinkClient:
    """The submissions and workflows of all agents, by their ids: what :func:`current` gives, and ``ThinkCelery`` is.

    It works with what agents of this process work with now: in ``think_test``, the test's.
    """

    @property
    def _rt(self) -> Runtime:
        return runtime.current()

    # --- submissions ------------------------------------------------------------------------------

    def inspect_submission(self, submission_id: str) -> Submission | None:
        """The submission as it stands now; ``None`` if there is none of that id."""
        row = submissions.get(self._rt, submission_id)
        return None if row is None else as_submission(self._rt, row)

    def wait_for_submission(self, submission_id: str, timeout: Duration | None = None) -> Submission:
        """The submission once its turn has ended, at once if it has. Any process may wait for it.

        Raises:
            TurnStillRunning: The time is up. The turn goes on.
            SubmissionNotFound: There is none of that id, or not any more.
            NestedTurn: Called in a turn that would wait for itself.
            InsideTransaction: Called inside a joined transaction.
        """
        row = submissions.require(self._rt, submission_id)
        agent = AgentRef(row.agent_class, row.agent_name)
        wait = waiting.Wait(self._rt, agent, "wait_for_submission()", timeout=timeout)
        return as_submission(self._rt, wait.end_of(submission_id))

    def cancel_submission(
        self, submission_id: str, reason: str | None = None, *, if_interrupted: bool = False
    ) -> bool:
        """End a submission as aborted, and say whether this call did; an ended or unknown one stays as it is.

        With *if_interrupted* only the intent is stored: see the agent's method of this name.
        """
        cancel = submissions.intend_to_cancel if if_interrupted else submissions.cancel_by_id
        return cancel(self._rt, submission_id, reason)

    # --- calls that wait --------------------------------------------------------------------------

    def pending_interactions(
        self,
        *,
        agent_class: type[ChatAgent] | str | None = None,
        newest_first: bool = False,
        limit: int = 100,
    ) -> list[PendingInteraction]:
        """The tool calls of all agents that wait for an approval or for a client's answer, oldest first.

        Args:
            agent_class: Only those of this class, or of the class of this name.
            newest_first: The other way round.
            limit: How many at most.

        Raises:
            ValueError: *limit* is no whole number between 1 and 1000.
            TypeError: *agent_class* is neither an agent class nor a name.
        """
        return interactions.pending_of_all(
            self._rt, agent_class=agent_class, newest_first=newest_first, limit=limit
        )

    def approve_tool_call(self, interaction_id: str, reason: str | None = None) -> InteractionResult:
        """Let a tool call run that needs an approval, whosever it is: see the agent's method of this name.

        Raises:
            InteractionNotFound: There is none of that ``interaction_id``.
            InteractionMismatch: A client answers the call, or it was changed since.
            TypeError: *reason* is no text.
        """
        return decisions.approve(self._rt, None, interaction_id, reason=reason)

    def reject_tool_call(self, interaction_id: str, reason: str | None = None) -> InteractionResult:
        """Let a tool call not run that needs an approval. Raises what :meth:`approve_tool_call` raises."""
        return decisions.reject(self._rt, None, interaction_id, reason=reason)

    def provide_tool_result(
        self, interaction_id: str, output: Any = None, *, error: str | None = None
    ) -> InteractionResult:
        """Answer a call of a client's tool, whosever it is. Takes and raises what the agent's method of this name does.

        Args:
            interaction_id: Which call; see :meth:`pending_interactions`.
            output: What the client's tool returned.
            error: Why it failed, in place of an output.
        """
        return decisions.answer(self._rt, None, interaction_id, output=output, error=error)

    # --- workflows --------------------------------------------------------------------------------

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

        Raises what :meth:`get_workflow` raises, and TypeError, NotSerializable or PayloadTooLarge for unfit arguments.
        """
        return runs.decide(self._rt, workflow_id, workflow, approved=True, reason=reason, metadata=metadata)

    def reject_workflow(
        self, workflow_id: str, reason: str | None = None, *, workflow: Workflow | None = None
    ) -> bool:
        """Reject what a workflow waits for; false says that the run has ended, and nobody will take it.

        Raises what :meth:`get_workflow` raises, and TypeError.
        """
        return runs.decide(self._rt, workflow_id, workflow, approved=False, reason=reason)

    def resume_workflow(self, workflow_id: str, *, workflow: Workflow | None = None) -> bool:
        """Let a workflow go on that is paused, and say whether it was. Raises what :meth:`get_workflow` raises."""
        return runs.resume(self._rt, workflow_id, workflow)

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


def current() -> ThinkClient:
    """What this process can ask for by id.

    Raises:
        NotConfigured: Nothing has set think_celery up in this process.
    """
    runtime.current()
    return ThinkClient()
