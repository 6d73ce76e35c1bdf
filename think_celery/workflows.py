"""Everything for writing a workflow, in one place to import from."""

from think_celery.domain.replay import StepContext
from think_celery.domain.waits import Approval, ReceivedEvent
from think_celery.errors import NonRetryableError, StepError
from think_celery.retries import Retry
from think_celery.workflow import ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent

__all__ = [
    "Approval",
    "NonRetryableError",
    "ReceivedEvent",
    "Retry",
    "StepContext",
    "StepError",
    "ThinkWorkflow",
    "ThinkWorkflowStep",
    "WorkflowEvent",
]
