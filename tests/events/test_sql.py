"""The live log in SQL: no reader misses a frame, or it is told so."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from think_celery.clock import SystemClock
from think_celery.events.sql import SqlEventLog
from think_celery.protocols import Cursor, Frame
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


def frame(n, agent="a", message="m", token=1, **event):
    return Frame(
        agent_id=agent,
        submission_id="s",
        message_id=message,
        token=token,
        first=n,
        n=n,
        event=event or {"type": "text-delta", "delta": str(n)},
    )


def rows(database, table):
    return database.read(lambda tx: tx.execute(select(func.count()).select_from(table)).scalar())


class TestReading:
    def test_frames_come_back_as_they_were_written_in_order(self, log):
        """Every field survives, a NUL and a lone surrogate in the text too."""
        frames = [frame(1, type="start"), frame(2, delta="a\x00\ud83d ü", token=2), frame(3, message="other")]
        start = log.head("a")

        log.append(frames)

        page = log.read("a", start)
        assert list(page.frames) == frames
        assert not page.lost

    def test_a_reader_goes_on_where_it_stopped(self, log):
        """Pages follow each other without overlap, however small; at the end there is nothing new."""
        cursor = log.head("a")
        log.append([frame(n) for n in range(1, 8)])

        seen = []
        for _ in range(5):
            page = log.read("a", cursor, limit=3)
            cursor = page.cursor
            seen.append([f.n for f in page.frames])

        assert seen == [[1, 2, 3], [4, 5, 6], [7], [], []]

    def test_the_head_is_after_the_newest_frame(self, log):
        """A reader that begins at the head sees only what comes after it."""
        log.append([frame(1)])
        cursor = log.head("a")
        log.append([frame(2)])

        assert [f.n for f in log.read("a", cursor).frames] == [2]

    def test_agents_have_logs_of_their_own(self, log):
        """One append may hold frames of several agents; each reader sees its own, in order."""
        a, b = log.head("a"), log.head("b")

        log.append([frame(1, "b"), frame(1, "a"), frame(2, "b"), frame(2, "a")])

        assert [(f.agent_id, f.n) for f in log.read("a", a).frames] == [("a", 1), ("a", 2)]
        assert [(f.agent_id, f.n) for f in log.read("b", b).frames] == [("b", 1), ("b", 2)]

    def test_a_reader_that_came_before_the_first_frame_misses_nothing(self, log):
        """An agent without a log has a head all the same, and its first frames are news, not a loss."""
        cursor = log.head("a")
        quiet = log.read("a", cursor)

        log.append([frame(1)])

        assert (list(quiet.frames), quiet.lost) == ([], False)
        for since in (cursor, quiet.cursor):
            page = log.read("a", since)
            assert ([f.n for f in page.frames], page.lost) == ([1], False)

    def test_no_frames_are_nothing_to_write(self, database, log):
        """An empty append makes no log."""
        log.append([])

        assert rows(database, live_heads) == 0


class TestLost:
    def test_a_cursor_of_another_incarnation(self, log):
        """A cursor of a log that is gone, or of Redis, is answered with `lost` and the present head."""
        log.append([frame(1)])

        page = log.read("a", Cursor("1700000000-0", 0))

        assert page.lost
        assert list(page.frames) == []
        assert page.cursor == log.head("a")

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
    def test_a_polling_reader_never_skips_a_frame_of_racing_writers(self, database_url):
        """Places are given in the order of commits: a reader that polls all the while sees every frame once."""
        database = Database(database_url, SystemClock())
        log = SqlEventLog(database)
        writers, batches = 6, 25
        barrier = threading.Barrier(writers + 1)
        done = threading.Event()

        def write(writer):
            barrier.wait()
            for batch in range(batches):
                first = 2 * batch + 1
                log.append([frame(first, message=str(writer)), frame(first + 1, message=str(writer))])

        def read(cursor):
            seen, last = [], False
            barrier.wait()
            while True:
                page = log.read("a", cursor, limit=7)
                assert not page.lost
                cursor = page.cursor
                seen += [(f.message_id, f.n) for f in page.frames]
                if not page.frames:
                    if last:
                        return seen
                    last = done.is_set()

        with ThreadPoolExecutor(writers + 1) as pool:
            reader = pool.submit(read, log.head("a"))
            for future in [pool.submit(write, writer) for writer in range(writers)]:
                future.result()
            done.set()
            seen = reader.result()

        expected = {str(writer): list(range(1, 2 * batches + 1)) for writer in range(writers)}
        assert Counter(seen).most_common(1)[0][1] == 1
        assert {w: [n for message, n in seen if message == w] for w in expected} == expected
        database.dispose()

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
