"""One worker with two slots for each pool (among greenlets a full one is slow), and a client of the same app."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.waits.project import make_app
from think_celery.runtime import set_current
from think_celery.store.migrate import upgrade

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60.0


class Office:
    """A worker, and a client in this process, whose runtime is the current one."""

    def __init__(self, environ: dict[str, str], pool: str, log: Path) -> None:
        self.environ, self._log = environ, log
        self._before = set_current(None)
        self.app: Any = make_app(environ)
        self.rt = self.app.think.runtime
        arguments = [
            "worker",
            "--pool",
            pool,
            "--concurrency",
            "8" if pool == "gevent" else "2",
            "--without-mingle",
            "--without-gossip",
        ]
        with log.open("wb") as output:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.waits.app", *arguments, "--loglevel", "info"],
                cwd=ROOT,
                env={**os.environ, **environ, "C_FORCE_ROOT": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.until(lambda: " ready." in self.output())

    def output(self) -> str:
        """What the worker has written."""
        return self._log.read_text(errors="replace")

    def until(self, true: Callable[[], Any]) -> Any:
        """Wait until this is so."""
        end = time.monotonic() + SECONDS
        while not (found := true()):
            assert time.monotonic() < end, self.output()[-10_000:]
            threading.Event().wait(0.05)
        return found

    def close(self) -> None:
        """End both."""
        self.worker.kill()  # its children end with it
        self.worker.wait(10)
        self.app.think.close()
        set_current(self._before)


def _database(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    if kind == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        return f"sqlite:///{shutil.copyfile(template, folder / 'think.db')}"
    postgres: servers.Postgres = request.getfixturevalue("postgres")
    url = postgres.empty()
    upgrade(url)
    return url


@pytest.fixture(
    scope="package",
    params=[
        pytest.param(("prefork", "postgresql"), id="prefork", marks=pytest.mark.services),
        pytest.param(("threads", "sqlite"), id="threads", marks=pytest.mark.services),
        pytest.param(("gevent", "postgresql"), id="gevent", marks=pytest.mark.services),
    ],
)
def office(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A worker of each pool, on each database."""
    pool, kind = request.param
    folder = tmp_path_factory.mktemp(pool)
    redis: servers.Redis = request.getfixturevalue("redis_server")
    broker = redis.flushed()
    environ = {
        "WAITS_BROKER": broker,
        "WAITS_LIVE": broker,
        "WAITS_QUEUE": f"waits-{pool}",
        "WAITS_DATABASE": _database(request, kind, folder),
    }
    made = Office(environ, pool, folder / "worker.log")
    yield made
    made.close()
