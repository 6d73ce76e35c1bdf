"""The Celery tasks: each parses ids, calls one function of the domain, and reports in a word."""

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore

from think_celery.domain import outbox, submissions, tick, workflows
from think_celery.domain.outcomes import Outcome
from think_celery.errors import TaskFailed, TurnFailed, WorkflowFailed
from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.tasks")

GRACE_SECONDS = 60.0


class ThinkTask(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """A task that the host application's configuration does not reach.

    Celery fills what a task leaves unset from the app, and ``task_annotations`` overwrite even what it sets:
    an app-wide ``task_soft_time_limit`` of 20 s would cut every turn.
    """

    abstract = True
    from_config = ()
    acks_late = True
    acks_on_failure_or_timeout = True
    reject_on_worker_lost = True
    ignore_result = True
    store_errors_even_if_ignored = False
    max_retries = 0
    serializer = "json"
    send_events = True
    track_started = False
    rate_limit = None
    typing = True
    Request = "celery.worker.request:Request"

    @classmethod
    def annotate(cls) -> None:
        """Nothing: annotations are for the host's own tasks."""


def register(app: Celery, runtime: Callable[[], Runtime]) -> None:
    """Add our tasks to this app, and to no other of the process."""

    def task(name: str) -> Any:
        return app.task(name=name, base=ThinkTask, shared=False)

    @task("think.submission.run")  # type: ignore[untyped-decorator,unused-ignore]
    def run_submission(*, submission: str) -> str:
        """Run that submission if its turn has come."""
        return _report(runtime(), submissions.run(runtime(), submission), TurnFailed)

    @task("think.workflow.advance")  # type: ignore[untyped-decorator,unused-ignore]
    def advance_workflow(*, workflow: str, workflow_id: str) -> str:
        """Take that workflow as far as it goes now."""
        return _report(runtime(), workflows.advance(runtime(), workflow, workflow_id), WorkflowFailed)

    @task("think.outbox.deliver")  # type: ignore[untyped-decorator,unused-ignore]
    def deliver_news(*, outbox_id: str) -> str:
        """Deliver that piece of news to its workflow."""
        return _report(runtime(), outbox.deliver(runtime(), outbox_id), TaskFailed)

    @task("think.tick")  # type: ignore[untyped-decorator,unused-ignore]
    def run_tick() -> str:
        """Look after what is due or lost; for schedulers other than the workers' own timer."""
        return f"{tick.run(runtime())} rows"


def _report(rt: Runtime, outcome: Outcome, failure: type[TaskFailed]) -> str:
    """The word for Flower. A run that did not end its row ends in no state, so that a later one can show its own.

    Raises:
        Ignore: The run did not end its row.
        TaskFailed: The row ended in error (with ids and the error's type only).
    """
    if not outcome.ended:
        logger.info("%s", outcome.word)
        raise Ignore(outcome.word)
    if outcome.error_type is not None and rt.settings.fail_tasks:
        raise failure(outcome.row, outcome.error_type) from None
    return outcome.word
