"""Which database URLs can serve, and what is said of the others."""

import os
import sys
import traceback

import pytest

from think_celery.clock import SystemClock
from think_celery.errors import InvalidSetting, MissingExtra
from think_celery.store.database import Database
from think_celery.store.urls import checked_url, driver_arguments


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("no url at all", "can't be read"),
        ("postgresql://u:p@my:secret/x@h/db", "can't be read"),
        ("mysql://u:p@my/secret@h/db", "mysql is not supported"),
        ("postgresql+asyncpg://h/db?password=secret", "asynchronous driver"),
        ("mysql://u:secret@h/db", "mysql is not supported. Use SQLite or PostgreSQL"),
        ("postgresql+asyncpg://u:secret@h/db", "asynchronous driver"),
        ("sqlite+aiosqlite:///think.db", "asynchronous driver"),
        ("postgresql+nosuch://u:secret@h/db", "there is no driver"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory&cache=shared&uri=true", "in memory"),
        ("sqlite:////no/such/folder/think.db", "'/no/such/folder' does not exist"),
    ],
)
def test_a_url_that_cannot_serve_is_refused_at_once(url, problem):
    """The error says what is wrong and what to write, and shows no password."""
    with pytest.raises(InvalidSetting) as refused:
        checked_url(url)

    assert problem in str(refused.value)
    assert "secret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_means_psycopg(scheme):
    """Both spellings that hosting providers hand out work without naming a driver."""
    assert checked_url(f"{scheme}://u@h/db").drivername == "postgresql+psycopg"


def test_a_sqlite_path_stays_the_same_when_the_process_changes_its_directory(tmp_path, monkeypatch):
    """A worker that detaches into another directory goes on with the same file."""
    monkeypatch.chdir(tmp_path)

    url = checked_url("sqlite:///think.db")

    assert url.database == os.path.join(tmp_path, "think.db")


def test_the_url_has_the_last_word_on_what_the_driver_is_told():
    """Connecting gives up after 10 s, a silent server is given up, and a name is in pg_stat_activity, unless the
    URL says otherwise."""
    silence = {
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    assert driver_arguments(checked_url("postgresql://h/db")) == {
        "connect_timeout": 10,
        "application_name": "think_celery",
        **silence,
    }
    assert driver_arguments(checked_url("postgresql://h/db?connect_timeout=3&tcp_user_timeout=0")) == {
        "application_name": "think_celery",
        **{name: value for name, value in silence.items() if name != "tcp_user_timeout"},
    }


def test_the_driver_takes_what_it_is_told(postgres_url):
    """The limits for a silent server are those of the connections that are made."""
    db = Database(postgres_url, SystemClock())
    with db.engine.connect() as conn:
        told = conn.connection.driver_connection.info.get_parameters()

    assert (told["keepalives_idle"], told["tcp_user_timeout"]) == ("10", "25000")
    db.dispose()


def test_a_missing_driver_names_the_extra_to_install(monkeypatch):
    """PostgreSQL without psycopg: the error says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(MissingExtra, match=r"pip install 'think-celery\[postgres\]'"):
        Database("postgresql://h/db", SystemClock()).engine  # noqa: B018
