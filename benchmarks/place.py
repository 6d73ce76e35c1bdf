"""Where the measurements take place: a database and a Redis of this run alone, clients and worker processes."""

import contextlib
import itertools
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis
from celery import Celery

from benchmarks.figures import Size, until
from benchmarks.processes import children
from benchmarks.workerapp import STAMPS, make_app
from tests import servers
from think_celery.app import ThinkCelery
from think_celery.runtime import Runtime, set_current
from think_celery.store.migrate import upgrade

ROOT = Path(__file__).parent.parent
THREADS = ("--pool", "threads", "--concurrency", "20")
PREFORK = ("--pool", "prefork", "--concurrency", "8")
FEW_THREADS = ("--pool", "threads", "--concurrency", "4")

_OURS = re.compile(r"(THINK|BENCH|CELERY|OPENAI)_.*|(DATABASE|REDIS|BROKER)_URL|.*_PROXY", re.IGNORECASE)


def threads(size: Size) -> tuple[str, ...]:
    """The threads pool: as many as there are runs at once."""
    return FEW_THREADS if size.name == "tiny" else THREADS


def pools(size: Size) -> dict[str, tuple[str, ...]]:
    """The pools that are measured: prefork in a full run only."""
    return {"threads": threads(size), **({"prefork": PREFORK} if size.name == "full" else {})}


def clear_environment() -> None:
    """A developer's own settings must not reach what is measured."""
    for name in [name for name in os.environ if _OURS.fullmatch(name) and name != "THINK_TEST_SERVERS"]:
        del os.environ[name]


class Place:
    """The two servers of one run."""

    def __init__(self, postgres: servers.Postgres, broker: servers.Redis, folder: Path) -> None:
        self._postgres, self._broker, self.folder = postgres, broker, folder
        self.broker = broker.flushed()
        self._names = (f"bench-{number}" for number in itertools.count(1))

    def scene(self) -> "contextlib.AbstractContextManager[Scene]":
        """A fresh database with its client, and a queue of its own."""
        return _scene(self._postgres.empty(), self.broker, next(self._names), self.folder)

    def empty_database(self) -> str:
        """The url of a database without tables."""
        return self._postgres.empty()

    def facts(self) -> dict[str, str]:
        """What this was measured on."""
        with psycopg.connect(servers.plain_url(self._postgres.admin_url)) as conn:
            version, fsync = (
                conn.execute(f"SHOW {it}".encode()).fetchone()[0]  # type: ignore[index]
                for it in ("server_version", "fsync")
            )
        with redis.Redis.from_url(self.broker) as server:
            told: Any = server.info("server")
        return {
            "cores": str(os.cpu_count()),
            "machine": f"{platform.system()} {platform.machine()}",
            "Python": platform.python_version(),
            "PostgreSQL": f"{version.split()[0]}, fsync {fsync}",
            "Redis": f"{told.get('server_name', 'redis')} {told['redis_version']}",
        }


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """The servers that run on this machine, else ones from the wheels; nothing is left on them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="think-bench-")))
        postgres = stack.enter_context(servers.postgres(upgrade))
        broker = stack.enter_context(servers.redis_server())
        yield Place(postgres, broker, folder)


@dataclass(kw_only=True)
class Scene:
    """A database, a queue, and this process as a client of both."""

    url: str
    broker: str
    queue: str
    folder: Path
    app: Celery
    rt: Runtime
    conn: psycopg.Connection[Any]
    redis: "redis.Redis"
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def agent(self, cls: Any, name: str) -> Any:
        """An agent of this database."""
        return self.rt.make_agent(cls.agent_class, name)

    def ask(self, sql: str, *values: Any) -> Any:
        """The one value that this SQL gives."""
        row = self.conn.execute(sql.encode(), values).fetchone()
        return None if row is None else row[0]

    def run(self, sql: str, *values: Any) -> None:
        """Execute SQL."""
        self.conn.execute(sql.encode(), values)

    def waiting(self) -> int:
        """How many messages lie in the broker for our workers."""
        length: Any = self.redis.llen(self.queue)
        return int(length)

    def purge(self) -> None:
        """Empty the queue."""
        self.redis.delete(self.queue)

    @contextlib.contextmanager
    def worker(self, pool: Sequence[str] = THREADS, **environment: str) -> Iterator["Worker"]:
        """A worker process, ready; killed at the end, for its database goes, too."""
        started = self.start_worker(pool, **environment)
        try:
            started.await_ready()
            yield started
        finally:
            started.kill()

    def start_worker(self, pool: Sequence[str] = THREADS, **environment: str) -> "Worker":
        """Start one, and return it before it is ready."""
        mark = f"{self.queue}-worker-{next(self._numbers)}"
        given = {
            **os.environ,
            "THINK_DATABASE_URL": self.url,
            "BENCH_BROKER": self.broker,
            "BENCH_QUEUE": self.queue,
            "BENCH_FOLDER": str(self.folder),
            "BENCH_MARK": mark,
            **environment,
        }
        quiet = ["--loglevel", "WARNING", "--without-mingle", "--without-gossip", "--without-heartbeat"]
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.workerapp", "worker", "-n", mark]
        with (self.folder / f"{mark}.log").open("w") as output:
            process = subprocess.Popen(
                [*command, *quiet, *pool],
                cwd=ROOT,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return Worker(process, self.folder / mark)


@contextlib.contextmanager
def _scene(url: str, broker: str, queue: str, folder: Path) -> Iterator[Scene]:
    upgrade(url)
    before = set_current(None)
    app = make_app(broker, queue, url)
    think = ThinkCelery(app)
    conn = psycopg.connect(servers.plain_url(url), autocommit=True)
    server = redis.Redis.from_url(broker)
    try:
        yield Scene(
            url=url,
            broker=broker,
            queue=queue,
            folder=folder,
            app=app,
            rt=think.runtime,
            conn=conn,
            redis=server,
        )
    finally:
        think.close()
        app.close()
        set_current(before)
        conn.close()
        server.flushdb()  # the whole numbered database is this run's own
        server.close()


class Worker:
    """A Celery worker's process, and what its floors noted."""

    def __init__(self, process: "subprocess.Popen[bytes]", mark: Path) -> None:
        self.process, self._mark = process, mark
        self._stamps = Path(f"{mark}.stamps")

    @property
    def pid(self) -> int:
        """Its main process."""
        return self.process.pid

    def log(self) -> str:
        """What it wrote."""
        return Path(f"{self._mark}.log").read_text(errors="replace")[-4000:]

    def await_ready(self) -> None:
        """Wait until it serves."""
        ready = Path(f"{self._mark}.ready")
        give_up_at = time.monotonic() + 60
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                self.kill()
                raise RuntimeError(f"the worker did not start:\n{self.log()}")
            time.sleep(0.01)

    def ran(self) -> int:
        """How many tasks of the floors have begun."""
        return self._stamps.stat().st_size // STAMPS.size if self._stamps.exists() else 0

    def await_stamps(self, count: int, seconds: float = 60.0) -> list[tuple[float, float]]:
        """When each of so many was sent, and when it began, as soon as they have."""
        until(lambda: self.ran() >= count, seconds, f"{count} tasks", every=0.005)
        return list(STAMPS.iter_unpack(self._stamps.read_bytes()))  # type: ignore[arg-type]

    def tell_to_stop(self) -> None:
        """SIGTERM it, as whoever deploys does."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL it, and its children of the prefork pool."""
        if self.process.poll() is not None:
            return
        for pid in [*children(self.pid), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
