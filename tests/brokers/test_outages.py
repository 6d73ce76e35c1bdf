"""Redis away, full, refusing or silent: every call is answered within a second, and nothing is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.brokers.place import Broker, Supervised, all_completed, asked, client, nap, submit
from tests.brokers.test_redis_restarts import assert_it_consumes
from tests.crash.stage import Stage

OUTAGE_SECONDS = 4.0
"""Longer than every socket timeout, the pauses of publishing and the first reconnects."""

AWAY_SECONDS = 10.0
"""How long it is stopped: then Celery has tried to connect some times, and rests for longer each time."""

RECOVERY_SECONDS = 25.0
"""How long the worker and the tick may take after that: Celery waits for longer each time it can't connect."""


@contextmanager
def away(broker: Broker) -> Iterator[None]:
    """Connections are refused."""
    broker.stop()
    yield
    broker.start()


@contextmanager
def refusing(broker: Broker) -> Iterator[None]:
    """As a primary whose replicas are gone: it is there, and refuses every write."""
    broker.client.config_set("min-replicas-to-write", 1)
    yield
    broker.client.config_set("min-replicas-to-write", 0)


@contextmanager
def full(broker: Broker) -> Iterator[None]:
    """It refuses what would need memory."""
    broker.client.config_set("maxmemory", 1)
    yield
    broker.client.config_set("maxmemory", 0)


@contextmanager
def silent(broker: Broker) -> Iterator[None]:
    """It accepts connections and never answers."""
    broker.freeze()
    yield
    broker.thaw()


class TestOutages:
    @pytest.mark.parametrize(
        ("outage", "seconds"),
        [
            (away, AWAY_SECONDS),
            (refusing, OUTAGE_SECONDS),
            (full, OUTAGE_SECONDS),
            (silent, OUTAGE_SECONDS),
        ],
    )
    def test_it_costs_nobody_anything(
        self, stage: Stage, outage: Callable[[Broker], Iterator[None]], seconds: float
    ) -> None:
        """Turns submitted before, during and after an outage are accepted within a second, and each runs once.

        One runs while it begins. The worker lives through it, but for a fault of kombu's, and then serves knocks.
        """
        with Broker() as broker:
            worker = Supervised(stage, broker.url)
            client(stage, broker.url)
            longest = 0.0

            def accept(first: int, last: int, pause: float = 0.0) -> None:
                nonlocal longest
                for number in range(first, last):
                    began = time.monotonic()
                    submit(stage, f"agent-{number}", f"do: #{number}")
                    longest = max(longest, stage.took(began, time.monotonic()))
                    nap(pause)

            submit(stage, "at-work", "do: slowly #at-work")
            accept(0, 3)
            stage.until(lambda: asked(stage)["do: slowly #at-work"], 10, what="at work")
            with outage(broker):
                accept(3, 11, pause=seconds / 8)
            accept(11, 14)

            stage.until(
                lambda: worker.lives() and all_completed(stage, 15), RECOVERY_SECONDS, what="all completed"
            )
            assert longest <= 1.0
            assert worker.lives()
            # A turn that the ended worker had in hand may have to be asked for again.
            assert worker.restarts or set(asked(stage).values()) == {1}
            assert_it_consumes(stage)
