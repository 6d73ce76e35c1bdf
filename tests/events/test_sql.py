"""The live log in SQL: no reader misses a frame, or it is told so."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, func, select

from tests.events.contract import EventLogContract, frame
from think_celery.clock import SystemClock
from think_celery.events.sql import SqlEventLog
from think_celery.store.database import Database
from think_celery.store.tables import live, live_heads


class Watch(SystemClock):
    """A clock that tests set."""

    database_time = False

    def __init__(self):
        self.time = datetime(2027, 1, 1, tzinfo=UTC)

    def now(self):
        return self.time

    def pass_by(self, **span):
        self.time += timedelta(**span)


@pytest.fixture
def clock():
    return Watch()


@pytest.fixture
def database(database_url, clock):
    database = Database(database_url, clock)
    yield database
    database.dispose()


@pytest.fixture
def log(database):
    return SqlEventLog(database)


def rows(database, table):
    return database.read(lambda tx: tx.execute(select(func.count()).select_from(table)).scalar())


class TestContract(EventLogContract):
    """What both logs promise."""

    @pytest.fixture
    def clock(self):
        return SystemClock()

    @pytest.fixture
    def lose_all(self, database):
        def lose():
            database.transact(lambda tx: [tx.execute(delete(table)) for table in (live, live_heads)])

        return lose


class TestLost:
    def test_a_cursor_below_the_trimmed_edge(self, log, clock):
        """What was trimmed can't be read any more, so its reader is told; one above the edge reads on."""
        start = log.head("a")
        log.append([frame(1), frame(2)])
        behind = log.read("a", start, limit=1).cursor
        at_edge = log.head("a")
        clock.pass_by(minutes=11)
        log.append([frame(3)])

        assert log.trim() == 2

        assert log.read("a", behind).lost
        page = log.read("a", at_edge)
        assert ([f.n for f in page.frames], page.lost) == ([3], False)

    def test_a_cursor_beyond_the_newest_frame(self, log):
        """The last commits may be lost in a power cut; what takes their places is not what was read there."""
        log.append([frame(1)])
        cursor = log.head("a")

        page = log.read("a", replace(cursor, position=cursor.position + 1))

        assert page.lost
        assert page.cursor == cursor

    def test_a_log_that_came_and_went_since_the_look(self, log, clock):
        """A reader that looked before the first frame and then slept is told, not left with silence."""
        asleep = log.head("a")
        log.append([frame(1)])
        clock.pass_by(minutes=11)
        log.trim()

        gone = log.read("a", asleep)
        log.append([frame(2)])
        begun_again = log.read("a", asleep)

        assert gone.lost
        assert begun_again.lost
        assert not log.read("a", begun_again.cursor).lost

    def test_an_idle_reader_of_an_agent_without_a_log_is_never_lost(self, log, clock):
        """Reading renews the cursor, so a listener may wait for days for the first frame."""
        cursor = log.head("a")
        for _ in range(20):
            clock.pass_by(minutes=4)
            page = log.read("a", cursor)
            assert not page.lost
            cursor = page.cursor

        log.append([frame(1)])

        assert [f.n for f in log.read("a", cursor).frames] == [1]


class TestTrim:
    def test_no_frames_make_no_row(self, database, log):
        """An empty append leaves nothing behind."""
        log.append([])

        assert rows(database, live_heads) == 0

    def test_frames_older_than_ten_minutes_go(self, database, log, clock):
        """Younger ones stay, of each agent."""
        log.append([frame(1), frame(1, "b")])
        clock.pass_by(minutes=6)
        log.append([frame(2)])
        clock.pass_by(minutes=5)

        assert log.trim() == 2
        assert rows(database, live) == 1
        assert log.trim() == 0

    def test_an_agent_keeps_its_newest_frames_only(self, database):
        """A talkative agent is cut to the limit, whatever the age of its frames; others are untouched."""
        log = SqlEventLog(database, keep_frames=10)
        start = log.head("b")
        log.append([frame(n) for n in range(1, 26)] + [frame(n, "b") for n in range(1, 11)])

        assert log.trim() == 15

        assert len(log.read("b", start).frames) == 10
        assert rows(database, live) == 20

    def test_an_idle_agent_leaves_no_row_behind(self, database, log, clock):
        """With its last frame the log itself goes; the next frame begins another, which old cursors don't fit."""
        log.append([frame(1)])
        old = log.head("a")
        clock.pass_by(minutes=11)
        log.trim()
        assert (rows(database, live), rows(database, live_heads)) == (0, 0)

        log.append([frame(2)])

        assert log.read("a", old).lost
        assert not log.read("a", log.head("a")).lost


class TestRaces:
    def test_writers_of_many_agents_and_a_trimmer_never_deadlock(self, database_url):
        """Appends that name the same agents in opposite orders, while logs are trimmed away, all succeed."""
        database = Database(database_url, SystemClock())
        log = SqlEventLog(database, keep=timedelta(0))
        agents = [str(number) for number in range(5)]
        barrier = threading.Barrier(5)

        def write(order):
            barrier.wait()
            for n in range(1, 21):
                log.append([frame(n, agent) for agent in order])

        def trim():
            barrier.wait()
            return sum(log.trim() for _ in range(20))

        with ThreadPoolExecutor(5) as pool:
            trimmed = pool.submit(trim)
            writes = [pool.submit(write, agents[::direction]) for direction in (1, -1, 1, -1)]
            for future in writes:
                future.result()
            dropped = trimmed.result() + log.trim()

        assert dropped == 4 * 20 * 5
        assert (rows(database, live), rows(database, live_heads)) == (0, 0)
        database.dispose()
