"""A real Celery worker: it starts, serves, hands over when it is told to stop, and says nothing secret."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.crash.model import FINAL
from tests.crash.stage import BOUND, TICK, Stage
from think_celery.app import ThinkCelery
from think_celery.clock import SystemClock
from think_celery.publishing import Publisher

MISSED = 2.0
ROOT = Path(__file__).parent.parent.parent


@contextmanager
def command(stage: Stage, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """``celery -A … worker``, started as a user does."""
    log = stage.folder / "command.log"
    given: Mapping[str, str] = {**os.environ, **stage.environment, "CRASH_LOG": str(log), **environment}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.crash.celeryapp", "worker", *arguments],
            cwd=ROOT,
            env=dict(given),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def output(stage: Stage) -> str:
    """What the command wrote."""
    return (stage.folder / "command.log").read_text(errors="replace")


class TestTheCommand:
    def test_it_starts_serves_and_stops(self, stage: Stage) -> None:
        """With the broker memory:// and the threads pool one command is all of it; SIGTERM ends it in order."""
        stage.submit("do: note post")
        with command(stage, "--pool", "threads", "--loglevel", "info") as worker:
            stage.until(stage.turn_ended, 20, what="ended")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0, output(stage)

        stage.check_answer("do: note post", None)
        assert "succeeded" in output(stage)
        assert "note" not in output(stage).replace("[tasks]", "")  # no text and no argument in the log
        assert not [row for row in stage.processes() if not row.dead]  # it has left nothing to wait for

    def test_prefork_with_a_broker_in_memory_is_refused(self, stage: Stage) -> None:
        """The broker lives in one process and the pool forks others: nothing would ever arrive."""
        with command(stage, "--pool", "prefork") as worker:
            code = worker.wait(30)

        assert code != 0
        assert "The broker memory:// lives in one process, and the prefork pool forks others." in output(
            stage
        )
        assert "--pool threads" in output(stage)

    def test_a_wrong_setting_is_said_at_the_start(self, stage: Stage) -> None:
        """A worker with an unfit setting does not start at all."""
        with command(stage, "--pool", "threads", THINK_LEASE="soon") as worker:
            code = worker.wait(30)

        assert code != 0
        assert "THINK_LEASE" in output(stage)
        assert "span of time" in output(stage)


class TestStoppingInOrder:
    """SIGTERM in the middle of an answer: what there is of it is stored, and another worker goes on there."""

    def stop_in_mid_stream(self, stage: Stage, **options: str) -> float:
        """Two workers, of which the one that streams is told to stop; returns when."""
        stage.submit("do: note slowest")
        first = stage.start("threads", **options)
        first.marked("ready")
        stage.until(lambda: len(stage.requests()) == 2, BOUND, what="streaming")
        second = stage.start("threads", **options)
        second.marked("ready")
        stage.until(lambda: len(stage.messages()[-1].text) > 5, BOUND, what="stored in part")
        assert not stage.turn_ended()

        first.signal(signal.SIGTERM)
        told_at = time.monotonic()
        stage.until(
            lambda: stage.submission().status == "pending" or stage.taken_over(), 3, what="handed over"
        )
        self.cut = stage.messages()[-1].text
        assert first.wait(30) == 0, first.output()
        return told_at

    def check(self, stage: Stage) -> None:
        """The answer is whole, and no attempt was used up."""
        stage.until(stage.turn_ended, BOUND, what="ended")
        assert self.cut
        assert FINAL.startswith(self.cut)
        stage.check_answer("do: note slowest", stage.submission().message_id)
        assert stage.submission().attempts == 1  # that of the second worker; the first one's does not count
        assert stage.counts() == {"note": 1}
        assert len(stage.requests()) == 3
        said = next(m for m in reversed(stage.requests()[-1]["messages"]) if m["role"] == "assistant")
        assert FINAL.startswith(said["content"])
        assert said["content"] != FINAL

    def test_the_tick_of_another_takes_it_up(self, stage: Stage) -> None:
        """Without a broker in common another worker's tick finds it: two seconds and a tick."""
        told_at = self.stop_in_mid_stream(stage)
        taken_at = stage.until(stage.taken_over, BOUND, what="taken over")

        assert stage.took(told_at, taken_at) <= MISSED + 2 * TICK + 1
        self.check(stage)

    def test_a_knock_calls_another(self, stage: Stage, redis_url: str) -> None:
        """With a broker in common it goes on at once."""
        queue = f"crash-{stage.name}"
        told_at = self.stop_in_mid_stream(stage, broker=redis_url, queue=queue)
        taken_at = stage.until(stage.taken_over, BOUND, what="taken over")

        assert stage.took(told_at, taken_at) <= 2.0
        self.check(stage)


@pytest.mark.services
@pytest.mark.parametrize("database", ["postgresql"])
class TestARealBroker:
    def test_knocks_go_through_redis(self, stage: Stage, redis_url: str) -> None:
        """A caller's knock starts the turn at once, and the whole chain of a workflow runs on knocks."""
        queue = f"crash-{stage.name}"
        stage.start("threads", broker=redis_url, queue=queue).marked("ready")
        stage.knock_through(publisher(redis_url, queue))

        began = time.monotonic()
        stage.start_saga("do: note")
        stage.send_go()
        ended_at = stage.until(stage.saga_ended, BOUND, what="ended")

        assert stage.took(began, ended_at) <= MISSED  # no hop has waited for the tick
        stage.check_saga("do: note", None)

    def test_messages_hold_ids_and_nothing_else(self, stage: Stage, redis_url: str) -> None:
        """Nothing secret travels: what lies in the broker names rows, and no text of anybody."""
        queue = f"crash-{stage.name}"
        knock = publisher(redis_url, queue)
        stage.knock_through(knock)
        secret = "my-password-is-tulip"

        submission = stage.agent.submit_messages(f"do: note {secret}", metadata={"private": secret})
        stage.agent.run_workflow("Saga", {"prompt": secret}, workflow_id="saga-2", metadata={"p": secret})
        assert knock.flush(10)

        with redis.Redis.from_url(redis_url) as server:
            raw = server.lrange(queue, 0, -1)
            everything = b"".join(
                server.dump(key) or b""
                for key in server.keys("*")  # type: ignore[union-attr]
            )
        assert len(raw) == 2
        assert secret.encode() not in everything
        bodies = {}
        for text in raw:
            message = json.loads(text)
            assert secret not in text.decode()
            assert message["content-type"] == "application/json"
            headers = message["headers"]
            bodies[headers["task"]] = (headers, json.loads(base64.b64decode(message["body"])))
        headers, (args, kwargs, _) = bodies["think.submission.run"]
        assert (headers["id"], args, kwargs) == (
            submission.submission_id,
            [],
            {"submission_id": submission.submission_id},
        )
        assert (
            headers["kwargsrepr"] == f"{{'submission': '{submission.submission_id}', 'agent': 'Scribe/ada'}}"
        )
        _, (args, kwargs, _) = bodies["think.workflow.advance"]
        assert (args, kwargs) == ([], {"workflow": "Saga", "workflow_id": "saga-2"})


def publisher(broker: str, queue: str) -> Publisher:
    """What a client's process knocks with."""
    app = Celery("client", broker=broker, set_as_current=False)
    app.conf.task_default_queue = queue
    ThinkCelery(app)
    return Publisher(app, SystemClock())
