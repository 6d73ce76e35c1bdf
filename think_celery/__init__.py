"""Durable agent turns and durable workflows on the Celery, Redis and SQL database that you have."""

from think_celery.agent import Think
from think_celery.app import ThinkCelery
from think_celery.client import ThinkClient, current
from think_celery.concurrency import Debounce
from think_celery.domain.decisions import InteractionResult
from think_celery.domain.interactions import PendingInteraction
from think_celery.domain.live import LiveEvent
from think_celery.domain.receipts import Submission
from think_celery.domain.replay import StepContext
from think_celery.domain.runs import WorkflowRun
from think_celery.domain.waiting import SaveMessagesResult
from think_celery.domain.waits import Approval, ReceivedEvent
from think_celery.errors import NonRetryableError, StepError, ThinkError
from think_celery.messages import UIMessage
from think_celery.recoveries import Recovery, RecoveryContext, RecoveryLimits
from think_celery.retries import Retry
from think_celery.signals import AbortController, AbortSignal
from think_celery.states import InteractionStatus, SubmissionStatus, WorkflowStatus
from think_celery.tools import Tool, ToolContext, client_tool, tool
from think_celery.workflow import ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent

__all__ = [
    "AbortController",
    "AbortSignal",
    "Approval",
    "Debounce",
    "InteractionResult",
    "InteractionStatus",
    "LiveEvent",
    "NonRetryableError",
    "PendingInteraction",
    "ReceivedEvent",
    "Recovery",
    "RecoveryContext",
    "RecoveryLimits",
    "Retry",
    "SaveMessagesResult",
    "StepContext",
    "StepError",
    "Submission",
    "SubmissionStatus",
    "Think",
    "ThinkCelery",
    "ThinkClient",
    "ThinkError",
    "ThinkWorkflow",
    "ThinkWorkflowStep",
    "Tool",
    "ToolContext",
    "UIMessage",
    "WorkflowEvent",
    "WorkflowRun",
    "WorkflowStatus",
    "client_tool",
    "current",
    "tool",
]
