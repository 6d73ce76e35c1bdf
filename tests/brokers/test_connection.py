"""The publisher's connection to a real Redis: kept, made anew when it was closed, and shared by greenlets."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers.place import Broker
from tests.doors.test_publishing import PATIENCE, an_app, knock
from think_celery.clock import SystemClock
from think_celery.publishing import Publisher

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
from think_celery.clock import SystemClock
from think_celery.publishing import Publisher

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
    assert time.monotonic() - began < 0.4
    assert not publisher.flush(0.3)
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
