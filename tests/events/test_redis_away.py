"""A Redis that is down, hangs, refuses, or is shared: it costs listeners smoothness and nothing else."""

import logging
import multiprocessing
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import redis

from tests import servers
from tests.events.away import own_log, read_again, refuses, wait_until
from tests.events.contract import frame, numbers
from think_celery.events.redis import RedisEventLog
from think_celery.events.writer import LiveWriter

pytestmark = pytest.mark.services

PASSWORD, WORDS = "s3cr3t-password", "what nobody else may read"
AT_ONCE = 15.0
"""Seconds that a call may take here on a busy machine. Its own limit is a quarter of one for each thing that it
waits for; a hundred looks that each waited so long would take more, and a call without a limit would not end."""


def seconds(call, *arguments):
    """What the call gave, or raised, and how long it took."""
    began = time.monotonic()
    try:
        given = call(*arguments)
    except ConnectionError as error:
        given = error
    return given, time.monotonic() - began


class TestAway:
    def test_a_redis_that_accepts_and_never_answers(self):
        """Appending raises at once, reading is silent at once, and both go on when it wakes: nothing is lost."""
        with own_log() as (log, own):
            log.append([frame(1)])
            cursor = log.head("a")
            os.kill(own.pid, signal.SIGSTOP)
            try:
                error, appending = seconds(log.append, [frame(2)])
                page, reading = seconds(log.read, "a", cursor)
                _, looking = seconds(lambda: [log.head("a") for _ in range(100)])
                fresh = RedisEventLog(own.url)
                refused, connecting = seconds(fresh.append, [frame(2)])
            finally:
                os.kill(own.pid, signal.SIGCONT)

            assert isinstance(error, ConnectionError)
            assert isinstance(refused, ConnectionError)
            assert (list(page.frames), page.cursor, page.lost) == ([], cursor, False)
            assert max(appending, reading, looking, connecting) < AT_ONCE
            log.append([frame(3)])
            assert read_again(log, cursor).frames[-1].n == 3

    def test_a_host_that_takes_no_connection(self):
        """A listener whose queue is full: connecting has the same limit."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            waiting = []
            for _ in range(4):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(full.getsockname())
            log = RedisEventLog(f"redis://127.0.0.1:{full.getsockname()[1]}/0")

            error, appending = seconds(log.append, [frame(1)])
            cursor, looking = seconds(log.head, "a")

            assert isinstance(error, ConnectionError)
            assert max(appending, looking) < AT_ONCE
            assert not log.read("a", cursor).frames
            for each in waiting:
                each.close()

    def test_a_turn_never_waits_for_it(self, caplog):
        """Putting frames takes no time while Redis hangs, and the writer gives up after one write."""
        with own_log() as (log, own):
            writer = LiveWriter(log)
            os.kill(own.pid, signal.SIGSTOP)
            try:
                _, took = seconds(lambda: [writer.put(frame(n)) for n in range(1, 2000)])
                _, flushing = seconds(writer.flush, 60)
            finally:
                os.kill(own.pid, signal.SIGCONT)

            assert took < AT_ONCE
            assert flushing < AT_ONCE
            assert len([r for r in caplog.records if "can't be written" in r.message]) == 1
            writer.close()

    def test_connections_that_the_server_closed(self):
        """Idle ones are closed by servers and firewalls: the next use opens another, without a failure."""
        with own_log() as (log, own), redis.Redis.from_url(own.url) as admin:
            start = log.head("a")
            for n in range(1, 11):
                admin.client_kill_filter(_type="normal", skipme=True)
                log.append([frame(n)])
                admin.client_kill_filter(_type="normal", skipme=True)
                assert numbers(log, start)[-1] == n

    def test_after_an_outage_it_is_said_once(self, caplog):
        """One line when reading fails, one when it works again; not one for each read."""
        caplog.set_level(logging.INFO)
        with own_log() as (log, own):
            cursor = log.head("a")
            os.kill(own.pid, signal.SIGKILL)
            wait_until(lambda: refuses(own.url))
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                log.read("a", cursor)
            with servers.own_redis(port=urlsplit(own.url).port):
                read_again(log, cursor)

            lines = [r.message for r in caplog.records if r.name == "think_celery.events"]
            assert len(lines) == 2
            assert "can't be read (ConnectionError" in lines[0]
            assert lines[1] == "the live log is read again"

    @pytest.mark.parametrize(
        ("setting", "value", "said"),
        [("maxmemory", "1", "OutOfMemoryError"), ("min-replicas-to-write", "1", "NOREPLICAS")],
    )
    def test_a_redis_that_refuses_writes(self, caplog, setting, value, said):
        """FR-14: the frames are refused as a whole, and neither error nor log quotes them."""
        with own_log() as (log, own), redis.Redis.from_url(own.url) as admin:
            start = log.head("a")
            admin.config_set(setting, value)

            with pytest.raises(ConnectionError, match=said) as caught:
                log.append([frame(1, delta=WORDS), frame(2, "b", delta=WORDS)])
            writer = LiveWriter(log, synchronous=True)
            writer.put(frame(3, delta=WORDS))
            admin.config_set(setting, "0")

            assert "can't be written" in caplog.text
            for shown in (str(caught.value), caplog.text):
                assert WORDS not in shown
                assert "XADD" not in shown
            log.append([frame(4)])
            assert numbers(log, start) == [4]

    def test_a_key_of_another_program(self):
        """Where a key of ours is no stream, writing is refused, reading is silent, and nothing is quoted."""
        with own_log() as (log, own), redis.Redis.from_url(own.url) as admin:
            cursor = log.head("a")
            admin.set("think:live:a", "somebody's")

            with pytest.raises(ConnectionError, match="WRONGTYPE") as caught:
                log.append([frame(1, delta=WORDS)])

            assert "XADD" not in str(caught.value)
            assert not log.read("a", cursor).frames
            assert admin.get("think:live:a") == b"somebody's"


class TestPasswords:
    def test_a_password_is_shown_nowhere(self, caplog):
        """In no representation, no error and no log, whether it is right or wrong."""
        with servers.own_redis() as own, redis.Redis.from_url(own.url) as admin:
            admin.config_set("requirepass", PASSWORD)
            right, wrong = (
                RedisEventLog(own.url.replace("//", f"//:{password}@"))
                for password in (PASSWORD, f"not-{PASSWORD}")
            )
            right.append([frame(1)])
            with pytest.raises(ConnectionError) as caught:
                wrong.append([frame(1)])
            LiveWriter(wrong, synchronous=True).put(frame(1))

            assert not wrong.read("a", right.head("a")).frames
            shown = [repr(right), str(vars(right)["_client"]), repr(caught.value), caplog.text]
            assert "can't be read" in caplog.text
            assert [text for text in shown if PASSWORD in text] == []

    def test_tls_is_spoken_when_the_url_asks_for_it(self):
        """`rediss://` opens with a TLS handshake, and never sends the password in the clear."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            log = RedisEventLog(f"rediss://:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}/0")
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(seconds, log.append, [frame(1)])
                connection, _ = listener.accept()
                sent = connection.recv(1000)
                connection.close()
                error, _ = writing.result()

        assert isinstance(error, ConnectionError)
        assert sent[:2] == b"\x16\x03"  # a handshake record of TLS


class TestSharing:
    def test_threads_share_a_log(self, redis_url):
        """FR-10: 16 threads write and read at once, and each finds its own frames, and no other's."""
        log = RedisEventLog(redis_url)

        def turns(thread):
            agent = f"agent-{thread}"
            cursor, seen = log.head(agent), []
            for n in range(1, 14):
                log.append([frame(n, agent, message=agent)])
                page = log.read(agent, cursor)
                cursor = page.cursor
                seen += [(f.agent_id, f.message_id, f.n) for f in page.frames]
            return seen == [(agent, agent, n) for n in range(1, 14)]

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(turns, range(16))) == [True] * 16
        log.close()

    def test_a_child_has_connections_of_its_own(self, redis_url):
        """FR-10: parent and child go on at once after a fork, and neither gets an answer that is the other's."""
        log = RedisEventLog(redis_url)
        log.append([frame(1, "parent")])

        def turns(agent):
            cursor = log.head(agent)
            for n in range(1, 201):
                log.append([frame(n, agent)])
                page = log.read(agent, cursor)
                cursor = page.cursor
                if [(f.agent_id, f.n) for f in page.frames] != [(agent, n)]:
                    return False
            return True

        context = multiprocessing.get_context("fork")
        children = [
            context.Process(target=lambda name=name: os._exit(0 if turns(name) else 3)) for name in "bcd"
        ]
        for child in children:
            child.start()
        parent = turns("parent")
        for child in children:
            child.join(60)

        assert parent
        assert [child.exitcode for child in children] == [0, 0, 0]
        log.close()
