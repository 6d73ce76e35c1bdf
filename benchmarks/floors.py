"""The floors: what the database, the broker and Celery cost without us."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, insert

from benchmarks.figures import Row, Size, check, in_turn, p50, p99, per_second, sampled
from benchmarks.place import Place, Scene, Worker, pools
from tests.servers import plain_url

PAYLOAD = "x" * 100

ONE_CLIENT = "INSERT+COMMIT, one client"
EIGHT_THREADS = "INSERT+COMMIT, 8 threads"
COMMIT_AND_PUBLISH = "INSERT+COMMIT and publish, one client"
START = "idle Celery start"

_INSERT = b"INSERT INTO bench_floor (k, v) VALUES (%s, %s)"
_TABLE = Table(
    "bench_floor", MetaData(), Column("id", Integer, primary_key=True), Column("k", Text), Column("v", Text)
)


class Floors:
    """The loops, on one scene. Each does *count* things and returns how many a second."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        scene.run("CREATE TABLE bench_floor (id bigserial PRIMARY KEY, k text, v text)")
        self.task = scene.app.tasks["bench.noop"]
        self._stored = 0

    def commits(self, count: int, threads: int = 1) -> float:
        """Rows inserted and committed by psycopg, each thread with a connection."""
        with self._connections(threads) as connections:

            def insert_some(conn: psycopg.Connection[Any]) -> None:
                for _ in range(count // threads):
                    conn.execute(_INSERT, ("k", PAYLOAD))
                    conn.commit()

            figure = per_second(count // threads * threads, lambda: _at_once(insert_some, connections))
        return self._checked(count // threads * threads, figure)

    def core_commits(self, count: int) -> float:
        """The same through SQLAlchemy Core, one client."""
        engine = create_engine(self.scene.url)

        def insert_some() -> None:
            for _ in range(count):
                with engine.begin() as conn:
                    conn.execute(insert(_TABLE), {"k": "k", "v": PAYLOAD})

        with engine.connect():
            pass
        figure = per_second(count, insert_some)
        engine.dispose()
        return self._checked(count, figure)

    def publishes(self, count: int, *, kept: bool) -> float:
        """Messages sent with ``apply_async``, through a producer from the pool each, or one that is kept."""

        def publish(**options: Any) -> None:
            for _ in range(count):
                self.task.apply_async(kwargs={"submission_id": str(uuid.uuid4())}, **options)

        if kept:
            with self.scene.app.producer_pool.acquire(block=True) as producer:
                figure = per_second(count, lambda: publish(producer=producer))
        else:
            figure = per_second(count, publish)
        return self._published(count, figure)

    def commits_and_publishes(self, count: int, threads: int = 1) -> float:
        """A row committed, then a message sent with a kept producer: what accepting can't do without."""

        def work(conn: psycopg.Connection[Any]) -> None:
            with self.scene.app.producer_pool.acquire(block=True) as producer:
                for _ in range(count // threads):
                    conn.execute(_INSERT, ("k", PAYLOAD))
                    conn.commit()
                    self.task.apply_async(kwargs={"submission_id": str(uuid.uuid4())}, producer=producer)

        done = count // threads * threads
        with self._connections(threads) as connections:
            figure = per_second(done, lambda: _at_once(work, connections))
        return self._published(done, self._checked(done, figure))

    def pushes(self, count: int) -> float:
        """Bare LPUSH of 600 bytes."""
        key, server = f"{self.scene.queue}-pushes", self.scene.redis

        def push() -> None:
            for _ in range(count):
                server.lpush(key, b"x" * 600)

        figure = per_second(count, push)
        check(server.llen(key) == count, "pushes are missing")
        server.delete(key)
        return figure

    @contextmanager
    def _connections(self, threads: int) -> Iterator[list[psycopg.Connection[Any]]]:
        opened = [psycopg.connect(plain_url(self.scene.url)) for _ in range(threads)]
        try:
            yield opened
        finally:
            for conn in opened:
                conn.close()

    def _checked(self, count: int, figure: float) -> float:
        self._stored += count
        check(self.scene.ask("SELECT count(*) FROM bench_floor") == self._stored, "rows are missing")
        return figure

    def _published(self, count: int, figure: float) -> float:
        check(self.scene.waiting() == count, "messages are missing")
        self.scene.purge()
        return figure


def _at_once(work: Callable[[Any], None], things: list[Any]) -> None:
    if len(things) == 1:
        work(things[0])
        return
    threads = [threading.Thread(target=work, args=(thing,)) for thing in things]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def start(scene: Scene, worker: Worker) -> float:
    """Milliseconds from publishing (with a kept producer) until the task's body begins, worker idle."""
    task, before = scene.app.tasks["bench.stamp"], worker.ran()
    with scene.app.producer_pool.acquire(block=True) as producer:
        task.apply_async((time.monotonic(),), producer=producer)
    sent, began = worker.await_stamps(before + 1)[-1]
    return (began - sent) * 1000


def drain(scene: Scene, worker: Worker, count: int) -> float:
    """No-op tasks a second, from the first publish to the last body, published meanwhile."""
    task, before = scene.app.tasks["bench.noop"], worker.ran()
    began = time.monotonic()
    with scene.app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            task.apply_async(kwargs={"submission_id": "x"}, producer=producer)
    ended = max(at for _, at in worker.await_stamps(before + count)[before:])
    return count / (ended - began)


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Every floor, for the scale."""
    n = size.pick(16, 400, 2000)
    with place.scene() as scene:
        floors = Floors(scene)
        measures: dict[str, Callable[[int], float]] = {
            f"psycopg {ONE_CLIENT}": lambda _: floors.commits(n),
            f"psycopg {EIGHT_THREADS}": lambda _: floors.commits(n, 8),
            f"SQLAlchemy Core {ONE_CLIENT}": lambda _: floors.core_commits(n),
            "Celery apply_async to Redis": lambda _: floors.publishes(n, kept=False),
            "the same with a kept producer": lambda _: floors.publishes(n, kept=True),
            f"{COMMIT_AND_PUBLISH} (kept producer)": lambda _: floors.commits_and_publishes(n),
            "bare LPUSH": lambda _: floors.pushes(n),
        }
        for what, figures in zip(measures, in_turn(size, *measures.values()), strict=True):
            yield Row(what=what, unit="/s", ours=figures)
        for name, pool in pools(size).items():
            with scene.worker(pool) as worker:
                yield from _celery(name, scene, worker, size)


def _celery(name: str, scene: Scene, worker: Worker, size: Size) -> Iterator[Row]:
    (begun,) = sampled(size, size.pick(3, 20, 100), lambda _: start(scene, worker))
    yield Row(what=f"{START}, {name}: p50", unit="ms", ours=p50(begun))
    yield Row(what=f"{START}, {name}: p99", unit="ms", ours=p99(begun))
    (drained,) = in_turn(size, lambda _: drain(scene, worker, size.pick(20, 300, 1000)))
    yield Row(what=f"no-op tasks, {name}", unit="/s", ours=drained)
