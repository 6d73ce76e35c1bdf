"""What becomes of a schedule's slot when the turn or the job that it made ends: in the same transaction."""

from typing import Any

from think_celery.described import storable
from think_celery.states import JobStatus, SlotStatus, SubmissionStatus
from think_celery.store import slots
from think_celery.store.database import Tx

OVERTAKEN = "overtaken"
"""Why a slot was skipped that had not begun when the next one came."""
STILL_RUNNING = "still running"
"""Why a slot was skipped that came while an earlier one ran."""
CANCELLED = "cancelled"
RAN_BEFORE = "has run before"
LOST = "its work is gone"

MAX_REASON = 1000


def turn_ended(
    tx: Tx, row: Any, status: SubmissionStatus, *, began: bool, error_type: str | None, error: str | None
) -> None:
    """Close the slot of a submission that is ending, if a schedule made it.

    A turn that never began was skipped, whatever ended it; one that was cancelled while it ran has failed.
    """
    if row.slot_id is None:
        return
    skipped = status is SubmissionStatus.SKIPPED or (status is SubmissionStatus.ABORTED and not began)
    done = status is SubmissionStatus.COMPLETED
    _close(tx, row.slot_id, done=done, skipped=skipped, error_type=error_type, error=error)


def job_ended(
    tx: Tx,
    row: Any,
    status: JobStatus,
    *,
    began: bool = True,
    error_type: str | None = None,
    error: str | None = None,
) -> None:
    """The same for a job: one that was cancelled before it began was skipped."""
    if row.slot_id is not None:
        skipped = status is JobStatus.ABORTED and not began
        done = status is JobStatus.COMPLETED
        _close(tx, row.slot_id, done=done, skipped=skipped, error_type=error_type, error=error)


def _close(
    tx: Tx, slot_id: str, *, done: bool, skipped: bool, error_type: str | None, error: str | None
) -> None:
    if done:
        slots.close(tx, slot_id, SlotStatus.DONE)
        return
    told = ": ".join(text for text in (error_type, error) if text) or CANCELLED
    outcome = SlotStatus.SKIPPED if skipped else SlotStatus.FAILED
    slots.close(tx, slot_id, outcome, storable(told, MAX_REASON))
