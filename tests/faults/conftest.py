"""Stages on databases that are stopped, frozen, or whose sessions are ended."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.crash.conftest import children, model, pace
from tests.crash.nursery import Nursery
from tests.crash.pace import Pace
from tests.crash.stage import Stage
from tests.providers.server import ModelServer

__all__ = ["children", "model", "pace"]

StageOn = Callable[[str], Stage]


@pytest.fixture
def stage_on(
    children: Nursery, model: ModelServer, pace: Pace, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[StageOn]:
    """What makes a stage on a database that has our tables and no other stage."""
    with ExitStack() as stack:

        def make(url: str) -> Stage:
            stack.callback(drop_ledger, url)
            made = Stage(request.node.name, url, tmp_path, model, children, pace)
            stack.callback(made.close)
            return made

        yield make


def drop_ledger(url: str) -> None:
    """Take away the table that a stage makes beside ours: the database is another test's afterwards."""
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text("DROP TABLE ledger"))
    engine.dispose()
