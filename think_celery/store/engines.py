"""Engines: how the connections of each database are set up, and which of its errors pass by themselves."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.compiler import Compiled
from sqlalchemy.util import LRUCache

from think_celery.errors import MissingExtra
from think_celery.store.urls import driver_arguments

IDLE_SECONDS = 5
"""How long a transaction of ours may do nothing on PostgreSQL before the server ends it."""

MOST_CONNECTIONS = 15
"""To one PostgreSQL server, from one process: whoever needs another one waits."""

_REPEATABLE_STATES = {"40001", "40P01"}  # serialization failure, deadlock
_LOCKED_STATE = "55P03"  # lock not available: the lock_timeout is over
_STALE_STATES = {"26000", "42P05"}  # a prepared statement is not there, or is there already
_CHECKS_PLANS = (
    "RevalidateCachedQuery"  # the part of the server that refuses a plan whose columns have changed
)
_IN_MID_STATEMENT = 1  # libpq's PQTRANS_ACTIVE
_SQLITE_ERROR, _SQLITE_BUSY, _SQLITE_LOCKED = 1, 5, 6


def make_engine(url: URL, *, busy_timeout: timedelta, durable: bool) -> Engine:
    """An engine whose transactions behave as the package counts on, whatever the server's defaults are.

    Its errors don't show the parameters of statements: those hold what users wrote, and errors are logged.

    *busy_timeout* is how long SQLite waits for its one writer. Without *durable* its last commits may be
    lost in a power cut.
    """
    sqlite = url.get_backend_name() == "sqlite"
    engine = _sqlite(url, busy_timeout, durable) if sqlite else _postgresql(url)
    engine.update_execution_options(compiled_cache=_compiled)
    return engine


class _CompiledOnce(MutableMapping[Any, Compiled]):
    """What statements were compiled to: once for all engines of a process whose servers speak alike.

    SQLAlchemy's own cache knows an engine's dialect by its identity. In a test suite, where each test has a
    database of its own, compiling the same statements again took half of the time.
    """

    def __init__(self, capacity: int) -> None:
        self._kept: LRUCache[Any, Compiled] = LRUCache(capacity)

    def __getitem__(self, key: Any) -> Compiled:
        return self._kept[_alike(key)]

    def __setitem__(self, key: Any, compiled: Compiled) -> None:
        self._kept[_alike(key)] = compiled

    def __delitem__(self, key: Any) -> None:
        del self._kept[_alike(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def _alike(key: Any) -> Any:
    dialect, *statement = key
    return type(dialect), dialect.server_version_info, *statement


_compiled = _CompiledOnce(capacity=1000)


def _postgresql(url: URL) -> Engine:
    try:
        engine = create_engine(
            url,
            connect_args=driver_arguments(url),
            isolation_level="READ COMMITTED",  # what every conditional UPDATE here counts on
            pool_use_lifo=True,
            # All are kept: turns that store at the same moment would open and close the others each time.
            pool_size=MOST_CONNECTIONS,
            max_overflow=0,
            hide_parameters=True,
        )
    except ModuleNotFoundError as error:
        raise MissingExtra("The database PostgreSQL", "postgres") from error
    event.listen(engine, "connect", _set_up_postgresql)
    return engine


def _set_up_postgresql(connection: Any, record: object) -> None:
    # A process that is frozen or cut off in the middle of a transaction would keep its locks, and with them
    # the work of whoever takes over, until it comes back. And a statement that commits by itself is begun by
    # nobody who would name its isolation level, which a database or a role can have set.
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'read committed'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
    connection.commit()


def _sqlite(url: URL, busy_timeout: timedelta, durable: bool) -> Engine:
    def set_up(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # so that our own BEGIN is the only one
        _repeat_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")

    limit = {"timeout": busy_timeout.total_seconds()}
    engine = create_engine(url, connect_args=limit, hide_parameters=True)
    event.listen(engine, "connect", set_up)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_sqlite(conn: Connection) -> None:
    # A transaction that reads first and then writes fails at once with SQLITE_BUSY, whatever the
    # timeout is; one that takes the write lock at its beginning waits for it.
    read = conn.get_execution_options().get("think_read", False)
    conn.exec_driver_sql("BEGIN" if read else "BEGIN IMMEDIATE")


def _repeat_while_busy(call: Callable[[], object]) -> None:
    for attempt in range(20):
        try:
            call()
            return
        except sqlite3.OperationalError as error:
            if attempt == 19 or getattr(error, "sqlite_errorcode", 0) & 0xFF != _SQLITE_BUSY:
                raise
            pause(0.05)


def pause(seconds: float) -> None:
    """Wait in real time, whatever the clock: what is waited for is another connection, not an instant."""
    threading.Event().wait(seconds)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """A connection of the pool. An error undoes what is open on it, and passes through as it is.

    A connection that would fail whoever has it next does not go back into the pool then.
    """
    with engine.connect() as conn:
        try:
            yield conn
        except BaseException as error:
            if _is_in_mid_statement(conn) or (isinstance(error, DBAPIError) and _is_stale(error)):
                conn.invalidate(error)
            raise


def _is_in_mid_statement(conn: Connection) -> bool:
    # Celery raises its soft time limit, and gevent its timeouts, wherever the code happens to be. If that is
    # where an answer is waited for, the driver can't even roll back.
    if conn.closed or conn.invalidated:
        return False
    info = getattr(conn.connection.driver_connection, "info", None)  # psycopg's and psycopg2's
    return getattr(info, "transaction_status", None) == _IN_MID_STATEMENT


def _is_stale(error: DBAPIError) -> bool:
    """Whether what the driver has prepared on this connection does not fit the server any more.

    A migration has changed a column, or a pooler has put another session behind the connection.
    """
    where = getattr(getattr(error.orig, "diag", None), "source_function", None)
    return _state(error) in _STALE_STATES or where == _CHECKS_PLANS


def _state(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


def is_busy(error: DBAPIError) -> bool:
    """Whether SQLite gave up because another connection holds its lock."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (_SQLITE_BUSY, _SQLITE_LOCKED)


def is_locked(error: BaseException) -> bool:
    """Whether PostgreSQL gave up because another transaction holds a lock for longer than ours may wait."""
    return isinstance(error, DBAPIError) and _state(error) == _LOCKED_STATE


def is_away(error: BaseException) -> bool:
    """Whether the database could not be reached, or could not serve just now: asking later may help."""
    if isinstance(error, OperationalError):
        return getattr(error.orig, "sqlite_errorcode", 0) != _SQLITE_ERROR  # an error in the SQL itself
    return isinstance(error, PoolTimeout) or (
        isinstance(error, DBAPIError) and bool(error.connection_invalidated)
    )


def is_passing(error: DBAPIError, *, committing: bool) -> bool:
    """Whether the transaction did not happen, and may well succeed if it is run again."""
    if is_busy(error) or _state(error) in _REPEATABLE_STATES or _is_stale(error):
        return True
    # A connection that died at the commit may have committed: whoever asked must look.
    return bool(error.connection_invalidated) and not committing
