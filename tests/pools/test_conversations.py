"""What a turn can do beside answering, in every pool: hooks, chains, approvals, cancels, state."""

import signal

import pytest

from tests.crash.stage import BOUND, Stage
from tests.crash.worker import POOLS
from tests.pools.scenes import alive, begin, connect, ended, row_of
from tests.pools.talker import Correspondent
from think_celery.messages import ToolPart


def told(stage: Stage, what: str) -> list[str]:
    """The submissions of which the hook after a turn was told that."""
    return [line["key"] for line in stage.effects() if line["what"] == what]


def texts(agent: Correspondent) -> list[str]:
    """What was said, by whomever."""
    return [message.text for message in agent.messages]


@pytest.mark.parametrize("pool", POOLS)
class TestEveryPool:
    def test_everything_that_a_turn_can_do(self, stage: Stage, redis_url: str, pool: str) -> None:
        """B7, B9, B10, B16, B23, B24, B26, B27: the same in each pool, asked for in another process, with one slot."""
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
        worker.signal(signal.SIGTERM)
        assert worker.wait(20) == 0, worker.output()
        assert alive(stage) == []
        assert "ERROR/" not in worker.output()
