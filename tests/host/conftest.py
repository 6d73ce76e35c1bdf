"""One host for each pool, with one worker; beside the threads one, a Flower. They serve all tests of this room."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import make_url

from tests import servers
from tests.host.flower import Flower
from tests.host.model import answer
from tests.host.project import MARK
from tests.host.story import Story, play
from tests.host.world import World
from tests.providers.server import ModelServer
from think_celery.store.migrate import upgrade


@dataclass(frozen=True)
class Place:
    """What all hosts share: servers with passwords, a model, and every secret that there is."""

    redis_url: str
    postgres: servers.Postgres
    model: ModelServer
    secrets: list[str]
    numbers: Iterator[int]

    def environ(self, queue: str) -> dict[str, str]:
        """Where one host has everything."""
        url = make_url(self.postgres.empty())
        if not url.password:  # then the server asks for none, and takes any
            url = url.set(username=url.username or "postgres", password=f"{MARK}-database")
        self.secrets.append(str(url.password))
        database = url.render_as_string(hide_password=False)
        upgrade(database)
        return {
            "HOST_QUEUE": queue,
            "HOST_BROKER": servers.numbered(self.redis_url, next(self.numbers)),
            "HOST_LIVE": servers.numbered(self.redis_url, next(self.numbers)),
            "HOST_RESULTS": servers.numbered(self.redis_url, next(self.numbers)),
            "HOST_DATABASE": database,
            "HOST_MODEL": self.model.base_url,
        }


@pytest.fixture(scope="package")
def place(postgres: servers.Postgres) -> Iterator[Place]:
    with servers.own_redis() as server, ModelServer() as model:
        model.respond = answer
        password = f"{MARK}-broker"
        with redis.Redis.from_url(server.url) as admin:
            admin.config_set("requirepass", password)
        url = server.url.replace("//", f"//:{password}@")
        yield Place(url, postgres, model, [MARK], iter(range(16)))


@contextlib.contextmanager
def world(place: Place, pool: str, folder: Path, **more: str) -> Iterator[World]:
    """A host whose worker runs on that pool."""
    made = World(pool, {**place.environ(f"all-of-{pool}"), **more}, folder)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="package")
def threads(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(place, "threads", tmp_path_factory.mktemp("threads")) as made:
        yield made


@pytest.fixture(scope="package")
def prefork(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(place, "prefork", tmp_path_factory.mktemp("prefork"), HOST_RESULT_SERIALIZER="json") as made:
        yield made


@pytest.fixture(scope="package")
def flower(threads: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Flower(threads.environ, tmp_path_factory.mktemp("flower") / "flower.log", port)
    yield made
    made.stop()


@pytest.fixture(scope="package")
def threads_story(threads: World, flower: Flower) -> Story:
    threads.starts()
    flower.sees("threads@host")
    return play(threads)


@pytest.fixture(scope="package")
def prefork_story(prefork: World) -> Story:
    prefork.starts()
    return play(prefork)


@pytest.fixture(params=["threads", "prefork"])
def story(request: pytest.FixtureRequest) -> Any:
    """What happened under the hostile configuration, in either pool."""
    return request.getfixturevalue(f"{request.param}_story")
