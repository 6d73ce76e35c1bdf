"""The database stands still for three leases: nobody is declared dead, and nothing is done twice."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psycopg
import pytest

from tests import servers
from tests.crash.chaos import children_of
from tests.crash.stage import BOUND, LEASE
from tests.crash.test_takeover import SECOND_LOOK
from tests.faults.conftest import StageOn
from think_celery.store.migrate import upgrade

pytestmark = [pytest.mark.services, pytest.mark.once]  # its PostgreSQL is always one of the wheels


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A PostgreSQL of the test's own."""
    with servers.own_postgres() as own:
        upgrade(own.url)
        yield own


def sessions(server: servers.Server) -> set[int]:
    """The server's processes that serve somebody now."""
    with psycopg.connect(servers.plain_url(server.url)) as conn:
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return {pid for (pid,) in conn.execute(f"SELECT pid FROM pg_stat_activity WHERE {others}".encode())}


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes of the server."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.parametrize("kind", ["threads", "prefork"])
def test_no_live_work_is_taken_over(
    server: servers.Server, stage_on: StageOn, kind: str, redis_url: str
) -> None:
    """After a stall each worker has time to renew before the second look at it; the turn goes on.

    Two workers: one streams, and the other would take over. The sessions of the first come back a second later.
    """
    stage = stage_on(server.url)
    options = {"broker": redis_url, "queue": "stall"}
    stage.submit("do: note slowest")
    first = stage.start(kind, **options)
    stage.until(lambda: len(stage.requests()) == 2, BOUND + 5, what="streaming")
    stage.until(lambda: len(stage.messages()[-1].text) > 5, BOUND, what="stored in part")
    stage.rt.db.dispose()
    of_first = sessions(server)
    second = stage.start(kind, **options)
    second.marked("ready")

    everyone = [server.pid, *children_of(server.pid)]
    send(everyone, signal.SIGSTOP)
    time.sleep(3 * LEASE)
    send((pid for pid in everyone if pid not in of_first), signal.SIGCONT)
    time.sleep(SECOND_LOOK / 2)
    send(of_first, signal.SIGCONT)

    stage.until(stage.turn_ended, 2 * BOUND, what="ended")
    row = stage.submission()
    assert (row.takeovers, row.attempts) == (1, 1), stage.report()
    stage.check_answer("do: note slowest", row.message_id)
    assert stage.counts() == {"note": 1}
    assert len(stage.requests()) == 2
    assert not [process for process in stage.processes() if process.dead]
    assert first.running
    assert second.running
