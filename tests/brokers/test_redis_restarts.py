"""FR-14: Redis restarts and refuses writes under running workers; nothing is lost, and they consume again."""

import time

from tests.brokers.place import (
    WITHIN,
    Broker,
    Supervised,
    all_completed,
    asked,
    client,
    nap,
    submit,
)
from tests.crash.stage import Stage

SUBMISSIONS = 50
REFUSING_SECONDS = 5.0
RECOVERY_SECONDS = 30.0


class TestRestarts:
    def test_fifty_turns_through_three_restarts_and_a_refusal(self, stage: Stage) -> None:
        """Every call answers within a second, all fifty complete once, and the worker lives."""
        with Broker() as broker:
            client(stage, broker.url)
            worker = Supervised(stage, broker.url)
            longest = 0.0
            refused_at: float | None = None

            for number in range(SUBMISSIONS):
                if number in (8, 16, 24):
                    broker.restart()
                if number == 32:
                    broker.client.config_set("min-replicas-to-write", 1)
                    refused_at = time.monotonic()
                began = time.monotonic()
                submit(stage, f"agent-{number}", f"do: #{number}")
                longest = max(longest, stage.took(began, time.monotonic()))
                nap(0.1)
            assert refused_at is not None
            nap(max(0.0, refused_at + REFUSING_SECONDS - time.monotonic()))
            broker.client.config_set("min-replicas-to-write", 0)

            stage.until(
                lambda: worker.lives() and all_completed(stage, SUBMISSIONS),
                RECOVERY_SECONDS,
                what="all completed",
            )
            assert longest <= 1.0
            assert worker.lives()
            # A turn that the ended worker had in hand may have to be asked for again.
            assert worker.restarts or set(asked(stage).values()) == {1}
            assert_it_consumes(stage)


def assert_it_consumes(stage: Stage) -> None:
    """A turn begins sooner than the tick would find it: the worker hears knocks, and we send them, again."""
    took = []
    while len(took) < 12:
        began, before = time.monotonic(), len(stage.requests())
        submit(stage, f"later-{len(took)}", "do: #later")
        stage.until(lambda before=before: len(stage.requests()) > before, 10, what="run")  # type: ignore[misc]
        took.append(stage.took(began, time.monotonic()))
        if took[-1] < WITHIN:
            return
    raise AssertionError(f"knocks don't come through: {took}\n{stage.report()}")
