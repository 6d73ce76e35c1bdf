"""What a worker does with each message: one table, for Celery's tasks and for ``think_test`` alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from think_celery.domain import knocks, outbox
from think_celery.domain.agents import starts
from think_celery.domain.jobs import runs
from think_celery.domain.outcomes import Outcome
from think_celery.domain.submissions import claims
from think_celery.domain.workflows import advance
from think_celery.errors import JobFailed, TaskFailed, TurnFailed, WorkflowFailed
from think_celery.protocols import Knock
from think_celery.runtime import Runtime


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one task does.

    ``run`` takes the runtime and the message's ids. ``failure`` is what the task fails with where the row
    ended in error. ``has_deadline`` says that one message is worked on for ``think_turn_timeout`` at most.
    """

    run: Callable[..., Outcome]
    failure: type[TaskFailed]
    has_deadline: bool = True


WORK: Mapping[str, Work] = {
    knocks.RUN_SUBMISSION: Work(run=claims.run, failure=TurnFailed),
    # Each step of a workflow has a deadline; all of them together have none.
    knocks.ADVANCE_WORKFLOW: Work(run=advance.advance, failure=WorkflowFailed, has_deadline=False),
    knocks.DELIVER_NEWS: Work(run=outbox.deliver, failure=TaskFailed),
    knocks.START_AGENT: Work(run=starts.run, failure=TaskFailed),
    # Each attempt has a time limit of its own.
    knocks.RUN_JOB: Work(run=runs.run, failure=JobFailed, has_deadline=False),
}


def perform(rt: Runtime, knock: Knock) -> Outcome:
    """Do what a worker does when it gets this message."""
    return WORK[knock.task].run(rt, **knock.kwargs)
