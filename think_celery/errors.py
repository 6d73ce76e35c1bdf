"""Every error of think_celery.

The tree::

    ThinkError
    ├── ConfigurationError
    │   ├── NotConfigured            no runtime in this process yet
    │   ├── InvalidSetting           an unknown or unfit setting
    │   ├── DuplicateName            two classes under one name
    │   ├── AsyncNotSupported        an `async def` where a plain function is needed
    │   ├── UnknownClass             no such agent or workflow class is registered here
    │   ├── MissingExtra             an optional dependency is not installed
    │   ├── SchemaOutdated           the database needs `think-celery db upgrade`
    │   ├── CannotJoin               a transaction that can't hold our rows
    │   ├── NoModel                  no model was named, or its name can't be resolved
    │   └── InvalidTool              a function that can't be offered to a model
    ├── InvalidValue
    │   ├── InvalidMessage           not a message
    │   ├── InvalidDuration          not a span of time
    │   ├── NotSerializable          a value that would not come back equal
    │   ├── UnreadableValue          a stored value whose class is gone
    │   ├── PayloadTooLarge          larger than `think_max_payload`
    │   ├── InvalidToolArguments     what a model passed to a tool does not fit it
    │   ├── InvalidToolResult        what a tool returned has no JSON form
    │   └── UnsupportedSchema        an output type that JSON Schema can't express
    ├── SubmissionError
    │   ├── EmptySubmission          no message to answer
    │   ├── SubmissionConflict       id and idempotency key name different submissions
    │   └── SubmissionNotFound
    ├── TurnError
    │   ├── ModelError               a model request failed
    │   │   └── ModelAborted         …because the turn was told to stop
    │   ├── NoFinalAnswer            a structured turn ended without its answer
    │   ├── InvalidFinalAnswer       …or with one that does not fit the schema
    │   ├── NothingToAnswer          the transcript ends with the assistant's own message
    │   ├── ConversationMoved        messages were made for a conversation that has gone on
    │   ├── TurnTimeout              the whole turn took too long
    │   ├── TurnStillRunning         who waited for it had no more time; it goes on
    │   ├── NestedTurn               a turn would wait for itself
    │   └── ChainTooLong             hooks asked for one turn after the other without an end
    ├── InteractionError
    │   ├── InteractionNotFound      no call of that id waits, or ever did
    │   └── InteractionMismatch      the call waits for something else
    ├── WorkflowError
    │   ├── StepError                a step failed for good
    │   ├── NonRetryableError        raised by a step function: don't try again
    │   ├── DuplicateStep            two prompts of one name without a `key`
    │   ├── ReplayMismatch           the code no longer matches the journal
    │   ├── SuspendSwallowed         the code caught the engine's own Suspend
    │   ├── StepMisuse               a step call where none is possible
    │   ├── TransactionTooLong       a `step.transaction` held its locks for too long
    │   ├── InvalidApproval          an event came for an approval that is no decision
    │   ├── WorkflowNotFound, AmbiguousWorkflow, WorkflowExists
    │   ├── WorkflowRejectedError    an approval was refused
    │   ├── WorkflowTimeoutError     a wait is overdue
    │   │   └── ThinkPromptTimeoutError (also a ThinkPromptError)
    │   └── ThinkPromptError         a prompt's submission did not end with an answer
    │       ├── ThinkPromptAbortedError, ThinkPromptSkippedError
    │       ├── ThinkPromptValidationError
    │       └── ThinkPromptTimeoutError
    ├── CallTimeout                  a tool or step function did not return in time
    │   └── StepTimeout              …a step's attempt
    ├── TooManyAttempts              the work died each time it was tried
    ├── NoProgress                   an interrupted turn got nowhere for too long
    ├── StateContended               others changed an agent's state again and again
    ├── LeaseLost                    another worker owns this work now
    ├── InsideTransaction            a call that waits, inside the caller's open transaction
    └── TaskFailed                   what a Celery task raises for a row that ended in error
        └── TurnFailed, WorkflowFailed, TaskInterrupted

    BaseException
    └── Unwind                       passes a user's `except Exception`
        ├── Suspend                  unwinds a workflow that waits
        └── TurnCancelled            unwinds a turn that was cancelled

Each error keeps its fields in ``args`` and builds its text in ``__str__``, so it survives pickle and JSON.
A family's own class is raised, with a text alone, where nobody would catch anything narrower.
"""

from collections.abc import Sequence
from typing import Any


class ThinkError(Exception):
    """The root of every error of this package."""


# --- configuration --------------------------------------------------------------------------------


class ConfigurationError(ThinkError):
    """Something must be set up differently before this can work."""


class NotConfigured(ConfigurationError):
    """An agent or workflow was used before the process had a runtime."""

    def __str__(self) -> str:
        return (
            "think_celery is not set up in this process. Agents and workflows need a runtime, which comes "
            "with your Celery app. Write these two lines where the app is made:\n"
            "    from think_celery import ThinkCelery\n"
            "    think = ThinkCelery(celery_app)"
        )


class InvalidSetting(ConfigurationError):
    """A setting is unknown, or its value is unfit."""

    def __init__(self, name: str, value: str, problem: str) -> None:
        super().__init__(name, value, problem)
        self.name, self.value, self.problem = name, value, problem

    def __str__(self) -> str:
        shown = f" is {self.value}" if self.value else ""
        return f"The setting {self.name!r}{shown}: {self.problem}"


class DuplicateName(ConfigurationError):
    """Two classes of different modules are registered under one name."""

    def __init__(self, kind: str, name: str, modules: Sequence[str]) -> None:
        super().__init__(kind, name, tuple(modules))
        self.kind, self.name, self.modules = kind, name, tuple(modules)

    def __str__(self) -> str:
        return (
            f"There is more than one {self.kind} named {self.name!r}: in {', '.join(self.modules)}. Rows in the "
            f"database carry this name, so it must be unique. Give one of them another: "
            f'class {self.name}(…, name="…").'
        )


class AsyncNotSupported(ConfigurationError, TypeError):
    """A tool, hook, step or ``run`` was written as ``async def``."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return (
            f"{self.where} is an async function. Turns and workflows run synchronously in Celery workers. "
            "Write it as a plain `def`, and call async code in it through asgiref.sync.async_to_sync or asyncio.run."
        )


class UnknownClass(ConfigurationError, LookupError):
    """No class of this name is registered in this process."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        super().__init__(kind, name, tuple(known))
        self.kind, self.name, self.known = kind, name, tuple(known)

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"This process knows no {self.kind} named {self.name!r} (known: {known}). Classes register when their "
            "module is imported: add it to `think_imports` or to Celery's `imports`."
        )


class MissingExtra(ConfigurationError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return (
            f"{self.what} needs an optional dependency. Install it: pip install 'think-celery[{self.extra}]'"
        )


class SchemaOutdated(ConfigurationError):
    """The database's schema is not the one that this version needs."""

    def __init__(self, found: str | None, needed: str) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed

    def __str__(self) -> str:
        return (
            f"The database's think_celery schema is at version {self.found or 'none'}, this package needs "
            f"{self.needed}. Run: think-celery db upgrade -A YOUR_APP (or, in place of -A, with THINK_DATABASE_URL set "
            "to this database)"
        )


class CannotJoin(ConfigurationError):
    """A transaction was to be joined that can't hold our rows."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"This can't be joined: {self.problem}. What think_celery stores inside `joined(…)` is committed "
            "together with the caller's own rows, so both must be in one transaction of one database."
        )


class NoModel(ConfigurationError):
    """No model could be made for a turn."""

    def __init__(self, name: str | None, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        asked = f"The model {self.name!r}" if self.name else "The agent's model"
        return f"{asked} can't be used: {self.problem}"


class InvalidTool(ConfigurationError, TypeError):
    """A function can't be offered to a model as a tool."""

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(name, problem, remedy)
        self.name, self.problem, self.remedy = name, problem, remedy

    def __str__(self) -> str:
        return f"The tool {self.name!r} can't be offered to a model: {self.problem}. {self.remedy}"


# --- values ---------------------------------------------------------------------------------------


class InvalidValue(ThinkError, ValueError):
    """A value that was passed can't be used."""


class InvalidMessage(InvalidValue, TypeError):
    """Something that was passed as a message is none."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.problem}. A message is a text, a UIMessage, or a dict such as "
            '{"role": "user", "parts": [{"type": "text", "text": "Hello"}]}.'
        )


class InvalidDuration(InvalidValue):
    """Not a span of time, or one that is too long."""

    def __init__(self, given: str, longest: str | None = None) -> None:
        super().__init__(given, longest)
        self.given, self.longest = given, longest

    def __str__(self) -> str:
        if self.longest is not None:
            return f"{self.given} is too long a span of time: {self.longest} is the most. Pass a shorter one."
        return (
            f"{self.given} is no span of time. Use seconds (30), a timedelta, or words such as "
            '"10 seconds", "3 days" or "1 week".'
        )


class NotSerializable(InvalidValue, TypeError):
    """A value that would not come back equal from storage."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(path, problem, remedy)
        self.path, self.problem, self.remedy = path, problem, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}. What is stored must come back equal. {self.remedy}"


class UnreadableValue(InvalidValue):
    """A stored value can't be read back by the code that runs now."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return (
            f"{self.what} can't be read back: {self.problem}. Keep the names and required fields of stored classes, "
            "or import the old name where it was, until what was stored with it has ended."
        )


class PayloadTooLarge(InvalidValue):
    """A value is larger than the setting ``think_max_payload`` allows."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        return (
            f"{self.what} takes {self.size:,} bytes as JSON; think_max_payload allows {self.limit:,}. Store the data "
            "elsewhere and pass a reference to it, or raise the setting."
        )


class InvalidToolArguments(InvalidValue):
    """What a model passed to a tool does not fit it. The text is meant for the model."""

    def __init__(self, tool: str | None, problems: Sequence[str]) -> None:
        super().__init__(tool, tuple(problems))
        self.tool, self.problems = tool, tuple(problems)

    def __str__(self) -> str:
        of = f" of the tool {self.tool}" if self.tool else ""
        return (
            f"The arguments{of} do not fit, so it was not called: {'; '.join(self.problems)}. "
            "Call it again with a JSON object that fits its schema."
        )


class InvalidToolResult(InvalidValue, TypeError):
    """What a tool returned has no JSON form, so no model can be told of it."""

    def __init__(self, given: str, problem: str) -> None:
        super().__init__(given, problem)
        self.given, self.problem = given, problem

    def __str__(self) -> str:
        return (
            f"A tool returned {self.given}, which has no JSON form: {self.problem}. Return JSON values, dates, "
            "decimals, dataclasses or pydantic models."
        )


class UnsupportedSchema(InvalidValue, TypeError):
    """An output type that JSON Schema, or what the model takes of it, can't express, or that is no object."""

    def __init__(self, given: str, problem: str, remedy: str | None = None) -> None:
        super().__init__(given, problem, remedy)
        self.given, self.problem, self.remedy = given, problem, remedy

    def __str__(self) -> str:
        if self.remedy is not None:
            return f"output={self.given}: {self.problem}. {self.remedy}"
        return (
            f"output={self.given}: {self.problem}. An answer must be a JSON object; wrap the type in a model:\n"
            "    class Answer(pydantic.BaseModel):\n"
            f"        value: {self.given}"
        )


# --- submissions ----------------------------------------------------------------------------------


class SubmissionError(ThinkError):
    """A submission could not be accepted or found."""


class EmptySubmission(SubmissionError, ValueError):
    """There is no message to answer."""

    def __str__(self) -> str:
        return (
            "There is no message to answer: the list is empty or a text is blank. Pass at least one message."
        )


class SubmissionConflict(SubmissionError):
    """The submission id and the idempotency key refer to different submissions."""

    def __init__(self, submission_id: str, idempotency_key: str | None, problem: str) -> None:
        super().__init__(submission_id, idempotency_key, problem)
        self.submission_id, self.idempotency_key, self.problem = submission_id, idempotency_key, problem

    def __str__(self) -> str:
        return (
            f"submission_id={self.submission_id!r} and idempotency_key={self.idempotency_key!r}: {self.problem}. "
            "One id and one key name one submission of one agent for good. Nothing was stored; "
            "pass only one of the two, or a fresh pair."
        )


class SubmissionNotFound(SubmissionError, LookupError):
    """No such submission."""

    def __init__(self, submission_id: str) -> None:
        super().__init__(submission_id)
        self.submission_id = submission_id

    def __str__(self) -> str:
        return f"There is no submission {self.submission_id!r}. Check the id; it may have been deleted."


# --- turns ----------------------------------------------------------------------------------------


class TurnError(ThinkError):
    """A turn ended in error."""


class ModelError(TurnError):
    """A model request failed.

    ``retryable`` says whether asking again may help; ``retry_after_seconds`` is the provider's wish. ``usage`` is what
    the request has cost all the same (a ``protocols.Usage``), where the provider told.
    """

    usage: Any = None

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        status_code: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.retryable = message, retryable
        self.status_code, self.retry_after_seconds = status_code, retry_after_seconds

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _model_error,
            (type(self), self.message, self.retryable, self.status_code, self.retry_after_seconds),
        )


def _model_error(
    cls: type[ModelError], message: str, retryable: bool, status: int | None, after: float | None
) -> ModelError:
    return cls(message, retryable=retryable, status_code=status, retry_after_seconds=after)


class ModelAborted(ModelError):
    """A model request was given up because its turn was told to stop."""


class NoFinalAnswer(TurnError):
    """A structured turn ended without the call that carries its answer."""

    def __init__(self, tool_name: str) -> None:
        super().__init__(tool_name)
        self.tool_name = tool_name

    def __str__(self) -> str:
        return (
            f"Model ended the turn without calling the {self.tool_name} tool. The model must be able to call tools "
            "while streaming and to obey a required tool choice; another model may be needed."
        )


class InvalidFinalAnswer(TurnError):
    """The arguments of the final answer do not fit its schema."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return (
            f"The model's final answer does not fit its schema: {'; '.join(self.problems)}. It is never repaired "
            "silently: describe the fields better, or loosen the output type."
        )


class NothingToAnswer(TurnError):
    """All messages are in the transcript already, and its last one is the assistant's own."""

    def __str__(self) -> str:
        return (
            "There is nothing to answer: every message of the submission is in the transcript already, and its last "
            "message is the assistant's. Submit a new message."
        )


class ConversationMoved(TurnError):
    """The messages were made by a function that saw another conversation. Seen in a submission, never raised."""

    def __str__(self) -> str:
        return (
            "The conversation has changed since the function made these messages from it, so their turn was skipped. "
            "save_messages() calls the function again by itself, as long as its timeout lasts."
        )


class TurnTimeout(TurnError):
    """The whole turn took longer than the setting ``think_turn_timeout``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"The turn took longer than think_turn_timeout ({self.seconds:g} s) and was ended. Give the agent less "
            "to do in one turn, give its slow tools a timeout of their own, or raise the setting."
        )


class TurnStillRunning(TurnError):
    """Whoever waited for a turn has no more time. The turn goes on."""

    def __init__(self, submission_id: str, seconds: float) -> None:
        super().__init__(submission_id, seconds)
        self.submission_id, self.seconds = submission_id, seconds

    def __str__(self) -> str:
        return (
            f"Submission {self.submission_id!r} has not ended after {self.seconds:.3g} s. It goes on and is stored: "
            "wait for it with wait_for_submission(submission_id), or end it with cancel_submission(submission_id). If "
            "none ever ends, no worker takes its queue: run think-celery doctor."
        )


class NestedTurn(TurnError):
    """A turn would wait for itself: directly, or because the one that it waits for waits for it."""

    def __init__(self, call: str, circle: Sequence[str]) -> None:
        super().__init__(call, tuple(circle))
        self.call, self.circle = call, tuple(circle)

    def __str__(self) -> str:
        way = " → ".join(self.circle)
        return (
            f"{self.call} would wait for ever: {way}. An agent's turns run one at a time, so a turn can't wait for "
            "another one of its own agent. Use submit_messages() for a turn that runs after this one, or "
            "persist_messages() to add to the conversation without a turn."
        )


# --- calls that wait for somebody -----------------------------------------------------------------


class InteractionError(ThinkError):
    """A call that waits for an approval, or for a client's answer, can't be decided on like this."""


class InteractionNotFound(InteractionError, LookupError):
    """The agent has no call of that id which waits, or ever did."""

    def __init__(self, agent: str, tool_call_id: str) -> None:
        super().__init__(agent, tool_call_id)
        self.agent, self.tool_call_id = agent, tool_call_id

    def __str__(self) -> str:
        return (
            f"{self.agent} has no tool call {self.tool_call_id!r} that waits for an approval or for a client's answer. "
            "Check the agent's name and the id: pending_interactions() lists the calls that wait. A call waits from "
            "the end of its turn on."
        )


class InteractionMismatch(InteractionError):
    """The call waits for something else than what came."""

    def __init__(self, tool_call_id: str, problem: str, remedy: str) -> None:
        super().__init__(tool_call_id, problem, remedy)
        self.tool_call_id, self.problem, self.remedy = tool_call_id, problem, remedy

    def __str__(self) -> str:
        return f"The tool call {self.tool_call_id!r} can't be decided on like this: {self.problem}. {self.remedy}"


# --- workflows ------------------------------------------------------------------------------------


class ChainTooLong(TurnError):
    """``on_chat_response`` led to one turn after the other, beyond what the agent's class allows."""

    def __init__(self, agent: str, limit: int) -> None:
        super().__init__(agent, limit)
        self.agent, self.limit = agent, limit

    def __str__(self) -> str:
        return (
            f"on_chat_response of {self.agent} has asked for {self.limit} turns, one leading to the next, and may ask "
            "for no more. Let it stop asking at some point; or raise `max_chained_turns` of the class; or ask with "
            "`submit_messages`, which does not wait and makes each turn a task of its own."
        )


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
    """The workflow's code no longer asks for the steps that its journal holds."""

    def __init__(self, workflow_id: str, position: int, recorded: str, asked: str) -> None:
        super().__init__(workflow_id, position, recorded, asked)
        self.workflow_id, self.position, self.recorded, self.asked = workflow_id, position, recorded, asked

    def __str__(self) -> str:
        return (
            f"Workflow {self.workflow_id!r} recorded {self.recorded} as its step number {self.position + 1}, but its "
            f"code now asks for {self.asked}. A run must ask for the same steps in the same order each time it is "
            "replayed; nothing was run, and the workflow is paused. Move clocks, random values and I/O into "
            "step.do(); if the change is meant, deploy the old code until the old runs have ended."
        )


class SuspendSwallowed(WorkflowError):
    """The workflow's code caught the exception that parks it."""

    def __init__(self, workflow_id: str, step: str) -> None:
        super().__init__(workflow_id, step)
        self.workflow_id, self.step = workflow_id, step

    def __str__(self) -> str:
        return (
            f"Workflow {self.workflow_id!r} waits at step {self.step!r}, but its code went on: something caught "
            "think_celery.errors.Suspend (a bare `except:` or `except BaseException:`, or a `return` in `finally`). "
            "Catch `Exception` instead; the workflow is paused and can be resumed."
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

    def __init__(self, workflow_id: str, workflow: str | None = None) -> None:
        super().__init__(workflow_id, workflow)
        self.workflow_id, self.workflow = workflow_id, workflow

    def __str__(self) -> str:
        of = f" of {self.workflow}" if self.workflow else ""
        return (
            f"There is no workflow {self.workflow_id!r}{of}. Check the id, or start it with run_workflow()."
        )


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
    """``on_conflict="raise"`` was asked for, and the workflow is there already."""

    def __init__(self, workflow: str, workflow_id: str) -> None:
        super().__init__(workflow, workflow_id)
        self.workflow, self.workflow_id = workflow, workflow_id

    def __str__(self) -> str:
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


# --- any work -------------------------------------------------------------------------------------


class CallTimeout(ThinkError):
    """A function did not return in time and was given up; what it does from now on is nobody's."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"It did not return within {self.seconds:g} s and was given up; it may still be running."


class StepTimeout(CallTimeout):
    """An attempt of a step took longer than its ``timeout``."""


class TooManyAttempts(ThinkError):
    """Each worker that took this work died in it, or was stopped."""

    def __init__(self, what: str, attempts: int) -> None:
        super().__init__(what, attempts)
        self.what, self.attempts = what, attempts

    def __str__(self) -> str:
        return (
            f"{self.what} was started {self.attempts} times and got nowhere (the worker was killed, ran out of memory, "
            "lost its lease or was told to stop), so it was ended. See the workers' logs from those times."
        )


class NoProgress(ThinkError):
    """A turn was found interrupted, and had got nowhere for longer than its class's ``chat_recovery`` allows."""

    def __init__(self, what: str, seconds: float, longest: float) -> None:
        super().__init__(what, seconds, longest)
        self.what, self.seconds, self.longest = what, seconds, longest

    def __str__(self) -> str:
        return (
            f"{self.what} was interrupted, and its last progress lies {self.seconds:.0f} s back; its class gives up "
            f"after {self.longest:g} s (chat_recovery, max_time), so it was ended. See the workers' logs for what "
            "interrupted it, or allow more time."
        )


class StateContended(ThinkError):
    """Others changed an agent's state each time that an update was about to be stored."""

    def __init__(self, agent: str, tries: int) -> None:
        super().__init__(agent, tries)
        self.agent, self.tries = agent, tries

    def __str__(self) -> str:
        return (
            f"The state of {self.agent} could not be updated: in {self.tries} tries somebody else was faster each "
            "time. Nothing was stored. Let the function of update_state return sooner, change the state less often, "
            "or keep what changes so often in rows of your own."
        )


# --- the engine's own -----------------------------------------------------------------------------


class LeaseLost(ThinkError):
    """The lease of this work is another worker's now, so nothing more may be written."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return (
            f"{self.what}: its lease went to another worker, which owns the outcome now; this worker stops. "
            "It happens when a worker stalls for longer than `think_lease`."
        )


class InsideTransaction(ThinkError):
    """A call that waits was made while the caller's transaction is open and joined."""

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call

    def __str__(self) -> str:
        return (
            f"{self.call} waits for work that can't begin before this transaction is committed. "
            "Call it after the transaction."
        )


class TaskFailed(ThinkError):
    """A row ended in error. Carries ids and the error's type only; the row holds the rest."""

    def __init__(self, row: str, error_type: str) -> None:
        super().__init__(row, error_type)
        self.row, self.error_type = row, error_type

    def __str__(self) -> str:
        return f"{self.row} ended in error: {self.error_type}"


class TaskInterrupted(TaskFailed):
    """A task met an error that is not its row's, such as a database that is away. Its row has not ended."""

    def __str__(self) -> str:
        return (
            f"{self.row} could not be worked on: {self.error_type}. Its row is as it was, and is tried again by "
            "itself. The worker's log says where it happened."
        )


class TurnFailed(TaskFailed):
    """A submission ended in error."""


class WorkflowFailed(TaskFailed):
    """A workflow ended in error, or stopped until it is resumed."""


class Unwind(BaseException):
    """Unwinds work of ours. Not an ``Exception``, so that a user's ``except Exception`` can't catch it."""


class Suspend(Unwind):
    """Unwinds a workflow that waits."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class TurnCancelled(Unwind):
    """Unwinds a turn that was cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
