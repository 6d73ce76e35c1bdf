"""Connections of the pool on PostgreSQL: whatever happened on one, whoever has it next can work."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import column, event, func, make_url, select, table, text
from sqlalchemy.exc import DBAPIError

from think_celery.clock import SystemClock
from think_celery.store.database import Database, Tx
from think_celery.store.engines import MOST_CONNECTIONS, is_away
from think_celery.store.statements import Statement

WAYS = ("transact", "single", "read")
OFTEN = 7  # the driver prepares what it has met five times


@pytest.fixture
def pg(postgres_url: str) -> Iterator[Database]:
    """A `Database` on PostgreSQL."""
    database = Database(postgres_url, SystemClock())
    yield database
    database.dispose()


def beside(pg: Database) -> psycopg.Connection[Any]:
    """A connection of its own, each statement of which commits."""
    url = pg.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True)


def backend(pg: Database) -> int:
    """Which server process the next transaction has."""
    found: int = pg.transact(lambda tx: tx.conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    return found


# --- isolation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_every_statement_is_read_committed(postgres_url: str, way: str):
    """What a role, a database or a URL sets instead does not count: conditional UPDATEs must see what is committed."""
    url = make_url(postgres_url).update_query_dict(
        {"options": "-c default_transaction_isolation=serializable"}
    )
    db = Database(url, SystemClock())

    def level(tx: Tx) -> Any:
        return tx.execute(text("SHOW transaction_isolation")).scalar()

    assert [getattr(db, way)(level) for _ in range(2)] == ["read committed"] * 2
    db.dispose()


# --- prepared statements that don't fit any more --------------------------------------------------


def widened(pg: Database) -> None:
    with beside(pg) as conn:
        conn.execute("ALTER TABLE widened ALTER COLUMN n TYPE bigint")


def on_the_connection(sql: bytes) -> Callable[[Database], None]:
    def act(pg: Database) -> None:
        raw = pg.engine.raw_connection()
        raw.driver_connection.pgconn.exec_(sql)  # type: ignore[union-attr]
        raw.close()

    return act


CHANGES = {
    "a column has another type": (OFTEN, widened),
    "another session has none of them": (OFTEN, on_the_connection(b"DEALLOCATE ALL")),
    "another session has one of that name": (5, on_the_connection(b"PREPARE _pg3_0 AS SELECT 1")),
}


@pytest.fixture(params=CHANGES)
def changed(request: pytest.FixtureRequest, pg: Database) -> Iterator[Callable[[str], Statement]]:
    """Runs a statement as often as the driver needs to prepare it, then changes what is under it."""
    before, change = CHANGES[request.param]
    statement = select(column("n")).select_from(table("widened"))

    def act(way: str) -> Statement:
        for _ in range(before):
            getattr(pg, way)(lambda tx: tx.execute(statement).all())
        change(pg)
        return statement

    with beside(pg) as conn:
        conn.execute("DROP TABLE IF EXISTS widened")
        conn.execute("CREATE TABLE widened AS SELECT 1 AS n")
        yield act
        pg.dispose()
        conn.execute("DROP TABLE widened")


@pytest.mark.parametrize("way", WAYS)
def test_one_that_does_not_fit_is_prepared_again(pg: Database, changed: Any, way: str):
    """A migration under a running process, and a pooler that swaps sessions, are seen by nobody."""
    statement = changed(way)

    found = [getattr(pg, way)(lambda tx: tx.execute(statement).scalar()) for _ in range(OFTEN)]

    assert found == [1] * OFTEN


def test_a_users_function_fails_once(pg: Database, changed: Any):
    """It may have effects, so it isn't run again; but whoever comes next has another connection."""
    statement, runs = changed("once"), []

    def work(tx: Tx) -> Any:
        runs.append(1)
        return tx.execute(statement).scalar()

    with pytest.raises(DBAPIError):
        pg.once(work)

    assert runs == [1]
    assert pg.once(work) == 1


# --- what comes in the middle of a statement ------------------------------------------------------


class TooLong(Exception):
    """What Celery's soft time limit and a gevent timeout are: raised wherever the code happens to be."""


SLEEPING = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


@contextmanager
def interrupted(pg: Database, error: type[BaseException]) -> Iterator[None]:
    """Raises that error in this thread as soon as the server sleeps in a statement of it."""

    def deliver(number: int, frame: object) -> None:
        raise error

    def watch() -> None:
        with beside(pg) as conn:
            give_up_at = time.monotonic() + 20
            while conn.execute(f"SELECT {SLEEPING}").fetchone() is None and time.monotonic() < give_up_at:
                time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, deliver)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(error) as raised:
            yield
        assert raised.type is error
        assert not is_away(raised.value)
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
        with beside(pg) as conn:
            conn.execute(f"SELECT pg_terminate_backend(pid, 5000) {SLEEPING}")


@pytest.mark.parametrize("error", [TooLong, KeyboardInterrupt])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_raised_as_it_is_and_the_next_can_work(pg: Database, way: str, error: type[BaseException]):
    """Not an error of the rollback, which would say that the database is away; by SQLAlchemy's way and by ours."""
    statement = select(func.pg_sleep(30).label("slept"))

    for _ in range(2):
        with interrupted(pg, error):
            getattr(pg, way)(lambda tx: tx.execute(statement).all())
        assert backend(pg) == backend(pg)


def test_an_error_elsewhere_costs_no_connection(pg: Database):
    """A user's error between two statements leaves nothing behind but a rollback."""
    before = backend(pg)

    for way in WAYS:
        with pytest.raises(LookupError):
            getattr(pg, way)(lambda tx: [tx.execute(text("SELECT 1")), {}["nothing"]])

    assert backend(pg) == before


# --- how many -------------------------------------------------------------------------------------


def test_those_that_are_needed_at_once_are_kept(pg: Database):
    """Turns that store at the same moment, again and again, open each connection once; one more waits for its turn."""
    opened: list[object] = []
    event.listen(pg.engine, "connect", lambda connection, record: opened.append(connection))
    together = threading.Barrier(MOST_CONNECTIONS)

    def store(tx: Tx) -> None:
        tx.execute(text("SELECT 1"))
        together.wait(10)

    for _ in range(3):
        threads = [threading.Thread(target=pg.transact, args=(store,)) for _ in range(MOST_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(opened) <= MOST_CONNECTIONS
    assert pg.engine.pool.checkedout() == 0
