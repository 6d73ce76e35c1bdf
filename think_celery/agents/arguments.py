"""What callers may write where a workflow or a method is meant."""

from collections.abc import Callable
from typing import Any

from think_celery.workflow import ThinkWorkflow

Workflow = type[ThinkWorkflow[Any, Any]] | str
"""A class of workflows, or its registered name."""

Method = Callable[..., Any] | str
"""A method of an agent, or its name."""
