"""Who may take over, and when: a death that can be proved, one that can't, and a worker that was only frozen."""

import signal
import time
from typing import Any

import pytest

from tests.crash.model import FINAL
from tests.crash.nursery import Process
from tests.crash.stage import BOUND, LEASE, TICK, Stage
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME
from think_celery.store import tables

KINDS = pytest.mark.parametrize("kind", ["plain", "threads"])
SECOND_LOOK = 2.0
SLACK = 1.0  # for the work between the ticks


def held(stage: Stage, kind: str, point: str, **options: str) -> Process:
    """A worker that has come to that point and stays there, alive."""
    worker = stage.start(kind, hold_at=point, **options)
    worker.marked("held", 60)
    return worker


@KINDS
class TestADeathThatIsProved:
    def test_a_live_worker_takes_over_within_two_ticks(self, stage: Stage, kind: str) -> None:
        """A worker of the same machine proves the death of another, and does not wait for its lease."""
        stage.submit("do: note")
        first = held(stage, kind, "turn:before-model#2")
        second = stage.start(kind)
        second.marked("ready")
        time.sleep(2.5 * TICK)
        assert not stage.taken_over()  # what lives is left alone

        first.signal(signal.SIGKILL)
        died_at = time.monotonic()
        taken_at = stage.until(stage.taken_over, BOUND, what="taken over")

        assert stage.took(died_at, taken_at) <= 2 * TICK + SLACK
        stage.until(stage.turn_ended, BOUND, what="ended")
        stage.check_answer("do: note", stage.submission().message_id)
        assert stage.counts() == {"note": 1}
        assert len(stage.requests()) == 2


@KINDS
class TestADeathThatNobodyCanProve:
    def test_it_takes_a_lease_and_two_looks(self, stage: Stage, kind: str) -> None:
        """A worker that seems to be on another machine is given its lease, and a second look after the first.

        One look after a stall of everybody would take over live work.
        """
        stage.submit("do: note")
        first = held(stage, kind, "turn:before-model#2", elsewhere="1")
        second = stage.start(kind)
        second.marked("ready")
        time.sleep(LEASE + 2 * TICK)
        assert not stage.taken_over()  # it renews

        first.signal(signal.SIGKILL)
        died_at = time.monotonic()
        taken_at = stage.until(stage.taken_over, BOUND + 5, what="taken over")
        row = next(row for row in stage.rows(tables.processes) if row.dead)
        looked_twice = row.suspect_since is not None and row.suspect_since >= row.until

        assert looked_twice
        assert taken_at - died_at >= LEASE - 1.5 * TICK + SECOND_LOOK
        assert stage.took(died_at, taken_at) <= LEASE + SECOND_LOOK + 2 * TICK + SLACK
        stage.until(stage.turn_ended, BOUND, what="ended")
        stage.check_answer("do: note", stage.submission().message_id)
        assert stage.counts() == {"note": 1}


class TestAWorkerThatWasFrozen:
    """SIGSTOP past its lease, a takeover, SIGCONT: from then on it writes nothing and does nothing."""

    def freeze(self, stage: Stage, point: str) -> tuple[Process, Process]:
        first = held(stage, "plain", point)
        first.freeze()
        while not stage.can_write():  # on SQLite, a process frozen in a write freezes everybody
            first.thaw()
            time.sleep(0.05)
            first.freeze()
        second = stage.start("plain")
        second.marked("ready")
        return first, second

    def thaw(self, stage: Stage, first: Process, says: str = "lease was lost") -> None:
        """Let it go on, and wait until it has noticed that its work is another's."""
        first.go()
        first.thaw()
        stage.until(lambda: says in first.output(), 10, what=f"saying {says!r}")
        time.sleep(1.5 * TICK)  # for what it would still write

    def last_frames(self, stage: Stage) -> list[Any]:
        """The live frames, once no more have come for a second."""
        frames, since = stage.rows(tables.live), time.monotonic()
        while time.monotonic() - since < 1:
            time.sleep(0.05)
            if (now := stage.rows(tables.live)) != frames:
                frames, since = now, time.monotonic()
        return frames

    @pytest.mark.parametrize("point", ["turn:tool-marked#2", "turn:tool-ran#2", "turn:tool-stored#2"])
    def test_a_turn_that_another_has_ended(self, stage: Stage, point: str) -> None:
        """Rows, effects and newer frames stay as the one that took over left them."""
        stage.submit("do: note post")
        first, second = self.freeze(stage, point)
        stage.until(stage.turn_ended, LEASE + SECOND_LOOK + 4 * TICK + SLACK, what="ended")
        before, done = stage.stored(), stage.effects()
        frames = self.last_frames(stage)

        self.thaw(stage, first)

        assert stage.stored() == before
        assert stage.effects() == done
        token = stage.rows(tables.lines)[0].token
        late = [row for row in stage.rows(tables.live) if row not in frames]
        assert {row.token for row in late} <= {1, token}  # readers drop those of a lower one
        assert token > 1
        assert second.running
        calls = stage.check_answer("do: note post", stage.submission().message_id)
        if not point.startswith("turn:tool-stored"):
            assert calls["post"].error_text == UNKNOWN_OUTCOME
        posts = [line for line in done if line["what"] == "post"]
        assert len(posts) == (0 if point.startswith("turn:tool-marked") else 1)

    def test_a_stream_that_another_goes_on_with(self, stage: Stage) -> None:
        """It thaws while the other one streams: not a word of its own gets between the other's."""
        stage.submit("do: slowly")
        first, _ = self.freeze(stage, "turn:streaming#12")
        stage.until(stage.taken_over, LEASE + SECOND_LOOK + 4 * TICK + SLACK, what="taken over")

        self.thaw(stage, first)
        stage.until(stage.turn_ended, BOUND, what="ended")

        stage.check_answer("do: slowly", stage.submission().message_id)
        assert stage.messages()[-1].text == FINAL
        assert len(stage.requests()) == 2

    @pytest.mark.parametrize(
        ("point", "twice"),
        [("step:fetch:ran", "fetch"), ("step:fetch:committed", ""), ("step:book:ran", "")],
    )
    def test_a_workflow_that_another_has_ended(self, stage: Stage, point: str, twice: str) -> None:
        """Its journal, its inbox and the ledger of step.transaction stay as they are."""
        stage.start_saga("do: note")
        stage.send_go()
        first, _ = self.freeze(stage, point)
        stage.until(stage.saga_ended, LEASE + SECOND_LOOK + 5 * TICK + SLACK, what="ended")
        before, done = stage.stored(), stage.effects()

        self.thaw(stage, first)

        assert stage.stored() == before
        assert stage.effects() == done
        stage.check_saga("do: note", stage.submission().message_id)
        assert stage.counts() == {name: 1 + (name == twice) for name in ("fetch", "note", "send")}


@pytest.mark.services
@pytest.mark.parametrize("database", ["postgresql"])
class TestAWorkerThatWasFrozenInATransaction:
    @pytest.mark.parametrize("point", ["turn:before-commit", "turn:tool-marked"])
    def test_others_work_on_meanwhile(self, stage: Stage, point: str) -> None:
        """What it has locked holds up its own agent only as long as the server lets an idle transaction live."""
        other = type(stage.agent)._bound_to(stage.rt, "bob")
        mine = stage.submit("do: note").submission_id
        first = held(stage, "plain", point)
        first.freeze()
        stage.start("plain").marked("ready")
        time.sleep(LEASE)

        submission = other.submit_messages("do: note").submission_id
        stage.until(lambda: ended(other, submission), BOUND + 5, what="answered by another agent")
        stage.until(lambda: ended(stage.agent, mine), LEASE + BOUND, what="taken over")
        assert first.running


def ended(agent: Any, submission_id: str) -> bool:
    """Whether that turn is completed."""
    return bool(agent.inspect_submission(submission_id).status == "completed")
