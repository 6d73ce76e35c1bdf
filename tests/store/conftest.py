"""A `Database` on each of the two databases."""

from collections.abc import Iterator

import pytest

from think_celery.clock import SystemClock
from think_celery.store.database import Database


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url, SystemClock())
    yield database
    database.dispose()
