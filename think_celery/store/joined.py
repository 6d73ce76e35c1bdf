"""Joining a transaction of the caller's: what we store is committed, or rolled back, together with it.

A call that is to follow the commit (a knock) waits in the caller's SQLAlchemy session: it is made once the
outermost transaction is committed, and dropped with the savepoint or transaction that it was asked for in.
A bare Core connection says when it is *about to* commit and not when it has, so nothing is hooked there:
the calls are dropped, and the tick finds the rows.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from think_celery.errors import CannotJoin
from think_celery.store.database import Call, Database, Tx, make_calls
from think_celery.store.tables import submissions

Joinable = Session | scoped_session[Any] | Connection


@contextmanager
def joined(db: Database, given: Joinable) -> Iterator[None]:
    """Inside, everything that is accepted joins the transaction of *given*, a session or connection.

    We neither commit it nor roll it back. It may be committed inside the block or after it, and the
    session may be used for one transaction after another. On SQLite the caller's own engine decides how
    a transaction begins: one that reads before it writes may get the driver's "database is locked".

    Raises:
        CannotJoin: Its database is not the one of this runtime, lacks our tables, or has no transaction.
    """
    session = given() if isinstance(given, scoped_session) else given
    if isinstance(session, Session):
        source = _session_source(db, session)
    elif isinstance(session, Connection):
        source = _connection_source(db, session)
    else:
        raise CannotJoin(
            f"{type(given).__name__} is no Session and no Connection of SQLAlchemy. With an AsyncSession or an "
            "AsyncConnection, join inside `await session.run_sync(lambda session: …)`"
        )
    _ = db.engine  # on SQLite its first use makes our tables, where theirs must find them
    _check(db, source().conn)
    with db.joining(source):
        yield


def _connection_source(db: Database, conn: Connection) -> Callable[[], Tx]:
    return lambda: Tx(conn, db.clock, joined=True)


def _session_source(db: Database, session: Session) -> Callable[[], Tx]:
    def tx() -> Tx:
        # Asked for each time: after a commit the session goes on with another connection.
        try:
            conn = session.connection()
        except UnboundExecutionError:
            raise CannotJoin(
                "the session has no single engine. Pass `session.connection(bind_arguments=…)` of the engine "
                "whose database holds think_celery's tables"
            ) from None
        return Tx(conn, db.clock, joined=True, on_commit=lambda call: _add(session, conn, call))

    return tx


# --- calls after a session's commit ---------------------------------------------------------------


class _Pending:
    """The calls of one session's present transaction, each with the savepoint that it depends on."""

    def __init__(self) -> None:
        self.calls: list[tuple[SessionTransaction, Connection, Call]] = []
        self.committed: list[Call] = []

    def released(self, session: Session) -> None:
        """A savepoint was released, or the outermost transaction is committed."""
        savepoint = session.get_nested_transaction()
        if savepoint is None:
            root = session.get_transaction()
            # A connection that is still in a transaction was lent to the session by someone who has not
            # committed yet, and who won't tell us when.
            self.committed = [
                call for owner, conn, call in self.calls if owner is root and not _in_transaction(conn)
            ]
            self.calls = []
        else:
            parent = savepoint.parent
            assert parent is not None
            self.calls = [
                (parent if owner is savepoint else owner, conn, call) for owner, conn, call in self.calls
            ]

    def rolled_back(self, session: Session, ended: SessionTransaction) -> None:
        self.calls = [waiting for waiting in self.calls if waiting[0] is not ended]

    def ended(self, session: Session, ended: SessionTransaction) -> None:
        """The outermost transaction is over and its connection given back: now the calls can be made."""
        if ended.parent is None:
            calls, self.committed, self.calls = self.committed, [], []
            make_calls(calls)


_PENDING = "think_celery.after_commit"


def _add(session: Session, conn: Connection, call: Call) -> None:
    owner = session.get_nested_transaction() or session.get_transaction()
    assert owner is not None
    pending = session.info.get(_PENDING)
    if pending is None:
        # Kept by the session itself, once, so that nothing here outlives it.
        pending = session.info[_PENDING] = _Pending()
        event.listen(session, "after_commit", pending.released)
        event.listen(session, "after_soft_rollback", pending.rolled_back)
        event.listen(session, "after_transaction_end", pending.ended)
    pending.calls.append((owner, conn, call))


def _in_transaction(conn: Connection) -> bool:
    return not conn.closed and conn.in_transaction()


# --- is it our database? --------------------------------------------------------------------------

_known: WeakKeyDictionary[Database, WeakSet[Engine]] = WeakKeyDictionary()


def _check(db: Database, conn: Connection) -> None:
    if _commits_by_itself(conn):
        raise CannotJoin(
            "its connection commits each statement by itself, so there is no transaction to join"
        )
    engines = _known.setdefault(db, WeakSet())
    if conn.engine in engines:
        return
    ours, theirs = db.url, conn.engine.url
    if not _same_database(ours.get_backend_name(), ours.database, theirs.get_backend_name(), theirs.database):
        raise CannotJoin(
            f"it is a transaction in {theirs.render_as_string()}, and this runtime keeps its rows in "
            f"{ours.render_as_string()}. Only a transaction in the same database can hold both"
        )
    if not inspect(conn).has_table(submissions.name):
        raise CannotJoin(
            f"{theirs.render_as_string()} has no table {submissions.name!r} where this connection looks for it. "
            "Run: think-celery db upgrade -A YOUR_APP"
        )
    engines.add(conn.engine)


def _commits_by_itself(conn: Connection) -> bool:
    driver = conn.connection.dbapi_connection
    if conn.dialect.name != "sqlite":
        return getattr(driver, "autocommit", False) is True
    if getattr(driver, "isolation_level", "") is not None:
        return False
    # Then the driver begins nothing: it is autocommit, unless the engine's own listener says BEGIN.
    if conn.in_transaction():
        return not getattr(driver, "in_transaction", True)
    with conn.begin() as trial:
        begun = getattr(driver, "in_transaction", True)
        trial.rollback()
    return not begun


def _same_database(our_backend: str, ours: str | None, their_backend: str, theirs: str | None) -> bool:
    if our_backend != their_backend:
        return False
    if ours is None or theirs is None or "file:" in (ours[:5], theirs[:5]):
        return True
    if our_backend == "sqlite":
        return os.path.realpath(ours) == os.path.realpath(theirs)
    return ours == theirs  # hosts are not compared: one server has many names
