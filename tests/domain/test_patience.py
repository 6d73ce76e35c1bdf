"""A database that is away for a moment costs a turn that moment, and nothing else."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.domain.talk import now, talker
from think_celery.agents.think import Think
from think_celery.clock import SystemClock
from think_celery.domain.leases import Hold
from think_celery.domain.outcomes import Outcome
from think_celery.domain.patience import STOPPING_SECONDS, patiently
from think_celery.domain.submissions import claims
from think_celery.errors import LeaseLost
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.protocols import Finish, TextDelta, Usage
from think_celery.providers.scripted import FunctionModel, ScriptedModel, call, say
from think_celery.runtime import Runtime
from think_celery.settings import Settings
from think_celery.store.database import Database
from think_celery.store.leases import Lease
from think_celery.testing import ThinkTest

AWAY_SECONDS = 1.5


@contextmanager
def hurried_worker(url: str) -> Iterator[Runtime]:
    """A worker that waits for SQLite's lock for 20 ms only, so that a held lock soon means: away."""
    clock = SystemClock()
    db = Database(url, clock, durable=False, busy_timeout=timedelta(milliseconds=20))
    log = SqlEventLog(db)
    rt = Runtime(
        settings=Settings(database_url=url),
        clock=clock,
        db=db,
        events=log,
        live=LiveWriter(log),
        knock=lambda knock: None,
    )
    try:
        yield rt
    finally:
        rt.close()


class Outage:
    """Takes the database away, once, for a second and a half."""

    def __init__(self, url: str) -> None:
        self.url, self.thread = url, threading.Thread(target=self._run)
        self._away = threading.Event()

    def begin(self) -> None:
        """Return when it is away."""
        self.thread.start()
        assert self._away.wait(10)

    def _run(self) -> None:
        (self._sqlite if self.url.startswith("sqlite") else self._postgres)()

    def _sqlite(self) -> None:
        connection = sqlite3.connect(
            Path(self.url.removeprefix("sqlite:///")), isolation_level=None, timeout=10
        )
        connection.execute("BEGIN IMMEDIATE")
        self._away.set()
        threading.Event().wait(AWAY_SECONDS)
        connection.execute("ROLLBACK")
        connection.close()

    def _postgres(self) -> None:
        parts = urlsplit(self.url.replace("+psycopg", ""))
        name = parts.path.removeprefix("/")
        with psycopg.connect(parts._replace(path="/postgres").geturl(), autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            self._away.set()
            threading.Event().wait(AWAY_SECONDS)
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@pytest.fixture
def outage(database_url: str) -> Iterator[Outage]:
    outage = Outage(database_url)
    yield outage
    outage.thread.join(10)


def run(url: str, agent_class: type[Think], texts: list[str] | None = None) -> tuple[Outcome, Any]:
    with hurried_worker(url) as rt:
        agent = agent_class._bound_to(rt, "a")
        submission = agent.submit_messages("Go")
        outcome = claims.run(rt, submission.submission_id)
        if texts is not None:
            texts += [message.text for message in agent.messages]
        return outcome, now(agent, submission)


class TestATurn:
    def test_at_a_tools_result(self, database_url, outage):
        """The result is stored before the next request, however long that takes; the tool ran once."""
        ran = []

        def work() -> str:
            ran.append(1)
            outage.begin()
            return "done"

        model = ScriptedModel(call("work"), say("ok"))

        outcome, done = run(database_url, talker(work, model=model))

        assert (outcome.word, ran, len(model.requests)) == ("completed", [1], 2)
        assert (done.status, model.requests[1].messages[1].parts[1].output) == ("completed", "done")

    def test_in_the_middle_of_a_stream(self, database_url, outage):
        """Storing the text so far is a courtesy: the stream goes on without it, and nothing of it is lost."""

        def respond(request: Any) -> Any:
            yield TextDelta("Hel")
            threading.Event().wait(1.05)
            outage.begin()
            for letter in "lo there":
                yield TextDelta(letter)
            yield Finish("stop", None, Usage())

        texts: list[str] = []
        outcome, done = run(database_url, talker(model=FunctionModel(respond)), texts)

        assert (outcome.word, done.status, texts) == ("completed", "completed", ["Go", "Hello there"])

    def test_at_its_end(self, database_url, outage):
        """The end is stored as soon as the database is back; no second request is made."""

        def respond(request: Any) -> Any:
            yield TextDelta("Hello")
            outage.begin()
            yield Finish("stop", None, Usage())

        model = FunctionModel(respond)

        outcome, done = run(database_url, talker(model=model))

        assert (outcome.word, done.status, len(model.requests)) == ("completed", "completed", 1)


class TestPatience:
    @pytest.fixture
    def hold(self, quick: ThinkTest) -> Hold:
        lease = Lease(kind="turn", key="k", process_id="p", token=1)
        return Hold(lease=lease, monitor=quick.rt.monitor, submission_id=None, deadline=60.0)

    @pytest.fixture(autouse=True)
    def _a_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "no-file"
        self.folder.mkdir()

    def failing(self, times: float) -> Callable[[], Any]:
        """Work that finds the database away so many times: what should be its file is a folder."""
        nowhere = Database(f"sqlite:///{self.folder}", SystemClock())
        left = [times]

        def work() -> Any:
            left[0] -= 1
            return nowhere.transact(lambda tx: None) if left[0] >= 0 else "done"

        return work

    def test_it_waits_longer_and_longer(self, quick, hold):
        """0.1 s, 0.2 s … 2 s: neither a busy loop nor a long wait after a short outage."""
        began = quick.clock.elapsed()

        assert patiently(quick.rt, hold, self.failing(7)) == "done"

        assert quick.clock.elapsed() - began == pytest.approx(0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2 + 2)

    def test_other_errors_go_through(self, quick, hold):
        """What is no outage is not repeated."""
        calls = []

        def work() -> None:
            calls.append(1)
            raise ValueError

        with pytest.raises(ValueError):
            patiently(quick.rt, hold, work)
        assert calls == [1]

    def test_it_ends_when_the_lease_is_gone(self, quick, hold):
        """Another worker goes on: nothing is worth waiting for."""
        work = self.failing(float("inf"))
        hold.lose()

        with pytest.raises(LeaseLost):
            patiently(quick.rt, hold, work)

    def test_it_ends_with_the_deadline(self, quick, hold):
        """A turn's time, and the 30 s after which its lease would be given up, are the limit."""
        with pytest.raises(Exception, match="unable to open"):
            patiently(quick.rt, hold, self.failing(float("inf")))

        assert 90 <= quick.clock.elapsed() <= 93

    def test_a_process_that_stops_waits_a_few_seconds(self, quick, hold):
        """A worker that was told to stop must not be killed for its patience."""
        quick.rt.stopping.abort("SIGTERM")

        with pytest.raises(Exception, match="unable to open"):
            patiently(quick.rt, hold, self.failing(float("inf")))

        assert STOPPING_SECONDS <= quick.clock.elapsed() <= STOPPING_SECONDS + 2
