"""kill -9 where a turn is taken up again, where another model is asked, and where an answer was refused."""

import pytest

from tests.crash.stage import BOUND, Stage

SIGKILLED = -9
KINDS = pytest.mark.parametrize("kind", ["plain", "threads"])


def dies(stage: Stage, kind: str, point: str, **options: str) -> None:
    """A worker that kills itself at that point."""
    worker = stage.start(kind, kill_at=point, **options)
    assert worker.wait(60) == SIGKILLED, worker.output()


def another(stage: Stage, kind: str, **options: str) -> None:
    """The worker that does the rest, in time."""
    ready_at = stage.start(kind, **options).marked("ready")
    ended_at = stage.until(stage.turn_ended, BOUND + 5, what="ended")
    assert stage.took(ready_at, ended_at) <= BOUND


@KINDS
class TestWorkersDie:
    def test_with_the_agents_decision_in_hand(self, stage: Stage, kind: str) -> None:
        """B17: the agent is asked again, what was stored stays, and the answer is whole."""
        stage.submit("do: note slowly")
        dies(stage, kind, "turn:streaming#15", asked="1")
        row = stage.submission()
        dies(stage, kind, "turn:recovery-decided", asked="1")

        another(stage, kind, asked="1")

        stage.check_answer("do: note slowly", row.message_id)
        assert stage.counts() == {"note": 1, "asked": 2}
        assert {line["key"] for line in stage.effects() if line["what"] == "asked"} == {row.id}
        assert len(stage.requests()) == 3

    @pytest.mark.parametrize("point", ["turn:next-model", "turn:before-model#2", "turn:tool-stored"])
    def test_after_the_first_model_has_failed(self, stage: Stage, kind: str, point: str) -> None:
        """Which model it has come to is stored: the one that had failed is not asked again."""
        models = f"poor-{stage.name} {stage.name}"
        stage.submit("do: note")
        dies(stage, kind, point, models=models)

        another(stage, kind, models=models)

        stage.check_answer("do: note", stage.submission().message_id)
        assert stage.counts() == {"note": 1}
        assert (len(stage.refused_requests()), len(stage.requests())) == (1, 2)
        assert stage.messages()[-1].metadata["model"] == f"openai/{stage.name}"

    @pytest.mark.parametrize("point", ["turn:answer-refused", "turn:before-model#3"])
    def test_between_two_answers(self, stage: Stage, kind: str, point: str) -> None:
        """A13: the refused answer is stored, shown and counted; the workflow gets the second one."""
        prompt = "do: note #badly"
        stage.start_saga(prompt, retries=1)
        stage.send_go()
        dies(stage, kind, point)

        stage.start(kind)
        stage.until(stage.saga_ended, BOUND + 8, what="ended")

        stage.check_saga(prompt, stage.submission().message_id)
        assert stage.counts() == {"fetch": 1, "note": 1, "send": 1}
        assert len(stage.requests()) == 3
        assert [each["step"] for each in stage.messages()[-1].metadata["output_retries"]] == [2]
