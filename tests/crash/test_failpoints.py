"""kill -9 at every point where a turn or a workflow can die, on both databases.

At each point the worker of one database is a plain one, and that of the other Celery's on the threads pool, by
turns: what a point leaves behind are rows, written by the same code in both. Every pool dies at every point in
``test_every_pool.py``.

Worker A is started, and kills itself at a point; then B is started and does the rest. What must come out is
what would have come out without the death, within a lease and four ticks after B was ready, and each request
to the model and each effect is counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.crash.stage import BOUND, TICK, Stage
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME

SIGKILLED = -9

TURN = "do: note post"
SLOW_TURN = "do: note slowly"
SAGA = "do: note"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn whose worker dies at ``point``; ``again`` requests are made twice, ``twice`` effects done twice."""

    point: str
    kind: str = "plain"
    prompt: str = TURN
    again: int = 0
    twice: tuple[str, ...] = ()
    unknown: bool = False
    cut: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def play(self, stage: Stage) -> None:
        """Let it happen, and look at what came of it."""
        stage.submit(self.prompt)
        first = stage.start(self.kind, kill_at=self.point, **self.options)
        assert first.wait(60) == SIGKILLED, first.output()
        row = stage.submission()
        stored = stage.messages()

        second = stage.start(self.kind, **self.options)
        ready_at = second.marked("ready")
        ended_at = stage.until(stage.turn_ended, BOUND + 5, what="ended")

        assert stage.took(ready_at, ended_at) <= BOUND
        calls = stage.check_answer(self.prompt, row.message_id)
        self.check_effects(stage, calls)
        self.check_requests(stage)
        if self.cut:
            assert stored[-1].text  # what was streamed before the death is not asked for again
        assert not stage.submission().knock_at
        assert stage.submission().attempts <= 2

    def check_effects(self, stage: Stage, calls: Mapping[str, Any]) -> None:
        """The tool that may be repeated ran twice at most; the other once, or not at all, and the model knows."""
        tools = [word for word in self.prompt.removeprefix("do:").split() if word != "slowly"]
        assert sorted(calls) == sorted(tools)
        expected = {tool: 1 + (tool in self.twice) for tool in tools}
        if self.unknown:
            assert calls["post"].error_text == UNKNOWN_OUTCOME
            told = [m for m in stage.requests()[-1]["messages"] if m["role"] == "tool"]
            assert UNKNOWN_OUTCOME in told[-1]["content"]
            if self.point.startswith("turn:tool-marked"):
                del expected["post"]
        assert stage.counts() == expected

    def check_requests(self, stage: Stage) -> None:
        """What was answered and stored is never asked for again."""
        steps = len(self.prompt.removeprefix("do:").replace("slowly", "").split()) + 1
        assert len(stage.requests()) == steps + self.again, stage.report()


TURNS = [
    {"point": "turn:claimed"},
    {"point": "turn:before-model"},
    {"point": "turn:before-model#3"},
    {"point": "turn:streaming", "again": 1},
    {"point": "turn:streaming#15", "prompt": SLOW_TURN, "again": 1, "cut": True},
    {"point": "turn:tool-marked", "twice": ()},
    {"point": "turn:tool-marked#2", "unknown": True},
    {"point": "turn:tool-ran", "twice": ("note",)},
    {"point": "turn:tool-ran#2", "unknown": True},
    {"point": "turn:tool-stored"},
    {"point": "turn:tool-stored#2"},
    {"point": "turn:before-commit", "again": 1},
    {"point": "turn:committed"},
]


@dataclass(frozen=True, kw_only=True)
class Saga:
    """A workflow whose worker dies at ``point``. What it waits for is there before, or comes when it has parked."""

    point: str
    kind: str = "plain"
    again: int = 0
    twice: tuple[str, ...] = ()
    parks: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def play(self, stage: Stage) -> None:
        """Let it happen, and look at what came of it."""
        stage.start_saga(SAGA)
        if not self.parks:
            stage.send_go()
        first = stage.start(self.kind, kill_at=self.point, **self.options)
        stage.until(lambda: not first.running, 20, what="dead", feed=self.parks)
        assert first.status == SIGKILLED, first.output()
        row = stage.submission()

        second = stage.start(self.kind, **self.options)
        ready_at = second.marked("ready")
        if self.parks:  # a client without a broker: the tick finds what it sends, and more time goes by
            stage.until(lambda: stage.saga_waits() or stage.saga_ended(), BOUND, what="waiting")
            stage.send_go()
        ended_at = stage.until(stage.saga_ended, BOUND + 8, what="ended")

        assert stage.took(ready_at, ended_at) <= BOUND + (2 + TICK if self.parks else 0), stage.report()
        calls = stage.check_saga(SAGA, row.message_id if row is not None else None)
        assert list(calls) == ["note"]
        assert stage.counts() == {name: 1 + (name in self.twice) for name in ("fetch", "note", "send")}
        assert len(stage.requests()) == 2 + self.again, stage.report()


SAGAS = [
    {"point": "workflow:claimed"},
    {"point": "step:fetch:before"},
    {"point": "step:fetch:ran", "twice": ("fetch",)},
    {"point": "step:fetch:before-commit", "twice": ("fetch",)},
    {"point": "step:fetch:committed"},
    {"point": "step:ask:submit:before-commit"},
    {"point": "step:ask:submit:committed"},
    {"point": "step:ask:wait:looked"},
    {"point": "workflow:before-park"},
    {"point": "workflow:parked"},
    {"point": "turn:claimed"},
    {"point": "turn:before-model"},
    {"point": "turn:streaming", "again": 1},
    {"point": "turn:tool-marked"},
    {"point": "turn:tool-ran", "twice": ("note",)},
    {"point": "turn:tool-stored"},
    {"point": "outbox:stored", "again": 1},
    {"point": "turn:before-commit", "again": 1},
    {"point": "turn:committed"},
    {"point": "outbox:before-delivery"},
    {"point": "outbox:delivered"},
    {"point": "step:ask:wait:looked#2"},
    {"point": "step:ask:wait:committed"},
    {"point": "step:go:looked"},
    {"point": "step:go:looked", "parks": True},
    {"point": "workflow:parked#2", "parks": True},
    {"point": "step:go:looked#2", "parks": True},
    {"point": "step:go:committed"},
    {"point": "step:book:before"},
    {"point": "step:book:before-commit"},
    {"point": "step:book:ran"},
    {"point": "step:book:committed"},
    {"point": "step:send:ran", "twice": ("send",)},
    {"point": "step:send:before-commit", "twice": ("send",)},
    {"point": "step:send:committed"},
    {"point": "workflow:before-end"},
    {"point": "workflow:ended"},
]


def each(cls: Callable[..., Any], cases: list[dict[str, Any]]) -> list[Any]:
    """Every point on both databases: on one in a plain worker, on the other in Celery, by turns."""
    found = []
    for number, case in enumerate(cases):
        point = case["point"] + ("-parks" if case.get("parks") else "")
        kinds = ("plain", "threads") if number % 2 else ("threads", "plain")
        for database, kind in zip(("sqlite", "postgresql"), kinds, strict=True):
            marks = [pytest.mark.services] if database == "postgresql" else []
            name = f"{database}-{kind}-{point}"
            found.append(pytest.param(database, cls(kind=kind, **case), id=name, marks=marks))
    return found


class TestWorkersDie:
    @pytest.mark.parametrize(("database", "scene"), each(Turn, TURNS))
    def test_a_turn(self, stage: Stage, scene: Turn) -> None:
        """A turn whose worker was killed ends as if nothing had happened, each stored step done once."""
        scene.play(stage)

    @pytest.mark.parametrize(("database", "scene"), each(Saga, SAGAS))
    def test_a_workflow(self, stage: Stage, scene: Saga) -> None:
        """A workflow whose worker was killed goes on; what was stored of it is not done again."""
        scene.play(stage)
