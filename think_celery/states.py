"""Every status, and every allowed move from one to another.

A move that is not listed here is not made: the row stays as it is (``store.moves``).
"""

from collections.abc import Mapping
from enum import StrEnum

Moves = Mapping[str, frozenset[str]]


class TurnKind(StrEnum):
    """How a turn was asked for."""

    SUBMIT = "submit"
    SAVE = "save"
    CHAT = "chat"
    SCHEDULED = "scheduled"
    CONTINUE = "continue"


class SubmissionStatus(StrEnum):
    """Where an accepted turn stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ABORTED = "aborted"
    SKIPPED = "skipped"
    ERROR = "error"


class WorkflowStatus(StrEnum):
    """Where a workflow run stands. ``paused`` is somebody's wish, or with an error: it stopped, and can be resumed."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETE = "complete"
    ERRORED = "errored"
    TERMINATED = "terminated"


class JobStatus(StrEnum):
    """Where one durable call of an agent's method stands. ``interrupted``: a fiber that is to be decided on."""

    PENDING = "pending"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"


class StepStatus(StrEnum):
    """Where a journal entry stands."""

    WAITING = "waiting"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"


class SlotStatus(StrEnum):
    """Where one instant of a schedule stands."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class OutboxStatus(StrEnum):
    """Where a piece of news for a workflow stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DROPPED = "dropped"


class InteractionStatus(StrEnum):
    """Where a call stands that waits for a person or for a client."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"


SUBMISSION_MOVES: Moves = {
    SubmissionStatus.PENDING: frozenset(
        {SubmissionStatus.RUNNING, SubmissionStatus.ABORTED, SubmissionStatus.SKIPPED, SubmissionStatus.ERROR}
    ),
    SubmissionStatus.RUNNING: frozenset(
        {
            SubmissionStatus.RUNNING,  # a takeover
            SubmissionStatus.PENDING,  # handed over, or waiting for `not_before`
            SubmissionStatus.COMPLETED,
            SubmissionStatus.ABORTED,
            SubmissionStatus.ERROR,
        }
    ),
}

WORKFLOW_MOVES: Moves = {
    WorkflowStatus.QUEUED: frozenset(
        {WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, WorkflowStatus.TERMINATED}
    ),
    WorkflowStatus.RUNNING: frozenset(
        {
            WorkflowStatus.RUNNING,  # a takeover
            WorkflowStatus.QUEUED,  # handed over
            WorkflowStatus.WAITING,
            WorkflowStatus.PAUSED,
            WorkflowStatus.COMPLETE,
            WorkflowStatus.ERRORED,
            WorkflowStatus.TERMINATED,
        }
    ),
    WorkflowStatus.WAITING: frozenset(
        {WorkflowStatus.QUEUED, WorkflowStatus.PAUSED, WorkflowStatus.TERMINATED}
    ),
    WorkflowStatus.PAUSED: frozenset({WorkflowStatus.QUEUED, WorkflowStatus.TERMINATED}),
}

WORKFLOW_RESTARTS: Moves = {status: frozenset({WorkflowStatus.QUEUED}) for status in WorkflowStatus}
"""A restart makes a new run of the workflow, whatever became of the one before it."""

SLOT_MOVES: Moves = {
    SlotStatus.OPEN: frozenset({SlotStatus.DONE, SlotStatus.FAILED, SlotStatus.SKIPPED}),
}

JOB_MOVES: Moves = {
    JobStatus.PENDING: frozenset({JobStatus.RUNNING, JobStatus.ABORTED}),
    JobStatus.RUNNING: frozenset(
        {
            JobStatus.RUNNING,  # a takeover
            JobStatus.PENDING,  # handed over, or to be tried again
            JobStatus.COMPLETED,
            JobStatus.ERROR,
            JobStatus.ABORTED,
            JobStatus.INTERRUPTED,
        }
    ),
    JobStatus.INTERRUPTED: frozenset(
        {JobStatus.PENDING, JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.ABORTED}
    ),
}

OUTBOX_MOVES: Moves = {
    OutboxStatus.PENDING: frozenset({OutboxStatus.DELIVERED, OutboxStatus.DROPPED}),
}

STEP_MOVES: Moves = {
    StepStatus.WAITING: frozenset({StepStatus.DONE, StepStatus.FAILED}),
    StepStatus.RETRYING: frozenset({StepStatus.RETRYING, StepStatus.DONE, StepStatus.FAILED}),
}


INTERACTION_MOVES: Moves = {
    InteractionStatus.OPEN: frozenset(
        {
            InteractionStatus.APPROVED,
            InteractionStatus.REJECTED,
            InteractionStatus.ANSWERED,
            InteractionStatus.WITHDRAWN,
        }
    ),
    InteractionStatus.APPROVED: frozenset({InteractionStatus.WITHDRAWN}),
}


def is_terminal(
    status: SubmissionStatus
    | WorkflowStatus
    | JobStatus
    | OutboxStatus
    | StepStatus
    | InteractionStatus
    | SlotStatus,
) -> bool:
    """Say whether a row of this status is at its end: nothing moves it any more."""
    moves: dict[type[StrEnum], Moves] = {
        SubmissionStatus: SUBMISSION_MOVES,
        WorkflowStatus: WORKFLOW_MOVES,
        JobStatus: JOB_MOVES,
        OutboxStatus: OUTBOX_MOVES,
        StepStatus: STEP_MOVES,
        InteractionStatus: INTERACTION_MOVES,
        SlotStatus: SLOT_MOVES,
    }
    return status not in moves[type(status)]
