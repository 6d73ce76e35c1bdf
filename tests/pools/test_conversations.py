"""What a turn can do beside answering, in every pool: hooks, chains, approvals, cancels, state; and jobs."""

import signal
from typing import Any

import pytest

from tests.crash.stage import BOUND, Stage
from tests.crash.worker import POOLS
from tests.pools.scenes import alive, begin, connect, ended, row_of
from tests.pools.talker import Correspondent, Soloist
from think_celery.events.redis import RedisEventLog
from think_celery.messages import ToolPart


def told(stage: Stage, what: str) -> list[str]:
    """The submissions of which the hook after a turn was told that."""
    return [line["key"] for line in stage.effects() if line["what"] == what]


def texts(agent: Correspondent) -> list[str]:
    """What was said, by whomever."""
    return [message.text for message in agent.messages]


def done(stage: Stage) -> list[str]:
    """What the world has seen, in order."""
    return [line["what"] for line in stage.effects()]


def as_it_is(agent: Correspondent, job_id: str) -> tuple[str, int, object]:
    """How a job stands: its status, its attempts, and what came of it."""
    job = agent.get_job(job_id)
    assert job is not None
    return str(job.status), job.attempts, job.output


@pytest.mark.parametrize("pool", POOLS)
class TestEveryPool:
    def test_everything_that_a_turn_can_do(self, stage: Stage, redis_url: str, pool: str) -> None:
        """The same in each pool, asked for in another process, with one slot.

        B7, B8, B9, B10, B11, B12, B15, B16, B18, B20, B21, B22, B23, B24, B26, B27, B28.
        A queued call that a worker has in hand when it is told to stop runs to its end.
        """
        worker = begin(stage, pool, redis_url, {"worker_concurrency": 4 if pool == "gevent" else 1})
        connect(stage, redis_url)
        agent = Correspondent._bound_to(stage.rt, "ann")

        saved = agent.save_messages("hello", timeout=BOUND * 3)
        assert (saved.status, saved.text) == ("completed", "hello")

        chained = agent.submit_messages("draft").submission_id
        stage.until(lambda: told(stage, "chained better"), BOUND, what="chained")
        stage.until(lambda: len(told(stage, "told completed")) == 3, BOUND, what="told of the chain")
        assert texts(agent)[2:] == ["draft", "draft", "better", "better"]
        assert told(stage, "told completed") == [saved.submission_id, chained, *told(stage, "chained better")]

        blocked = agent.save_messages("peek", timeout=BOUND * 3)
        assert (blocked.status, "no peeking" in blocked.text) == ("completed", True)

        asked = agent.save_messages("pay", timeout=BOUND * 3)
        (waiting,) = agent.pending_interactions()
        assert not agent.wait_until_stable(timeout=0.2)
        assert agent.approve_tool_call(waiting.tool_call_id)
        assert agent.wait_until_stable(timeout=BOUND * 3)
        assert asked.message is not None
        paid = agent.get_message(asked.message.id)
        assert paid is not None
        assert paid.text == "pay done"
        assert [part.state for part in paid.parts if isinstance(part, ToolPart)] == ["output-available"]

        slow = agent.submit_messages("slowly").submission_id
        stage.until(
            lambda: "slowly" in texts(agent)[-1] and agent.messages[-1].role == "assistant",
            BOUND,
            what="slow",
        )
        assert agent.cancel_submission(slow, "enough")
        stage.until(lambda: told(stage, "told aborted"), BOUND, what="told of the cancel")
        assert ended(stage, slow)
        assert row_of(stage, slow).status == "aborted"
        assert agent.messages[-1].text.startswith("slowly ")

        assert len(told(stage, "pay")) == 1
        assert told(stage, "peek") == []
        assert agent.wait_until_stable(timeout=BOUND * 3)
        assert agent.state == {"told": 7}
        assert (
            agent.usage().output_tokens == 2 * 7
        )  # the model has answered seven times; the cut one told of none
        self.clients(stage, agent, redis_url)
        self.jobs(stage, agent)
        call = agent.queue("carry", "a lot").job_id
        stage.until(lambda: "carries a lot" in done(stage), BOUND, what="called")
        worker.signal(signal.SIGTERM)
        assert worker.wait(20) == 0, worker.output()
        assert as_it_is(agent, call) == ("completed", 1, "carried a lot")
        agent.destroy()
        assert (agent.messages, agent.state, agent.list_jobs()) == ([], {"told": 0}, [])
        assert alive(stage) == []
        assert "ERROR/" not in worker.output()

    def clients(self, stage: Stage, agent: Correspondent, redis_url: str) -> None:
        """Who listens is told, who types on has one turn, a note has none; turns are ended, and what was said goes."""
        note = {"role": "assistant", "parts": [{"type": "text", "text": "a note"}]}
        agent.persist_messages([note])
        assert texts(agent)[-1] == "a note"

        stage.rt.events = RedisEventLog(redis_url)
        listener = agent.listen()

        def hears() -> Any:
            """What is broadcast in one more turn; the log of a busy machine may drop it."""
            turn = agent.submit_messages("loud").submission_id
            for event in listener:
                if event.type == "broadcast" or (event.type == "done" and event.submission_id == turn):
                    return event.data.get("data")
            raise AssertionError("a listener ends when it is closed")

        assert next(filter(None, (hears() for _ in range(5)))) == {"heard": "loud"}
        listener.close()

        first = agent.receive_messages("slowly").submission_id
        stage.until(lambda: row_of(stage, first).status == "running", BOUND, what="running")
        typed = [agent.receive_messages(word).submission_id for word in ("one", "two", "three")]
        assert agent.cancel_submission(first)
        stage.until(lambda: ended(stage, *typed), BOUND, what="answered")
        assert [row_of(stage, each).status for each in typed] == ["skipped", "skipped", "completed"]
        assert texts(agent)[-4:] == ["one", "two", "three", "three"]

        alone = Soloist._bound_to(stage.rt, "ann").save_messages("hello", timeout=BOUND * 3)
        assert (alone.status, alone.text) == ("completed", "You said: hello")

        running, waiting = (agent.submit_messages(word).submission_id for word in ("slowly", "later"))
        stage.until(lambda: row_of(stage, running).status == "running", BOUND, what="running")
        before = texts(agent)[:-1]
        assert agent.reset_turn_state() == 2
        assert [row_of(stage, each).status for each in (running, waiting)] == ["aborted", "skipped"]
        assert texts(agent)[: len(before)] == before
        assert agent.clear_messages() == 0
        assert agent.messages == []
        again = agent.save_messages("hello", timeout=BOUND * 3)
        assert (again.status, texts(agent)) == ("completed", ["hello", "hello"])

    def jobs(self, stage: Stage, agent: Correspondent) -> None:
        """Queued calls run in their order, and who waits for a fiber in another process gets what it returns."""
        calls = [agent.queue("carry", what).job_id for what in ("one", "two", "three")]
        fiber = agent.start_fiber("walk", "near", wait_for_completion=True, timeout=BOUND * 3)
        assert (fiber.status, fiber.output, fiber.attempts) == ("completed", "walked half of near", 1)
        stage.until(lambda: as_it_is(agent, calls[-1])[0] == "completed", BOUND, what="called")
        assert [as_it_is(agent, call)[2] for call in calls] == ["carried one", "carried two", "carried three"]
        carried = [what for what in done(stage) if what.startswith("carries")]
        assert carried == ["carries one", "carries two", "carries three"]
