"""Rows are the truth, knocks are hints: callers that die, knocks that are thrown away, deaths that repeat."""

import signal
from itertools import pairwise
from typing import Any

import pytest

from tests.crash.stage import BOUND, KEY, LEASE, SAGA_ID, TICK, Stage
from tests.crash.test_failpoints import SIGKILLED

MISSED = 2.0
"""From when on a knock is missed: two seconds after the row was stored."""
KINDS = pytest.mark.parametrize("kind", ["plain", "threads"])


class TestCallersDie:
    def test_after_a_submission_was_stored(self, stage: Stage) -> None:
        """Accepted means stored: the tick finds the turn that nobody was knocked for."""
        worker = stage.start("plain")
        worker.marked("ready")
        call = {"do": "submit", "prompt": "do: note post", "key": KEY}

        caller = stage.client(call, kill_at="submit:committed")

        assert caller.wait(60) == SIGKILLED
        ended_at = stage.until(stage.turn_ended, BOUND, what="ended")
        assert stage.took(caller.ended_at, ended_at) <= MISSED + 3 * TICK
        stage.check_answer("do: note post", None)
        assert stage.counts() == {"note": 1, "post": 1}

        again = stage.client(call)  # whoever repeats the call gets the same turn
        assert again.wait(60) == 0
        assert len(stage.requests()) == 3
        assert stage.submission().status == "completed"

    def test_after_a_workflow_was_stored(self, stage: Stage) -> None:
        """The same for a workflow; one whose caller died is there once."""
        worker = stage.start("plain")
        worker.marked("ready")
        call = {"do": "start", "prompt": "do: note", "id": SAGA_ID}

        assert stage.client(call, kill_at="workflow:started").wait(60) == SIGKILLED
        assert stage.client(call).wait(60) == 0
        stage.send_go()

        stage.until(stage.saga_ended, BOUND + MISSED, what="ended")
        stage.check_saga("do: note", None)

    def test_within_the_transaction_of_an_event(self, stage: Stage) -> None:
        """An event whose sender died before its commit is not there; sent again under its key it comes once."""
        stage.start_saga("do: note")
        stage.start("plain").marked("ready")
        stage.until(stage.saga_waits, BOUND, what="waiting")
        call = {"do": "send", "id": SAGA_ID, "payload": {"by": "Ada"}, "key": "go"}

        assert stage.client(call, kill_at="event:before-commit").wait(60) == SIGKILLED
        assert stage.saga().status == "waiting"
        assert stage.client(call).wait(60) == 0
        assert stage.client(call).wait(60) == 0

        stage.until(stage.saga_ended, BOUND, what="ended")
        stage.check_saga("do: note", None)


@KINDS
class TestKnocksAreThrownAway:
    """With every direct knock thrown away everything runs, only later."""

    def test_a_workflow_goes_its_way(self, stage: Stage, kind: str) -> None:
        """Each of its hops waits for the tick, two seconds and a tick at most."""
        stage.start_saga("do: note")
        stage.send_go()
        worker = stage.start(kind, deaf="1")
        worker.marked("ready")

        stage.until(stage.saga_ended, 4 * (MISSED + 2 * TICK), what="ended")

        stage.check_saga("do: note", None)
        assert stage.counts() == {"fetch": 1, "note": 1, "send": 1}
        assert len(stage.requests()) == 2

    @pytest.mark.parametrize("point", ["turn:tool-stored", "outbox:before-delivery", "workflow:parked"])
    def test_a_workflow_whose_worker_dies(self, stage: Stage, kind: str, point: str) -> None:
        """Deaths and lost knocks together lose nothing either."""
        stage.start_saga("do: note")
        stage.send_go()
        first = stage.start(kind, deaf="1", kill_at=point)
        assert first.wait(60) == SIGKILLED
        stage.start(kind, deaf="1").marked("ready")

        stage.until(stage.saga_ended, BOUND + 4 * (MISSED + TICK), what="ended")

        stage.check_saga("do: note", None)
        assert stage.counts() == {"fetch": 1, "note": 1, "send": 1}

    def test_turns_of_one_agent_stay_in_order(self, stage: Stage, kind: str) -> None:
        """The next turn is knocked for by the tick, and none overtakes another."""
        accepted = [stage.agent.submit_messages("do: note") for _ in range(4)]
        stage.start(kind, deaf="1").marked("ready")

        def all_ended() -> bool:
            found = [stage.agent.inspect_submission(one.submission_id) for one in accepted]
            return all(one is not None and one.status == "completed" for one in found)

        stage.until(all_ended, 4 * (MISSED + 2 * TICK), what="all ended")
        found: list[Any] = [stage.agent.inspect_submission(one.submission_id) for one in accepted]
        assert [one.completed_at for one in found] == sorted(one.completed_at for one in found)
        assert all(a.completed_at <= b.started_at for a, b in pairwise(found))
        assert [message.role for message in stage.messages()] == ["user", "assistant"] * 4


class TestDeathsThatRepeat:
    def test_a_turn_that_kills_its_workers_ends(self, stage: Stage) -> None:
        """Poison ends: after five deaths without progress the turn ends in error, and the workflow sees it."""
        stage.start_saga("do: note")
        for _ in range(5):
            worker = stage.start("plain", kill_at="turn:before-model")
            assert worker.wait(60) == SIGKILLED
        assert stage.submission().attempts == 5
        stage.start("plain").marked("ready")

        stage.until(stage.saga_ended, BOUND, what="ended")

        row = stage.submission()
        assert (row.status, row.error_type) == ("error", "TooManyAttempts")
        assert (stage.saga().status, stage.saga().error_type) == ("errored", "ThinkPromptError")
        assert row.id in stage.saga().error
        assert len(stage.requests()) == 0
        assert stage.counts() == {"fetch": 1}

    def test_a_workflow_that_kills_its_workers_ends(self, stage: Stage) -> None:
        """The same for the workflow's own code."""
        stage.start_saga("do: note")
        for _ in range(5):
            assert stage.start("plain", kill_at="step:fetch:before").wait(60) == SIGKILLED
        stage.start("plain").marked("ready")

        stage.until(stage.saga_ended, BOUND, what="ended")

        assert (stage.saga().status, stage.saga().error_type) == ("errored", "TooManyAttempts")
        assert stage.effects() == []

    def test_deaths_with_progress_are_not_counted(self, stage: Stage) -> None:
        """A turn that gets a tool further with each life is let live, however often its workers die."""
        stage.submit("do: note post")
        for point in ("turn:claimed", "turn:tool-stored", "turn:before-model", "turn:tool-stored"):
            assert stage.start("plain", kill_at=point).wait(60) == SIGKILLED
        assert stage.submission().attempts == 1  # a stored result makes the deaths before it forgotten
        for _ in range(3):
            assert stage.start("plain", kill_at="turn:before-model").wait(60) == SIGKILLED
        stage.start("plain").marked("ready")

        stage.until(stage.turn_ended, BOUND, what="ended")

        stage.check_answer("do: note post", stage.submission().message_id)
        assert stage.counts() == {"note": 1, "post": 1}
        assert len(stage.requests()) == 3

    def test_everything_dies_at_once(self, stage: Stage) -> None:
        """kill -9 of all workers, and much later another one: nothing that was accepted is lost."""
        stage.start_saga("do: note")
        stage.send_go()
        workers = [stage.start("threads", hold_at="turn:tool-stored") for _ in range(2)]
        stage.until(lambda: stage.effects() and stage.counts().get("note"), 20, what="at its tool")
        for worker in workers:
            worker.signal(signal.SIGKILL)
        assert [worker.wait(10) for worker in workers] == [SIGKILLED] * 2
        late = stage.start("threads")

        ended_at = stage.until(stage.saga_ended, BOUND + 10, what="ended")

        assert stage.took(late.marked("ready"), ended_at) <= LEASE + 4 * TICK
        stage.check_saga("do: note", stage.submission().message_id)
