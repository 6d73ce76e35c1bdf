"""The database stands still for three leases: nobody is declared dead, and nothing is done twice."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests import servers
from tests.crash.chaos import children_of
from tests.crash.stage import BOUND, LEASE
from tests.faults.conftest import StageOn
from think_celery.store.migrate import upgrade

pytestmark = pytest.mark.services


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A PostgreSQL of the test's own."""
    with servers.own_postgres() as own:
        upgrade(own.url)
        yield own


def signal_all(server: servers.Server, number: signal.Signals) -> None:
    """Send a signal to the server and all of its processes."""
    os.kill(server.pid, number)
    for pid in children_of(server.pid):
        os.kill(pid, number)


@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_no_live_work_is_taken_over(
    stage_on: StageOn, server: servers.Server, kind: str, redis_url: str
) -> None:
    """P7, P15: after a stall of everybody each worker renews before the second look at it; the turn goes on.

    Two workers: one streams, and the other would take over.
    """
    stage = stage_on(server.url)
    options = {"broker": redis_url, "queue": "stall"}
    stage.submit("do: note slowest")
    workers = [stage.start(kind, **options)]
    stage.until(lambda: len(stage.requests()) == 2, BOUND + 5, what="streaming")
    workers.append(stage.start(kind, **options))
    workers[1].marked("ready")
    stage.until(lambda: len(stage.messages()[-1].text) > 5, BOUND, what="stored in part")

    signal_all(server, signal.SIGSTOP)
    time.sleep(3 * LEASE + 0.5)
    signal_all(server, signal.SIGCONT)

    stage.until(stage.turn_ended, 2 * BOUND, what="ended")
    row = stage.submission()
    assert (row.takeovers, row.attempts) == (1, 1), stage.report()
    stage.check_answer("do: note slowest", row.message_id)
    assert stage.counts() == {"note": 1}
    assert len(stage.requests()) == 2
    assert not [process for process in stage.processes() if process.dead]
    assert all(worker.running for worker in workers)
