"""Engine, transactions, and calls to make after a commit."""

import logging
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    CursorResult,
    Engine,
    Executable,
    Table,
    cast,
    create_engine,
    event,
    func,
    literal,
    make_url,
    select,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ColumnElement

from think_celery.clock import MICROSECOND, Clock
from think_celery.errors import MissingExtra
from think_celery.store.types import UtcDateTime

logger = logging.getLogger("think_celery.store")

T = TypeVar("T")

REPEATS = 5
ZERO = timedelta(0)
_REPEATABLE_STATES = {"40001", "40P01"}  # serialization failure, deadlock
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6

_joined: ContextVar["Tx | None"] = ContextVar("think_joined", default=None)


class Tx:
    """One open transaction: its connection, the time inside it, and the calls to make once it is committed.

    ``joined`` says that the transaction is the caller's: we neither commit it nor roll it back, and let no
    integrity error happen in it.
    """

    def __init__(self, conn: Connection, clock: Clock, *, joined: bool = False) -> None:
        self.conn, self.clock, self.joined = conn, clock, joined
        self._after_commit: list[Callable[[], None]] = []

    @property
    def postgres(self) -> bool:
        """Whether this is PostgreSQL (else it is SQLite)."""
        return self.conn.dialect.name == "postgresql"

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a statement."""
        return self.conn.execute(statement, parameters)  # type: ignore[return-value]

    def now(self, plus: timedelta = ZERO) -> ColumnElement[datetime]:
        """The present instant, moved by *plus*, as SQL: by the database's own clock where it has one.

        On PostgreSQL a scalar subquery, so that it is read once a statement and indexes can be used.
        """
        if not (self.postgres and self.clock.database_time):
            return literal(self.clock.now() + plus, UtcDateTime)
        microseconds = cast(func.extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)
        moved = microseconds + plus // MICROSECOND if plus else microseconds
        return type_coerce(select(moved).scalar_subquery(), UtcDateTime)

    def insert(self, table: Table) -> Any:
        """An INSERT of this database's dialect, which has ``on_conflict_do_nothing``."""
        return postgresql.insert(table) if self.postgres else sqlite.insert(table)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Make this call once the transaction is committed, and never if it is rolled back.

        In a caller's bare Core connection nobody learns of the commit; the tick does the work then.
        """
        self._after_commit.append(call)

    def committed(self) -> None:
        """Make the calls. One that raises is logged and does not hide the others."""
        calls, self._after_commit = self._after_commit, []
        for call in calls:
            try:
                call()
            except Exception:
                logger.exception("a call after a commit failed; the tick will do its work")

    def rolled_back(self) -> None:
        """Forget the calls."""
        self._after_commit = []


class Database:
    """The way to the database of one process. Engines are made lazily and dropped after a fork."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        busy_timeout: timedelta = timedelta(seconds=4.5),
        durable: bool = True,
        prepare: Callable[[Engine], None] | None = None,
    ) -> None:
        """*prepare* is called once a process with the fresh engine, before its first use (migrations)."""
        self.url, self.clock = make_url(url), clock
        if self.url.drivername in ("postgresql", "postgres"):
            self.url = self.url.set(drivername="postgresql+psycopg")
        self._busy_timeout, self._durable, self._prepare = busy_timeout, durable, prepare
        self._lock, self._engine, self._reader, self._pid = threading.RLock(), None, None, 0

    _engine: Engine | None
    _reader: Engine | None

    @property
    def engine(self) -> Engine:
        """This process's engine."""
        if self._engine is None or self._pid != os.getpid():
            self._open()
        assert self._engine is not None
        return self._engine

    def _open(self) -> None:
        if self._pid != os.getpid():  # a forked child: the parent's lock and sockets are not ours
            self._lock, self._engine = threading.RLock(), None
            self._pid = os.getpid()
        with self._lock:
            if self._engine is not None:
                return
            engine = self._make_engine()
            if self._prepare is not None:
                self._prepare(engine)
            read_options = {"think_read": True}
            if engine.dialect.name == "postgresql":
                read_options = {"isolation_level": "AUTOCOMMIT"}  # type: ignore[dict-item]
            self._reader = engine.execution_options(**read_options)
            self._engine = engine

    def _make_engine(self) -> Engine:
        if self.url.get_backend_name() == "sqlite":
            engine = create_engine(self.url, connect_args={"timeout": self._busy_timeout.total_seconds()})
            event.listen(engine, "connect", self._set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        try:
            return create_engine(self.url)
        except ModuleNotFoundError as error:
            raise MissingExtra(f"The database {self.url.get_backend_name()}", "postgres") from error

    def _set_up_sqlite(self, connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # so that our own BEGIN is the only one
        connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout.total_seconds() * 1000)}")
        _repeat_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")

    def transact(self, work: Callable[[Tx], T]) -> T:
        """Run *work* in a transaction of ours, commit it, then make the after-commit calls.

        *work* must be safe to repeat: after a deadlock, a serialization failure, SQLITE_BUSY, or a
        connection that was found dead before the commit, it runs again, up to 5 times.
        """
        for attempt in range(1, REPEATS + 2):
            committing = False
            try:
                with self.engine.connect() as conn:
                    transaction = conn.begin()
                    tx = Tx(conn, self.clock)
                    try:
                        result = work(tx)
                        committing = True
                        transaction.commit()
                    except BaseException:
                        transaction.rollback()
                        raise
            except DBAPIError as error:
                if attempt > REPEATS or not _worth_repeating(error, committing):
                    raise
                self.clock.sleep(random.uniform(0.2, 1.0) * 0.01 * 2**attempt)
                continue
            tx.committed()
            return result
        raise AssertionError("unreachable")

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run *work*, which only reads. On PostgreSQL each statement sees what is committed by then."""
        for attempt in range(1, REPEATS + 2):
            try:
                _ = self.engine
                assert self._reader is not None
                with self._reader.connect() as conn:
                    return work(Tx(conn, self.clock))
            except DBAPIError as error:
                if attempt > REPEATS or not _worth_repeating(error, False):
                    raise
        raise AssertionError("unreachable")

    def accept(self, work: Callable[[Tx], T]) -> T:
        """Run *work* in the caller's joined transaction where there is one, else in one of ours."""
        tx = _joined.get()
        return work(tx) if tx is not None else self.transact(work)

    def look(self, work: Callable[[Tx], T]) -> T:
        """Read in the caller's joined transaction where there is one, so that it sees its own writes."""
        tx = _joined.get()
        return work(tx) if tx is not None else self.read(work)

    @contextmanager
    def joining(self, tx: Tx) -> Iterator[Tx]:
        """Inside, :meth:`accept` and :meth:`look` use this transaction."""
        token = _joined.set(tx)
        try:
            yield tx
        finally:
            _joined.reset(token)

    @property
    def inside_joined(self) -> bool:
        """Whether a caller's transaction is joined here."""
        return _joined.get() is not None

    def dispose(self) -> None:
        """Close this process's connections; the next use opens new ones."""
        with self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self._engine.dispose()
            self._engine = self._reader = None


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
            threading.Event().wait(0.05)


def is_busy(error: DBAPIError) -> bool:
    """Whether SQLite gave up because another connection holds its lock."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (_SQLITE_BUSY, _SQLITE_LOCKED)


def _worth_repeating(error: DBAPIError, committing: bool) -> bool:
    cause = error.orig
    if is_busy(error) or getattr(cause, "sqlstate", None) in _REPEATABLE_STATES:
        return True
    # A connection that died at the commit may have committed: whoever asked must look.
    return bool(error.connection_invalidated) and not committing
