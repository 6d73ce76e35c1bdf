"""A worker and the tick inside this process: no server is needed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from celery import signals
from celery.worker import state

from think_celery.app import ThinkCelery
from think_celery.errors import ConfigurationError

START_SECONDS = 30.0


@contextmanager
def embedded(think: ThinkCelery, *, concurrency: int = 4) -> Iterator[None]:
    """Run a Celery worker of this app in threads of this process while the block runs.

    Leaving the block stops it: unfinished turns and workflows are stored and handed over, and go on when
    a worker starts again. Signals and logging stay as they are.
    """
    app = think.app
    rt = think.runtime
    ready = threading.Event()
    failures: list[BaseException] = []
    worker = app.Worker(
        pool="threads",
        concurrency=concurrency,
        hostname=f"embedded@{threading.get_ident()}",
        without_mingle=True,
        without_gossip=True,
        quiet=True,
        loglevel="ERROR",
        redirect_stdouts=False,
    )

    def serve() -> None:
        try:
            worker.start()
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    uid = f"think-embedded-{id(worker)}"
    signals.worker_ready.connect(lambda **_: ready.set(), weak=False, dispatch_uid=uid)
    thread = threading.Thread(target=serve, name="think-worker", daemon=True)
    thread.start()
    try:
        if not ready.wait(START_SECONDS) or failures:
            raise ConfigurationError(
                f"The embedded worker did not start: {failures or 'it did not answer in time'}"
            )
        yield
    finally:
        signals.worker_ready.disconnect(dispatch_uid=uid)
        rt.stopping.abort("the process ends")
        state.should_stop = 0  # type: ignore[assignment,unused-ignore]
        thread.join(timeout=30)
        state.should_stop = None
        rt.close()
