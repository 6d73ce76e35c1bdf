"""For ``celery -A benchmarks.workerapp worker``: the workers that are measured. Configured by its environment.

Beside the settings (``THINK_…``): ``BENCH_BROKER`` and ``BENCH_QUEUE``; ``BENCH_FOLDER``, where it leaves the
file ``BENCH_MARK`` when it is ready; ``BENCH_ELSEWHERE``, which lets it seem to run on another machine, so that
nobody there can prove its death.
"""

import os
import struct
import time
from pathlib import Path

from celery import Celery, signals

from think_celery.app import ThinkCelery

STAMPS = struct.Struct("dd")


def make_app(broker: str, queue: str, database_url: str | None = None) -> Celery:
    """A Celery app as a project would write it, with two tasks of its own that are the floors."""
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        think_imports=["benchmarks.project"],
    )
    if database_url is not None:
        app.conf.think_database_url = database_url
    app.task(name="bench.noop", shared=False)(noop)
    app.task(name="bench.stamp", shared=False)(stamp)
    ThinkCelery(app)
    return app


def noop(submission_id: str) -> None:
    """Nothing, and a stamp of when."""
    _stamp(0.0)


def stamp(sent_at: float) -> None:
    """Note when this was sent and when it began."""
    _stamp(sent_at)


def _stamp(sent_at: float) -> None:
    target = Path(os.environ["BENCH_FOLDER"], f"{os.environ['BENCH_MARK']}.stamps")
    file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, STAMPS.pack(sent_at, time.monotonic()))
    finally:
        os.close(file)


def _ready(**_: object) -> None:
    Path(os.environ["BENCH_FOLDER"], f"{os.environ['BENCH_MARK']}.ready").touch()


def _from_environment() -> Celery:
    if os.environ.get("BENCH_ELSEWHERE"):
        from think_celery.domain import leases

        facts = leases.host_facts()
        leases.host_facts = lambda: {**facts, "boot": "another machine"}  # type: ignore[attr-defined]
    signals.worker_ready.connect(_ready, weak=False)
    return make_app(os.environ["BENCH_BROKER"], os.environ["BENCH_QUEUE"])


if "BENCH_BROKER" in os.environ:
    app = _from_environment()
