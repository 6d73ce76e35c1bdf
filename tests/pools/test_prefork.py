"""The prefork pool: children that die, that are ended, that take turns and go, and that are frozen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy import update

from tests.crash.model import FINAL
from tests.crash.stage import BOUND, LEASE, Stage
from tests.pools.scenes import alive, begin, begun, connect, ended, environment, freeze, hand, holder, row_of
from think_celery.store import processes, tables
from think_celery.store.statements import now

ROOT = Path(__file__).parent.parent.parent
REQUEUED_BY_CELERY = {"POOLS_NO_REQUEUE": "1"}
TO_TWO_LOOKS = LEASE + 2 + 4


def child_of(stage: Stage) -> int:
    """The pid of the child that has the turn in hand."""
    return int(holder(stage).host["pid"])


def stop_ticks(stage: Stage) -> None:
    """Let no pass over processes be admitted, as when other machines make them all."""
    table, leases = tables.ticks, tables.ticks.c.kind == processes.LIVENESS
    stage.db.transact(
        lambda tx: tx.execute(update(table).where(leases).values(last_at=now(stage.rt.monitor.lease * 99)))
    )


class TestAChildThatDies:
    def test_its_parent_frees_its_work_at_once(self, stage: Stage, redis_url: str) -> None:
        """FR-04: killed in a turn, without a redelivery and without a tick: it runs again and completes once."""
        stage.environment.update(REQUEUED_BY_CELERY)
        begin(stage, "prefork", redis_url, {"worker_concurrency": 2})
        connect(stage, redis_url)
        submission = stage.submit("do: note glacially").submission_id
        stage.until(lambda: len(stage.requests()) == 2, BOUND, what="streaming")
        stop_ticks(stage)

        os.kill(child_of(stage), signal.SIGKILL)
        died_at = time.monotonic()
        taken_at = stage.until(stage.taken_over, BOUND, what="taken over")

        assert stage.took(died_at, taken_at) <= 1.0  # half of it on a free machine
        stage.until(stage.turn_ended, 3 * BOUND, what="ended")
        stage.check_answer("do: note glacially", row_of(stage, submission).message_id)
        assert row_of(stage, submission).attempts == 2
        assert stage.counts() == {"note": 1}
        assert len(stage.requests()) == 3

    def test_one_that_is_ended_hands_over(self, stage: Stage, redis_url: str) -> None:
        """A signal to the whole group (systemd), or to one child: its turn goes on elsewhere, and it is replaced."""
        worker = begin(stage, "prefork", redis_url)
        connect(stage, redis_url)
        stage.submit("do: note glacially")
        stage.until(
            lambda: len(stage.messages()) == 2 and len(stage.messages()[-1].text) > 5, BOUND, what="streaming"
        )
        child = child_of(stage)

        os.kill(child, signal.SIGTERM)
        stage.until(stage.taken_over, BOUND, what="taken over")
        stage.until(stage.turn_ended, 3 * BOUND, what="ended")

        stage.check_answer("do: note glacially", stage.submission().message_id)
        assert stage.submission().attempts == 1
        assert child not in [row.host["pid"] for row in alive(stage)]
        worker.signal(signal.SIGTERM)
        assert worker.wait(20) == 0, worker.output()
        assert alive(stage) == []

    def test_one_whose_work_goes_on_is_ended_all_the_same(self, stage: Stage, redis_url: str) -> None:
        """A tool that does not answer keeps a child for five seconds more; then its turn is another's."""
        stage.environment["POOLS_REST"] = "60"
        begin(stage, "prefork", redis_url)
        connect(stage, redis_url)
        submission = hand(stage).submit_messages("do: rest").submission_id
        stage.until(lambda: begun(stage, "rest"), BOUND, what="begun")

        os.kill(child_of(stage), signal.SIGTERM)
        stage.until(lambda: ended(stage, submission), 5 + 2 * BOUND, what="ended")

        assert row_of(stage, submission).status == "completed"
        assert [line["what"] for line in stage.effects()] == ["rest-begun"]  # it may not be repeated


class TestChildrenThatTakeTurns:
    def test_each_leaves_in_order(self, stage: Stage, redis_url: str) -> None:
        """With ``worker_max_tasks_per_child`` a child signs off at its end, and the turns of an agent go on."""
        worker = begin(stage, "prefork", redis_url, {"worker_max_tasks_per_child": 2})
        connect(stage, redis_url)
        agent = hand(stage)
        turns = [agent.submit_messages("do: visit").submission_id for _ in range(5)]
        stage.until(lambda: ended(stage, *turns), 3 * BOUND, what="ended")

        assert {row_of(stage, turn).status for turn in turns} == {"completed"}
        pids = [line["pid"] for line in stage.effects()]
        assert len(pids) == len(turns)
        assert len(set(pids)) >= 3
        assert pids == sorted(pids, key=pids.index)  # one after the other, never to and fro
        assert all(row.suspect_since is None for row in stage.processes())
        assert len(alive(stage)) <= 1
        assert "is dead" not in worker.output()  # nobody was declared dead: each has said so itself


class TestSoftShutdown:
    def test_its_time_is_used(self, stage: Stage, redis_url: str) -> None:
        """``REMAP_SIGTERM=SIGQUIT`` with a soft shutdown, as in Kubernetes: handed over when it begins."""
        conf = {"worker_soft_shutdown_timeout": 8.0}
        log = stage.folder / "command.log"
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.crash.celeryapp",
            "worker",
            "-P",
            "prefork",
            "-l",
            "INFO",
        ]
        given = environment(stage, redis_url, conf, log, REMAP_SIGTERM="SIGQUIT")
        with log.open("w") as output:
            first = subprocess.Popen(
                command, cwd=ROOT, env=given, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            stage.until(lambda: Path(f"{log}.ready").exists(), 30, what="ready")
            connect(stage, redis_url)
            stage.submit("do: note glacially")
            stage.until(lambda: len(stage.requests()) == 2, BOUND, what="streaming")
            begin(stage, "threads", redis_url)

            first.send_signal(signal.SIGTERM)
            told_at = time.monotonic()
            taken_at = stage.until(stage.taken_over, BOUND, what="taken over")
            first.wait(30)
            exited_at = time.monotonic()
        finally:
            first.kill()
            first.wait(10)

        assert exited_at - told_at >= 8.0  # Celery's own wait, whatever the turns do
        assert taken_at - told_at <= 7.0, log.read_text()
        stage.until(stage.turn_ended, 3 * BOUND, what="ended")
        stage.check_answer("do: note glacially", stage.submission().message_id)
        assert stage.submission().attempts == 1
        assert stage.counts() == {"note": 1}


class TestAChildThatWasFrozen:
    def test_it_writes_nothing_after(self, stage: Stage, redis_url: str) -> None:
        """SIGSTOP of a child past its lease, a takeover, SIGCONT: not a word of its own gets between the other's."""
        first = begin(stage, "prefork", redis_url)
        connect(stage, redis_url)
        stage.submit("do: note glacially")
        stage.until(
            lambda: len(stage.messages()) == 2 and len(stage.messages()[-1].text) > 5, BOUND, what="streaming"
        )
        child = child_of(stage)
        freeze(child)
        begin(stage, "threads", redis_url)
        stage.until(stage.taken_over, TO_TWO_LOOKS, what="taken over")

        os.kill(child, signal.SIGCONT)
        stage.until(lambda: "lease was lost" in first.output(), BOUND, what="noticed")
        stage.until(stage.turn_ended, 3 * BOUND, what="ended")
        before = stage.stored()
        time.sleep(1.5)

        assert stage.stored() == before
        stage.check_answer("do: note glacially", stage.submission().message_id)
        assert stage.messages()[-1].text == FINAL
        assert len(stage.requests()) == 3
        assert stage.counts() == {"note": 1}
