"""Workers of one queue among themselves: duplicates, cancels, many threads, other containers, frozen ones."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.crash.model import FINAL
from tests.crash.stage import BOUND, LEASE, Stage
from tests.pools.scenes import (
    alive,
    begin,
    begun,
    connect,
    ended,
    environment,
    freeze,
    hand,
    listener,
    queue_of,
    row_of,
)
from tests.pools.talker import Correspondent, RoundTrip
from think_celery.domain import knocks, recovery
from think_celery.domain.workflows import runs
from think_celery.store import tables

ROOT = Path(__file__).parent.parent.parent
TO_TWO_LOOKS = LEASE + 2 + 4


class TestDuplicates:
    def test_each_ends_quietly(self, stage: Stage, redis_url: str) -> None:
        """FR-05: while a turn of three leases runs, a hundred messages for it start nothing and make no others."""
        stage.environment["POOLS_REST"] = str(3 * LEASE + 1)
        worker = begin(stage, "threads", redis_url, {"worker_concurrency": 2})
        connect(stage, redis_url)
        submission = hand(stage).submit_messages("do: rest").submission_id
        stage.until(lambda: begun(stage, "rest"), BOUND, what="begun")
        knock = knocks.for_submission(row_of(stage, submission))
        received = f"Task {knock.task}[{submission}] received"
        before = worker.output().count(received)

        for _ in range(100):
            stage.rt.knock(knock)
        stage.until(lambda: ended(stage, submission), 3 * BOUND, what="ended")
        refused = re.compile(f"{submission}: (busy|ended-before)")
        stage.until(lambda: len(refused.findall(worker.output())) >= 100, 3 * BOUND, what="all refused")

        assert "busy" in refused.findall(worker.output())
        assert worker.output().count(received) - before <= 200
        row = row_of(stage, submission)
        assert (row.status, row.attempts, row.takeovers) == ("completed", 1, 1)
        assert [line["what"] for line in stage.effects()] == ["rest-begun", "rest"]
        with redis.Redis.from_url(redis_url) as server:
            assert server.llen(queue_of(stage)) == 0


class TestCancels:
    def test_before_any_worker_runs(self, stage: Stage, redis_url: str) -> None:
        """FR-08: cancelled while its message waits: the worker that gets it asks no model."""
        connect(stage, redis_url)
        agent = hand(stage)
        cancelled = agent.submit_messages("do: visit").submission_id
        assert agent.cancel_submission(cancelled)
        after = agent.submit_messages("do:").submission_id

        begin(stage, "threads", redis_url)
        stage.until(lambda: ended(stage, after), BOUND, what="ended")

        assert (row_of(stage, cancelled).status, row_of(stage, after).status) == ("aborted", "completed")
        assert len(stage.requests()) == 1
        assert stage.effects() == []

    @pytest.mark.parametrize("pool", ["prefork", "gevent"])
    def test_while_the_worker_stops(self, stage: Stage, redis_url: str, pool: str) -> None:
        """FR-08: in a warm shutdown that a tool holds up, a cancel closes the other turn's connection at once."""
        stage.environment["POOLS_REST"] = "10"
        worker = begin(stage, pool, redis_url, {"worker_concurrency": 2})
        connect(stage, redis_url)
        resting = hand(stage, "resting").submit_messages("do: rest").submission_id
        streaming = hand(stage, "streaming").submit_messages("do: slowest").submission_id
        text = lambda: "".join(m.text for m in hand(stage, "streaming").messages[1:])  # noqa: E731
        stage.until(lambda: begun(stage, "rest") and len(text()) > 5, BOUND, what="streaming")
        (request,) = [
            each
            for each in stage._model.seen
            if "slowest" in str(each.body) and each.body["model"] == stage.name
        ]

        worker.signal(signal.SIGTERM)
        told_at = time.monotonic()
        hand(stage, "streaming").cancel_submission(streaming)
        stage.until(request.left.is_set, BOUND, what="closed")

        assert stage.took(told_at, time.monotonic()) <= 2.0
        assert worker.wait(30) == 0, worker.output()
        assert row_of(stage, streaming).status == "aborted"
        assert FINAL.startswith(text())
        assert text()
        assert row_of(stage, resting).status == "pending"  # its tool has ended, and its answer is another's
        assert row_of(stage, resting).attempts == 0
        assert [line["what"] for line in stage.effects()] == ["rest-begun", "rest"]
        assert alive(stage) == []
        assert all(row.process_id is None for row in stage.rows(tables.lines))


class TestStopping:
    @pytest.mark.parametrize("pool", ["prefork", "threads"])
    def test_of_who_rests_before_a_read(self, stage: Stage, redis_url: str, pool: str) -> None:
        """Whoever reads an answer that trickles sleeps nearly always. Cancelled, its turn ends within a second, as
        the rule is; after SIGTERM its part is stored, and the turn waits for another worker. That is no attempt."""
        worker = begin(stage, pool, redis_url)
        connect(stage, redis_url)
        asked = lambda: [each for each in stage._model.seen if each.body["model"] == stage.name]  # noqa: E731
        said = lambda name: "".join(message.text for message in hand(stage, name).messages[1:])  # noqa: E731
        turns = {
            name: hand(stage, name).submit_messages("trickling").submission_id for name in ("one", "two")
        }
        stage.until(
            lambda: "60 61 62" in said("one"), 2 * BOUND, what="trickling"
        )  # its reads rest in full by now

        hand(stage, "one").cancel_submission(turns["one"])
        told_at = time.monotonic()
        left_at = stage.until(asked()[0].left.is_set, BOUND, what="closed")
        stage.until(lambda: "60 61 62" in said("two"), 3 * BOUND, what="the next one trickling")
        worker.signal(signal.SIGTERM)
        stopped_at = time.monotonic()
        handed_over_at = stage.until(
            lambda: row_of(stage, turns["two"]).status == "pending", BOUND, what="handed over"
        )
        part, attempts = said("two"), row_of(stage, turns["two"]).attempts
        assert worker.wait(20) == 0, worker.output()

        assert stage.took(told_at, left_at) <= 2.0
        assert (row_of(stage, turns["one"]).status, said("one")[:8]) == ("aborted", "0 1 2 3 ")
        assert stage.took(stopped_at, handed_over_at) <= 2.0
        assert asked()[1].left.is_set()
        assert (attempts, part) == (0, said("two"))
        assert part.startswith("0 1 2 3 ")


class TestThreads:
    def test_each_turn_reads_its_own_events(self, stage: Stage, redis_url: str) -> None:
        """FR-10: two hundred turns in sixteen threads write to the live log and read it, over one client."""
        worker = begin(stage, "threads", redis_url, {"worker_concurrency": 16})
        connect(stage, redis_url)
        turns = [listener(stage, f"{n % 40}").submit_messages("?").submission_id for n in range(200)]
        stage.until(lambda: ended(stage, *turns), 8 * BOUND, what="ended")

        assert {(row.status, row.error) for row in map(partial(row_of, stage), turns)} == {
            ("completed", None)
        }
        heard = [m.text for n in range(40) for m in listener(stage, f"{n}").messages if m.role == "assistant"]
        assert len(heard) == len(set(heard)) == 200
        assert all(text.endswith(" heard") for text in heard)
        assert not re.search("ERROR|Traceback|can't be", worker.output())


class TestQueues:
    def test_a_step_runs_where_its_queue_is_consumed(self, stage: Stage, redis_url: str) -> None:
        """Two workers of one app, one for each queue: the run goes to the other one for its step, and comes back."""
        other = f"{queue_of(stage)}-gpu"
        home, away = begin(stage, "threads", redis_url), begin(stage, "threads", redis_url, listens=other)
        connect(stage, redis_url)
        agent = Correspondent._bound_to(stage.rt, "ann")

        errand = agent.run_workflow(RoundTrip, {"queue": other})
        stage.until(
            lambda: runs.look_up(stage.rt, errand, RoundTrip).status == "complete", BOUND, what="done"
        )

        assert runs.look_up(stage.rt, errand, RoundTrip).output == ["here done", "there done", "back done"]
        did = [(line["what"], line["pid"]) for line in stage.effects()]
        assert did == [("here", home.pid), ("there", away.pid), ("back", home.pid)]


class TestElsewhere:
    def test_another_container_is_not_declared_dead(self, stage: Stage, redis_url: str) -> None:
        """On the same machine, in a pid namespace of its own: its pid is nobody's here, or another's."""
        log = stage.folder / "elsewhere.log"
        stage.environment["POOLS_REST"] = "5"
        given = environment(stage, redis_url, None, log, CRASH_KIND="threads")
        with log.open("w") as output:
            first = subprocess.Popen(
                [*in_a_namespace(), sys.executable, "-m", "tests.crash.worker"],
                cwd=ROOT,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            stage.until(lambda: Path(f"{log}.ready").exists(), 30, what="ready")
            connect(stage, redis_url)
            submission = hand(stage).submit_messages("do: rest").submission_id
            stage.until(lambda: begun(stage, "rest"), BOUND, what="begun")
            begin(stage, "threads", redis_url)
            (there,) = [row for row in alive(stage) if row.host["namespace"] != own_namespace()]
            assert there.host["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            recovery.sweep(stage.rt)
            stage.until(lambda: ended(stage, submission), 2 * BOUND, what="ended")
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(10)

        assert [row.dead for row in stage.processes() if row.id == there.id] == [False]
        row = row_of(stage, submission)
        assert (row.status, row.attempts, row.takeovers) == ("completed", 1, 1)
        assert [line["what"] for line in stage.effects()] == ["rest-begun", "rest"]


def own_namespace() -> str:
    """The pid namespace of this process."""
    return os.readlink("/proc/self/ns/pid")


def in_a_namespace() -> list[str]:
    """What starts a program in a pid namespace of its own: as root, or as whoever may be root in one of users."""
    unshare = shutil.which("unshare") or "unshare"
    plain = [unshare, "--pid", "--fork", "--mount-proc", "--kill-child"]
    for command in (plain, [*plain, "--user", "--map-root-user"]):
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    pytest.fail("no pid namespace can be made here; run this as root, or allow user namespaces")


class TestFrozen:
    @pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
    def test_it_writes_nothing_after(self, stage: Stage, redis_url: str, pool: str) -> None:
        """SIGSTOP past its lease, a takeover, SIGCONT: what the other one wrote stays as it is."""
        first = begin(stage, pool, redis_url)
        connect(stage, redis_url)
        stage.submit("do: note glacially")
        stage.until(lambda: stored(stage), BOUND, what="streaming")
        freeze(first.pid)
        begin(stage, "threads", redis_url)
        stage.until(stage.taken_over, TO_TWO_LOOKS, what="taken over")

        first.thaw()
        stage.until(lambda: "lease was lost" in first.output(), BOUND, what="noticed")
        stage.until(stage.turn_ended, 3 * BOUND, what="ended")
        before = stage.stored()
        time.sleep(1.5)

        assert stage.stored() == before
        stage.check_answer("do: note glacially", stage.submission().message_id)
        assert len(stage.requests()) == 3
        assert stage.counts() == {"note": 1}


def stored(stage: Stage) -> Any:
    """Whether a part of the answer is stored."""
    messages = stage.messages()
    return len(messages) == 2 and len(messages[-1].text) > 5


@pytest.mark.parametrize("database", ["sqlite"])
class TestTheBrokerInMemory:
    @pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
    def test_one_process_is_all_of_it(self, stage: Stage, pool: str) -> None:
        """Pools that do not fork can have the broker memory://; the tick finds what was submitted elsewhere."""
        stage.submit("do: note post")
        worker = stage.start(pool)
        worker.marked("ready")
        stage.until(stage.turn_ended, BOUND, what="ended")
        stage.check_answer("do: note post", None)
        stage.start_saga("do:")
        worker.signal(signal.SIGTERM)

        assert worker.wait(20) == 0, worker.output()
        assert alive(stage) == []
