"""Ending, dying, stalling, handing over: what becomes of a claim, and what the tick does for runs without one."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.crowd import Watch
from tests.domain.flows import DESK, Handle, begin, flow, seize_of, start, worker_dies
from think_celery.domain import tick
from think_celery.domain.workflows import advance, control, runs, workflows
from think_celery.errors import WorkflowError, WorkflowNotFound
from think_celery.ids import WorkflowRef
from think_celery.retries import Retry
from think_celery.runtime import Runtime
from think_celery.signals import AbortController
from think_celery.store import steps
from think_celery.store import wakes as rows
from think_celery.testing import SimulatedCrash, ThinkTest


class TestEnd:
    def test_a_result_that_can_not_be_stored(self, t: ThinkTest):
        """The output goes through the codec: what would not come back equal ends the run in error."""
        workflow = begin(t, lambda event, step: {1, 2})

        assert (workflow.status, workflow.row.error_type) == ("errored", "NotSerializable")
        assert "the result of run()" in workflow.row.error

    def test_an_error_has_two_fields(self, t: ThinkTest):
        """Error_type and error, not one folded into the other; any text can be stored."""

        def run(event, step):
            raise LookupError("no\x00where")

        workflow = begin(t, run)

        assert (workflow.row.error_type, workflow.row.error) == ("LookupError", "no\N{SYMBOL FOR NULL}where")
        with pytest.raises(WorkflowError, match="errored"):
            _ = workflow.output

    def test_what_its_task_reports(self, t: ThinkTest):
        """The outcome carries ids and the error's type only."""

        def run(event, step):
            raise LookupError("secret")

        outcome = start(t.rt, run).advance()

        assert (outcome.word, outcome.ended, outcome.error_type) == ("error", True, "LookupError")
        assert "secret" not in repr(outcome)

    def test_nothing_leaves_a_terminal_status(self, t: ThinkTest):
        """No event, resume, knock or sweep moves a run that has ended."""
        workflow = begin(t, lambda event, step: 1)
        process = t.rt.monitor.process_id()
        workflow.send("go")

        assert not control.resume(t.rt, workflow.ref)
        assert t.rt.db.transact(lambda tx: seize_of(tx, workflow.ref.key, process)) is None
        assert workflow.advance().word == "ended-before"
        assert workflow.status == "complete"

    def test_the_steps_are_kept(self, t: ThinkTest):
        """The journal of an ended run can be read."""
        workflow = begin(t, lambda event, step: step.do("a", lambda: 1))

        assert workflow.keys == [("a", "done")]

    def test_unknown_ones(self, quick: ThinkTest):
        """Resuming or reading what is not there is an error that names it."""
        with pytest.raises(WorkflowNotFound, match="nope"):
            control.resume(quick.rt, WorkflowRef("Flow", "nope"))
        with pytest.raises(WorkflowNotFound, match="nope"):
            runs.look_up(quick.rt, "nope", "Flow")


class TestAttempts:
    def test_a_run_that_kills_its_worker_ends(self, t: ThinkTest):
        """Attempts are counted before the work; at the cap the run ends in TooManyAttempts."""
        t.crash_at("workflow:claimed", times=20)
        workflow = begin(t, lambda event, step: "done")

        assert len(t.crashes) == 5
        assert (workflow.status, workflow.row.error_type) == ("errored", "TooManyAttempts")
        assert "5 times" in workflow.row.error

    def test_progress_starts_the_count_again(self, t: ThinkTest):
        """A new journal entry means that the claim before it was no poison."""

        def run(event, step):
            return [step.do(f"s{n}", lambda n=n: n) for n in range(4)]

        for n in range(4):
            t.crash_at(f"step:s{n}:before", times=4)
        workflow = begin(t, run)

        assert len(t.crashes) == 16
        assert workflow.output == [0, 1, 2, 3]
        assert workflow.row.takeovers == 17

    def test_parking_starts_the_count_again(self, t: ThinkTest):
        """An orderly end of a claim sets attempts to 0."""
        t.crash_at("workflow:claimed", times=4)
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go").payload)
        assert (workflow.row.attempts, workflow.row.takeovers) == (0, 0)

        t.crash_at("workflow:claimed", times=4)
        workflow.send("go", "done")
        t.run_until_idle()
        assert workflow.output == "done"

    def test_going_round_in_circles_ends_too(self, t: ThinkTest, monkeypatch):
        """`takeovers` only grows between parks and ends a run whose claims all made "progress"."""
        monkeypatch.setattr(advance, "MAX_TAKEOVERS", 6)

        def run(event, step):
            for n in range(100):
                step.do(f"s{n}", lambda: 1)

        for n in range(6):
            t.crash_at(f"step:s{n}:committed")
        workflow = begin(t, run)

        assert workflow.row.error_type == "TooManyAttempts"
        assert len(t.crashes) == 6

    def test_each_point_of_a_run_survives_a_crash(self, t: ThinkTest):
        """Killed once at every point in turn, the run ends as it would have."""
        points = [
            "workflow:started",
            "workflow:claimed",
            "step:a:before",
            "step:a:ran",
            "step:a:before-commit",
            "step:a:committed",
            "step:w:looked",
            "step:w:committed",
            "workflow:before-park",
            "workflow:parked",
            "event:before-commit",
            "workflow:before-end",
            "workflow:ended",
        ]

        def run(event, step):
            return [step.do("a", lambda: 1), step.wait_for_event("w", type="go").payload]

        for point in points:
            t.crash_at(point)

        def survive(call: Any) -> None:
            try:
                call()
            except SimulatedCrash:
                call()

        survive(lambda: start(t.rt, run, id="w1"))
        t.skip("1 minute")
        workflow = Handle(t.rt, WorkflowRef("Flow", "w1"))
        survive(lambda: workflow.send("go", 2, idempotency_key="k"))
        t.skip("10 minutes")

        assert sorted(t.crashes) == sorted(points)
        assert workflow.output == [1, 2]


class TestLease:
    @pytest.mark.parametrize(
        "point",
        ["step:a:before", "step:a:ran", "step:w:looked", "workflow:before-park", "workflow:before-end"],
    )
    def test_a_worker_that_lost_it_stores_nothing(self, t: ThinkTest, point: str):
        """Taken over at any point, the stalled worker's next write is refused; the other one's stands."""
        flow(lambda event, step: [step.do("a", lambda: 1), step.wait_for_event("w", type="go").payload])
        workflow = start(t.rt, None)
        workflow.send("go", 2)
        if point == "workflow:before-park":
            flow(lambda event, step: [step.do("a", lambda: 1), step.sleep("w", 60)])
        process = t.rt.monitor.process_id()
        before: list[Any] = []

        def taken_over(at: str) -> None:
            if at == point:
                assert t.rt.db.transact(lambda tx: seize_of(tx, workflow.ref.key, process))
                before.append((workflow.row, workflow.keys))

        t.rt.failpoint = taken_over
        assert workflow.advance().word == "lease-lost"
        assert before == [(workflow.row, workflow.keys)]

        t.rt.failpoint = lambda at: None
        assert workflow.advance().word in ("complete", "parked")

    def test_the_one_that_took_over_has_another_token(self, t: ThinkTest):
        """Whoever takes a lease away raises the token in that same statement."""
        workflow = start(t.rt, lambda event, step: step.sleep("w", 60))
        workflow.advance()
        first = workflow.row.token
        t.clock.advance(timedelta(seconds=61))
        workflows.wake_due(t.rt, 10)
        claim = advance.claim_run(t.rt, workflow.ref)
        assert not isinstance(claim, advance.Outcome)

        assert claim.lease.token == first + 1
        t.rt.db.transact(lambda tx: seize_of(tx, workflow.ref.key, claim.lease.process_id))
        assert workflow.row.token == first + 2

    def test_a_stale_renewal_asks_the_database_before_an_effect(self, t: ThinkTest):
        """After ⅔ of a lease without a renewal, the step function is not called before a look."""
        ran: list[int] = []
        workflow = start(t.rt, lambda event, step: step.do("a", lambda: ran.append(1)))
        process = t.rt.monitor.process_id()

        def stall(at: str) -> None:
            if at == "workflow:claimed":
                t.rt.db.transact(lambda tx: seize_of(tx, workflow.ref.key, process))
                t.clock.advance(timedelta(seconds=14))

        t.rt.failpoint = stall
        assert workflow.advance().word == "lease-lost"
        assert ran == []


class TestHandOver:
    def test_a_worker_that_stops_hands_over_at_the_next_step(self, t: ThinkTest):
        """SIGTERM: the step in hand is stored, the next one is another worker's, which is knocked at once."""
        ran: list[str] = []

        def run(event, step):
            step.do("a", lambda: ran.append("a") or t.rt.stopping.abort("SIGTERM"))
            return step.do("b", lambda: ran.append("b") or "done")

        workflow = start(t.rt, run)
        t.lose_messages()
        outcome = workflow.advance()
        row = workflow.row

        assert outcome.word == "handed-over"
        assert not outcome.ended
        assert ran == ["a"]
        assert (row.status, row.attempts, row.process_id, row.wakes) == ("queued", 0, None, 1)
        assert t.lose_messages() == 1

        t.rt.stopping = AbortController()
        workflow.advance()
        assert workflow.output == "done"
        assert ran == ["a", "b"]

    def test_a_run_with_nothing_left_ends(self, t: ThinkTest):
        """Without a further step there is nothing to hand over."""
        workflow = start(t.rt, lambda event, step: step.do("a", lambda: t.rt.stopping.abort()) or "done")

        assert workflow.advance().word == "complete"

    def test_a_retry_that_waits_in_place_does_not_hold_up_the_stop(self, live: Runtime):
        """The pause between two attempts ends when the worker stops; the count and the due time are kept."""

        def fail():
            threading.Timer(0.1, lambda: live.stopping.abort("SIGTERM")).start()
            raise OSError("down")

        workflow = start(live, lambda event, step: step.do("a", fail, retry=Retry(delay=9)))
        began = live.clock.elapsed()
        outcome = workflow.advance()

        assert outcome.word == "handed-over"
        assert live.clock.elapsed() - began < 5
        assert [(row.status, row.attempts) for row in workflow.journal] == [("retrying", 1)]

    def test_a_database_that_fails_costs_the_claim_and_not_the_run(self, t: ThinkTest, monkeypatch):
        """What goes wrong in our own storing is no failure of the step; the next claim does it again."""
        broken = [True]
        insert = steps.insert_done

        def fails(*args: Any, **options: Any) -> Any:
            if broken:
                broken.pop()
                raise RuntimeError("storing failed")
            return insert(*args, **options)

        monkeypatch.setattr(steps, "insert_done", fails)

        def run(event, step):
            try:
                return step.do("a", lambda: "done")
            except Exception:
                return "taken for the step's own failure"

        workflow = start(t.rt, run)
        assert workflow.advance().word == "handed-over"
        assert workflow.row.attempts == 1
        t.skip("1 minute")

        assert workflow.output == "done"


class TestTick:
    @pytest.mark.parametrize("watched", [True, False])
    def test_a_lost_knock_is_made_up_for(self, t: ThinkTest, watched: bool):
        """2 s after the start the tick knocks, then at doubling distances, 5 minutes at most.

        A minute at most where nobody would notice that the broker was emptied.
        """
        t.rt.sentinel = Watch(watching=watched)
        start(t.rt, lambda event, step: "done")
        began = t.clock.now()
        heard: list[float] = []
        for _ in range(900):
            t.lose_messages()
            t.clock.advance(timedelta(seconds=1))
            if workflows.knock_missed(t.rt, 10):
                heard.append((t.clock.now() - began).total_seconds())

        later = [128, 256, 512, 812] if watched else list(range(64 + 60, 901, 60))
        assert heard == [2, 4, 8, 16, 32, 64, *later]

    def test_a_waiting_run_is_not_knocked_for(self, t: ThinkTest):
        """Parked rows cost the tick nothing."""
        begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        t.clock.advance(timedelta(hours=1))

        assert workflows.knock_missed(t.rt, 10) == 0
        assert workflows.wake_due(t.rt, 10) == 0
        assert workflows.wake_unread(t.rt, 10) == 0

    def test_the_backstop_wakes_a_run_with_unread_events(self, t: ThinkTest):
        """Should a run ever wait beside an event that it has not seen, the tick wakes it."""
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go").payload)
        workflow.send("go", 5)
        t.lose_messages()
        t.rt.db.transact(
            lambda tx: tx.conn.exec_driver_sql(
                "UPDATE think_workflows SET status = 'waiting', knock_at = NULL"
            )
        )

        assert workflows.wake_unread(t.rt, 10) == 1
        t.run_until_idle()
        assert workflow.output == 5

    def test_one_row_that_fails_does_not_hide_the_rest(self, t: ThinkTest, monkeypatch):
        """Each row is its own transaction."""
        for n in range(3):
            start(t.rt, lambda event, step: step.sleep("s", 10), id=f"w{n}")
        t.run_until_idle()
        t.clock.advance(timedelta(seconds=20))
        wake = rows.wake_due
        bad = WorkflowRef("Flow", "w1").key

        def fails(tx: Any, key: str) -> Any:
            if key == bad:
                raise RuntimeError("broken row")
            return wake(tx, key)

        monkeypatch.setattr(rows, "wake_due", fails)

        assert workflows.wake_due(t.rt, 10) == 2

    def test_a_run_whose_worker_died_goes_on(self, t: ThinkTest):
        """The sweep frees it (running, no process, next token), and it is knocked at once."""
        workflow = start(t.rt, lambda event, step: "done")
        claim = advance.claim_run(t.rt, workflow.ref)
        assert not isinstance(claim, advance.Outcome)
        t.lose_messages()
        assert workflow.advance().word == "busy"
        worker_dies(t)

        assert (workflow.status, workflow.row.process_id) == ("running", None)
        assert workflow.row.token == claim.lease.token + 1
        t.run_until_idle()
        assert workflow.output == "done"

    def test_after_the_broker_lost_everything(self, t: ThinkTest):
        """`knock_now` lets the next pass knock for every run that waits for a worker, and for no other."""
        for n in range(3):
            start(t.rt, lambda event, step: "done", id=f"w{n}")
        parked = begin(t, lambda event, step: step.wait_for_event("a", type="go"), id="parked", name="Parked")
        for n in range(3, 6):
            start(t.rt, None, id=f"w{n}")
        t.lose_messages()
        t.rt.db.transact(lambda tx: tx.conn.exec_driver_sql("UPDATE think_workflows SET knock_at = NULL"))
        tick.knock_now(t.rt)

        assert workflows.knock_missed(t.rt, 10) == 3
        assert parked.status == "waiting"

    def test_early_events_of_a_run_that_began_meanwhile(self, t: ThinkTest):
        """Should both have died before their looks, the tick moves the events."""
        flow(lambda event, step: step.wait_for_event("a", type="go").payload)
        points = ["event:early", "workflow:started"]

        def dies(at: str) -> None:
            if at in points:
                points.remove(at)
                raise SimulatedCrash(at)

        t.rt.failpoint = dies
        with pytest.raises(SimulatedCrash):
            DESK.send_workflow_event("Flow", "w1", type="go", payload=7)
        with pytest.raises(SimulatedCrash):
            DESK.run_workflow("Flow", workflow_id="w1")
        assert advance.advance(t.rt, "Flow", "w1").word == "parked"

        assert workflows.adopt_early(t.rt) == 1
        t.run_until_idle()
        assert t.output("Flow", "w1") == 7


def test_a_claim_does_not_trust_what_it_read_while_another_had_the_run(t: ThinkTest, monkeypatch: Any):
    """Its holder may write more, park, and be woken under the same token: a step that ran then must not run again."""
    ran: list[str] = []

    def run(event, step):
        step.do("a", lambda: ran.append("a"))
        step.do("b", lambda: ran.append("b"))
        return step.wait_for_event("go", type="go").payload

    workflow = start(t.rt, run)
    seen: list[Any] = []

    def looks(point: str) -> None:
        if point == "step:b:before":
            seen.extend(t.rt.db.read(lambda tx: steps.of_workflow(tx, workflow.ref.key)))

    t.rt.failpoint = looks
    workflow.advance()
    t.rt.failpoint = lambda point: None
    workflow.send("go", 1)
    monkeypatch.setattr(t.rt.db, "read", lambda work: seen)
    late = workflow.advance()
    monkeypatch.undo()
    t.run_until_idle()

    assert seen[0].workflow_status == "running"
    assert late.word == "busy"
    assert (workflow.output, ran) == (1, ["a", "b"])
