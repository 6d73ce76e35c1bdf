"""The Celery tasks: each parses ids, calls one function of the domain, and reports in a word."""

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from think_celery.domain import outbox, submissions, tick, workflows
from think_celery.domain.outcomes import Outcome
from think_celery.errors import TaskFailed, TurnFailed, WorkflowFailed
from think_celery.runtime import Runtime
from think_celery.settings import Settings

logger = logging.getLogger("think_celery.tasks")

GRACE_SECONDS = 60
NO_LIMIT_SECONDS = 365 * 86_400
"""A task without a limit of its own would get the pool's, which the host sets for its own tasks."""

HAND_BACK_SECONDS = 0.1
"""How long a worker that stops keeps a message before it gives it back, so that others come to it first."""


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


def set_limits(app: Celery, settings: Settings) -> None:
    """Give our tasks time limits beyond every deadline of ours: those end the work in order, a limit kills."""
    longest = int(settings.turn_timeout_seconds)
    for name in ("think.submission.run", "think.workflow.advance", "think.outbox.deliver", "think.tick"):
        # Each step of a workflow has a deadline; all of them together have none.
        deadline = NO_LIMIT_SECONDS if name == "think.workflow.advance" else longest
        task = app.tasks[name]
        task.soft_time_limit = deadline + GRACE_SECONDS
        task.time_limit = deadline + 2 * GRACE_SECONDS


def register(app: Celery, runtime: Callable[[], Runtime]) -> None:
    """Add our tasks to this app, and to no other of the process."""

    def task(name: str) -> Any:
        return app.task(name=name, base=ThinkTask, shared=False)

    @task("think.submission.run")  # type: ignore[untyped-decorator,unused-ignore]
    def run_submission(*, submission: str) -> str:
        """Run that submission if its turn has come."""
        rt = _ready(runtime())
        return _report(rt, submissions.run(rt, submission), TurnFailed)

    @task("think.workflow.advance")  # type: ignore[untyped-decorator,unused-ignore]
    def advance_workflow(*, workflow: str, workflow_id: str) -> str:
        """Take that workflow as far as it goes now."""
        rt = _ready(runtime())
        return _report(rt, workflows.advance(rt, workflow, workflow_id), WorkflowFailed)

    @task("think.outbox.deliver")  # type: ignore[untyped-decorator,unused-ignore]
    def deliver_news(*, outbox_id: str) -> str:
        """Deliver that piece of news to its workflow."""
        rt = _ready(runtime())
        return _report(rt, outbox.deliver(rt, outbox_id), TaskFailed)

    @task("think.tick")  # type: ignore[untyped-decorator,unused-ignore]
    def run_tick() -> str:
        """Look after what is due or lost; for schedulers other than the workers' own timer."""
        return f"{tick.run(runtime())} rows"


def _ready(rt: Runtime) -> Runtime:
    """The runtime, unless this worker stops: then the message goes back to the broker.

    What it hands over is knocked for while it still listens, so it may meet its own knocks.

    Raises:
        Reject: Another worker shall have it.
    """
    if rt.stopping.signal.aborted:
        rt.clock.sleep(HAND_BACK_SECONDS)
        raise Reject("the worker stops", requeue=True)
    return rt


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
