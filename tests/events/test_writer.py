"""The writer to the live log: it never makes a turn wait, and what it drops leaves a gap that readers see."""

import logging
import multiprocessing
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pytest

from think_celery.clock import SystemClock
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import FIRST_SECONDS, LiveWriter, merged, until_write
from think_celery.protocols import Frame
from think_celery.store.database import Database


def text(n, delta, *, agent="a", message="m", token=1, kind="text-delta", **more):
    field = "inputTextDelta" if kind == "tool-input-delta" else "delta"
    return other(n, agent=agent, message=message, token=token, type=kind, **{field: delta}, **more)


def other(n, *, agent="a", message="m", token=1, **event):
    return Frame(
        agent_id=agent, submission_id="s", message_id=message, token=token, first=n, n=n, event=event
    )


def spans(frames):
    return [(frame.first, frame.n) for frame in frames]


class Gate:
    """A live log in memory that can be held up, made to fail, and made to take long by its clock."""

    def __init__(self, clock=None):
        self.batches, self.failing, self.takes, self.clock = [], False, 0.0, clock
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()

    def append(self, frames):
        self.reached.set()
        self.open.wait(10)
        if self.clock is not None:
            self.clock.seconds += self.takes
        if self.failing:
            raise OSError("no route to the log")
        self.batches.append(list(frames))

    @property
    def frames(self):
        return [frame for batch in self.batches for frame in batch]


class Watch(SystemClock):
    """A clock whose elapsed seconds tests set."""

    seconds = 0.0

    def elapsed(self):
        return self.seconds


@pytest.fixture
def clock():
    return Watch()


@pytest.fixture
def gate(clock):
    return Gate(clock)


@pytest.fixture
def writer(gate, clock):
    writer = LiveWriter(gate, clock=clock)
    yield writer
    gate.open.set()
    writer.close()


class TestMerging:
    def test_deltas_that_follow_each_other_become_one(self):
        """Their texts are joined; the numbers that the one frame spans are kept."""
        assert merged([text(1, "Hel"), text(2, "lo"), text(3, " you")]) == [
            Frame(
                agent_id="a",
                submission_id="s",
                message_id="m",
                token=1,
                first=1,
                n=3,
                event={"type": "text-delta", "delta": "Hello you"},
            )
        ]

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param(text(2, "b", message="other"), id="another message"),
            pytest.param(text(2, "b", token=2), id="another writer"),
            pytest.param(text(2, "b", kind="reasoning-delta"), id="another kind"),
            pytest.param(text(2, "b", id="1"), id="another part"),
            pytest.param(text(3, "b"), id="a number is missing between them"),
            pytest.param(other(2, type="text-delta"), id="no text"),
            pytest.param(other(2, type="done", status="completed"), id="no delta"),
        ],
    )
    def test_what_does_not_belong_together_stays_apart(self, second):
        """A merged frame is one part of one message, written by one holder, without a gap inside."""
        assert spans(merged([text(1, "a"), second])) == [(1, 1), (second.n, second.n)]

    @pytest.mark.parametrize(
        ("kind", "same"),
        [
            ("text-delta", {"id": "0"}),
            ("reasoning-delta", {"id": "r"}),
            ("tool-input-delta", {"toolCallId": "c"}),
        ],
    )
    def test_each_kind_of_delta_is_merged_within_its_part(self, kind, same):
        """Text, reasoning and tool input stream in the same way."""
        frames = merged([text(1, "a", kind=kind, **same), text(2, "b", kind=kind, **same)])

        assert spans(frames) == [(1, 2)]
        assert "ab" in frames[0].event.values()

    def test_agents_that_stream_at_once_do_not_keep_each_other_from_merging(self):
        """Order matters within an agent only: its deltas merge across other agents' frames."""
        frames = [text(n, "x", agent=agent) for n in range(1, 4) for agent in ("a", "b")]

        assert [(f.agent_id, f.first, f.n) for f in merged(frames)] == [("a", 1, 3), ("b", 1, 3)]

    def test_other_frames_keep_their_place(self):
        """Nothing is moved across a frame that is no delta."""
        frames = merged([text(1, "a"), other(2, type="step-start"), text(3, "b"), text(4, "c")])

        assert spans(frames) == [(1, 1), (2, 2), (3, 4)]

    def test_frames_that_are_merged_already_merge_on(self):
        """A frame that spans several numbers goes on from its last."""
        assert spans(merged([*merged([text(1, "a"), text(2, "b")]), text(3, "c")])) == [(1, 3)]


class TestCadence:
    def test_what_is_read_on_the_cadence_is_written_just_after(self):
        """While text streams, each write comes a hundredth of a second after the readers have read: never later."""
        wrote_at = 1000.0

        lefts = {late: until_write(wrote_at, wrote_at + late) for late in (0.001, 0.0099, 0.011, 0.039)}

        assert lefts == pytest.approx({0.001: 0.009, 0.0099: 0.0001, 0.011: 0.039, 0.039: 0.011})

    def test_after_a_pause_the_first_is_shown_at_once(self):
        """A turn that begins, or a model that thinks before each word, does not wait for the cadence."""
        assert until_write(float("-inf"), 1000.02) == FIRST_SECONDS
        assert until_write(1000.0, 1000.05) == FIRST_SECONDS


class TestWriting:
    def test_what_is_put_while_a_write_is_under_way_goes_in_one(self, gate, writer):
        """One write holds all that gathered meanwhile, merged."""
        gate.open.clear()
        writer.put(text(1, "a"))
        gate.reached.wait(10)
        for n in range(2, 102):
            writer.put(text(n, "b"))
        gate.open.set()

        assert writer.flush(10)

        assert [spans(batch) for batch in gate.batches] == [[(1, 1)], [(2, 101)]]

    def test_a_delta_grows_until_it_is_written(self, gate, writer):
        """Deltas of one part go into the frame that waits, and wake nobody; what is written has its own numbers."""
        gate.open.clear()
        first = writer.grow(text(1, "a", id="0"))
        gate.reached.wait(10)
        assert first is not None
        assert not first.takes({"type": "text-delta", "id": "0", "delta": "late"}), "it is being written"
        second = writer.grow(text(2, "b", id="0"))
        assert second is not None
        for _ in range(3, 53):
            assert second.takes({"type": "text-delta", "id": "0", "delta": "c"})
        assert not second.takes({"type": "text-delta", "id": "1", "delta": "another part"})
        assert not second.takes({"type": "reasoning-delta", "id": "0", "delta": "another kind"})
        gate.open.set()

        assert writer.flush(10)

        assert [spans(batch) for batch in gate.batches] == [[(1, 1)], [(2, 52)]]
        assert gate.frames[-1].event == {"type": "text-delta", "id": "0", "delta": "b" + 50 * "c"}

    def test_what_is_not_taken_does_not_grow(self, gate):
        """A frame that was dropped, or is written already, takes nothing: the next delta is a frame again."""
        assert LiveWriter(gate, capacity=0).grow(text(1, "a")) is None
        assert LiveWriter(gate, synchronous=True).grow(text(1, "a")) is None

        assert spans(gate.frames) == [(1, 1)]

    def test_nothing_is_lost_between_growing_and_writing(self, gate, writer):
        """Each delta is in a frame, once, however the writer's closing and the turn's adding meet."""

        def turn(number):
            growing = None
            for n in range(1, 2001):
                event = {"type": "text-delta", "delta": f"{n} "}
                if growing is None or not growing.takes(event):
                    growing = writer.grow(text(n, f"{n} ", agent=str(number)))
                if n % 100 == 0:
                    writer.flush(1)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(turn, range(4)))
        assert writer.flush(10)

        for number in range(4):
            told = "".join(frame.event["delta"] for frame in gate.frames if frame.agent_id == str(number))
            assert told.split() == [str(n) for n in range(1, 2001)]

    def test_a_put_returns_while_the_log_hangs(self, gate, writer):
        """A turn never waits for its listeners, and a flush waits no longer than it was told to."""
        gate.open.clear()
        writer.put(text(1, "a"))
        gate.reached.wait(10)

        writer.put(text(2, "b"))

        assert writer.flush(0.01) is False
        assert gate.batches == []

    def test_one_thread_serves_all_turns_of_a_process(self, gate, writer):
        """Frames of eight threads all arrive, each thread's in order, written by one thread."""
        before = threading.active_count()

        def turn(number):
            for n in range(1, 201):
                writer.put(text(n, "x", agent=str(number)))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(turn, range(8)))
        assert threading.active_count() == before + 1
        assert writer.flush(10)

        for number in range(8):
            own = [frame for frame in gate.frames if frame.agent_id == str(number)]
            numbers = [n for frame in own for n in range(frame.first, frame.n + 1)]
            assert numbers == list(range(1, 201))

    def test_synchronous_writes_in_the_caller(self, gate):
        """For tests: what is put is there when `put` returns, each frame by itself."""
        writer = LiveWriter(gate, synchronous=True)

        writer.put(text(1, "a"))
        writer.put(text(2, "b"))

        assert [spans(batch) for batch in gate.batches] == [[(1, 1)], [(2, 2)]]
        assert writer.flush(0)

    def test_closing_writes_what_waits_and_ends_the_thread(self, gate, writer):
        """After it nothing is written, and no thread is left."""
        before = threading.active_count()
        writer.put(text(1, "a"))

        assert writer.close(10)
        writer.put(text(2, "b"))

        assert writer.flush(0)
        assert spans(gate.frames) == [(1, 1)]
        assert threading.active_count() == before


class TestDropping:
    def test_a_log_that_is_down_is_left_alone_for_five_seconds_and_logged_once(
        self, gate, clock, writer, caplog
    ):
        """Nothing is raised; frames are dropped; later it is tried again, and its recovery logged."""
        caplog.set_level(logging.INFO, "think_celery.events")
        gate.failing = True
        for n in (1, 2, 3):
            writer.put(text(n, "a"))
            assert writer.flush(10)
        clock.seconds += 5.1
        writer.put(text(4, "still down"))
        assert writer.flush(10)
        gate.failing = False
        clock.seconds += 4.9
        writer.put(text(5, "dropped"))
        clock.seconds += 0.2

        writer.put(text(6, "written"))

        assert writer.flush(10)
        assert spans(gate.frames) == [(6, 6)]
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        assert "no route to the log" in caplog.text

    def test_a_log_that_is_slow_counts_as_down(self, gate, clock, writer, caplog):
        """A write of more than 250 ms was a write, and the last one for five seconds."""
        gate.takes = 0.3
        writer.put(text(1, "a"))
        assert writer.flush(10)

        writer.put(text(2, "b"))
        assert writer.flush(10)

        assert spans(gate.frames) == [(1, 1)]
        assert "took 0.3 s" in caplog.text

    def test_a_log_just_fast_enough_is_written_on(self, gate, writer, caplog):
        """Up to the limit nothing is dropped and nothing logged."""
        gate.takes = 0.2
        for n in (1, 2):
            writer.put(text(n, "a"))
            assert writer.flush(10)

        assert spans(gate.frames) == [(1, 1), (2, 2)]
        assert caplog.records == []

    def test_a_reader_sees_that_frames_are_missing(self, gate, clock):
        """When more waits than fits, frames are dropped; the next one that is written does not follow on."""
        writer = LiveWriter(gate, clock=clock, capacity=3)
        gate.open.clear()
        writer.put(text(1, "a"))
        gate.reached.wait(10)
        for n in range(2, 10):
            writer.put(text(n, "b"))
        gate.open.set()
        assert writer.flush(10)

        writer.put(text(10, "c"))

        assert writer.flush(10)
        assert spans(gate.frames) == [(1, 1), (2, 4), (10, 10)]
        writer.close()

    def test_a_failed_write_in_the_caller_raises_nothing(self, gate, clock, caplog):
        """Synchronous or not, the live log is a courtesy."""
        writer = LiveWriter(gate, synchronous=True, clock=clock)
        gate.failing = True

        writer.put(text(1, "a"))
        writer.put(text(2, "b"))

        assert gate.frames == []
        assert len(caplog.records) == 1


class TestOnADatabase:
    @pytest.fixture
    def database(self, database_url):
        database = Database(database_url, SystemClock())
        yield database
        database.dispose()

    def test_a_streamed_answer_is_read_whole(self, database):
        """Whatever was merged, the texts in order are the answer, and the numbers are without a gap."""
        log = SqlEventLog(database)
        # The limit is far off: a busy machine must not open the breaker here.
        writer = LiveWriter(log, limit_seconds=60)
        start = log.head("a")
        words = [f"word{n} " for n in range(1, 1001)]

        for n, word in enumerate(words, start=1):
            writer.put(text(n, word))
        assert writer.close(30)

        frames = log.read("a", start).frames
        assert "".join(frame.event["delta"] for frame in frames) == "".join(words)
        assert frames[0].first == 1
        assert frames[-1].n == 1000
        assert all(after.first == before.n + 1 for before, after in pairwise(frames))

    def test_a_child_has_a_thread_of_its_own_and_writes_nothing_twice(self, database):
        """What waited at the fork is the parent's to write; the child writes what is put in the child."""
        log = SqlEventLog(database)
        writer = LiveWriter(log, gather_seconds=60, limit_seconds=60)
        start = log.head("a")
        writer.put(text(1, "parent"))
        assert writer.flush(30)
        writer.put(text(2, "waits"))

        def child():
            writer.put(text(1, "child", message="c"))
            os._exit(0 if writer.flush(30) else 3)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)

        assert process.exitcode == 0
        assert writer.close(30)
        seen = [(frame.message_id, frame.event["delta"]) for frame in log.read("a", start).frames]
        assert sorted(seen) == [("c", "child"), ("m", "parent"), ("m", "waits")]

    def test_a_sqlite_file_that_another_process_keeps_locked_holds_up_no_turn(self, sqlite_url, caplog):
        """Put and flush return while the lock is held; the frames are dropped, and that is logged."""
        database = Database(sqlite_url, SystemClock(), busy_timeout=timedelta(milliseconds=1))
        log = SqlEventLog(database)
        writer = LiveWriter(log)
        start = log.head("a")
        holder = sqlite3.connect(database.url.database, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        writer.put(text(1, "a"))

        assert writer.close(30)
        holder.close()
        assert list(log.read("a", start).frames) == []
        assert "the live log can't be written" in caplog.text
        database.dispose()
