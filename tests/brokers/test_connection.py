"""The publisher's connection to a real Redis: kept, made anew when it was closed, and shared by greenlets."""

import gc
import importlib.util
import os
import subprocess
import sys
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.brokers.place import Broker
from tests.doors.test_publishing import PATIENCE, an_app, knock
from think_celery import brokers
from think_celery.app import ThinkCelery
from think_celery.brokers import Lengths
from think_celery.clock import SystemClock
from think_celery.publishing import Publisher
from think_celery.runtime import set_current
from think_celery.testing import FakeClock

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.services


def test_one_connection_is_kept() -> None:
    """Hundreds of knocks, sent together and one by one, open no second one."""
    with Broker() as broker:
        publisher = Publisher(an_app(broker.url), SystemClock())
        publisher(knock(0, queue="kept"))
        assert publisher.flush(PATIENCE)
        before = broker.client.info("stats")["total_connections_received"]  # type: ignore[index]

        for number in range(1, 300):
            publisher(knock(number, queue="kept"))
            if number % 7 == 0:
                assert publisher.flush(PATIENCE)

        assert publisher.flush(PATIENCE)
        assert broker.client.llen("kept") == 300
        assert broker.client.info("stats")["total_connections_received"] == before  # type: ignore[index]


def test_one_that_was_closed_costs_no_knock(caplog: pytest.LogCaptureFixture) -> None:
    """Redis and firewalls close connections that were idle; the next knock goes over a new one, without a word."""
    with Broker() as broker:
        publisher = Publisher(an_app(broker.url), SystemClock())
        publisher(knock(0, queue="closed"))
        assert publisher.flush(PATIENCE)
        broker.client.client_kill_filter(_type="normal", skipme=True)

        publisher(knock(1, queue="closed"))

        assert publisher.flush(PATIENCE)
        assert broker.client.llen("closed") == 2
        assert [record for record in caplog.records if record.name.startswith("think_celery")] == []


GREENLETS = """
from gevent import monkey; monkey.patch_all()
import socket, sys, time
import gevent
from tests.doors.test_publishing import an_app, knock
from think_celery import publishing
from think_celery.clock import SystemClock
from think_celery.publishing import Publisher

publishing.SOCKET_SECONDS = 600.0
turns = 0
def others():
    global turns
    while True:
        turns += 1
        gevent.sleep(0.01)
gevent.spawn(others)

publisher = Publisher(an_app(sys.argv[1]), SystemClock())
callers = [gevent.spawn(publisher, knock(number, queue="green")) for number in range(50)]
gevent.joinall(callers, raise_error=True)
assert publisher.flush(20)

with socket.create_server(("127.0.0.1", 0)) as silent:
    publisher = Publisher(an_app(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"), SystemClock())
    before, began = turns, time.monotonic()
    publisher(knock(0))
    assert time.monotonic() - began < 20
    assert not publisher.flush(1)
    assert turns - before >= 10, turns - before
"""


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
def test_greenlets_share_it_and_none_is_held_up() -> None:
    """In a patched process the thread is a greenlet: fifty send through it, and a silent broker stops nobody."""
    with Broker() as broker:
        done = subprocess.run(
            [sys.executable, "-c", GREENLETS, broker.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert done.returncode == 0, done.stderr
        assert broker.client.llen("green") == 50


class TestLengths:
    def test_it_says_how_much_waits_in_a_queue(self) -> None:
        """Over one connection; none waits in a queue that there is not, and nothing is known while Redis is away."""
        with Broker() as broker:
            app = an_app(broker.url)
            publisher, lengths = Publisher(app, SystemClock()), Lengths(app, SystemClock())
            for number in range(7):
                publisher(knock(number, queue="long"))
            assert publisher.flush(PATIENCE)

            assert [lengths.of(name) for name in ("long", "nobodys", "long")] == [7, 0, 7]
            broker.restart()
            assert lengths.of("long") in (0, None)  # over a connection that the server has closed
            broker.stop()
            assert [lengths.of("long") for _ in range(3)] == [None] * 3

    def test_one_queue_that_is_refused_is_the_only_one_of_which_nothing_is_known(self) -> None:
        """Nor does it, or one that there is not, cost a new connection."""
        with Broker() as broker:
            lengths = Lengths(an_app(broker.url), SystemClock())
            broker.client.rpush("long", *"abc")
            broker.client.set("wrong", "no list")
            assert lengths.of("long") == 3
            before = broker.client.info("stats")["total_connections_received"]  # type: ignore[index]

            found = [lengths.of(name) for name in ("wrong", "long", "nobodys", "long")]

            assert found == [None, 3, 0, 3]
            assert broker.client.info("stats")["total_connections_received"] == before  # type: ignore[index]
            lengths.close()

    def test_a_queue_from_which_messages_are_taken_is_served(self) -> None:
        """What waits there is not counted, however much it is: one who waits behind it is not stuck."""
        with Broker() as broker:
            clock = FakeClock()
            lengths = Lengths(an_app(broker.url), clock)
            broker.client.rpush("long", *"abcdefg")

            def later() -> int | None:
                clock.advance(timedelta(seconds=1))
                return lengths.unserved("long")

            seen = [later(), later()]
            broker.client.lpop("long")
            at_once = lengths.unserved("long")  # what was seen less than a second ago is not asked for again
            seen.append(later())
            seen.append(lengths.unserved("long"))
            seen.append(later())
            broker.client.rpush("long", "h")
            seen.append(later())

            assert seen == [None, 7, None, None, 6, 7]
            assert at_once == 7
            lengths.close()

    def test_one_that_is_closed_while_it_asks_leaves_no_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A runtime is closed by one thread, while another one makes the tick's pass."""
        lengths, ask, used = Lengths(an_app("memory://"), SystemClock()), Lengths._length, []

        def closed_meanwhile(self: Lengths, connection: Any, queue: str) -> int | None:
            self.close()
            used.append(connection)
            return ask(self, connection, queue)

        monkeypatch.setattr(Lengths, "_length", closed_meanwhile)

        assert lengths.of("long") == 0
        assert [connection.connected for connection in used] == [False]

    def test_it_is_asked_again_after_a_while(self) -> None:
        """Five seconds after it could not be asked."""
        with Broker() as broker:
            clock = FakeClock()
            lengths = Lengths(an_app(broker.url), clock)
            broker.stop()
            away = lengths.of("long")
            broker.start()
            still = lengths.of("long")
            clock.advance(timedelta(seconds=5.1))

            assert (away, still, lengths.of("long")) == (None, None, 0)

    def test_a_child_leaves_its_parents_connection_alone(self) -> None:
        """It is kept there unused: what some libraries do with a connection that nobody has ends it for both."""
        app = an_app("memory://")
        app.connection_for_write().default_channel.queue_declare("long")
        lengths = Lengths(app, SystemClock())
        assert lengths.of("long") == 0
        of_parent = weakref.ref(lengths._connection)

        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0 if lengths._connection is None and of_parent() is not None else 1)

        assert os.waitpid(child, 0)[1] == 0
        lengths.close()

    def test_the_runtime_asks_for_the_queue_that_a_knock_goes_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That is the app's to say; a router may send it anywhere."""
        monkeypatch.setattr(brokers, "SEEN_SECONDS", 0.0)
        with Broker() as broker:
            app = Celery("lengths", broker=broker.url, set_as_current=False)
            app.conf.update(
                task_routes={"think.*": {"queue": "routed"}}, think_database_url=f"sqlite:///{tmp_path}/it.db"
            )
            broker.client.rpush("routed", *"abc")
            broker.client.rpush("own", "a")
            before = set_current(None)
            think = ThinkCelery(app)
            try:
                for queue, length in ((None, 3), ("own", 1)):
                    assert think.runtime.waiting(knock(0, queue=queue)) is None  # it may be served
                    assert think.runtime.waiting(knock(0, queue=queue)) == length
            finally:
                think.close()
                set_current(before)
