"""Runtimes for the rules: a test's own, on SQLite and on PostgreSQL, and a worker's."""

from collections.abc import Iterator

import pytest

from tests.domain.flows import worker
from think_celery.domain import leases
from think_celery.runtime import Runtime
from think_celery.testing import ThinkTest, think_test


@pytest.fixture
def t(database_url: str) -> Iterator[ThinkTest]:
    """A runtime with a fake clock, on each database."""
    with think_test(database_url=database_url) as test:
        yield test


@pytest.fixture
def quick(sqlite_url: str) -> Iterator[ThinkTest]:
    """The same on SQLite alone, for rules that no database has a part in."""
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture
def live(database_url: str) -> Iterator[Runtime]:
    """A worker's runtime: helper threads and the real clock, on each database."""
    with worker(database_url) as rt:
        yield rt


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test claims without the runner stays claimed, however slow the machine is.

    The monitor of a runtime with the real clock takes it for forgotten work after two seconds, and gives it back. (A
    process that is forked later has this, too.)
    """
    monkeypatch.setattr(leases, "UNHELD_SECONDS", 600.0)
