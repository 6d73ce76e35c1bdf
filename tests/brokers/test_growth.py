"""FR-26, FR-28: Redis is as empty after much work as before, and what lies in it is small."""

import ast
import json
from typing import Any

import pytest
from celery import Celery

from tests.brokers.place import (
    Broker,
    all_completed,
    client,
    forget_knocks,
    forget_workflows,
    queue_of,
    start_worker,
    submit,
)
from tests.brokers.project import Fan, Instant
from tests.crash.stage import SAGA_ID, TICK, Stage
from think_celery.domain.workflows import runs

AGENTS = 10


class TestGrowth:
    @pytest.mark.parametrize(
        ("turns", "fans", "backend"),
        [(400, 40, True), (100, 10, False)],
        ids=["results never expire", "no result backend"],
    )
    def test_nothing_stays_behind(self, stage: Stage, turns: int, fans: int, backend: bool) -> None:
        """FR-26: after 500 turns and 50 fan-outs in all no key and no channel is left, with results that never expire,
        and without a result backend.

        (Streams of the live log are gone ten minutes after the last frame.)
        """
        with Broker() as broker:
            client(stage, broker.url)
            conf: dict[str, Any] = {"result_backend": broker.url, "result_expires": 0} if backend else {}
            worker = start_worker(stage, broker.url, worker_prefetch_multiplier=1 if backend else 2, **conf)
            worker.marked("ready")
            at_first = [Instant._bound_to(stage.rt, f"agent-{number}") for number in range(AGENTS)]
            at_first[0].submit_messages("Hello")
            stage.until(lambda: all_completed(stage, 1), 10, what="completed")
            before = left(broker)

            for number in range(turns):
                at_first[number % AGENTS].submit_messages("Hello")
            for number in range(fans):
                Instant._bound_to(stage.rt, f"fan-{number}").run_workflow(
                    Fan, {}, workflow_id=f"fan-{number}"
                )
            count = 1 + turns + 2 * fans
            stage.until(lambda: all_completed(stage, count) and fanned(stage, fans), 60, what="all completed")
            stage.until(lambda: not list(broker.messages()), 5, what="acknowledged")

            after = left(broker)
            assert all(abs(after[what] - before[what]) <= 5 for what in before), (before, after)
            live = list(broker.client.keys("think:live:*"))  # type: ignore[union-attr]
            assert live
            assert all(0 < broker.client.ttl(key) <= 600 for key in live)  # type: ignore[operator]
            assert not broker.client.keys("celery-task-meta*")
            advised = worker.output().count("Set worker_prefetch_multiplier = 1.")
            assert advised == (0 if backend else 1)  # a worker says it once


def left(broker: Broker) -> dict[str, int]:
    """What could grow: keys but for the live log's streams, channels and patterns that somebody listens to."""
    keys = [key for key in broker.client.keys("*") if not key.startswith(b"think:live:")]  # type: ignore[union-attr]
    channels = broker.client.pubsub_channels()
    return {"keys": len(keys), "channels": len(channels), "patterns": int(broker.client.pubsub_numpat())}  # type: ignore[arg-type]


def fanned(stage: Stage, fans: int) -> bool:
    """Whether each workflow has gathered its answers."""
    found = [runs.look_up(stage.rt, f"fan-{number}", Fan) for number in range(fans)]
    return all(one.status == "complete" and one.output == 2 for one in found)


class TestMessages:
    def test_they_are_small_and_may_be_sent_again(self, stage: Stage) -> None:
        """FR-28: 900 KB that a user wrote make a message of one KiB, most of it Celery's headers.

        Sent again with the arguments that Flower shows it does what the first one would have done, and nothing
        where that is done.
        """
        with Broker() as broker:
            start_worker(stage, broker.url).marked("ready")
            stage.until(lambda: broker.client.keys("think:sentinel:*"), 5, what="watched")
            publisher = client(stage, broker.url, task_default_queue="nobody-listens")
            submission_id = submit(stage, "wordy", "do: #" + "x" * 900_000)
            stage.start_saga("do: #saga")
            forget_knocks(stage, "wordy")
            forget_workflows(stage)
            assert publisher.flush(10)
            raw = broker.client.lrange("nobody-listens", 0, -1)
            broker.client.delete("nobody-listens")
            shown = {}
            for text in raw:  # type: ignore[union-attr]
                message = json.loads(text)
                assert len(message["body"]) < 256
                assert len(text) < 1200  # the rest is Celery's own, but for the queue's name
                shown[message["headers"]["task"]] = ast.literal_eval(message["headers"]["kwargsrepr"])
            assert shown["think.submission.run"] == {"submission": submission_id, "agent": "Scribe/wordy"}

            send_again(stage, broker, shown)
            stage.until(lambda: all_completed(stage, 2), 3 * TICK, what="completed")
            client(stage, broker.url)
            stage.send_go()
            stage.until(stage.saga_ended, 3 * TICK, what="ended")
            rows, requests = stage.stored(), len(stage.requests())
            send_again(stage, broker, shown)
            stage.until(lambda: not list(broker.messages()), 5, what="acknowledged")

            assert (stage.stored(), len(stage.requests())) == (rows, requests)
            assert stage.saga().workflow_id == SAGA_ID
            assert stage.saga().status == "complete"


def send_again(stage: Stage, broker: Broker, shown: dict[str, dict[str, str]]) -> None:
    """What an operator does who copies a task's name and arguments from Flower."""
    app = Celery("operator", broker=broker.url, set_as_current=False)
    for task, kwargs in shown.items():
        app.send_task(task, kwargs=kwargs, queue=queue_of(stage))
