"""What every test can ask for: databases and Redis on real servers, in an environment without surprises."""

import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu.transport.memory import Channel

from tests import servers

# Before the package is imported: a developer's own keys, settings and proxies must not reach a test.
_SCRUBBED = re.compile(
    r"(THINK|CELERY|OPENAI|ANTHROPIC|DJANGO|FLASK)_.*|(DATABASE|REDIS|BROKER)_URL|.*_PROXY", re.IGNORECASE
)
_OURS = {"THINK_TEST_SERVERS", "THINK_ROUNDS"}
for _name in [name for name in os.environ if _SCRUBBED.fullmatch(name) and name not in _OURS]:
    del os.environ[_name]

# A shell that starts a run in the background has it ignore ctrl-c, and so all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A run starts hundreds of interpreters. Where none may write what it has compiled (as in many images), each compiles
# all of the package anew, and each process of pytest all tests: minutes of a processor's time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ON_SERVERS = {"postgres", "postgres_url", "redis_url"}


LOCKS = (
    "claims",
    "crossing_callers",
    "crossings",
    "ends",
    "fence",
    "finish_line",
    "firing",
    "interactions",
    "jobs",
    "leases",
    "lines",
    "listing",
    "open_transactions",
    "outbox",
    "removal",
    "reset",
    "retention",
    "schedules",
    "step_transactions",
    "submissions",
    "sweep",
    "tick",
    "waits",
)
"""Files of ``tests/domain`` (the ends of their names) with the statements and locks whose meaning a server decides."""


OTHER_POOLS = {"threads", "gevent", "solo"}
"""Of a test in each pool that with prefork is run on any server: what pools do differently is the same on all."""


ON_THEIR_OWN = ("tests/doors/test_demo", "tests/test_compose")
"""Files whose programs need no server, or start the same workers as others do."""


def asks_the_server(item: pytest.Item) -> bool:
    """Whether another build of a server might do differently there: rules that rest on others' statements may not."""
    file = item.nodeid.partition("::")[0].removesuffix(".py")
    if file.startswith(ON_THEIR_OWN):
        return False
    if file.startswith("tests/crash/") and not file.endswith(("every_pool", "lost_messages")):
        return False  # their broker is in memory, and what they leave are rows
    call = getattr(item, "callspec", None)
    if call is not None and not OTHER_POOLS.isdisjoint(
        each for each in call.params.values() if isinstance(each, str)
    ):
        return False
    return not file.startswith("tests/domain/") or file.endswith((*LOCKS, "races"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out over the processes as `schedule.py` says."""
    from tests.schedule import Schedule

    return Schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, so that `-m 'not services'` leaves it out, and whether that may be any server."""
    for item in items:
        if ON_SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)
        if (
            item.get_closest_marker("services")
            and not item.get_closest_marker("once")
            and asks_the_server(item)
        ):
            item.add_marker(pytest.mark.any_server)


@pytest.fixture(scope="session", autouse=True)
def only_the_loopback() -> Iterator[None]:
    """No test talks to a real model, or to anything else that is not on this machine or its Redis.

    (PostgreSQL's driver has sockets of its own, so `TEST_POSTGRES_URL` may name another machine too.)
    """
    connect = socket.socket.connect
    allowed = {"127.0.0.1", "::1", "localhost"}
    if redis_host := urlsplit(os.environ.get("TEST_REDIS_URL", "")).hostname:
        allowed |= {str(found[4][0]) for found in socket.getaddrinfo(redis_host, None)}

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in allowed:
            raise RuntimeError(f"A test tried to reach {address[0]}. Tests talk to this machine only.")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(autouse=True)
def no_names_of_others() -> Iterator[None]:
    """A name that a test gave to two classes would be an error in every later test of the process."""
    yield
    from think_celery.runtime import agent_classes, workflow_classes

    for registry in (agent_classes, workflow_classes):
        classes = registry._classes
        for name in [name for name, by_module in classes.items() if len(by_module) > 1]:
            del classes[name]


@pytest.fixture(autouse=True)
def no_messages_of_others() -> None:
    """The broker memory:// is one for the whole process: what a test before this one left in a queue goes."""
    Channel.queues.clear()


# --- databases ------------------------------------------------------------------------------------

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.services)]


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database with our tables; the test runs once on SQLite and once on PostgreSQL."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture(params=BOTH)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database without tables, for tests of the migrations; on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    databases: servers.Postgres = request.getfixturevalue("postgres")
    return databases.empty()


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh SQLite file with our tables."""
    return f"sqlite:///{shutil.copyfile(sqlite_template, tmp_path / 'think.db')}"


@pytest.fixture
def postgres_url(postgres: servers.Postgres) -> str:
    """A fresh PostgreSQL database with our tables. It is the same one for the whole of a test."""
    return postgres.migrated()


@pytest.fixture
def redis_url(redis_server: servers.Redis) -> str:
    """An empty Redis database. A test may flush it, never the server: others may use that too."""
    return redis_server.flushed()


# --- rt -------------------------------------------------------------------------------------------

# (the Runtime on `database_url`, with a clock that tests move and a scripted model)

# --- once per pytest process ----------------------------------------------------------------------


def _migrate(url: str) -> None:
    from think_celery.store.migrate import upgrade

    upgrade(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = tmp_path_factory.mktemp("template") / "think.db"
    _migrate(f"sqlite:///{template}")
    return template


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Postgres]:
    with servers.postgres(_migrate) as databases:
        yield databases


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Redis]:
    with servers.redis_server() as server:
        yield server
