"""Everything for writing a workflow, in one place to import from."""

from think_celery.domain.steps.prompthandles import PromptHandle
from think_celery.domain.steps.waits import Approval, ReceivedEvent
from think_celery.domain.workflows.replay import StepContext
from think_celery.errors import ChildWorkflowError, NonRetryableError, StepError
from think_celery.retries import Retry
from think_celery.workflow import ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent

__all__ = [
    "Approval",
    "ChildWorkflowError",
    "NonRetryableError",
    "PromptHandle",
    "ReceivedEvent",
    "Retry",
    "StepContext",
    "StepError",
    "ThinkWorkflow",
    "ThinkWorkflowStep",
    "WorkflowEvent",
]
