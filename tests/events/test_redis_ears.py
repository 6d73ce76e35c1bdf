"""Hearing of turns that end, in another process: whoever waits need not ask the database again and again."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from tests.domain.crowd import clerk, workers
from tests.events.away import own_log
from tests.events.contract import frame
from think_celery.domain import poller
from think_celery.domain.submissions import claims
from think_celery.events.redis import RedisEventLog
from think_celery.events.redis_ears import RedisEars
from think_celery.events.writer import LiveWriter

DONE = {"type": "done", "status": "completed"}


@pytest.fixture
def log(redis_url: str) -> Iterator[RedisEventLog]:
    log = RedisEventLog(redis_url)
    yield log
    log.close()


@pytest.fixture
def ears(log: RedisEventLog) -> Iterator[RedisEars]:
    ears = log.ears()
    yield ears
    ears.close()


def ended(agent_id: str = "a", n: int = 1):
    """The frame of a turn's end."""
    return replace(frame(n), agent_id=agent_id, event=DONE)


class TestEars:
    def test_hear_an_end_that_comes_while_they_listen(self, log, ears):
        """At once, not after the time that they would listen."""
        timer = threading.Timer(0.2, log.append, args=([ended()],))
        assert ears.listen({"a"}, 0.01) == set()
        timer.start()

        assert ears.listen({"a", "b"}, 0.5) == {"a"}
        timer.join()

    def test_hear_what_came_between_two_calls(self, log, ears):
        """Nothing is lost between them, and nothing is heard twice."""
        ears.listen({"a", "b"}, 0.01)
        log.append([ended("a"), ended("b"), frame(2)])

        assert ears.listen({"a", "b"}, 0.01) == {"a", "b"}
        assert ears.listen({"a", "b"}, 0.01) == set()

    def test_hear_nothing_else(self, log, ears):
        """Neither an end that was before they were asked, nor text, though it says the very words."""
        log.append([ended()])
        words = {"type": "text-delta", "delta": '{"type":"done"}'}
        ears.listen({"a"}, 0.01)
        log.append([replace(frame(2), event=words)])

        assert ears.listen({"a"}, 0.01) == set()

    def test_are_deaf_while_redis_is_away(self):
        """That is said, and does not last longer than the outage."""
        with own_log() as (log, server):
            ears = log.ears()
            ears.listen({"a"}, 0.01)
            redis.Redis.from_url(server.url).shutdown(nosave=True)

            with pytest.raises((redis.RedisError, OSError)):
                ears.listen({"a"}, 0.01)
            ears.close()


class TestWhoeverWaits:
    def test_hears_of_an_end_before_the_next_look(self, database_url, redis_url, monkeypatch):
        """The turn runs in another runtime, as in another process; the next look would come in half a minute."""
        monkeypatch.setattr(poller, "distance", lambda age: 30.0 if age > 0.3 else 0.02)
        with workers(database_url) as here, workers(database_url) as there:
            for rt in (here, there):
                rt.events = RedisEventLog(redis_url)
                rt.live = LiveWriter(rt.events)
            agent = clerk(here)
            submission_id = agent.submit_messages("Hi").submission_id
            timer = threading.Timer(1.5, claims.run, args=(there, submission_id))
            timer.start()
            began = here.clock.elapsed()

            assert agent.wait_for_submission(submission_id, timeout=60).status == "completed"
            timer.join()
            assert here.clock.elapsed() - began < 20
