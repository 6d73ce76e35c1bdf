"""FR-01: what waits for a later time is a row; no message waits in Redis for it, so none comes twice."""

import signal
import time
from collections import Counter
from typing import Any

from tests.brokers.place import Broker, all_completed, client, nap, start_worker
from tests.brokers.project import Nap, Reminded
from tests.crash.project import Scribe
from tests.crash.stage import TICK, Stage
from think_celery.domain.workflows import runs
from think_celery.store import tables

PARKED_SECONDS = 6.0
VISIBILITY_SECONDS = 2
WORKFLOWS = 20


class TestParked:
    def test_twenty_workflows_sleep_through_the_loss_of_a_worker(self, stage: Stage) -> None:
        """They sleep for three visibility timeouts; one of two workers is told to stop, and another one comes.

        No message has an ETA, each goes on exactly once, by its time and a tick; so does a prompt that was scheduled.
        """
        options: dict[str, Any] = {
            "broker_transport_options": {"visibility_timeout": VISIBILITY_SECONDS},
            "think_worker_schedules": True,
        }
        with Broker() as broker:
            client(stage, broker.url)
            first, _ = (start_worker(stage, broker.url, **options) for _ in range(2))
            first.marked("ready")
            began = time.monotonic()
            for number in range(WORKFLOWS):
                Scribe._bound_to(stage.rt, f"agent-{number}").run_workflow(
                    Nap, {"seconds": PARKED_SECONDS}, workflow_id=f"nap-{number}"
                )
            Reminded._bound_to(stage.rt, "ann").schedule(PARKED_SECONDS, "remind", "Is it time?")
            last_started = time.monotonic()
            stage.until(lambda: parked(stage) == WORKFLOWS, PARKED_SECONDS - 1, what="all parked")
            first.signal(signal.SIGTERM)
            start_worker(stage, broker.url, **options)

            etas = []
            while time.monotonic() < began + PARKED_SECONDS:
                etas += [message["headers"].get("eta") for message in broker.messages()]
                nap(0.2)
            stage.until(
                lambda: awake(stage) == WORKFLOWS and all_completed(stage, 1), 3 * TICK + 2, what="all awake"
            )

            assert set(etas) <= {None}
            assert time.monotonic() - last_started >= PARKED_SECONDS
            assert first.wait(10) == 0
            nap(VISIBILITY_SECONDS + 1)  # a second copy would come now
            done = Counter((effect["what"], effect["key"]) for effect in stage.effects())
            assert set(done.values()) == {1}
            expected = {"lie down": WORKFLOWS, "get up": WORKFLOWS, "remind": 1}
            assert Counter(what for what, _ in done) == expected
            assert all_completed(stage, 1)
            assert [list(broker.messages())] == [[]]


def parked(stage: Stage) -> int:
    """How many workflows wait for their time."""
    return sum(row.status == "waiting" for row in stage.rows(tables.workflows))


def awake(stage: Stage) -> int:
    """How many have ended well."""
    found = [runs.look_up(stage.rt, f"nap-{number}", Nap) for number in range(WORKFLOWS)]
    return sum(one.status == "complete" and one.output == "awake" for one in found)
