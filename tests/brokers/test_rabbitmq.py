"""RabbitMQ as the broker: turns and workflows run on knocks; a purged queue and a killed worker lose nothing."""

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kombu import Connection

from tests.brokers.place import WITHIN, all_completed, client, queue_of, start_worker, submit
from tests.crash.stage import BOUND, TICK, Stage
from tests.crash.test_failpoints import SIGKILLED

URL = os.environ.get("TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
MISSED = 2.0


@contextmanager
def rabbitmq(stage: Stage) -> Iterator[Connection]:
    """A connection to it; afterwards the stage's queue and exchange are deleted."""
    with Connection(URL, connect_timeout=3) as connection:
        try:
            connection.connect()
        except Exception as error:
            why = f"RabbitMQ was NOT tested: none answers at {connection.as_uri()} ({type(error).__name__})"
            warnings.warn(why, stacklevel=1)  # pytest -q shows warnings, but not why a test was skipped
            pytest.skip(why)
        try:
            yield connection
        finally:
            for worker in stage.workers:  # one that lives would declare its queue again
                worker.signal(signal.SIGKILL)
                worker.wait(10)
            with contextlib.suppress(connection.channel_errors):
                connection.default_channel.queue_delete(queue_of(stage))
            with contextlib.suppress(connection.channel_errors):
                connection.channel().exchange_delete(queue_of(stage))


class TestRabbitMQ:
    def test_turns_and_workflows_run_on_knocks(self, stage: Stage) -> None:
        """No hop of a workflow with a prompt waits for the tick."""
        with rabbitmq(stage):
            client(stage, URL)
            start_worker(stage, URL).marked("ready")

            began = time.monotonic()
            stage.start_saga("do: note")
            stage.send_go()
            ended_at = stage.until(stage.saga_ended, BOUND, what="ended")

            assert stage.took(began, ended_at) <= WITHIN
            stage.check_saga("do: note", None)

    def test_a_worker_that_is_killed(self, stage: Stage) -> None:
        """RabbitMQ gives its message to the next one, which goes on where the turn was; each tool ran once."""
        with rabbitmq(stage):
            client(stage, URL)
            first = start_worker(stage, URL, kill_at="turn:tool-stored")
            stage.submit("do: note post")
            assert first.wait(60) == SIGKILLED
            start_worker(stage, URL).marked("ready")

            stage.until(stage.turn_ended, BOUND, what="ended")
            stage.check_answer("do: note post", stage.submission().message_id)
            assert stage.counts() == {"note": 1, "post": 1}

    def test_a_queue_that_is_purged(self, stage: Stage) -> None:
        """The tick knocks again for what waits: two seconds and a tick."""
        with rabbitmq(stage) as connection:
            publisher = client(stage, URL)
            worker = start_worker(stage, URL)
            worker.marked("ready")
            worker.freeze()  # it takes nothing now, and what it has been sent already is lost with the queue
            for number in range(8):
                submit(stage, f"agent-{number}", f"do: #{number}")
            assert publisher.flush(10)
            assert connection.default_channel.queue_purge(queue_of(stage)) >= 4
            worker.thaw()

            stage.until(lambda: all_completed(stage, 8), MISSED + 3 * TICK + 2, what="all completed")
            assert len(stage.requests()) == 8
