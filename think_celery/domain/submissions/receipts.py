"""Submissions as their users see them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from think_celery.clock import to_milliseconds
from think_celery.domain.conversation import conversation
from think_celery.domain.reading import as_record
from think_celery.domain.submissions import submissions
from think_celery.domain.turns.usage import TokenUsage, usage_of
from think_celery.ids import AgentRef
from think_celery.messages import UIMessage
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """One accepted turn, as it stood when it was read.

    ``accepted`` and ``same_payload`` are for the call that accepts it: True where it stored it, False where an earlier
    one had, and whether that one had the same messages; everywhere else both are
    ``None``. ``message_id`` is the answer's. ``error`` is the reason of one that was cancelled, too.
    ``usage`` are the tokens that it has used so far, by failed requests too.
    """

    submission_id: str
    agent: AgentRef
    status: SubmissionStatus
    accepted: bool | None
    same_payload: bool | None
    idempotency_key: str | None
    metadata: dict[str, Any] | None
    fingerprint: str
    message_id: str | None
    error_type: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    usage: TokenUsage
    _rt: Runtime = field(repr=False, compare=False)

    @property
    def request_id(self) -> str:
        """The same as ``submission_id``."""
        return self.submission_id

    def message(self) -> UIMessage | None:
        """The answer, read afresh: ``None`` as long as nothing of it is stored.

        Raises:
            SubmissionNotFound: The submission was deleted meanwhile.
        """
        row = submissions.require(self._rt, self.submission_id)
        if row.message_id is None:
            return None
        return conversation.get_message(self._rt, self.agent, row.message_id)

    def to_dict(self) -> dict[str, Any]:
        """A receipt in JSON values and JavaScript spelling; what is not set is left out."""
        receipt = {
            "submissionId": self.submission_id,
            "requestId": self.request_id,
            "status": str(self.status),
            "accepted": self.accepted,
            "idempotencyKey": self.idempotency_key,
            "metadata": self.metadata,
            "messageId": self.message_id,
            "errorType": self.error_type,
            "error": self.error,
            "createdAt": milliseconds(self.created_at),
            "startedAt": milliseconds(self.started_at),
            "completedAt": milliseconds(self.completed_at),
        }
        return {name: value for name, value in receipt.items() if value is not None}


def milliseconds(moment: datetime | None) -> int | None:
    """An instant in a receipt; ``None`` where it has not come."""
    return None if moment is None else to_milliseconds(moment)


def as_submission(
    rt: Runtime, row: Any, *, accepted: bool | None = None, same_payload: bool | None = None
) -> Submission:
    """A row as its users see it."""
    status, usage = SubmissionStatus(row.status), usage_of(row)
    known = {"accepted": accepted, "same_payload": same_payload, "usage": usage, "_rt": rt}
    return as_record(Submission, row, submission_id=row.id, status=status, **known)
