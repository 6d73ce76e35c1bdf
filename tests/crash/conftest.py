"""Stages for scenarios: each has a database of its own, so that many can run at once."""

import inspect
import itertools
import os
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
from tests.crash.pace import Pace
from tests.crash.stage import Stage
from tests.providers.server import ModelServer
from think_celery.store.migrate import upgrade

AT_ONCE = 6
"""Scenarios that run at the same time: they wait most of the time."""

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.services)]

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
def pace() -> Iterator[Pace]:
    measured = Pace()
    measured.start()
    yield measured
    measured.stop()


@pytest.fixture(scope="session")
def make_stage(
    request: pytest.FixtureRequest,
    children: Nursery,
    model: ModelServer,
    pace: Pace,
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
                children.rehearse(schema("rehearsal"))
        return schema(name)

    def schema(name: str) -> str:
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
        made = Stage(name, url, folder, model, children, pace)
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


class Theatre:
    """Plays the tests that take place on a stage, some at a time, and gives each the end of its own."""

    def __init__(
        self,
        make_stage: MakeStage,
        pool: ThreadPoolExecutor | None,
        items: list[Any],
        shared: dict[str, Any],
    ) -> None:
        self._make_stage, self.shared = make_stage, shared
        plays = [] if pool is None else items
        self._played: dict[str, Future[None]] = {item.nodeid: pool.submit(self._play, item) for item in plays}  # type: ignore[union-attr]

    def _play(self, item: Any) -> None:
        given = {**item.callspec.params, **self.shared}
        wanted = inspect.signature(item.function).parameters
        with self._make_stage(given["database"]) as stage:
            test = getattr(item.cls(), item.originalname)
            test(stage=stage, **{name: value for name, value in given.items() if name in wanted})

    def end_of(self, item: Any) -> None:
        """Wait until the test has been played; raises what it raised."""
        if item.nodeid in self._played:
            marked = item.get_closest_marker("timeout")
            self._played[item.nodeid].result((marked.args[0] if marked else 120) - 10)
        else:
            self._play(item)

    def close(self) -> None:
        """Cancel what was not played."""
        for future in self._played.values():
            future.cancel()


@pytest.fixture(scope="session")
def theatre(request: pytest.FixtureRequest, make_stage: MakeStage) -> Iterator[Theatre]:
    yield from theatre_of(Path(__file__).parent, request, make_stage)


def theatre_of(room: Path, request: pytest.FixtureRequest, make_stage: MakeStage) -> Iterator[Theatre]:
    """The theatre that plays the tests of one folder."""
    here = [item for item in request.session.items if item.path.parent == room]
    items = [item for item in here if "stage" in getattr(item, "fixturenames", ())]
    if any("postgresql" in item.nodeid for item in items):
        request.getfixturevalue("postgres")  # from this thread: fixtures are not made in others
    shared = {}
    if any("redis_url" in getattr(item, "fixturenames", ()) for item in here):
        shared["redis_url"] = request.getfixturevalue(
            "redis_server"
        ).flushed()  # a test uses a queue of its own
    if hasattr(request.config, "workerinput"):  # xdist: other processes have the other tests
        yield Theatre(make_stage, None, [], shared)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = Theatre(make_stage, pool, items, shared)
        yield made
        made.close()


@pytest.fixture
def redis_url(theatre: Theatre) -> str:
    """The Redis that all scenarios share: it is emptied before the first one, and not under those that play."""
    return theatre.shared["redis_url"]


@pytest.fixture(params=BOTH)
def database(request: pytest.FixtureRequest) -> str:
    """On which database the test's stage is."""
    return str(request.param)


@pytest.fixture
def stage(theatre: Theatre, database: str) -> Theatre:
    """A stage of the test's own, on both databases.

    Such a test is not called as usual: the theatre plays it, at the same time as others.
    """
    return theatre


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a race test run ``CRASH_REPEAT`` times, for whoever wants to know how sure it is."""
    times = int(os.environ.get("CRASH_REPEAT", "1"))
    if times > 1 and "stage" in metafunc.fixturenames:
        metafunc.fixturenames.append("repeat")
        metafunc.parametrize("repeat", range(times))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Let the theatre play a test that asks for a ``stage``."""
    theatre = pyfuncitem.funcargs.get("stage")
    if not isinstance(theatre, Theatre):
        return None
    theatre.end_of(pyfuncitem)
    return True
