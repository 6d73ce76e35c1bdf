"""kill -9 around an approval: what was approved is done once at most, and the answer goes on in its message."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.crash.model import FINAL
from tests.crash.stage import BOUND, Stage
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME
from think_celery.messages import ToolPart
from think_celery.store import tables

SIGKILLED = -9
KNOCK = 3.0
"""How long the tick may take to find what nobody knocked for."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A worker dies at ``point``, in the turn that asks or in the one that goes on after the approval."""

    point: str
    asking: bool = False
    known: bool = True
    again: int = 0

    def play(self, stage: Stage) -> None:
        """Let it happen, and look at what came of it."""
        asked = stage.submit("do: note pay")
        workers = [stage.start("plain", kill_at=self.point)]
        if self.asking:
            assert workers[0].wait(60) == SIGKILLED, workers[0].output()
            workers.append(stage.start("plain"))
        stage.until(lambda: self.ended(stage, 1), BOUND + KNOCK + 5, what="asking")
        (waiting,) = stage.agent.pending_interactions()
        message_id = self.submissions(stage)[0].message_id
        assert stage.counts() == {"note": 1}

        assert stage.agent.approve_tool_call(waiting.tool_call_id)
        assert not stage.agent.approve_tool_call(waiting.tool_call_id)
        if not self.asking:
            assert workers[0].wait(60) == SIGKILLED, workers[0].output()
            workers.append(stage.start("plain"))
        stage.until(lambda: self.ended(stage, 2), BOUND + KNOCK + 5, what="gone on")

        (user, answer) = stage.messages()
        pay = [part for part in answer.parts if isinstance(part, ToolPart)][1]
        assert (user.role, answer.id, answer.text) == ("user", message_id, FINAL), stage.report()
        assert [row.message_id for row in self.submissions(stage)] == [message_id] * 2
        assert stage.counts() == {"note": 1, "pay": 1}
        assert (pay.output, pay.error_text) == (("pay done", None) if self.known else (None, UNKNOWN_OUTCOME))
        assert len(stage.requests()) == 3 + self.again, stage.report()
        assert asked.submission_id == waiting.submission_id

    def submissions(self, stage: Stage) -> list[Any]:
        """The turns so far, in their order."""
        return sorted(stage.rows(tables.submissions), key=lambda row: row.seq)

    def ended(self, stage: Stage, count: int) -> bool:
        """Whether that many turns have ended."""
        return [row.status for row in self.submissions(stage)] == ["completed"] * count


SCENES = [
    {"point": "turn:before-commit", "asking": True},
    {"point": "turn:claimed#2"},
    {"point": "turn:tool-ran#2", "known": False},
    {"point": "turn:tool-stored#2"},
    {"point": "turn:before-commit#2", "again": 1},
]


class TestApprovals:
    @pytest.mark.parametrize("scene", [pytest.param(Approval(**case), id=case["point"]) for case in SCENES])
    def test_a_worker_dies_around_an_approval(self, stage: Stage, scene: Approval) -> None:
        """FR-54, FR-55: an approved payment is made once at most, in one message, and the model knows what is known."""
        scene.play(stage)
