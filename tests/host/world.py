"""A host with one worker, seen from a client of the same application."""

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import compression
from sqlalchemy import select

from tests.host.project import Chore, Lodger, make_app
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import runs
from think_celery.runtime import Runtime, set_current
from think_celery.store import tables

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60.0
"""How long anything may take before a test says that it does not come."""


def until(true: Callable[[], Any], what: Any = "", seconds: float = SECONDS) -> Any:
    """Wait until *true* gives something that is, and return it."""
    end_at = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end_at, f"not after {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.05)
    return found


class Command:
    """``celery -A tests.host.app …`` in a process of its own."""

    def __init__(self, environ: Mapping[str, str], log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.host.app", *arguments],
                cwd=ROOT,
                env={**os.environ, **environ, "C_FORCE_ROOT": "1"},  # or root may not accept pickles
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def output(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    def says(self, words: str) -> None:
        """Return once it has written these."""
        until(lambda: words in self.output() or self.process.poll() is not None, self.output)
        assert words in self.output(), self.output()

    def serves(self, app: Celery, worker: str) -> None:
        """Return once the worker of that name, which this is, takes messages and hears what is broadcast.

        It says that it is ready before it has subscribed, and Redis keeps nothing for who has not.
        """
        self.says(" ready.")
        until(lambda: app.control.ping([worker], timeout=1), self.output)

    def stop(self) -> None:
        """End it; a worker's children end with it."""
        self.process.kill()
        self.process.wait(10)


def a_worker(queue: str, pool: str = "threads", name: str = "another@host") -> list[str]:
    """The arguments that start a worker of one queue."""
    return [
        *("worker", "--pool", pool, "--concurrency", "3", "--hostname", name, "--queues", queue),
        *("--without-mingle", "--without-gossip"),
    ]


class World:
    """One queue, one database, one worker, one client."""

    def __init__(self, pool: str, environ: Mapping[str, str], folder: Path) -> None:
        self.environ = {**environ, "HOST_CALLS": str(folder / "calls")}
        self.folder, self.name = folder, f"{pool}@host"
        before = set_current(None)
        self.app: Celery = make_app(self.environ)
        self.rt: Runtime = self.app.think.runtime  # type: ignore[attr-defined]
        set_current(before)
        self.events: list[dict[str, Any]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.worker = Command(
            self.environ,
            folder / "worker.log",
            *a_worker(self.environ["HOST_QUEUE"], pool, self.name),
            *("--loglevel", "debug", "--task-events", "--time-limit", "1", "--soft-time-limit", "1"),
        )

    def _listen(self) -> None:
        with self.app.connection_for_read() as connection:
            self._receiver = self.app.events.Receiver(connection, handlers={"*": self.events.append})
            self._receiver.capture(limit=None, timeout=None, wakeup=True)

    def close(self) -> None:
        """End the worker and the client."""
        self.worker.stop()
        self._receiver.should_stop = True
        self._listener.join(5)
        self.rt.close()

    def starts(self) -> None:
        """Return once its worker serves."""
        self.worker.serves(self.app, self.name)

    # --- what is there ----------------------------------------------------------------------------

    def agent(self, name: str) -> Lodger:
        """An agent of ours, in this process."""
        return Lodger._bound_to(self.rt, name)

    def submission(self, submission_id: str) -> Any:
        """A submission's row."""
        return submissions.get(self.rt, submission_id)

    def status(self, submission_id: str) -> str:
        """How a submission stands."""
        return str(self.submission(submission_id).status)

    def run(self, workflow_id: str) -> Any:
        """How a workflow stands."""
        return runs.look_up(self.rt, workflow_id, Chore)

    def waits_at(self, step: str) -> bool:
        """Whether a workflow has come to that step."""
        found = self.rt.db.read(lambda tx: list(tx.execute(select(tables.steps))))
        return any(row.step == step for row in found)

    def ended(self, *submission_ids: str) -> None:
        """Return once these have."""
        final = ("completed", "error", "aborted", "skipped")
        until(lambda: all(self.status(each) in final for each in submission_ids), self.report)

    def events_of(self, task_id: str) -> list[str]:
        """The types of the events that came for this task."""
        return [event["type"] for event in list(self.events) if event.get("uuid") == task_id]

    def report(self) -> str:
        """All that helps to understand a failure."""
        return self.worker.output()[-20_000:]


def everything_in(url: str) -> str:
    """All that is in a Redis database, in words: keys, values, and what the bodies of messages say."""
    with redis.Redis.from_url(url) as server:
        found: list[Any] = []
        for key in server.keys("*"):  # type: ignore[union-attr]
            match server.type(key):
                case b"string":
                    value: Any = server.get(key)
                case b"list":
                    value = server.lrange(key, 0, -1)
                case b"hash":
                    value = server.hgetall(key)
                case b"set":
                    value = server.smembers(key)
                case b"zset":
                    value = server.zrange(key, 0, -1)
                case b"stream":
                    value = server.xrange(key)
                case b"none":  # a queue whose last message was taken just now
                    continue
                case kind:
                    raise AssertionError(f"{key} is a {kind}")
            found.append((key, value))
    shown = "\n".join(repr(each) for each in found)
    return "\n".join([shown, *(repr(body) for body in _bodies(found))])


def _bodies(value: Any) -> Iterator[bytes]:
    """What the bodies of the messages in it say, unpacked."""
    match value:
        case bytes():
            with contextlib.suppress(ValueError):
                yield from _bodies(json.loads(value))
        case dict() if "body" in value and "headers" in value:
            body = base64.b64decode(value["body"])
            packed = value["headers"].get("compression")
            yield compression.decompress(body, packed) if packed else body
        case dict():
            yield from _bodies(list(value.values()))
        case list() | tuple():
            for each in value:
                yield from _bodies(each)
