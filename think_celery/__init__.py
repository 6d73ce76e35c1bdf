"""Durable agent turns and durable workflows on the Celery, Redis and SQL database that you have."""

from think_celery.agents.chat import ChatAgent
from think_celery.agents.think import Think
from think_celery.app import ThinkCelery
from think_celery.clients.client import ThinkClient, current
from think_celery.concurrency import Debounce
from think_celery.domain.conversation.decisions import InteractionResult
from think_celery.domain.conversation.interactions import PendingInteraction
from think_celery.domain.conversation.live import LiveEvent
from think_celery.domain.jobs.fiberruns import Fiber
from think_celery.domain.jobs.records import FiberRun, Job
from think_celery.domain.pages import Page
from think_celery.domain.schedules.records import Schedule, ScheduleKind, ScheduleSlot
from think_celery.domain.steps.prompthandles import PromptHandle
from think_celery.domain.steps.waits import Approval, ReceivedEvent
from think_celery.domain.submissions.receipts import Submission
from think_celery.domain.submissions.waiting import SaveMessagesResult
from think_celery.domain.turns.usage import TokenUsage
from think_celery.domain.workflows.replay import StepContext
from think_celery.domain.workflows.runs import WorkflowRun
from think_celery.errors import NonRetryableError, StepError, ThinkError
from think_celery.hooks.fibers import FiberRecovery, FiberRecoveryContext
from think_celery.hooks.recoveries import Recovery, RecoveryContext, RecoveryLimits
from think_celery.hooks.turns import (
    ChatContext,
    ChatErrorContext,
    ChatResponseResult,
    ChunkContext,
    ModelStepContext,
    StatusChange,
    StepConfig,
    StepResult,
    ToolCallContext,
    ToolCallDecision,
    ToolResultContext,
    TurnConfig,
    TurnContext,
    has_tool_call,
    step_count_is,
)
from think_celery.hooks.workflows import WorkflowNews
from think_celery.messages import UIMessage
from think_celery.names import MisspeltName
from think_celery.protocols import (
    Finish,
    ForcedTool,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolResult,
    Usage,
)
from think_celery.retries import Retry
from think_celery.scheduled import ReconciledTasks, ScheduledTask, ScheduledTaskContext
from think_celery.signals import AbortController, AbortSignal
from think_celery.states import (
    InteractionStatus,
    JobStatus,
    SlotStatus,
    SubmissionStatus,
    TurnKind,
    WorkflowStatus,
)
from think_celery.tools import Tool, ToolContext, client_tool, tool
from think_celery.workflow import ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent

__all__ = [
    "AbortController",
    "AbortSignal",
    "Approval",
    "ChatAgent",
    "ChatContext",
    "ChatErrorContext",
    "ChatResponseResult",
    "ChunkContext",
    "Debounce",
    "Fiber",
    "FiberRecovery",
    "FiberRecoveryContext",
    "FiberRun",
    "Finish",
    "ForcedTool",
    "InteractionResult",
    "InteractionStatus",
    "Job",
    "JobStatus",
    "LiveEvent",
    "MisspeltName",
    "ModelStepContext",
    "NonRetryableError",
    "Page",
    "PendingInteraction",
    "PromptHandle",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReceivedEvent",
    "ReconciledTasks",
    "Recovery",
    "RecoveryContext",
    "RecoveryLimits",
    "Retry",
    "SaveMessagesResult",
    "Schedule",
    "ScheduleKind",
    "ScheduleSlot",
    "ScheduledTask",
    "ScheduledTaskContext",
    "SlotStatus",
    "StatusChange",
    "StepConfig",
    "StepContext",
    "StepError",
    "StepMetadata",
    "StepResult",
    "Submission",
    "SubmissionStatus",
    "TextDelta",
    "Think",
    "ThinkCelery",
    "ThinkClient",
    "ThinkError",
    "ThinkWorkflow",
    "ThinkWorkflowStep",
    "TokenUsage",
    "Tool",
    "ToolCallComplete",
    "ToolCallContext",
    "ToolCallDecision",
    "ToolCallDelta",
    "ToolContext",
    "ToolResult",
    "ToolResultContext",
    "TurnConfig",
    "TurnContext",
    "TurnKind",
    "UIMessage",
    "Usage",
    "WorkflowEvent",
    "WorkflowNews",
    "WorkflowRun",
    "WorkflowStatus",
    "client_tool",
    "current",
    "has_tool_call",
    "step_count_is",
    "tool",
]
