"""A Redis that may be ill-treated, the clients and workers that use it, and what became of their work."""

import contextlib
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import redis
from celery import Celery
from sqlalchemy import select, update

from tests import servers
from tests.crash.model import text_of
from tests.crash.nursery import Process
from tests.crash.project import Scribe
from tests.crash.stage import Stage
from think_celery.clock import SystemClock
from think_celery.protocols import Knock
from think_celery.publishing import Publisher
from think_celery.store import tables
from think_celery.tasks import register

QUICK = {
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,
    "broker_transport_options": {
        "visibility_timeout": 3720,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "health_check_interval": 2,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
    },
}
"""What ``celeryconfig.py`` sets, with a shorter health check."""


WITHIN = 1.5
"""Seconds within which a knock is answered; the tick alone takes two at least."""


class Broker:
    """A Redis of the test's own, on one port all its lives long. It keeps nothing on disk."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        self._running = contextlib.ExitStack()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = redis.Redis.from_url(self.url, socket_timeout=20)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        self.stop()
        self.client.close()

    def start(self) -> None:
        """Start, empty."""
        self._server = self._running.enter_context(servers.own_redis(self._port))

    def stop(self) -> None:
        """Stop; connections are refused from now on."""
        self._running.close()

    def restart(self) -> None:
        """Stop and start, which loses everything."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Answer nothing from now on, but accept connections: the kernel does."""
        os.kill(self._server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Answer again."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self._server.pid, signal.SIGCONT)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Each message that lies in a queue, or that a worker has taken and not finished."""
        for key in self.client.keys("*"):  # type: ignore[union-attr]
            kind = self.client.type(key)
            if kind == b"list":
                yield from (json.loads(raw) for raw in self.client.lrange(key, 0, -1))  # type: ignore[union-attr]
            elif key == b"unacked":
                yield from (json.loads(raw)[0] for raw in self.client.hvals("unacked"))  # type: ignore[union-attr]


def start_worker(stage: Stage, url: str, *, kill_at: str = "", flushes: str = "", **conf: Any) -> Process:
    """Start a worker on the threads pool; the configuration is that of ``celeryconfig.py`` where nothing is said."""
    options = {**QUICK["broker_transport_options"], **conf.pop("broker_transport_options", {})}  # type: ignore[dict-item]
    given = {**QUICK, "broker_transport_options": options, "think_imports": ["tests.brokers.project"], **conf}
    points = {"kill_at": kill_at, "flushes": flushes}
    return stage.start("threads", broker=url, queue=queue_of(stage), conf=json.dumps(given), **points)


class Supervised:
    """A worker that lives through everything but one fault of kombu's; then it is started again, as a supervisor does.

    kombu 5.7 gives messages back over a connection that it has closed already when it loses Redis in an unlucky
    moment, and Celery ends the worker for that.
    """

    def __init__(self, stage: Stage, url: str) -> None:
        self._start, self.restarts = lambda: start_worker(stage, url), 0
        self._process = self._start()
        self._process.marked("ready")

    def lives(self) -> bool:
        """True, or the test fails."""
        if not self._process.running:
            said = self._process.output()
            assert "Unrecoverable error: AttributeError" in said, said
            assert "/kombu/" in said, said
            self._process = self._start()
            self.restarts += 1
        return True


def queue_of(stage: Stage) -> str:
    """The queue of a stage's messages."""
    return f"think-tests-{os.getpid()}-{stage.name}"  # RabbitMQ may be shared with other runs


def client(stage: Stage, url: str, **conf: Any) -> Publisher:
    """Let this process knock as a client does, over that broker."""
    app = Celery("client", broker=url, set_as_current=False)
    app.conf.update({"task_default_queue": queue_of(stage), **conf})

    def never() -> Any:
        raise AssertionError("no task runs here")

    register(app, never)
    publisher = Publisher(app, SystemClock())
    stage.knock_through(publisher)
    return publisher


def deaf(knock: Knock) -> None:
    """What a client knocks with that has no broker."""


def submit(stage: Stage, agent: str, prompt: str) -> str:
    """Submit a turn, and return its id."""
    return str(Scribe._bound_to(stage.rt, agent).submit_messages(prompt).submission_id)


def forget_knocks(stage: Stage, *names: str) -> None:
    """Let the tick expect nothing of these agents' turns for minutes, as of ones that wait for long already."""
    table = tables.submissions
    far = {"knock_at": stage.rt.clock.now() + timedelta(minutes=5), "knocks": 9}
    stage.db.transact(lambda tx: tx.execute(update(table).where(table.c.agent_name.in_(names)).values(far)))


def forget_workflows(stage: Stage) -> None:
    """The same for the workflows that wait for a worker, and for news."""
    far = {"knock_at": stage.rt.clock.now() + timedelta(minutes=5), "knocks": 9}
    for table in (tables.workflows, tables.outbox):
        change = update(table).where(table.c.knock_at.is_not(None)).values(far)
        stage.db.transact(lambda tx, change=change: tx.execute(change))  # type: ignore[misc]


def statuses(stage: Stage) -> Counter[str]:
    """How many turns are in which status."""
    rows = stage.db.read(lambda tx: list(tx.execute(select(tables.submissions.c.status))))
    return Counter(row.status for row in rows)


def all_completed(stage: Stage, count: int) -> bool:
    """Whether so many turns are there, and all have completed."""
    return statuses(stage) == {"completed": count}


def asked(stage: Stage) -> Counter[str]:
    """How often the model was asked for each prompt."""
    return Counter(text_of(body["messages"][-1]) for body in stage.requests())


def nap(seconds: float) -> None:
    """Let time pass for the world outside: an outage has a length."""
    time.sleep(seconds)
