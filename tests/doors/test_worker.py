"""A worker's ticker: both passes come steadily, whatever one of them does."""

import logging
import threading

import pytest

from tests.domain.flows import worker
from think_celery import worker as workers
from think_celery.domain import tick
from think_celery.worker import Ticker

PATIENCE = 20.0


class Passes:
    """Counts the passes of one kind, and says when there were three."""

    def __init__(self) -> None:
        self.count = 0
        self.three = threading.Event()

    def __call__(self, rt: object) -> int:
        self.count += 1
        if self.count == 3:
            self.three.set()
        return 0


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TICK_SECONDS", 0.01)


def test_looks_at_processes_wait_for_no_other_work(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks count only where they come steadily, however long the other pass takes."""
    looks, goes_on = Passes(), threading.Event()
    monkeypatch.setattr(tick, "watch", looks)
    monkeypatch.setattr(tick, "work", lambda rt: goes_on.wait(PATIENCE))

    with worker(sqlite_url) as rt:
        ticker = Ticker(rt)
        ticker.start()
        came = looks.three.wait(PATIENCE)
        goes_on.set()
        ticker.stop()

    assert came
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("think-tick") for name in names)


def test_a_pass_that_fails_is_made_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database may be away for a while; both kinds of passes go on, and the log tells of it."""
    caplog.set_level(logging.ERROR)
    passes = Passes()

    def fails(rt: object) -> int:
        passes(rt)
        raise ConnectionError("away")

    monkeypatch.setattr(tick, "watch", fails)
    monkeypatch.setattr(tick, "work", Passes())

    with worker(sqlite_url) as rt:
        ticker = Ticker(rt)
        ticker.start()
        came = passes.three.wait(PATIENCE)
        ticker.stop()

    assert came
    assert "a tick failed; the next one tries again: ConnectionError" in caplog.text
