"""The Celery tasks: each parses ids, calls one function of the domain, and reports in a word."""

import logging
from collections.abc import Callable

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from kombu.serialization import prepare_accept_content

from think_celery import stops
from think_celery.domain import calls, knocks, tick
from think_celery.domain.outcomes import Outcome
from think_celery.domain.work import WORK, Work
from think_celery.errors import ConfigurationError, TaskFailed, TaskInterrupted
from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.settings import Settings

logger = logging.getLogger("think_celery.tasks")

TICK, PING = "think.tick", "think.ping"
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
    Request = "think_celery.revoked:ThinkRequest"

    @classmethod
    def annotate(cls) -> None:
        """Nothing: annotations are for the host's own tasks."""


def check_content(app: Celery) -> None:
    """See that a worker of this app takes our messages.

    Raises:
        ConfigurationError: They are JSON, which it refuses: Celery would drop each, and the tick send it again.
    """
    accepted = prepare_accept_content(app.conf.accept_content)
    if accepted is not None and "application/json" not in accepted:
        raise ConfigurationError(
            f"accept_content of the Celery app {app.main!r} is {sorted(app.conf.accept_content)}. The messages of "
            "think_celery are JSON, and a worker that refuses JSON can't serve. Add 'json' to accept_content; your "
            "own tasks may go on with what they use."
        )


def set_limits(app: Celery, settings: Settings) -> None:
    """Give our tasks time limits beyond every deadline of ours: those end the work in order, a limit kills."""
    longest = 2 * int(settings.turn_timeout_seconds)  # a turn, and what its agent does after it
    for name in (*WORK, TICK, PING):
        has_deadline = name not in WORK or WORK[name].has_deadline
        limit = (longest if has_deadline else NO_LIMIT_SECONDS) + GRACE_SECONDS
        task = app.tasks[name]
        task.soft_time_limit, task.time_limit = limit, limit + GRACE_SECONDS


def register(app: Celery, runtime: Callable[[], Runtime]) -> None:
    """Add our tasks to this app, and to no other of the process."""

    def add(name: str, task: Callable[..., str]) -> None:
        app.task(name=name, base=ThinkTask, shared=False)(task)

    def task_of(work: Work) -> Callable[..., str]:
        def task(**arguments: str) -> str:
            rt, ids = _ready(runtime()), knocks.ids_in(arguments)
            row = " ".join(ids.values())
            try:
                with stops.working():
                    outcome = work.run(rt, **ids)
            except BaseException as error:
                if calls.interrupts(error):
                    raise
                # Celery's pools don't survive every BaseException. And a database's own words can hold what a
                # row holds; Celery would print and send them.
                logger.error("%s could not be worked on: %s", row, trace_of(error))
                raise TaskInterrupted(row, type(error).__name__) from None
            return _report(rt, row, outcome, work.failure)

        return task

    def run_tick() -> str:
        """Look after what is due or lost; for schedulers other than the workers' own timer."""
        return f"{tick.run(runtime())} rows"

    for name, work in WORK.items():
        add(name, task_of(work))
    add(TICK, run_tick)


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


def _report(rt: Runtime, row: str, outcome: Outcome, failure: type[TaskFailed]) -> str:
    """The word for Flower. A run that did not end its row ends in no state, so that a later one can show its own.

    Raises:
        Ignore: The run did not end its row.
        TaskFailed: The row ended in error (with ids and the error's type only).
    """
    if not outcome.ended:
        logger.info("%s: %s", row, outcome.word)
        raise Ignore(outcome.word)
    if outcome.error_type is not None and rt.settings.fail_tasks:
        raise failure(outcome.row, outcome.error_type) from None
    return outcome.word
