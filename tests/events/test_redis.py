"""The live log in Redis: bounded, apart from other keys, and never silent about what it lost."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import redis

from tests import servers
from tests.events.away import own_log, read_again, refuses, wait_until
from tests.events.contract import EventLogContract, frame, numbers
from think_celery.events.redis import RedisEventLog


@pytest.fixture
def log(redis_url: str) -> Iterator[RedisEventLog]:
    log = RedisEventLog(redis_url)
    yield log
    log.close()


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """The Redis of the log, as seen from outside."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


class TestContract(EventLogContract):
    """What both logs promise."""

    @pytest.fixture
    def lose_all(self, server: redis.Redis) -> Callable[[], object]:
        return server.flushdb


class TestLost:
    def test_a_stream_that_begins_and_is_flushed_between_two_looks(self, log, server):
        """A reader that looked before the first frame is told, though the next stream begins as the first did."""
        for n in range(1, 51):
            server.flushdb()
            cursor = log.head("a")
            log.append([frame(n)])

            server.flushdb()
            gone = log.read("a", cursor)
            log.append([frame(n)])

            assert gone.lost
            assert log.read("a", cursor).lost
            assert numbers(log, gone.cursor) == [n]

    def test_a_stream_that_expired(self, redis_url, server):
        """Gone or begun anew: a reader of the old one is told, once, and reads on."""
        log = RedisEventLog(redis_url, keep=timedelta(milliseconds=40))
        log.append([frame(1)])
        cursor = log.head("a")
        wait_until(lambda: not server.exists("think:live:a"))

        gone = log.read("a", cursor)
        log.append([frame(2)])

        assert gone.lost
        assert log.read("a", cursor).lost
        assert not log.read("a", log.head("a")).lost

    def test_a_stream_that_came_and_expired_since_the_look(self, redis_url, server):
        """A reader that looked before the first frame and then slept is told, not left with silence."""
        log = RedisEventLog(redis_url, keep=timedelta(milliseconds=40))
        asleep = log.head("a")
        log.append([frame(1)])
        wait_until(lambda: not server.exists("think:live:a"))

        assert log.read("a", asleep).lost
        log.append([frame(2)])
        assert log.read("a", asleep).lost

    def test_a_reader_behind_the_trimmed_edge(self, redis_url):
        """One that fell behind is told, and so is one that came before the first frame; one near the end is not."""
        log = RedisEventLog(redis_url, keep_frames=100)
        before = log.head("a")
        log.append([frame(n) for n in range(1, 91)])
        behind = log.read("a", before, limit=1).cursor
        log.append([frame(n) for n in range(91, 150)])  # drops some of the frames before, not all
        near = log.head("a")
        log.append([frame(150)])

        assert log.read("a", behind).lost
        assert log.read("a", before).lost
        assert numbers(log, near) == [150]

    def test_an_idle_reader_of_an_agent_without_a_stream_is_never_lost(self, redis_url):
        """Reading renews the cursor, so a listener may wait for days for the first frame."""
        log = RedisEventLog(redis_url, keep=timedelta(milliseconds=400))
        cursor = log.head("a")
        until = time.monotonic() + 1
        while time.monotonic() < until:
            page = log.read("a", cursor)
            assert not page.lost
            cursor = page.cursor

        log.append([frame(1)])

        assert numbers(log, cursor) == [1]

    @pytest.mark.services
    @pytest.mark.parametrize("begun", [False, True])
    def test_a_redis_that_restarts_without_what_it_had(self, begun):
        """FR-14: silence while it is away; then the reader is told, and reads on from the new head."""
        with own_log() as (log, own):
            cursor = log.head("a")
            if begun:
                log.append([frame(1)])
                cursor = log.head("a")
            os.kill(own.pid, signal.SIGKILL)
            wait_until(lambda: refuses(own.url))
            silent = [log.read("a", cursor) for _ in range(3)]
            head = log.head("a")
            with servers.own_redis(port=urlsplit(own.url).port):
                log.append([frame(2)])
                page = read_again(log, cursor)

                assert [(list(s.frames), s.cursor, s.lost) for s in silent] == [([], cursor, False)] * 3
                assert page.lost
                assert log.read("a", head).lost
                log.append([frame(3)])
                assert numbers(log, page.cursor) == [3]


class TestKeys:
    def test_streams_expire_and_are_renewed_by_writing_only(self, log, server):
        """An idle agent leaves nothing behind after ten minutes, listened to or not."""
        log.append([frame(1)])
        assert 590_000 < server.pttl("think:live:a") <= 600_000
        server.pexpire("think:live:a", 5000)

        log.read("a", log.head("a"))
        read = server.pttl("think:live:a")
        log.append([frame(2)])

        assert read <= 5000
        assert server.pttl("think:live:a") > 590_000

    def test_streams_are_bounded(self, redis_url, server):
        """A talkative agent is cut to its newest frames, and some more; nobody must call `trim`."""
        log = RedisEventLog(redis_url, keep_frames=100)

        for first in range(1, 5000, 100):
            log.append([frame(n) for n in range(first, first + 100)])

        assert 100 <= server.xlen("think:live:a") < 400
        assert log.trim() == 0

    def test_all_keys_but_one_expire(self, log, server):
        """FR-26: the frames of 500 agents leave one key, after a while."""
        for number in range(50):
            log.append([frame(1, f"{number}-{n}") for n in range(10)])
        log.read("new", log.head("new"))

        keys = server.keys("*")

        assert len(keys) == 501
        assert [key for key in keys if server.pttl(key) == -1] == ["think:live-era"]

    def test_a_prefix_is_before_every_key(self, redis_url, server):
        """Who may only touch keys of one prefix, or shares a Redis, can have that."""
        log = RedisEventLog(redis_url, prefix="shop:")
        start = log.head("a")

        log.append([frame(1)])

        assert numbers(log, start) == [1]
        assert sorted(server.keys("*")) == ["shop:think:live-era", "shop:think:live:a"]
