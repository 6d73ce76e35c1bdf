"""The schema's version: what it is, what it should be, and the way from one to the other.

Alembic runs from inside the package, without an ini file and with a version table of its own, so a host
application's own migrations never meet ours. It is imported only when there is something to migrate.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from think_celery import forks
from think_celery.clock import SystemClock
from think_celery.errors import ConfigurationError, SchemaOutdated
from think_celery.store.database import Database
from think_celery.store.engines import is_busy
from think_celery.store.tables import metadata

VERSION_TABLE = "think_alembic_version"
HEAD = "0001"
"""The newest revision in ``migrations/versions``; revisions are numbers, so that they have an order."""

MIGRATIONS = Path(__file__).with_name("migrations")

_ADVISORY_KEY = 0x7468696E6B  # "think"
_PATIENCE_SECONDS = 60.0

# Alembic's `op` and `context` are proxies that the whole process shares.
_one_at_a_time = threading.Lock()


def _renew_lock() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


forks.in_child(_renew_lock)


def head() -> str:
    """The schema version that this package needs."""
    return HEAD


def current(engine: Engine) -> str | None:
    """The schema version of the database; ``None`` where there is no schema of ours. One SELECT."""
    with engine.execution_options(think_read=True).connect() as conn:
        try:
            return _version(conn)
        except (OperationalError, ProgrammingError) as error:
            if _says_no_such_table(error.orig):
                return None
            raise


def upgrade(target: Engine | URL | str) -> None:
    """Bring the database's schema to :func:`head`, all or nothing.

    Any number of processes may do this at once: one migrates, the others wait for it and find nothing
    left to do. A database that a newer release has migrated is left as it is.

    Raises:
        ConfigurationError: Its version is none that this package knows, or is not noted beside the tables.
    """
    if not isinstance(target, Engine):
        database = Database(target, SystemClock())
        try:
            upgrade(database.engine)
        finally:
            database.dispose()
        return
    if _is_enough(current(target)):
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with _one_at_a_time, _alone(target) as conn:
        if not _is_enough(found := _found(conn)):  # another process may have been first
            _refuse_doubtful(conn, found, known)
            config.attributes["connection"] = conn
            command.upgrade(config, "head")


def ensure(engine: Engine, *, migrate: bool) -> None:
    """Make sure that the schema is new enough: by an upgrade if *migrate* is set, else by a look.

    One SELECT where it is.

    Raises:
        SchemaOutdated: It is not, and *migrate* is false.
    """
    found = current(engine)
    if _is_enough(found):
        return
    if not migrate:
        raise SchemaOutdated(found, HEAD)
    upgrade(engine)


def _version(conn: Connection) -> str | None:
    found = conn.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _found(conn: Connection) -> str | None:
    """As :func:`current`, in a transaction that must go on when there is no table."""
    return _version(conn) if inspect(conn).has_table(VERSION_TABLE) else None


def _refuse_doubtful(conn: Connection, found: str | None, known: set[str]) -> None:
    """Refuse a database of which nobody can tell what is to be done to it."""
    if not found and (tables := sorted(set(inspect(conn).get_table_names()) & set(metadata.tables))):
        raise ConfigurationError(
            f"The database holds {tables[0]} and other tables of this package, and {VERSION_TABLE} does not say which "
            "version they have, so nothing was changed. Restore both from one backup. Or write the version into "
            f"{VERSION_TABLE} (one row, column version_num; this release makes tables of version '{HEAD}'). Or, if "
            "nothing in them is needed, drop the tables whose names begin with think_, and upgrade again."
        )
    if found is not None and found not in known:
        raise ConfigurationError(
            f"{VERSION_TABLE} says that the database's schema has version {found!r}, which no release ever made; this "
            f"one knows {', '.join(sorted(known))}. Nothing was changed. Restore the database from a backup, or write "
            f"the version that its tables really have into {VERSION_TABLE}."
        )


def _is_enough(found: str | None) -> bool:
    # A newer schema serves the older release beside which it is rolled out.
    return found is not None and found >= HEAD


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A transaction that no other process's migration can overlap."""
    with engine.connect() as conn:
        if engine.dialect.name == "sqlite":
            _begin_exclusive(conn)
        else:
            conn.begin()
            # Alembic may think between two statements for longer than a worker's transaction may stand still.
            conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_KEY})
        try:
            yield conn
            conn.commit()
        except BaseException:
            conn.rollback()
            raise


def _begin_exclusive(conn: Connection) -> None:
    """Take SQLite's write lock, whether or not the engine's own BEGIN takes it."""
    clock = SystemClock()
    give_up_at = clock.elapsed() + _PATIENCE_SECONDS
    while True:
        try:
            conn.begin()
            if not getattr(conn.connection.dbapi_connection, "in_transaction", True):
                conn.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            conn.rollback()
            if not is_busy(error) or clock.elapsed() > give_up_at:
                raise


def _says_no_such_table(cause: object) -> bool:
    if isinstance(cause, sqlite3.Error):
        return str(cause).startswith("no such table")
    return getattr(cause, "sqlstate", None) == "42P01"
