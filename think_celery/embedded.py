"""A worker, the tick and schedules inside this process: no server is needed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import _state, signals
from celery.app import trace
from celery.worker import WorkController, loops, state

from think_celery import hosts
from think_celery.app import ThinkCelery
from think_celery.errors import ConfigurationError

START_SECONDS = 30.0
STOP_SECONDS = 30.0
PATIENCE_SECONDS = 0.1
"""How long it looks at the broker before it looks whether it is to stop; Celery's own loop takes seconds."""

_one = threading.Lock()


@contextmanager
def embedded(think: ThinkCelery, *, concurrency: int = 4, schedules: bool = True) -> Iterator[None]:
    """Run a Celery worker of this app in threads of this process while the block runs.

    Leaving the block stops it: unfinished turns and workflows are stored and handed over, and go on when
    a worker starts again. Signals and logging stay as they are. While it runs, this app is Celery's default
    app of the process.

    Args:
        think: The app's.
        concurrency: How many turns, steps and jobs may run at once.
        schedules: Whether it fires the schedules of agents, so that no beat is needed.

    Raises:
        ConfigurationError: There is one in this process already (Celery allows one), or it could not start.
    """
    if not _one.acquire(blocking=False):
        raise ConfigurationError(
            "An embedded worker runs in this process already, and Celery allows one. Give both one app, or "
            "start the other worker in a process of its own."
        )
    try:
        worker = _Embedded(think, concurrency, schedules)
        try:
            worker.start()
            yield
        finally:
            worker.stop()
    finally:
        _one.release()


class _Embedded:
    def __init__(self, think: ThinkCelery, concurrency: int, schedules: bool) -> None:
        self._think, self._concurrency, self._schedules = think, concurrency, schedules
        self._ready = threading.Event()
        self._failures: list[BaseException] = []
        # celery-types know neither of these
        self._default: Any = getattr(_state, "default_app")  # noqa: B009
        self._waits_block: bool = getattr(_state, "task_join_will_block")()  # noqa: B009
        self._thread = threading.Thread(target=self._serve, name="think-worker", daemon=True)

    def start(self) -> None:
        """Return when it consumes."""
        self._think.runtime  # noqa: B018 - a wrong setting is the caller's to see, as it is
        self._think.fires_schedules = self._schedules
        self._thread.start()
        if not self._ready.wait(START_SECONDS) or self._failures:
            raise ConfigurationError(
                f"The embedded worker did not start: {self._failures or 'it did not answer in time'}"
            )

    def _serve(self) -> None:
        signals.task_postrun.connect(_close_django)
        try:
            name = f"embedded@{threading.get_ident()}"
            worker = self._worker(name)
            trace.setup_worker_optimizations(self._think.app, name)
            worker.start()
            if worker.exitcode:
                self._failures.append(SystemExit(worker.exitcode))
        except BaseException as error:
            self._failures.append(error)
        finally:
            signals.task_postrun.disconnect(_close_django)
            self._ready.set()

    def _worker(self, name: str) -> Any:
        # Not celery.apps.worker.Worker: that one takes over signals, the root logger and standard output.
        worker: Any = WorkController(
            app=self._think.app,
            pool_cls="threads",
            concurrency=self._concurrency,
            hostname=name,
            without_mingle=True,
            without_gossip=True,
            use_eventloop=False,  # it would be the one of the process
            timer_precision=PATIENCE_SECONDS,
            ready_callback=lambda _: self._ready.set(),
        )
        worker.consumer.loop = _loop
        return worker

    def stop(self) -> None:
        """Hand over what is in hand, and end."""
        self._think.runtime.stopping.abort("the process ends")
        state.should_stop = 0  # type: ignore[assignment,unused-ignore]
        try:
            if self._thread.ident is not None:
                self._thread.join(timeout=STOP_SECONDS)
        finally:
            state.should_stop = None
            self._think.fires_schedules = False
            # Else Celery takes the whole process for a task for ever, where nobody may wait for a result.
            getattr(_state, "_set_task_join_will_block")(self._waits_block)  # noqa: B009
            if self._default is not None:
                self._default.set_default()
            self._think.close()


def _close_django(sender: Any, **_: Any) -> None:
    """What Celery's own worker does for Django after each task; not where the caller runs it."""
    if not getattr(sender.request, "is_eager", False):
        hosts.close_django()


def _loop(consumer: Any, connection: Any, *rest: Any) -> None:
    drain = connection.drain_events
    connection.drain_events = lambda timeout: drain(timeout=min(timeout, PATIENCE_SECONDS))
    loops.synloop(consumer, connection, *rest)
