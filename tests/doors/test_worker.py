"""A worker's ticker: both passes come steadily, whatever one of them does."""

import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from tests.domain.flows import worker
from think_celery.domain import tick
from think_celery.worker import bootsteps as workers
from think_celery.worker.bootsteps import Ticker, children_of

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


def test_a_database_that_is_away_is_told_of_once_in_words(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with the same traceback each second; and that it is back is told, too."""
    caplog.set_level(logging.WARNING)
    passes, later = Passes(), threading.Event()

    def fails_at_first(rt: object) -> int:
        passes(rt)
        if passes.count <= 3:
            raise OperationalError("SELECT 1", {}, ConnectionError("refused"))
        if passes.count > 5:
            later.set()
        return 0

    monkeypatch.setattr(tick, "watch", fails_at_first)
    monkeypatch.setattr(tick, "work", Passes())

    with worker(sqlite_url) as rt:
        ticker = Ticker(rt)
        ticker.start()
        came = later.wait(PATIENCE)
        ticker.stop()

    assert came
    told = [record.getMessage() for record in caplog.records if record.name == "think_celery.worker"]
    assert [text.partition(" sqlite:///")[0] for text in told] == [
        "a tick failed: the database",
        "the database answers again",
    ]
    assert "(OperationalError)" in told[0]
    assert "think-celery doctor" in told[0]


def test_what_is_done_beside_the_passes_is_done_after_one_that_fails(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that nobody can work on must not keep a revoke from being heard."""
    beside = Passes()

    def fails(rt: object) -> int:
        raise ValueError("of one row")

    monkeypatch.setattr(tick, "watch", Passes())
    monkeypatch.setattr(tick, "work", fails)

    with worker(sqlite_url) as rt:
        ticker = Ticker(rt, beside=lambda: (beside(rt), None)[1])
        ticker.start()
        came = beside.three.wait(PATIENCE)
        ticker.stop()

    assert came


class TestChildren:
    def test_one_that_was_not_waited_for_yet_lives_no_more(self):
        """The pool may ask for its exit code seconds later; what it had in hand is free at once."""
        command = [sys.executable, "-c", "input()"]
        children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
        pool = SimpleNamespace(_pool=SimpleNamespace(_pool=children))
        before = children_of(pool)

        children[0].kill()
        for _ in range(1000):
            if children_of(pool) != before:
                break
            threading.Event().wait(0.01)
        after = children_of(pool)
        for child in children:
            child.kill()
            child.communicate()

        assert before == {child.pid for child in children}
        assert after == {children[1].pid}
