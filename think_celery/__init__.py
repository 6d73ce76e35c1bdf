"""Durable agent turns and durable workflows on the Celery, Redis and SQL database that you have."""

from think_celery.agent import Think
from think_celery.app import ThinkCelery
from think_celery.chatagent import ChatAgent
from think_celery.client import ThinkClient, current
from think_celery.concurrency import Debounce
from think_celery.domain.decisions import InteractionResult
from think_celery.domain.interactions import PendingInteraction
from think_celery.domain.live import LiveEvent
from think_celery.domain.receipts import Submission
from think_celery.domain.replay import StepContext
from think_celery.domain.runs import WorkflowRun
from think_celery.domain.usage import TokenUsage
from think_celery.domain.waiting import SaveMessagesResult
from think_celery.domain.waits import Approval, ReceivedEvent
from think_celery.errors import NonRetryableError, StepError, ThinkError
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
from think_celery.recoveries import Recovery, RecoveryContext, RecoveryLimits
from think_celery.retries import Retry
from think_celery.signals import AbortController, AbortSignal
from think_celery.states import InteractionStatus, SubmissionStatus, WorkflowStatus
from think_celery.tools import Tool, ToolContext, client_tool, tool
from think_celery.turnhooks import (
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
    "Finish",
    "ForcedTool",
    "InteractionResult",
    "InteractionStatus",
    "LiveEvent",
    "MisspeltName",
    "ModelStepContext",
    "NonRetryableError",
    "PendingInteraction",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReceivedEvent",
    "Recovery",
    "RecoveryContext",
    "RecoveryLimits",
    "Retry",
    "SaveMessagesResult",
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
    "UIMessage",
    "Usage",
    "WorkflowEvent",
    "WorkflowRun",
    "WorkflowStatus",
    "client_tool",
    "current",
    "has_tool_call",
    "step_count_is",
    "tool",
]
