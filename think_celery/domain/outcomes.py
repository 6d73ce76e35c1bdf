"""How one run of a task went, in a word that Flower shows."""

from dataclasses import dataclass, field
from typing import Any, Literal

from think_celery.ids import AgentRef, new_id
from think_celery.messages import UIMessage
from think_celery.protocols import AgentHooks
from think_celery.states import SubmissionStatus, TurnKind
from think_celery.store.leases import Lease

Word = Literal[
    # The run ended its row.
    "completed",
    "aborted",
    "skipped",
    "complete",
    "delivered",
    "dropped",
    "started",
    "error",
    # It did not.
    "ended-before",
    "not-found",
    "not-head",
    "busy",
    "waiting",
    "other-queue",
    "unknown-class",
    "handed-over",
    "lease-lost",
    "parked",
    "moved",
    "paused",
    "failed-delivery",
    "unknown-method",
    "unknown-task",
    "interrupted",
    "retrying",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A turn that has ended and whose agent wants to know. Its line is still held, under that lease."""

    lease: Lease
    ref: AgentRef
    agent: AgentHooks | None
    submission_id: str
    kind: TurnKind
    continuation: bool
    metadata: dict[str, Any] | None
    message: UIMessage
    status: SubmissionStatus
    error_type: str | None
    output: Any = None

    @classmethod
    def without_turn(cls, row: Any, lease: Lease, message: UIMessage | None, error_type: str) -> "Ended":
        """Of a turn that ended in error without being run to its end, with what is stored of its answer."""
        return cls(
            lease=lease,
            ref=AgentRef.of(row),
            agent=None,
            submission_id=row.id,
            kind=TurnKind(row.kind),
            continuation=row.kind == TurnKind.CONTINUE,
            metadata=row.metadata,
            message=message or UIMessage(id=row.message_id or new_id(), role="assistant", parts=[]),
            status=SubmissionStatus.ERROR,
            error_type=error_type,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a task: ``ended`` says that it ended its row; ``error_type`` that the row ended in error.

    ``after`` is there where the line is still held, for the hooks that are told of the end.
    """

    word: Word
    ended: bool = False
    row: str = ""
    error_type: str | None = None
    after: Ended | None = field(default=None, repr=False, compare=False)


class PutBack(Exception):
    """The turn in hand goes on later: the worker is wanted elsewhere, the provider asks to wait, or it stalled.

    With *counts* the present attempt is one of those that brought nothing.
    """

    def __init__(
        self, after_seconds: float | None = None, failures: int | None = None, *, counts: bool = False
    ) -> None:
        super().__init__(after_seconds, failures, counts)
        self.after_seconds, self.failures, self.counts = after_seconds, failures, counts


class NotResumed(Exception):
    """The turn in hand was interrupted, and ends with what there is of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
