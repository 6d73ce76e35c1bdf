"""The gevent pool: what computes without a pause holds up the other greenlets, and never the lease."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.stage import BOUND, LEASE, Stage
from tests.pools.scenes import alive, begin, begun, connect, ended, hand, listener, row_of

LONG = 2 * LEASE + 3.0
"""A greenlet's renewal would be missed, looked at twice, and its work taken over within this time."""


def run_module(name: str, url: str) -> Any:
    """What that program among greenlets prints."""
    told = subprocess.run(
        [sys.executable, "-m", name, url],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


class TestComputing:
    def test_the_lease_is_kept(self, stage: Stage, redis_url: str) -> None:
        """For two leases and more no other greenlet runs, and no other worker takes the turn."""
        stage.environment["POOLS_COMPUTE"] = str(LONG)
        begin(
            stage, "threads", redis_url, {"task_default_queue": "another"}
        )  # it looks for who is out of time
        begin(stage, "gevent", redis_url, {"worker_concurrency": 10})
        connect(stage, redis_url)
        submission = hand(stage).submit_messages("do: compute").submission_id
        stage.until(lambda: begun(stage, "compute"), BOUND, what="begun")
        (process,) = alive(stage)

        beats = set()
        while not ended(stage, submission):
            beats |= {row.until for row in alive(stage) if row.id == process.id}
            assert [row for row in alive(stage) if row.id == process.id], stage.report()
            time.sleep(0.2)

        assert len(beats) >= 2  # it has renewed meanwhile
        row = row_of(stage, submission)
        assert (row.status, row.attempts, row.takeovers) == ("completed", 1, 1)
        assert [line["what"] for line in stage.effects()] == ["compute-begun", "compute"]
        computed = stage.effects()[1]["at"] - stage.effects()[0]["at"]
        assert computed >= LONG

    def test_others_go_on_when_it_waits(self, stage: Stage, redis_url: str) -> None:
        """Twenty turns wait at once in one thread, while as many others write to the live log and read it."""
        stage.environment["POOLS_REST"] = "2"
        begin(stage, "gevent", redis_url, {"worker_concurrency": 40})
        connect(stage, redis_url)
        began = time.monotonic()
        resting = [hand(stage, f"{n}").submit_messages("do: rest").submission_id for n in range(20)]
        listening = [listener(stage, f"{n}").submit_messages("?").submission_id for n in range(20)]
        ended_at = stage.until(lambda: ended(stage, *resting, *listening), 3 * BOUND, what="ended")

        assert {row_of(stage, turn).status for turn in (*resting, *listening)} == {"completed"}
        assert stage.took(began, ended_at) < 20  # one after the other they would rest for 40 s


class TestTheMonitorAmongGreenlets:
    def test_it_renews_in_a_thread_and_tells_in_theirs(self, sqlite_url: str) -> None:
        """A cancel reaches the turn in its own thread, which its events and sockets belong to; renewal is beside."""
        seen = run_module("tests.pools.greenlets", sqlite_url)

        assert seen["waited"] < 10
        assert seen["told here"]
        assert seen["renewed elsewhere"]
        assert seen["renewed meanwhile"] > 0


class TestGreenletsThatEnd:
    def test_one_in_the_middle_of_a_statement_leaves_a_connection_to_nobody(self, postgres_url: str) -> None:
        """Killed or timed out, it ends with that error; whoever asks next is served, and no connection is missing."""
        seen = run_module("tests.pools.killed", postgres_url)

        assert seen["ends"] == {
            way: ["GreenletExit", "Timeout"] * 2 for way in ("transact", "single", "read")
        }
        assert seen["worked"] == [[1, 1, 1]] * 12
        assert seen["kept"] == 0
