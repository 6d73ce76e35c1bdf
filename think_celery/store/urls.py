"""Database URLs: which can serve, and what their drivers are told."""

import os
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from think_celery.errors import InvalidSetting

SETTING = "think_database_url"
_EXAMPLES = "such as sqlite:////var/lib/app/think.db or postgresql://user@host/name"
_TOLD = {
    "application_name": "think_celery",
    "connect_timeout": 10,
    # A server that is gone without a word: noticed within some 25 seconds, in place of the system's two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds
}


def checked_url(given: str | URL) -> URL:
    """*given* as a URL of a database that can serve: psycopg for PostgreSQL, an absolute path for SQLite.

    Raises:
        InvalidSetting: It can't.
    """
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # their text is not shown: it may hold a part of the password
        raise InvalidSetting(SETTING, "", f"it can't be read. It is a database URL, {_EXAMPLES}.") from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise _unfit(url, f"{backend} is not supported. Use SQLite or PostgreSQL, {_EXAMPLES}.")
    try:
        asynchronous = url.get_dialect().is_async
    except NoSuchModuleError:
        raise _unfit(url, f"there is no driver {url.drivername!r}. Leave the driver out.") from None
    if asynchronous:
        raise _unfit(url, f"{url.drivername!r} is an asynchronous driver. Leave the driver out.")
    return _checked_file(url) if backend == "sqlite" else url


def _checked_file(url: URL) -> URL:
    path = url.database or ":memory:"
    if ":memory:" in path or url.query.get("mode") == "memory":
        raise _unfit(url, "a SQLite database in memory is seen by one connection only. Name a file.")
    if path.startswith("file:"):
        return url
    absolute = os.path.abspath(path)  # a worker may change its directory later
    if not os.path.isdir(os.path.dirname(absolute)):
        raise _unfit(url, f"the folder {os.path.dirname(absolute)!r} does not exist. Make it first.")
    return url.set(database=absolute)


def driver_arguments(url: URL) -> dict[str, Any]:
    """What a PostgreSQL driver is told where the URL says nothing: a name, and when it gives a server up."""
    if url.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    return {name: value for name, value in _TOLD.items() if name not in url.query}


def _unfit(url: URL, problem: str) -> InvalidSetting:
    # A password may be a parameter, too, and one with a slash or an @ may be anywhere.
    file = url.get_backend_name() == "sqlite"
    shown = url.render_as_string(hide_password=True) if file else f"{url.drivername}://…"
    return InvalidSetting(SETTING, shown, problem)
