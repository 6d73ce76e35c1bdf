"""What becomes of submissions whose Celery tasks were revoked."""

from collections.abc import Iterable
from typing import Any

from think_celery.domain import submissions
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal

REASON = "revoked in Celery"


def cancel(rt: Runtime, task_ids: Iterable[str]) -> None:
    """Cancel the submissions that have these task ids; ids of anything else change nothing."""
    for row in unfinished(rt, task_ids):
        submissions.cancel_by_id(rt, row.id, REASON)


def unfinished(rt: Runtime, task_ids: Iterable[str]) -> list[Any]:
    """The submissions among these ids that have not ended."""
    found = [submissions.get(rt, task_id) for task_id in task_ids]
    return [row for row in found if row is not None and not is_terminal(SubmissionStatus(row.status))]
