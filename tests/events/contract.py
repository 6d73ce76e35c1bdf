"""What every live log must do, whatever keeps it: run against a real database and a real Redis.

A log's test file subclasses :class:`EventLogContract` and has two fixtures: ``log``, the log under test, and
``lose_all``, which takes away all that was kept, as a flush does.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from think_celery.protocols import Cursor, EventLog, Frame


def frame(n: int, agent: str = "a", message: str = "m", token: int = 1, **event: Any) -> Frame:
    """A frame of one piece of text, or of another event."""
    return Frame(
        agent_id=agent,
        submission_id="s",
        message_id=message,
        token=token,
        first=n,
        n=n,
        event=event or {"type": "text-delta", "delta": str(n)},
    )


def numbers(log: EventLog, cursor: Cursor, agent: str = "a") -> list[int]:
    """The numbers of the frames after a cursor, of which none is lost."""
    page = log.read(agent, cursor)
    assert not page.lost
    return [each.n for each in page.frames]


class EventLogContract:
    """The rules of :class:`~think_celery.protocols.EventLog`."""

    def test_frames_come_back_as_they_were_written_in_order(self, log: EventLog) -> None:
        """Every field survives, a NUL and a lone surrogate in the text too."""
        frames = [frame(1, type="start"), frame(2, delta="a\x00\ud83d ü", token=2), frame(3, message="other")]
        start = log.head("a")

        log.append(frames)

        page = log.read("a", start)
        assert list(page.frames) == frames
        assert not page.lost

    def test_a_reader_goes_on_where_it_stopped(self, log: EventLog) -> None:
        """Pages follow each other without overlap, however small; at the end there is nothing new."""
        cursor = log.head("a")
        log.append([frame(n) for n in range(1, 8)])

        seen = []
        for _ in range(5):
            page = log.read("a", cursor, limit=3)
            cursor = page.cursor
            seen.append([f.n for f in page.frames])

        assert seen == [[1, 2, 3], [4, 5, 6], [7], [], []]

    def test_the_head_is_after_the_newest_frame(self, log: EventLog) -> None:
        """A reader that begins at the head sees only what comes after it."""
        log.append([frame(1)])
        cursor = log.head("a")
        log.append([frame(2)])

        assert numbers(log, cursor) == [2]

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
    def test_looking_back_from_a_place(self, log: EventLog, limit: int) -> None:
        """Gives what is before it, newest first, however it is paged; of other agents nothing."""
        frames = [frame(n) for n in range(1, 7)]
        log.append(frames)
        cursor = log.head("a")
        log.append([frame(7), frame(1, "b")])

        assert list(log.back("a", cursor, limit)) == frames[::-1]
        assert [each.n for each in log.back("a", log.head("a"), limit)] == [7, 6, 5, 4, 3, 2, 1]

    @pytest.mark.parametrize("incarnation", ["1700000000-0", "", "none:0", "0190d5a0-7d4f", "unknown"])
    @pytest.mark.parametrize("position", [0, 7, -1, 2**64, 2**200])
    def test_looking_back_from_a_place_that_is_not_of_this_log(
        self, log: EventLog, incarnation: str, position: int
    ) -> None:
        """There is nothing before it."""
        log.append([frame(1)])

        assert list(log.back("a", Cursor(incarnation, position))) == []

    def test_looking_back_before_the_first_frame(self, log: EventLog) -> None:
        """There is nothing, also when something has come since."""
        start = log.head("a")
        log.append([frame(1)])

        assert list(log.back("a", start)) == []

    def test_looking_back_while_the_log_is_lost(self, log: EventLog, lose_all: Callable[[], None]) -> None:
        """What is not read yet is gone, and what began anew is not taken for it."""
        log.append([frame(n) for n in range(1, 7)])
        cursor = log.head("a")
        back = log.back("a", cursor, 2)
        found = [next(back), next(back)]

        lose_all()
        log.append([frame(n) for n in range(11, 17)])

        assert [each.n for each in [*found, *back]] == [6, 5]
        assert list(log.back("a", cursor)) == []

    def test_agents_have_logs_of_their_own(self, log: EventLog) -> None:
        """One append may hold frames of several agents; each reader sees its own, in order."""
        a, b = log.head("a"), log.head("b")

        log.append([frame(1, "b"), frame(1, "a"), frame(2, "b"), frame(2, "a")])

        assert [(f.agent_id, f.n) for f in log.read("a", a).frames] == [("a", 1), ("a", 2)]
        assert [(f.agent_id, f.n) for f in log.read("b", b).frames] == [("b", 1), ("b", 2)]

    def test_a_reader_that_came_before_the_first_frame_misses_nothing(self, log: EventLog) -> None:
        """An agent without a log has a head all the same, and its first frames are news, not a loss."""
        cursor = log.head("a")
        quiet = log.read("a", cursor)

        log.append([frame(1)])

        assert (list(quiet.frames), quiet.lost) == ([], False)
        assert [numbers(log, since) for since in (cursor, quiet.cursor)] == [[1], [1]]

    @pytest.mark.parametrize("incarnation", ["1700000000-0", "", "none:0", "0190d5a0-7d4f", "unknown"])
    @pytest.mark.parametrize("position", [0, 7, -1, 2**64, 2**200])
    def test_a_cursor_that_is_not_of_this_log(self, log: EventLog, incarnation: str, position: int) -> None:
        """One of another log, or made up, is answered with `lost` and the present head."""
        log.append([frame(1)])
        if incarnation == "":  # of SQL, before its first frame: a look in 1970
            position = min(position, 7)

        page = log.read("a", Cursor(incarnation, position))

        assert page.lost
        assert list(page.frames) == []
        assert page.cursor == log.head("a")

    @pytest.mark.parametrize("again", [False, True])
    def test_a_log_that_is_lost_between_two_reads(
        self, log: EventLog, lose_all: Callable[[], None], again: bool
    ) -> None:
        """Its reader is told, whether it has begun anew or not, and reads on from the new head."""
        log.append([frame(1), frame(2)])
        cursor = log.head("a")

        lose_all()
        if again:
            log.append([frame(3)])
        page = log.read("a", cursor)

        assert (list(page.frames), page.lost) == ([], True)
        log.append([frame(4)])
        assert numbers(log, page.cursor) == [4]

    def test_a_log_that_is_lost_again_and_again(self, log: EventLog, lose_all: Callable[[], None]) -> None:
        """However quickly it begins anew, with as many frames as before: each time the reader is told."""
        for _ in range(50):
            log.append([frame(1)])
            cursor = log.head("a")

            lose_all()
            log.append([frame(1)])

            assert log.read("a", cursor).lost

    def test_an_agent_s_frames_can_be_forgotten(self, log: EventLog) -> None:
        """Its reader is told and goes on from there. Of an unknown agent there is nothing to forget."""
        log.append([frame(1), frame(2)])
        cursor = log.head("a")

        log.forget("a")
        log.forget("nobody")

        assert log.read("a", cursor).lost
        assert numbers(log, log.head("a")) == []
        start = log.head("a")
        log.append([frame(3)])
        assert numbers(log, start) == [3]

    def test_no_frames_are_nothing_to_write(self, log: EventLog) -> None:
        """An empty append makes no log."""
        start = log.head("a")

        log.append([])

        assert numbers(log, start) == []

    def test_closed_it_can_be_used_again(self, log: EventLog) -> None:
        """Closing gives back what a process holds, and nothing of what is kept."""
        start = log.head("a")
        log.append([frame(1)])

        log.close()

        assert numbers(log, start) == [1]

    def test_a_polling_reader_never_skips_a_frame_of_racing_writers(self, log: EventLog) -> None:
        """A reader that polls all the while sees every frame once, those of each writer in its order.

        That is so only if places are given in the order in which frames become visible.
        """
        writers, batches = 6, 25
        barrier = threading.Barrier(writers + 1)
        done = threading.Event()

        def write(writer: int) -> None:
            barrier.wait()
            for batch in range(batches):
                first = 2 * batch + 1
                log.append([frame(first, message=str(writer)), frame(first + 1, message=str(writer))])

        def read(cursor: Cursor) -> list[tuple[str, int]]:
            seen: list[tuple[str, int]] = []
            last = False
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
