"""Every error of think_celery, a family a file.

The tree::

    ThinkError
    ├── ConfigurationError
    │   ├── NotConfigured            no runtime in this process yet
    │   ├── InvalidSetting           an unknown or unfit setting
    │   ├── DuplicateName            two classes under one name
    │   ├── AsyncNotSupported        an `async def` where a plain function is needed
    │   ├── InvalidClass             a class of agents or workflows with what would not work
    │   ├── UnknownClass             no such agent or workflow class is registered here
    │   ├── UnknownScheduledTask     …nor a handler for this task of an agent
    │   ├── MissingExtra             an optional dependency is not installed
    │   ├── SchemaOutdated           the database needs `think-celery db upgrade`
    │   ├── CannotJoin               a transaction that can't hold our rows
    │   ├── NoModel                  no model was named, or its name can't be resolved
    │   └── InvalidTool              a function that can't be offered to a model
    ├── InvalidValue
    │   ├── InvalidType              of another type than is taken
    │   ├── InvalidMessage           not a message
    │   ├── InvalidDuration          not a span of time
    │   ├── InvalidSchedule          not a schedule, or its time zone is unknown, missing or in doubt
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
    ├── JobError
    │   ├── InvalidMethod            a method that can't be called later by its name
    │   ├── JobNotFound
    │   ├── JobTimeout               an attempt took too long
    │   ├── JobStillRunning          who waited for it had no more time; it goes on
    │   ├── NestedJob                a job would wait for itself
    │   └── NotInFiber               a call that only a fiber can make
    ├── InteractionError
    │   ├── InteractionNotFound      no call of that id waits, or ever did
    │   └── InteractionMismatch      the call waits for something else
    ├── WorkflowError
    │   ├── StepError                a step failed for good
    │   ├── NonRetryableError        raised by a step function: don't try again
    │   ├── DuplicateStep            two prompts of one name without a `key`
    │   ├── ReplayMismatch           the code no longer matches the journal
    │   ├── InvalidJournal           what was given to be replayed is no journal that can be
    │   ├── SuspendSwallowed         the code caught the engine's own Suspend
    │   ├── StepMisuse               a step call where none is possible
    │   ├── TransactionTooLong       a `step.transaction` held its locks for too long
    │   ├── InvalidApproval          an event came for an approval that is no decision
    │   ├── WorkflowNotFound, AmbiguousWorkflow, WorkflowExists
    │   ├── WorkflowRejectedError    an approval was refused
    │   ├── WorkflowTimeoutError     a wait is overdue
    │   │   ├── ChildWorkflowTimeoutError (also a ChildWorkflowError)
    │   │   └── ThinkPromptTimeoutError (also a ThinkPromptError)
    │   ├── ChildWorkflowError       a workflow that this one had started ended without a result
    │   │   └── ChildWorkflowTimeoutError
    │   └── ThinkPromptError         a prompt's submission did not end with an answer
    │       ├── ThinkPromptAbortedError, ThinkPromptSkippedError
    │       ├── ThinkPromptValidationError
    │       └── ThinkPromptTimeoutError
    ├── CallTimeout                  a tool or step function did not return in time
    │   ├── StepTimeout              …a step's attempt
    │   └── JobTimeout               …a job's (also a JobError)
    ├── TooManyAttempts              the work died each time it was tried
    ├── NoProgress                   an interrupted turn got nowhere for too long
    ├── StateContended               others changed an agent's state again and again
    ├── LeaseLost                    another worker owns this work now
    ├── InsideTransaction            a call that waits, inside the caller's open transaction
    └── TaskFailed                   what a Celery task raises for a row that ended in error
        └── TurnFailed, WorkflowFailed, JobFailed, TaskInterrupted

    BaseException
    └── Unwind                       passes a user's `except Exception`
        ├── Suspend                  unwinds a workflow that waits
        └── TurnCancelled            unwinds a turn that was cancelled

Each error keeps its fields in ``args`` and builds its text in ``__str__``, so it survives pickle and JSON.
A family's own class is raised, with a text alone, where nobody would catch anything narrower.
"""

from think_celery.errors.configuration import (
    AsyncNotSupported,
    CannotJoin,
    ConfigurationError,
    DuplicateName,
    InvalidClass,
    InvalidSetting,
    InvalidTool,
    MissingExtra,
    NoModel,
    NotConfigured,
    SchemaOutdated,
    UnknownClass,
    UnknownScheduledTask,
)
from think_celery.errors.interactions import (
    InteractionError,
    InteractionMismatch,
    InteractionNotFound,
)
from think_celery.errors.jobs import (
    InvalidMethod,
    JobError,
    JobNotFound,
    JobStillRunning,
    JobTimeout,
    NestedJob,
    NotInFiber,
)
from think_celery.errors.root import ThinkError
from think_celery.errors.submissions import (
    EmptySubmission,
    SubmissionConflict,
    SubmissionError,
    SubmissionNotFound,
)
from think_celery.errors.turns import (
    ChainTooLong,
    ConversationMoved,
    InvalidFinalAnswer,
    ModelAborted,
    ModelError,
    NestedTurn,
    NoFinalAnswer,
    NothingToAnswer,
    TurnError,
    TurnStillRunning,
    TurnTimeout,
)
from think_celery.errors.unwinding import Suspend, TurnCancelled, Unwind
from think_celery.errors.values import (
    InvalidDuration,
    InvalidMessage,
    InvalidSchedule,
    InvalidToolArguments,
    InvalidToolResult,
    InvalidType,
    InvalidValue,
    NotSerializable,
    PayloadTooLarge,
    UnreadableValue,
    UnsupportedSchema,
)
from think_celery.errors.work import (
    CallTimeout,
    InsideTransaction,
    JobFailed,
    LeaseLost,
    NoProgress,
    StateContended,
    StepTimeout,
    TaskFailed,
    TaskInterrupted,
    TooManyAttempts,
    TurnFailed,
    WorkflowFailed,
)
from think_celery.errors.workflows import (
    AmbiguousWorkflow,
    ChildWorkflowError,
    ChildWorkflowTimeoutError,
    DuplicateStep,
    InvalidApproval,
    InvalidJournal,
    NonRetryableError,
    ReplayMismatch,
    StepError,
    StepMisuse,
    SuspendSwallowed,
    ThinkPromptAbortedError,
    ThinkPromptError,
    ThinkPromptSkippedError,
    ThinkPromptTimeoutError,
    ThinkPromptValidationError,
    TransactionTooLong,
    WorkflowError,
    WorkflowExists,
    WorkflowNotFound,
    WorkflowRejectedError,
    WorkflowTimeoutError,
)

__all__ = [
    "AmbiguousWorkflow",
    "AsyncNotSupported",
    "CallTimeout",
    "CannotJoin",
    "ChainTooLong",
    "ChildWorkflowError",
    "ChildWorkflowTimeoutError",
    "ConfigurationError",
    "ConversationMoved",
    "DuplicateName",
    "DuplicateStep",
    "EmptySubmission",
    "InsideTransaction",
    "InteractionError",
    "InteractionMismatch",
    "InteractionNotFound",
    "InvalidApproval",
    "InvalidClass",
    "InvalidDuration",
    "InvalidFinalAnswer",
    "InvalidJournal",
    "InvalidMessage",
    "InvalidMethod",
    "InvalidSchedule",
    "InvalidSetting",
    "InvalidTool",
    "InvalidToolArguments",
    "InvalidToolResult",
    "InvalidType",
    "InvalidValue",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobStillRunning",
    "JobTimeout",
    "LeaseLost",
    "MissingExtra",
    "ModelAborted",
    "ModelError",
    "NestedJob",
    "NestedTurn",
    "NoFinalAnswer",
    "NoModel",
    "NoProgress",
    "NonRetryableError",
    "NotConfigured",
    "NotInFiber",
    "NotSerializable",
    "NothingToAnswer",
    "PayloadTooLarge",
    "ReplayMismatch",
    "SchemaOutdated",
    "StateContended",
    "StepError",
    "StepMisuse",
    "StepTimeout",
    "SubmissionConflict",
    "SubmissionError",
    "SubmissionNotFound",
    "Suspend",
    "SuspendSwallowed",
    "TaskFailed",
    "TaskInterrupted",
    "ThinkError",
    "ThinkPromptAbortedError",
    "ThinkPromptError",
    "ThinkPromptSkippedError",
    "ThinkPromptTimeoutError",
    "ThinkPromptValidationError",
    "TooManyAttempts",
    "TransactionTooLong",
    "TurnCancelled",
    "TurnError",
    "TurnFailed",
    "TurnStillRunning",
    "TurnTimeout",
    "UnknownClass",
    "UnknownScheduledTask",
    "UnreadableValue",
    "UnsupportedSchema",
    "Unwind",
    "WorkflowError",
    "WorkflowExists",
    "WorkflowFailed",
    "WorkflowNotFound",
    "WorkflowRejectedError",
    "WorkflowTimeoutError",
]
