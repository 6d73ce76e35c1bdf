"""A stand on each database: it, a Redis and a worker, which all tests share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.beat.stand import Stand
from tests.crash.nursery import Nursery, nursery
from think_celery.store.migrate import upgrade


@pytest.fixture(scope="package")
def children() -> Iterator[Nursery]:
    """The parent of all processes."""
    with nursery() as made:
        yield made


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
    params=["sqlite", "postgresql"],
)
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, children: Nursery
) -> Iterator[Stand]:
    """A place on each database, with Redis and one worker."""
    folder = tmp_path_factory.mktemp(request.param)
    redis: servers.Redis = request.getfixturevalue("redis_server")
    made = Stand(_database(request, request.param, folder), redis.flushed(), folder, children)
    made.worker()
    yield made
    made.close()
