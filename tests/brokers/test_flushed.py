"""``FLUSHALL`` at each point of a turn and of a workflow: everything ends within a tick and a little."""

import time

from tests.brokers.place import (
    Broker,
    asked,
    client,
    forget_knocks,
    forget_workflows,
    start_worker,
    statuses,
    submit,
)
from tests.crash.project import SAGA, Saga, Scribe
from tests.crash.stage import BOUND, SAGA_ID, TICK, Stage
from tests.crash.test_every_pool import AFTER_IT, TURN, UNTIL_THE_ANSWER
from tests.crash.test_failpoints import SIGKILLED
from think_celery.domain.workflows import runs
from think_celery.store import tables

SPEAKING = 3.0
"""Seconds that a slow answer takes."""

HOPS = 4
"""Messages on the way of a saga: for its start, its prompt, the answer and the event."""


class TestFlushed:
    def test_under_a_worker_that_lives(self, stage: Stage) -> None:
        """Queued, running, parked, on its way from a turn to its workflow: the sentinel tells, and nothing waits.

        What was queued is knocked for at the next tick, however late its own next knock would have come.
        """
        with Broker() as broker:
            publisher = client(stage, broker.url)
            start_worker(stage, broker.url).marked("ready")
            stage.start_saga("do: #parked")
            stage.until(stage.saga_waits, BOUND, what="parked")
            Scribe._bound_to(stage.rt, "bob").run_workflow(
                Saga, {"prompt": "do: slowly"}, workflow_id="saga-2"
            )
            for number in range(3):
                submit(stage, f"slow-{number}", f"do: slowly #{number}")
            stage.until(lambda: len(stage.requests()) == 5, BOUND, what="running")
            for number in range(3):
                submit(stage, f"queued-{number}", f"do: #queued-{number}")
            assert publisher.flush(10)
            forget_knocks(stage, *(f"queued-{number}" for number in range(3)))

            broker.client.flushall()

            stage.until(
                lambda: statuses(stage) == {"completed": 8}, SPEAKING + 3 * TICK + 2, what="all completed"
            )
            Scribe._bound_to(stage.rt, "bob").send_workflow_event(
                Saga, "saga-2", type="go", payload=SAGA["go"]
            )
            stage.send_go()
            stage.until(lambda: both_ended(stage), 3 * TICK, what="ended")
            assert set(asked(stage).values()) == {1}
            assert runs.look_up(stage.rt, SAGA_ID, Saga).output == SAGA
            assert runs.look_up(stage.rt, "saga-2", Saga).output == SAGA
            assert stage.ledger() == 2

    def test_at_each_point(self, stage: Stage) -> None:
        """Emptied wherever a worker can be in a turn and in a workflow, it costs a tick for a message that was lost.

        Nobody has died, so nothing is done again.
        """
        points = {*TURN, *UNTIL_THE_ANSWER, *AFTER_IT}
        with Broker() as broker:
            client(stage, broker.url)
            one_slot = {
                "worker_concurrency": 1,
                "worker_prefetch_multiplier": 1,
            }  # so messages lie there for a while
            start_worker(stage, broker.url, flushes=" ".join(points), **one_slot).marked("ready")
            began = time.monotonic()
            stage.start_saga("do: note")
            ended_at = stage.until(stage.saga_ended, 2 * BOUND, what="ended", feed=True)

            def emptied() -> set[str]:
                return {path.stem.replace(".", ":") for path in stage.folder.glob("*.death")}

            stage.until(
                lambda: emptied() >= points, BOUND, what="emptied at each point"
            )  # the last is after the end
            assert emptied() == points
            assert stage.took(began, ended_at) <= HOPS * 2 * TICK
            stage.check_saga("do: note", None)
            assert stage.counts() == {"fetch": 1, "note": 1, "send": 1}
            assert len(stage.requests()) == 2
            assert {row.takeovers for row in stage.rows(tables.submissions)} == {1}

    def test_between_the_outbox_and_the_workflow(self, stage: Stage) -> None:
        """The worker dies when it has delivered the news, and the message that should wake the workflow is lost.

        The next worker finds a broker that is new to it, and knocks for all that waits.
        """
        with Broker() as broker:
            client(stage, broker.url)
            first = start_worker(stage, broker.url, kill_at="outbox:delivered")
            stage.start_saga("do: note")
            stage.send_go()
            assert first.wait(60) == SIGKILLED
            forget_workflows(stage)
            broker.client.flushall()

            second = start_worker(stage, broker.url)
            ready_at = second.marked("ready")
            ended_at = stage.until(stage.saga_ended, BOUND, what="ended")

            assert stage.took(ready_at, ended_at) <= 3 * TICK
            stage.check_saga("do: note", None)

    def test_between_the_turn_and_the_outbox(self, stage: Stage) -> None:
        """The same where the news is stored, and the message that should deliver it is lost."""
        with Broker() as broker:
            client(stage, broker.url)
            first = start_worker(stage, broker.url, kill_at="outbox:before-delivery")
            stage.start_saga("do: note")
            stage.send_go()
            assert first.wait(60) == SIGKILLED
            forget_workflows(stage)
            broker.client.flushall()

            second = start_worker(stage, broker.url)
            ready_at = second.marked("ready")
            ended_at = stage.until(stage.saga_ended, BOUND, what="ended")

            assert stage.took(ready_at, ended_at) <= 3 * TICK
            stage.check_saga("do: note", None)


def both_ended(stage: Stage) -> bool:
    """Whether both sagas have."""
    return all(
        runs.look_up(stage.rt, workflow_id, Saga).status == "complete" for workflow_id in (SAGA_ID, "saga-2")
    )
