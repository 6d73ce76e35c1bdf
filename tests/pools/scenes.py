"""What the tests of the pools do on a stage: start workers, submit, and look."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.crash.nursery import Process
from tests.crash.stage import Stage
from tests.crash.test_celery_worker import publisher
from tests.pools.project import Hand, Listener
from think_celery.store import tables

IMPORTS = ["tests.crash.project", "tests.pools.project", "tests.pools.talker"]


def queue_of(stage: Stage) -> str:
    """The queue of this stage alone."""
    return f"pools-{stage.name}"


def settings(conf: Mapping[str, Any] | None) -> str:
    """Celery's settings for a worker: one slot, unless *conf* says otherwise."""
    return json.dumps({"think_imports": IMPORTS, "worker_concurrency": 1, **(conf or {})})


def begin(
    stage: Stage, pool: str, redis_url: str, conf: Mapping[str, Any] | None = None, **options: str
) -> Process:
    """Start a worker of that pool on Redis, and wait until it is ready."""
    worker = stage.start(pool, broker=redis_url, queue=queue_of(stage), conf=settings(conf), **options)
    worker.marked("ready")
    return worker


def environment(
    stage: Stage, redis_url: str, conf: Mapping[str, Any] | None, log: Path, **more: str
) -> dict[str, str]:
    """What a worker has in its environment that does not come from the nursery."""
    given = {"CRASH_BROKER": redis_url, "CRASH_QUEUE": queue_of(stage), "CRASH_CONF": settings(conf)}
    return {**os.environ, **stage.environment, **given, "CRASH_LOG": str(log), **more}


def freeze(pid: int) -> None:
    """Stop a process where it is, and return once every thread of it has stopped."""
    process = Process(pid, Path())
    process.freeze()


def connect(stage: Stage, redis_url: str) -> None:
    """Let this process knock through the broker, as a client does."""
    stage.knock_through(publisher(redis_url, queue_of(stage)))


def hand(stage: Stage, name: str = "one") -> Hand:
    """An agent of this stage."""
    return Hand._bound_to(stage.rt, name)


def listener(stage: Stage, name: str) -> Listener:
    """An agent that listens to itself."""
    return Listener._bound_to(stage.rt, name)


def holder(stage: Stage) -> Any:
    """The process that has a turn in hand."""
    (held,) = [row.process_id for row in stage.rows(tables.lines) if row.process_id]
    return next(row for row in stage.processes() if row.id == held)


def row_of(stage: Stage, submission_id: str) -> Any:
    """A submission as it is stored."""
    return next(row for row in stage.rows(tables.submissions) if row.id == submission_id)


def ended(stage: Stage, *submission_ids: str) -> bool:
    """Whether all of them have ended."""
    rows = [row for row in stage.rows(tables.submissions) if row.id in submission_ids]
    return all(row.status in ("completed", "error", "aborted", "skipped") for row in rows)


def alive(stage: Stage) -> list[Any]:
    """The rows of processes that are not dead."""
    return [row for row in stage.processes() if not row.dead]


def begun(stage: Stage, what: str) -> bool:
    """Whether that tool has begun."""
    return any(line["what"] == f"{what}-begun" for line in stage.effects())
