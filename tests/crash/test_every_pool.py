"""kill -9 at every point where a turn or a workflow can die, in each pool of Celery, with Redis and PostgreSQL.

A turn or a workflow is brought to its end by one worker after the other, of which each dies at the next point:
in prefork the child that works on it, which the pool replaces; in the other pools the whole worker, after which
another is started. All that is stored meanwhile is done once, and what each death repeats is counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.crash.nursery import Process
from tests.crash.project import ASKED
from tests.crash.stage import BOUND, Stage
from tests.crash.test_failpoints import SIGKILLED
from tests.crash.worker import POOLS
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(400),  # on a machine that is busy
    pytest.mark.parametrize("database", ["postgresql"]),
]

MANY = "100"
"""Attempts: here they end by themselves, whatever dies (poison has tests of its own)."""

SECONDS_EACH = 3.0
"""For a death, the next worker's start, and its first pass of the tick."""

TURN = (
    "turn:claimed",
    "turn:before-model",
    "turn:streaming",
    "turn:tool-marked",
    "turn:tool-ran",
    "turn:tool-stored",
    "turn:before-commit",
    "turn:committed",
)

UNTIL_THE_ANSWER = (
    "workflow:claimed",
    "step:fetch:before",
    "step:fetch:ran",
    "step:fetch:before-commit",
    "step:fetch:committed",
    "step:ask:submit:before-commit",
    "step:ask:submit:committed",
    "step:ask:wait:looked",
    "workflow:before-park",
    "workflow:parked",
    "outbox:stored",
    "outbox:before-delivery",
    "outbox:delivered",
)

AFTER_IT = (
    "step:ask:wait:committed",
    "step:go:looked",
    "step:go:committed",
    "step:book:before",
    "step:book:before-commit",
    "step:book:committed",
    "step:send:before",
    "step:send:ran",
    "step:send:before-commit",
    "step:send:committed",
    "workflow:before-end",
    "workflow:ended",
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Workers of one pool, one after the other, of which one dies at each of these points."""

    stage: Stage
    pool: str
    deaths: tuple[str, ...]
    broker: str

    def play(self, ended: Callable[[], bool], *, feed: bool = False) -> None:
        """Go on until it has ended and everyone has died who should."""
        stage = self.stage
        stage.environment["THINK_MAX_ATTEMPTS"] = MANY
        self.start()

        def done() -> bool:
            if stage.workers[-1].running:
                return self.have_died() and ended()
            self.start()
            return False

        seconds = BOUND + SECONDS_EACH * len(self.deaths)
        stage.until(done, seconds, what="ended after all deaths", feed=feed, every=0.1)
        *dead, last = stage.workers
        assert last.running
        assert [worker.status for worker in dead] == [SIGKILLED] * len(dead)
        # In prefork the pool replaces its children by itself.
        assert len(dead) == (0 if self.pool == "prefork" else len({*self.died().values()})), stage.report()

    def start(self) -> Process:
        """Start the next worker."""
        queue = f"crash-{self.stage.name}"
        return self.stage.start(self.pool, broker=self.broker, queue=queue, deaths=" ".join(self.deaths))

    def have_died(self) -> bool:
        """Whether one has died at each point; the file that says so is there a moment before."""
        died = self.died()
        whole = 0 if self.pool == "prefork" else len({*died.values()})
        return len(died) == len(self.deaths) and len(self.stage.workers) == whole + 1

    def died(self) -> dict[str, int]:
        """The pid that died at each point: twice the same, where two threads of a worker came to theirs at once."""
        files = self.stage.folder.glob("*.death")
        return {path.stem.replace(".", ":"): int(path.read_text()) for path in files}


@pytest.mark.parametrize("pool", POOLS)
class TestEveryPool:
    def test_a_turn(self, stage: Stage, redis_url: str, pool: str) -> None:
        """Eight deaths: two requests are made again (those that were not answered), the tool runs once more."""
        stage.submit("do: note")

        Series(stage=stage, pool=pool, deaths=TURN, broker=redis_url).play(stage.turn_ended)

        calls = stage.check_answer("do: note", stage.submission().message_id)
        assert list(calls) == ["note"]
        assert stage.counts() == {"note": 2}
        assert len(stage.requests()) == 2 + 2

    def test_an_answer_in_the_middle_of_its_text(self, stage: Stage, redis_url: str, pool: str) -> None:
        """What was heard is not asked for again, and the rest follows.

        B17: whoever takes the turn up asks its agent first what shall become of it.
        """
        stage.environment[ASKED] = "1"
        stage.submit("do: slowly")

        deaths = ("turn:streaming#9", "turn:streaming#15")
        Series(stage=stage, pool=pool, deaths=deaths, broker=redis_url).play(stage.turn_ended)

        stage.check_answer("do: slowly", stage.submission().message_id)
        assert len(stage.requests()) == 1 + 2
        assert stage.counts() == {"asked": 2}

    @pytest.mark.parametrize(
        ("point", "times"), [("turn:tool-marked", 0), ("turn:tool-ran", 1), ("turn:tool-stored", 1)]
    )
    def test_a_tool_that_must_not_be_repeated(
        self, stage: Stage, redis_url: str, pool: str, point: str, times: int
    ) -> None:
        """It runs once at most, and the model is told where nobody knows whether it has."""
        stage.submit("do: post")

        Series(stage=stage, pool=pool, deaths=(point,), broker=redis_url).play(stage.turn_ended)

        call = stage.check_answer("do: post", stage.submission().message_id)["post"]
        assert call.error_text == (None if point == "turn:tool-stored" else UNKNOWN_OUTCOME)
        assert stage.counts() == ({"post": times} if times else {})
        assert len(stage.requests()) == 2

    def test_a_workflow(self, stage: Stage, redis_url: str, pool: str) -> None:
        """A death at each point up to the answer: what was stored is not done again, the rest once more a death."""
        stage.start_saga("do: note")

        series = Series(stage=stage, pool=pool, deaths=UNTIL_THE_ANSWER, broker=redis_url)
        series.play(stage.saga_ended, feed=True)

        stage.check_saga("do: note", stage.submission().message_id)
        counts = stage.counts()
        assert (counts["fetch"], counts["send"]) == (3, 1)
        # The turn runs beside the workflow's code, so a whole worker that dies may take it along.
        assert 2 + 1 <= len(stage.requests()) <= 2 + 1 + 4

    def test_a_workflow_that_has_its_answer(self, stage: Stage, redis_url: str, pool: str) -> None:
        """A death at each point after it: the model is not asked again, and no step that was stored runs again."""
        stage.start_saga("do: note")

        Series(stage=stage, pool=pool, deaths=AFTER_IT, broker=redis_url).play(stage.saga_ended, feed=True)

        stage.check_saga("do: note", stage.submission().message_id)
        assert stage.counts() == {"fetch": 1, "note": 1, "send": 3}
        assert len(stage.requests()) == 2

    def test_a_workflow_whose_turn_dies(self, stage: Stage, redis_url: str, pool: str) -> None:
        """Deaths at each point of the turn that it waits for, and where it wakes up, with the event or without."""
        stage.start_saga("do: note")

        deaths = (*TURN, "step:ask:wait:looked#2", "step:go:looked#2", "step:book:ran")
        series = Series(stage=stage, pool=pool, deaths=deaths, broker=redis_url)
        series.play(stage.saga_ended, feed=True)

        stage.check_saga("do: note", stage.submission().message_id)
        assert stage.counts() == {"fetch": 1, "note": 2, "send": 1}
        assert len(stage.requests()) == 2 + 2
