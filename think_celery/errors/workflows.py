"""How workflows, their steps and their prompts fail."""

from collections.abc import Sequence

from think_celery.errors.root import ThinkError
from think_celery.wording import shown


class WorkflowError(ThinkError):
    """A workflow, or a step of one, failed or was misused."""


class StepError(WorkflowError):
    """A step failed for good. The same on the first pass and on replay; the original error is text here."""

    def __init__(self, step: str, error_type: str, message: str, attempts: int) -> None:
        super().__init__(step, error_type, message, attempts)
        self.step, self.error_type, self.message, self.attempts = step, error_type, message, attempts

    def is_a(self, error: type[BaseException]) -> bool:
        """Whether the step's function raised this kind of error (compared by class name)."""
        return self.error_type == error.__name__

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"Step {self.step!r} was tried {times} and failed: {self.error_type}: {self.message}"


class NonRetryableError(WorkflowError):
    """Raise it in a step function to say that trying again can't help."""


class DuplicateStep(WorkflowError):
    """Two prompts of one name in one run."""

    def __init__(self, step: str, workflow_id: str) -> None:
        super().__init__(step, workflow_id)
        self.step, self.workflow_id = step, workflow_id

    def __str__(self) -> str:
        return (
            f"Workflow {self.workflow_id!r} prompts as {self.step!r} twice. A prompt's name makes its idempotency key, "
            "so the second would be the first again. In a loop pass what tells them apart: "
            f"step.prompt({self.step!r}, …, key=item_id)."
        )


class ReplayMismatch(WorkflowError):
    """The workflow's code no longer asks for the steps that its journal holds.

    ``rehearsed``: ``t.replay`` of a test has found it, and no run was touched.
    """

    rehearsed = False

    def __init__(self, workflow_id: str, position: int, recorded: str, asked: str) -> None:
        super().__init__(workflow_id, position, recorded, asked)
        self.workflow_id, self.position, self.recorded, self.asked = workflow_id, position, recorded, asked

    def __str__(self) -> str:
        what, then = "nothing was run, and the workflow is paused.", ", and resume the workflow"
        if self.rehearsed:
            what, then = "in a worker, the run would be paused here.", ""
        return (
            f"Workflow {self.workflow_id!r} recorded {self.recorded} as its step number {self.position + 1}, but its "
            f"code now asks for {self.asked}. A run must ask for the same steps in the same order each time it is "
            f"replayed; {what} Move clocks, random values and I/O into "
            "step.do(). If the change is meant, give the class a new version, name the old one in also_runs, let the "
            f"code ask for the old steps where step.version is the old one{then}."
        )


class InvalidJournal(WorkflowError, ValueError):
    """What was given to be replayed can't be."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(source, problem)
        self.source, self.problem = source, problem

    def __str__(self) -> str:
        return (
            f"{self.source} can't be replayed: {self.problem}. A journal is written by "
            "`think-celery workflows export ID > journals/name.json`, or in a test by t.record(workflow_id, path)."
        )


class SuspendSwallowed(WorkflowError):
    """The workflow's code caught the exception that parks it. ``rehearsed`` is as of :class:`ReplayMismatch`."""

    rehearsed = False

    def __init__(self, workflow_id: str, step: str) -> None:
        super().__init__(workflow_id, step)
        self.workflow_id, self.step = workflow_id, step

    def __str__(self) -> str:
        what = "would be" if self.rehearsed else "is"
        return (
            f"Workflow {self.workflow_id!r} waits at step {self.step!r}, but its code went on: something caught "
            "think_celery.errors.Suspend (a bare `except:` or `except BaseException:`, or a `return` in `finally`). "
            f"Catch `Exception` instead; the workflow {what} paused and can be resumed."
        )


class StepMisuse(WorkflowError):
    """A step was called where it can't be: within another step, or from an abandoned thread."""

    def __init__(self, step: str, problem: str) -> None:
        super().__init__(step, problem)
        self.step, self.problem = step, problem

    def __str__(self) -> str:
        return f"Step {self.step!r}: {self.problem}"


class TransactionTooLong(WorkflowError):
    """The function of a ``step.transaction`` took longer than it may hold its locks."""

    def __init__(self, seconds: float, allowed_seconds: float) -> None:
        super().__init__(seconds, allowed_seconds)
        self.seconds, self.allowed_seconds = seconds, allowed_seconds

    def __str__(self) -> str:
        return (
            f"It took {self.seconds:.1f} s; {self.allowed_seconds:g} s are allowed, for others wait for what it "
            "locks. It was rolled back. Do slow work in a step.do before it."
        )


class InvalidApproval(WorkflowError):
    """An event came for an approval that is no decision."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"an event of type 'approval' came that is no decision: {self.problem}. Its payload must be "
            '{"approved": true} or {"approved": false}, with an optional "reason" (a text) and "metadata".'
        )


class WorkflowNotFound(WorkflowError, LookupError):
    """No such workflow."""

    def __init__(
        self, workflow_id: str, workflow: str | None = None, agent: str | None = None, others: bool = False
    ) -> None:
        super().__init__(workflow_id, workflow, agent, others)
        self.workflow_id, self.workflow = workflow_id, workflow
        self.agent, self.others = agent, others

    def __str__(self) -> str:
        of = f" of {self.workflow[:200]}" if self.workflow else ""
        if self.others:
            return (
                f"{self.agent} has started no workflow {shown(self.workflow_id)}{of}; another agent has. An agent "
                "controls its own workflows only: call the method of that one, or of think_celery.current()."
            )
        return f"There is no workflow {shown(self.workflow_id)}{of}. Check the id, or start it with run_workflow()."


class AmbiguousWorkflow(WorkflowError, LookupError):
    """Several workflow classes have a run with this id."""

    def __init__(self, workflow_id: str, workflows: Sequence[str]) -> None:
        super().__init__(workflow_id, tuple(workflows))
        self.workflow_id, self.workflows = workflow_id, tuple(workflows)

    def __str__(self) -> str:
        return (
            f"Several workflows have the id {self.workflow_id!r}: {', '.join(self.workflows)}. "
            "Say which one is meant: workflow=…"
        )


class WorkflowExists(WorkflowError):
    """The workflow is there already: ``on_conflict="raise"`` was asked for, or another agent has started it.

    ``owner`` is that agent, and ``agent`` the one that was to start it; ``None`` where they are one.
    """

    def __init__(
        self, workflow: str, workflow_id: str, owner: str | None = None, agent: str | None = None
    ) -> None:
        super().__init__(workflow, workflow_id, owner, agent)
        self.workflow, self.workflow_id, self.owner, self.agent = workflow, workflow_id, owner, agent

    def __str__(self) -> str:
        if self.owner is not None:
            return (
                f"{self.workflow} {self.workflow_id!r} exists already: {self.owner} has started it, so {self.agent} "
                "can't. Choose an id that no other agent uses, such as one with the agent's name in it."
            )
        return (
            f'{self.workflow} {self.workflow_id!r} exists already, and on_conflict="raise" was asked for. '
            "Leave it out to get the existing run back."
        )


class WorkflowRejectedError(WorkflowError):
    """An approval that the workflow waited for was refused."""

    def __init__(self, step: str, reason: str | None) -> None:
        super().__init__(step, reason)
        self.step, self.reason = step, reason

    def __str__(self) -> str:
        return f"Workflow rejected at {self.step!r}" + (f": {self.reason}" if self.reason else "")


class WorkflowTimeoutError(WorkflowError):
    """A wait is overdue."""

    def __init__(self, step: str, seconds: float) -> None:
        super().__init__(step, seconds)
        self.step, self.seconds = step, seconds

    def __str__(self) -> str:
        return (
            f"Step {self.step!r} waited {self.seconds:g} s, and what it waited for did not come. Pass a longer "
            "timeout=, or catch this error where the workflow can go on without it."
        )


class ChildWorkflowError(WorkflowError):
    """A workflow that ``step.run_workflow`` had started ended otherwise than with a result.

    ``status`` is how the child ended, ``error_type`` and ``message`` what it says of that.
    """

    def __init__(
        self,
        step: str,
        workflow: str,
        workflow_id: str,
        status: str,
        error_type: str | None,
        message: str,
    ) -> None:
        super().__init__(step, workflow, workflow_id, status, error_type, message)
        self.step, self.workflow, self.workflow_id = step, workflow, workflow_id
        self.status, self.error_type, self.message = status, error_type, message

    def is_a(self, error: type[BaseException]) -> bool:
        """Whether the child ended in this kind of error (compared by class name)."""
        return self.error_type == error.__name__

    def __str__(self) -> str:
        what = self.message if self.error_type is None else f"{self.error_type}: {self.message}"
        return f"Step {self.step!r}: the child workflow {self.workflow} {self.workflow_id!r} is {self.status}: {what}"


class ChildWorkflowTimeoutError(ChildWorkflowError, WorkflowTimeoutError):
    """The ``timeout`` of a ``step.run_workflow`` passed before the child ended."""

    def __init__(self, step: str, workflow: str, workflow_id: str, status: str, seconds: float) -> None:
        WorkflowTimeoutError.__init__(self, step, seconds)
        self.workflow, self.workflow_id, self.status = workflow, workflow_id, status
        self.error_type = type(self).__name__
        self.message = f"its parent waited {seconds:g} s for it"
        self.args = (step, workflow, workflow_id, status, seconds)


class ThinkPromptError(WorkflowError):
    """A ``step.prompt`` got no answer: its submission ended otherwise.

    ``status`` is the submission's terminal status, ``reason`` its error text.
    """

    def __init__(self, submission_id: str, status: str, workflow_id: str, step: str, reason: str) -> None:
        super().__init__(submission_id, status, workflow_id, step, reason)
        self.submission_id, self.status, self.workflow_id = submission_id, status, workflow_id
        self.step, self.reason = step, reason

    def __str__(self) -> str:
        return (
            f"Prompt {self.step!r} of workflow {self.workflow_id!r} got no answer: submission {self.submission_id!r} "
            f"is {self.status}: {self.reason}"
        )


class ThinkPromptAbortedError(ThinkPromptError):
    """The prompt's submission was cancelled."""


class ThinkPromptSkippedError(ThinkPromptError):
    """The prompt's submission was skipped: its conversation was reset before it began."""


class ThinkPromptValidationError(ThinkPromptError):
    """The model's answer does not fit the prompt's ``output``."""


class ThinkPromptTimeoutError(ThinkPromptError, WorkflowTimeoutError):
    """The prompt's ``timeout`` passed before its submission ended."""

    def __init__(
        self, submission_id: str, status: str, workflow_id: str, step: str, reason: str, seconds: float
    ) -> None:
        WorkflowTimeoutError.__init__(self, step, seconds)
        self.submission_id, self.status, self.workflow_id = submission_id, status, workflow_id
        self.reason = reason
        self.args = (submission_id, status, workflow_id, step, reason, seconds)
