"""Engine, transactions, and calls to make after a commit."""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Engine,
    QueuePool,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from think_celery import forks
from think_celery.clock import Clock
from think_celery.logs import trace_of
from think_celery.store import direct
from think_celery.store.engines import connected, is_passing, make_engine, pause
from think_celery.store.engines import is_away as is_away
from think_celery.store.engines import is_locked as is_locked
from think_celery.store.statements import HOST_TIME, Statement, check_names
from think_celery.store.urls import checked_url

logger = logging.getLogger("think_celery.store")

Refused = IntegrityError
"""An index or constraint did not take a row. The transaction is over with it."""

T = TypeVar("T")
Call = Callable[[], None]

REPEATS = 5
_FORK_PATIENCE_SECONDS = 1.0
_inherited: list[Engine] = []  # a parent's, kept so that no finalizer in the child touches its connections

_joined: ContextVar[Mapping["Database", Callable[[], "Tx"]]] = ContextVar(
    "think_joined", default=MappingProxyType({})
)


class Tx:
    """One open transaction: its connection, the time inside it, and the calls to make once it is committed.

    ``joined`` says that the transaction is the caller's: we neither commit it nor roll it back, and let no
    integrity error happen in it. *on_commit* then takes the calls; without it nobody learns of the commit.
    """

    def __init__(
        self,
        conn: Connection,
        clock: Clock,
        *,
        joined: bool = False,
        single: bool = False,
        on_commit: Callable[[Call], None] | None = None,
    ) -> None:
        self.conn, self.clock, self.joined = conn, clock, joined
        self._single, self._statements = single, 0
        self._on_commit = on_commit
        self._calls: list[Call] = []

    @property
    def postgres(self) -> bool:
        """Whether this is PostgreSQL (else it is SQLite)."""
        return self.conn.dialect.name == "postgresql"

    def execute(self, statement: Statement, parameters: Any = None) -> CursorResult[Any] | direct.Found:
        """Run a statement with these parameters; columns of an INSERT or UPDATE may be among them.

        It is told the time, for :func:`~think_celery.store.statements.now`, but with a list of parameters.
        """
        self._statements += 1
        if self._single and self._statements > 1:
            raise RuntimeError("a transaction of a single statement can't have another")
        if isinstance(statement, Mapping):
            statement = statement[self.conn.dialect.name]
        if not isinstance(parameters, list):
            if parameters:
                check_names(statement, parameters)
            by_database = self.clock.database_time and self.postgres
            parameters = {HOST_TIME: None if by_database else self.clock.now(), **(parameters or {})}
            if self.postgres and not self.joined:
                found = direct.run(self.conn, statement, parameters)
                if found is not None:
                    return found
        return self.conn.execute(statement, parameters)

    def limit(self, span: timedelta) -> None:
        """Let no statement of this transaction, and no pause between two, take longer than *span*.

        PostgreSQL ends the statement or the session itself; SQLite has no such limit.
        """
        if self.postgres:
            milliseconds = max(1, span // timedelta(milliseconds=1))
            self.conn.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")
            self.conn.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}")

    def wait_at_most(self, span: timedelta) -> None:
        """Let no statement of this transaction wait longer than *span* for another's lock; it raises then.

        For passes over many rows, which one slow transaction of a caller must not hold up. On SQLite the
        busy timeout is that limit.
        """
        if self.postgres:
            milliseconds = span // timedelta(milliseconds=1)
            self.conn.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")

    def after_commit(self, call: Call) -> None:
        """Make this call once the transaction is committed, and never if it is rolled back.

        In a caller's bare Core connection nobody learns of the commit; the tick does the work then.
        """
        if self._on_commit is not None:
            self._on_commit(call)
        elif not self.joined:
            self._calls.append(call)

    def committed(self) -> None:
        """Make the calls of a transaction of ours, in the order in which they were asked for."""
        calls, self._calls = self._calls, []
        make_calls(calls)


def make_calls(calls: list[Call]) -> None:
    """Make calls after a commit. One that raises is logged and does not hide the others.

    They join nothing: a caller whose session has committed inside its ``joined`` block may be there still, and
    what an eager task does would go into that session's next transaction.
    """
    outside = _joined.set(MappingProxyType({}))
    try:
        for call in calls:
            try:
                call()
            except Exception as error:
                logger.error("a call after a commit failed; the tick will do its work: %s", trace_of(error))
    finally:
        _joined.reset(outside)


class TransactionEnded(Exception):
    """A transaction that was lent was ended by whom it was lent to."""


class Database:
    """The way to the database of one process. Engines are made lazily and dropped after a fork."""

    def __init__(
        self,
        url: str | URL,
        clock: Clock,
        *,
        busy_timeout: timedelta = timedelta(seconds=4.5),
        durable: bool = True,
        prepare: Callable[[Engine], None] | None = None,
    ) -> None:
        """*prepare* is called with each fresh engine before its first use: once a process, after forks again.

        Raises:
            InvalidSetting: The URL is none, or of a database that can't serve; passwords are not shown.
        """
        self.url, self.clock = checked_url(url), clock
        self._busy_timeout, self._durable, self._prepare = busy_timeout, durable, prepare
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._reader: Engine | None = None
        self._forking = False
        self.on_postgres = self.url.get_backend_name() == "postgresql"
        """Whether the database is PostgreSQL (else it is SQLite)."""
        # No connection to a SQLite file lives through a fork (see below), nor is one opened just then.
        self._uncut: Callable[[], AbstractContextManager[None]] = (
            nullcontext if self.on_postgres else forks.uncut
        )
        forks.around(before=self._before_fork, in_parent=self._after_fork)
        forks.in_child(self._after_fork_in_child)

    @property
    def engine(self) -> Engine:
        """This process's engine."""
        return self._engine or self._open()

    def _open(self) -> Engine:
        with forks.uncut(), self._lock:  # the driver, and what looks at the schema, are imported here
            if self._engine is None:
                engine = make_engine(self.url, busy_timeout=self._busy_timeout, durable=self._durable)
                if self._prepare is not None:
                    self._prepare(engine)
                alone = {"isolation_level": "AUTOCOMMIT"} if self.on_postgres else {"think_read": True}
                # Others look without the lock. What they find must be whole: a statement that should commit by
                # itself, on a connection that does not, would be undone without a word.
                self._reader = engine.execution_options(**alone)
                self._engine = engine
            return self._engine

    def transact(self, work: Callable[[Tx], T]) -> T:
        """Run *work* in a transaction of ours, commit it, then make the after-commit calls.

        *work* must be safe to repeat: after a deadlock, a serialization failure, SQLITE_BUSY, a prepared
        statement that no longer fits, or a connection that was found dead before the commit, it runs again,
        up to 5 times.
        """
        return self._transact(work, lambda: True)

    def once(self, work: Callable[[Tx], T]) -> T:
        """Like :meth:`transact`, but *work* is called once at most: it is a user's, and may have effects.

        Only what comes before it (a connection, the lock of SQLite's one writer) is tried again.
        """
        begun = False

        def marked(tx: Tx) -> T:
            nonlocal begun
            begun = True
            return work(tx)

        return self._transact(marked, lambda: not begun)

    def single(self, work: Callable[[Tx], T], *, repeatable: bool = False) -> T:
        """Like :meth:`transact`, for *work* that executes one statement only, which commits by itself.

        On PostgreSQL that saves two of three round trips. What *work* raises after its statement undoes nothing.
        A connection that dies meanwhile may have committed: then it raises, unless *work* is *repeatable*, that
        is, running it again is right whether it was committed or not.
        """
        if not self.on_postgres:
            return self._transact(work, lambda: True, single=True)

        def attempt() -> T:
            with self._uncut(), connected(self._reading_engine()) as conn:
                tx = Tx(conn, self.clock, single=True)
                result = work(tx)
            tx.committed()
            return result

        return _repeated(attempt, lambda error: is_passing(error, committing=not repeatable))

    def _transact(
        self, work: Callable[[Tx], T], may_repeat: Callable[[], bool], *, single: bool = False
    ) -> T:
        committing = False

        def attempt() -> T:
            nonlocal committing
            committing = False
            with self._uncut(), connected(self.engine) as conn:
                transaction = conn.begin()
                tx = Tx(conn, self.clock, single=single)
                result = work(tx)
                committing = True
                transaction.commit()
            tx.committed()
            return result

        return _repeated(attempt, lambda error: may_repeat() and is_passing(error, committing=committing))

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run *work*, which only reads.

        On PostgreSQL each statement sees what is committed by then; on SQLite all see one state.
        """

        def attempt() -> T:
            with self._uncut(), connected(self._reading_engine()) as conn:
                return work(Tx(conn, self.clock))

        return _repeated(attempt, lambda error: is_passing(error, committing=False))

    def _reading_engine(self) -> Engine:
        reader = self._reader
        while reader is None:
            self._open()
            reader = self._reader
        return reader

    def accept(self, work: Callable[[Tx], T]) -> T:
        """Run *work* in the caller's joined transaction where there is one, else in one of ours."""
        source = _joined.get().get(self)
        return self.transact(work) if source is None else work(source())

    def accept_single(self, work: Callable[[Tx], T]) -> T:
        """The same for *work* of one statement, as :meth:`single` takes it, that is repeatable."""
        source = _joined.get().get(self)
        return self.single(work, repeatable=True) if source is None else work(source())

    def look(self, work: Callable[[Tx], T]) -> T:
        """Read in the caller's joined transaction where there is one, so that it sees its own writes."""
        source = _joined.get().get(self)
        return self.read(work) if source is None else work(source())

    @contextmanager
    def joining(self, source: Tx | Callable[[], Tx]) -> Iterator[None]:
        """Inside, :meth:`accept` and :meth:`look` use this transaction, or the one that *source* gives then.

        Holds for this context: a thread that runs in a copy of it joins too, any other does not.
        """
        give = (lambda: source) if isinstance(source, Tx) else source
        token = _joined.set(MappingProxyType({**_joined.get(), self: give}))
        try:
            yield
        finally:
            _joined.reset(token)

    def lend(self, tx: Tx, use: Callable[[Connection], T]) -> T:
        """Let a user's function use this transaction; our own calls inside it join.

        Raises:
            TransactionEnded: The function committed it or rolled it back.
        """
        lent = tx.conn.get_transaction()
        with self.joining(tx):
            value = use(tx.conn)
        if lent is None or tx.conn.get_transaction() is not lent or not lent.is_active:
            raise TransactionEnded
        return value

    @property
    def inside_joined(self) -> bool:
        """Whether a caller's transaction is joined here."""
        return self in _joined.get()

    def dispose(self) -> None:
        """Close this process's connections; the next use opens new ones."""
        with self._lock:
            engine, self._engine, self._reader = self._engine, None, None
            if engine is not None:
                engine.dispose()

    def _before_fork(self) -> None:
        # SQLite's locks belong to the process, and its library keeps count of them in memory that a child
        # inherits: a child that finds a lock counted there never asks the kernel for it. So no connection
        # to a SQLite file lives through a fork.
        engine = self._engine
        if engine is None or engine.dialect.name != "sqlite":
            return
        self._forking = self._lock.acquire(timeout=_FORK_PATIENCE_SECONDS)
        self._engine = self._reader = None
        pool, waited = engine.pool, 0.0
        while isinstance(pool, QueuePool) and pool.checkedout() and waited < _FORK_PATIENCE_SECONDS:
            pause(0.002)
            waited += 0.002
        engine.dispose()

    def _after_fork(self) -> None:
        if self._forking:
            self._forking = False
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        if self._engine is not None:
            _inherited.append(self._engine)
        self._lock, self._forking = threading.RLock(), False
        self._engine = self._reader = None


def _repeated(attempt: Callable[[], T], passes: Callable[[DBAPIError], bool]) -> T:
    """What *attempt* returns, made again after errors that pass, with growing pauses between."""
    for repeat in range(1, REPEATS + 1):
        try:
            return attempt()
        except DBAPIError as error:
            if not passes(error):
                raise
        pause(random.uniform(0.2, 1.0) * 0.01 * 2**repeat)
    return attempt()
