"""What a workflow's code is told of its start."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

Params = TypeVar("Params")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowEvent(Generic[Params]):
    """What a workflow was started with: the first argument of ``run``.

    ``payload`` is the params, of the workflow's params type. ``metadata`` is what ``run_workflow`` was given, empty
    where it was given none. ``created_at`` is when the run was stored.
    """

    payload: Params
    workflow_id: str
    workflow_name: str
    created_at: datetime
    metadata: dict[str, Any]
