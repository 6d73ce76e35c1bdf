"""Every status and every allowed move."""

import pytest

from think_celery import states
from think_celery.states import (
    INTERACTION_MOVES,
    JOB_MOVES,
    OUTBOX_MOVES,
    SLOT_MOVES,
    STEP_MOVES,
    SUBMISSION_MOVES,
    WORKFLOW_MOVES,
    InteractionStatus,
    JobStatus,
    OutboxStatus,
    SlotStatus,
    StepStatus,
    SubmissionStatus,
    WorkflowStatus,
    is_terminal,
)

MACHINES = [
    (
        SubmissionStatus,
        SUBMISSION_MOVES,
        {
            "pending": "running aborted skipped error",
            "running": "running pending completed aborted error",
            "completed": "",
            "aborted": "",
            "skipped": "",
            "error": "",
        },
    ),
    (
        WorkflowStatus,
        WORKFLOW_MOVES,
        {
            "queued": "running paused terminated",
            "running": "running queued waiting paused complete errored terminated",
            "waiting": "queued paused terminated",
            "paused": "queued terminated",
            "complete": "",
            "errored": "",
            "terminated": "",
        },
    ),
    (
        StepStatus,
        STEP_MOVES,
        {"waiting": "done failed", "retrying": "retrying done failed", "done": "", "failed": ""},
    ),
    (
        JobStatus,
        JOB_MOVES,
        {
            "pending": "running aborted",
            "running": "running pending completed error aborted interrupted",
            "interrupted": "pending completed error aborted",
            "completed": "",
            "error": "",
            "aborted": "",
        },
    ),
    (SlotStatus, SLOT_MOVES, {"open": "done failed skipped", "done": "", "failed": "", "skipped": ""}),
    (OutboxStatus, OUTBOX_MOVES, {"pending": "delivered dropped", "delivered": "", "dropped": ""}),
    (
        InteractionStatus,
        INTERACTION_MOVES,
        {
            "open": "approved rejected answered withdrawn",
            "approved": "withdrawn",
            "rejected": "",
            "answered": "",
            "withdrawn": "",
        },
    ),
]


@pytest.mark.parametrize(("statuses", "moves", "table"), MACHINES, ids=[row[0].__name__ for row in MACHINES])
def test_the_moves_are_those_of_the_design(statuses, moves, table):
    """Each status, each move out of it, and no other; every status is a plain word."""
    assert [str(status) for status in statuses] == list(table)
    assert {str(status): moves.get(status, frozenset()) for status in statuses} == {
        name: frozenset(targets.split()) for name, targets in table.items()
    }


@pytest.mark.parametrize(("statuses", "moves", "table"), MACHINES, ids=[row[0].__name__ for row in MACHINES])
def test_nothing_leaves_a_terminal_status(statuses, moves, table):
    """Terminal is what has no way out, and only that."""
    assert {str(status) for status in statuses if is_terminal(status)} == {
        name for name, targets in table.items() if not targets
    }


def test_every_machine_is_listed_here():
    """A new status class must get its table above."""
    classes = {name for name in vars(states) if name.endswith("Status")}

    assert classes == {row[0].__name__ for row in MACHINES}
