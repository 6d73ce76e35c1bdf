"""The Celery tasks: each parses ids, calls one function of the domain, and reports in a word."""

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.app.trace import TraceInfo, build_tracer
from celery.exceptions import Ignore, Reject
from celery.states import IGNORED
from kombu.serialization import prepare_accept_content

from think_celery import publictasks
from think_celery.domain import calls, knocks, tick
from think_celery.domain.outcomes import Outcome
from think_celery.domain.schedules import drivers
from think_celery.domain.work import WORK, Work
from think_celery.errors import ConfigurationError, TaskFailed, TaskInterrupted
from think_celery.logs import trace_of
from think_celery.metronome import Reconciler
from think_celery.runtime import Runtime
from think_celery.settings import Settings
from think_celery.worker import stops

logger = logging.getLogger("think_celery.tasks")

TICK, PING = "think.tick", "think.ping"
TICK_EXPIRES_SECONDS = 2
"""A tick that no worker has taken by then is not needed: the next one is there."""

GRACE_SECONDS = 60
NO_LIMIT_SECONDS = 365 * 86_400
"""A task without a limit of its own would get the pool's, which the host sets for its own tasks."""

HAND_BACK_SECONDS = 0.1
"""How long a worker that stops keeps a message before it gives it back, so that others come to it first."""


class _Traced(TraceInfo):  # type: ignore[misc,unused-ignore]
    """How a run of a task went, as Celery notes it: of one that is ignored the word, without its traceback.

    Celery copies that twice, with the position in the source of each instruction of its own functions. For a word of
    ours it took longer than all else that Celery does with a message; and a child of the prefork pool sent the copy to
    its parent.
    """

    __slots__ = ()

    def __init__(self, state: str, retval: Any = None) -> None:
        super().__init__(state, retval)
        if state == IGNORED:
            while (trace := retval.__traceback__) is not None and trace.tb_next is not None:
                retval.__traceback__ = trace.tb_next


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
    store_eager_result = False
    store_errors_even_if_ignored = False
    max_retries = 0
    serializer = "json"
    send_events = True
    track_started = False
    rate_limit = None
    typing = True
    Request = "think_celery.worker.revoked:ThinkRequest"

    @classmethod
    def annotate(cls) -> None:
        """Nothing: annotations are for the host's own tasks."""

    @property
    def __trace__(self) -> Callable[..., Any] | None:
        """What a worker calls for each message: Celery's own, which a worker sets when it starts."""
        found: Callable[..., Any] | None = vars(self).get("__trace__")
        return found

    @__trace__.setter
    def __trace__(self, given: Callable[..., Any] | None) -> None:
        made = build_tracer(self.name, self, self.app.loader, app=self.app, Info=_Traced) if given else None
        vars(self)["__trace__"] = made


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
    for name in (*WORK, *publictasks.PUBLIC, TICK, PING):
        has_deadline = name not in WORK or WORK[name].has_deadline
        limit = (longest if has_deadline else NO_LIMIT_SECONDS) + GRACE_SECONDS
        task = app.tasks[name]
        task.soft_time_limit, task.time_limit = limit, limit + GRACE_SECONDS


def register(app: Celery, runtime: Callable[[], Runtime]) -> None:
    """Add our tasks to this app, and to no other of the process."""

    def add(name: str, task: Callable[..., str], **options: Any) -> None:
        made: Callable[[Callable[..., str]], object] = app.task(
            name=name, base=ThinkTask, shared=False, **options
        )
        made(task)

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

    def public(name: str) -> Callable[..., str]:
        def task(self: Any, *args: Any, **kwargs: Any) -> str:
            # What `result_extended` would keep with the result: a caller's texts stay out of result backends.
            self.request.args, self.request.kwargs = (), {}
            with stops.working():
                return publictasks.perform(_ready(runtime()), name, args, kwargs, self.request.id)

        return task

    def run_tick(schedules: bool = False) -> str:
        """Look after what is due or lost; with *schedules* also fire them, and store what classes declare, as a beat
        of ours does. For other schedulers.
        """
        rt = runtime()
        fired = drivers.once_a_second(rt) if schedules else 0
        rows = tick.run(rt) + fired
        if schedules:
            _reconcile(reconcilers.of(rt))
        return f"{rows} rows"

    reconcilers = _Reconcilers()
    for name, work in WORK.items():
        add(name, task_of(work))
    for name in publictasks.PUBLIC:
        add(name, public(name), bind=True, ignore_result=False)
    add(TICK, run_tick, expires=TICK_EXPIRES_SECONDS)


class _Reconcilers:
    """That of the runtime which this app has now; one of a runtime that was closed is let go together with it."""

    def __init__(self) -> None:
        self._last: Reconciler | None = None

    def of(self, rt: Runtime) -> Reconciler:
        """Its reconciler. (Two threads may both make one, at the first tick: then all is compared twice.)"""
        last = self._last
        if last is None or last.rt is not rt:
            self._last = last = Reconciler(rt)
        return last


def _reconcile(reconciler: Reconciler) -> None:
    """Store what the classes of this process declare, if it is time; what goes wrong is for the next tick."""
    rt = reconciler.rt
    try:
        reconciler.look()
    except Exception as error:
        if calls.interrupts(error):
            raise
        if rt.said.is_new("declarations", type(error)):
            logger.error("scheduled tasks can't be reconciled; each tick tries again: %s", trace_of(error))


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
