"""Stages for scenarios: each has a database of its own, so that many can run at once."""

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from tests import servers
from tests.crash.model import answer
from tests.crash.nursery import Nursery, nursery
from tests.crash.stage import Stage
from tests.providers.server import ModelServer
from think_celery.store.migrate import upgrade

AT_ONCE = 6
"""Scenarios that run at the same time: they wait most of the time."""

MakeStage = Callable[[str], AbstractContextManager[Stage]]


@pytest.fixture(scope="session")
def children() -> Iterator[Nursery]:
    with nursery() as parent:
        yield parent


@pytest.fixture(scope="session")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.respond = answer
        yield server


@pytest.fixture(scope="session")
def make_stage(
    request: pytest.FixtureRequest,
    children: Nursery,
    model: ModelServer,
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeStage:
    """What makes a stage on ``sqlite`` or ``postgresql``, and clears it away."""
    numbers = itertools.count(1)
    lock = threading.Lock()
    bases: list[str] = []

    def database(kind: str, name: str, folder: Path) -> str:
        if kind == "sqlite":
            return f"sqlite:///{shutil.copyfile(sqlite_template, folder / 'think.db')}"
        with lock:
            if not bases:
                server: servers.Postgres = request.getfixturevalue("postgres")
                bases.append(server.empty())
        _execute(bases[0], f"CREATE SCHEMA {name}")
        options = {"options": f"-csearch_path={name}"}
        url = make_url(bases[0]).update_query_dict(options).render_as_string(hide_password=False)
        upgrade(url)
        return url

    @contextmanager
    def stage(kind: str) -> Iterator[Stage]:
        with lock:
            name = f"stage_{next(numbers)}"
            folder = tmp_path_factory.mktemp(name)
        url = database(kind, name, folder)
        made = Stage(name, url, folder, model, children)
        try:
            yield made
        finally:
            made.close()
            if kind == "postgresql":
                _execute(bases[0], f"DROP SCHEMA {name} CASCADE")

    return stage


def _execute(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text(statement))
    engine.dispose()


@pytest.fixture
def stage(make_stage: MakeStage, database: str) -> Iterator[Stage]:
    """A stage on the ``database`` that the test is parametrised with."""
    with make_stage(database) as made:
        yield made


@pytest.fixture(scope="session")
def scenes(request: pytest.FixtureRequest, make_stage: MakeStage) -> Iterator[Callable[[pytest.Item], Any]]:
    """Plays the scenarios of all selected tests, some at a time; gives each test the end of its own.

    A scenario is a test's parameter ``scene`` with a method ``play(stage)``; ``database`` says where.
    """

    def play(item: Any) -> None:
        with make_stage(item.callspec.params["database"]) as stage:
            item.callspec.params["scene"].play(stage)

    if hasattr(request.config, "workerinput"):  # xdist: another process has the other tests
        yield play
        return
    if any("postgresql" in item.nodeid for item in request.session.items):
        request.getfixturevalue("postgres")  # from this thread: fixtures are not made in others
    with ThreadPoolExecutor(AT_ONCE) as pool:
        played: dict[str, Future[None]] = {
            item.nodeid: pool.submit(play, item)
            for item in request.session.items
            if "scene" in getattr(getattr(item, "callspec", None), "params", {})
        }
        yield lambda item: played[item.nodeid].result(100)
        for future in played.values():
            future.cancel()
