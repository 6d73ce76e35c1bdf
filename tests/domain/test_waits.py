"""Waits: events, approvals and times; what a deadline means, and that no event is lost or taken twice."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.flows import DESK, Desk, begin, start
from think_celery.domain.workflows import workflows
from think_celery.durations import Duration
from think_celery.errors import (
    InvalidDuration,
    StepError,
    WorkflowRejectedError,
    WorkflowTimeoutError,
)
from think_celery.testing import ThinkTest
from think_celery.workflow import ThinkWorkflow


def waiting(timeout: Duration | None = None) -> Any:
    """A run that waits for one event, and says what came of it."""

    def run(event, step):
        try:
            return step.wait_for_event("wait", type="go", timeout=timeout).payload
        except WorkflowTimeoutError as error:
            return ["late", error.step, error.seconds]

    return run


DECISIONS: dict[str, tuple[Callable[[str], object], list[Any]]] = {
    "approve": (
        lambda it: DESK.approve_workflow(it, reason="fine", metadata={"by": "ann"}),
        ["fine", {"by": "ann"}],
    ),
    "reject": (
        lambda it: DESK.reject_workflow(it, "not today"),
        ["WorkflowRejectedError", "release", "not today"],
    ),
    "event: yes": (lambda it: decide_by_event(it, {"approved": True}), [None, None]),
    "event: no": (
        lambda it: decide_by_event(it, {"approved": False, "reason": "no"}),
        ["WorkflowRejectedError", "release", "no"],
    ),
    "nobody": (lambda it: None, ["WorkflowTimeoutError", "release", 86_400.0]),
}
"""How somebody decides, and what comes of it."""


def decide_by_event(workflow_id: str, payload: Any) -> bool:
    """As whoever has no more than a way to send events."""
    return DESK.send_workflow_event("Awaiter", workflow_id, type="approval", payload=payload)


def test_statements_whose_answers_got_lost_are_found(t: ThinkTest, monkeypatch: pytest.MonkeyPatch):
    """A connection that died after the commit costs a run nothing; each statement is asked again."""
    single = t.rt.db.single

    def lost(work: Any, *, repeatable: bool = False) -> Any:
        if repeatable:
            single(work)
        return single(work)  # as `Database` does when the connection dies and nobody knows how it went

    def run(event, step):
        done = step.do("do", lambda: "done")
        return [done, step.wait_for_event("wait", type="go").payload, step.sleep("nap", 5)]

    monkeypatch.setattr(t.rt.db, "single", lost)
    workflow = begin(t, run)
    workflow.send("go", 1)
    t.run_until_idle()
    claims = workflow.row.wakes
    t.skip(6)

    assert (workflow.status, workflow.output) == ("complete", ["done", 1, None])
    assert (claims, workflow.row.wakes) == (1, 2)  # none was given up


class TestEvents:
    def test_a_waiting_run_is_one_row(self, t: ThinkTest):
        """A7: parked, it holds no process and no knock; the event wakes it."""
        workflow = begin(t, waiting())
        row = workflow.row

        assert (row.status, row.process_id, row.knock_at) == ("waiting", None, None)
        assert row.attempts == row.takeovers == 0

        workflow.send("go", {"at": 1})
        assert workflow.status == "queued"
        t.run_until_idle()
        assert workflow.output == {"at": 1}

    def test_what_comes_back(self, t: ThinkTest):
        """Type, payload and the time at which it was sent, equal on replay."""
        seen: list[Any] = []

        def run(event, step):
            seen.append(step.wait_for_event("wait", type="go"))
            step.wait_for_event("again", type="go")

        workflow = begin(t, run)
        t.skip(60)
        sent = t.clock.now()
        workflow.send("go", [1, timedelta(days=2)])
        t.run_until_idle()
        workflow.send("go")
        t.run_until_idle()

        assert seen[0] == seen[1]
        assert (seen[0].type, seen[0].payload, seen[0].sent_at) == ("go", [1, timedelta(days=2)], sent)

    def test_early_events_wait_in_order_and_are_taken_once(self, t: ThinkTest):
        """FR-61: e1 before the run exists, e2 and e3 before their waits: each is taken once, in order."""

        def run(event, step):
            return [step.wait_for_event(f"w{n}", type="go").payload for n in range(3)]

        DESK.send_workflow_event("Flow", "w1", type="go", payload=1)
        workflow = start(t.rt, run)
        workflow.send("go", 2)
        workflow.send("other", "ignored")
        workflow.send("go", 3)
        t.run_until_idle()

        assert workflow.output == [1, 2, 3]
        assert [(event.type, event.consumed_by) for event in workflow.inbox] == [
            ("go", "w0"),
            ("go", "w1"),
            ("other", None),
            ("go", "w2"),
        ]

    def test_one_key_is_one_event(self, t: ThinkTest):
        """FR-61: the same idempotency key twice is one event; another workflow may use the key, too."""
        first = begin(
            t, lambda event, step: [step.wait_for_event(f"w{n}", type="go").payload for n in range(2)]
        )
        second = start(t.rt, None, id="w2")
        for payload in ("a", "b"):
            first.send("go", payload, idempotency_key="k")
        second.send("go", "c", idempotency_key="k")
        first.send("go", "d")
        t.run_until_idle()

        assert first.output == ["a", "d"]
        assert [event.payload for event in second.inbox] == ['"c"']

    @pytest.mark.parametrize("point", ["step:wait:looked", "workflow:before-park"])
    def test_one_that_comes_between_look_and_park(self, t: ThinkTest, point: str):
        """Parking is conditional on the count of events that the look was based on: it looks again, and goes on."""
        workflow = start(t.rt, waiting())

        def comes(at: str) -> None:
            if at == point and not workflow.inbox:
                workflow.send("go", "between")

        t.rt.failpoint = comes
        t.lose_messages()

        assert workflow.advance().word == "complete"
        assert workflow.output == "between"

    def test_other_types_are_left_alone(self, t: ThinkTest):
        """An event of another type wakes the run, which parks again."""
        workflow = begin(t, waiting())
        workflow.send("other")
        t.run_until_idle()

        assert workflow.status == "waiting"
        assert [event.consumed_by for event in workflow.inbox] == [None]

    @pytest.mark.parametrize("name", ["think-prompt-x", "think-", "", " ", "a\nb", "x" * 201])
    def test_reserved_and_unfit_types_and_keys_are_refused(self, quick: ThinkTest, name: str):
        """What begins with `think-` is the engine's; nothing is stored."""
        workflow = begin(quick, waiting())

        with pytest.raises(ValueError, match="type="):
            workflow.send(name)
        with pytest.raises(ValueError, match="idempotency_key="):
            workflow.send("go", idempotency_key=name)
        assert workflow.inbox == []

    def test_an_event_for_an_ended_run_is_no_error(self, t: ThinkTest):
        """It is kept, unread, and changes nothing."""
        workflow = begin(t, lambda event, step: "done")
        workflow.send("go")
        t.run_until_idle()

        assert workflow.output == "done"

    def test_an_early_event_is_dropped_after_a_day(self, t: ThinkTest):
        """Events for a run that does not exist are kept under name and id for 24 hours."""
        DESK.send_workflow_event("Flow", "w1", type="go", payload=1)
        t.skip("23 hours")
        kept = start(t.rt, waiting())
        t.run_until_idle()
        assert kept.output == 1

        DESK.send_workflow_event("Flow", "w2", type="go", payload=1)
        t.skip("25 hours")
        late = start(t.rt, None, id="w2")
        t.run_until_idle()
        assert late.status == "waiting"

    def test_in_a_joined_transaction_it_comes_with_the_commit(self, t: ThinkTest):
        """Inside a caller's transaction the event is news that follows the commit."""
        workflow = begin(t, waiting())

        def work(tx, fail):
            with t.rt.db.joining(tx):
                workflow.send("go", "joined", idempotency_key="k")
            if fail:
                raise RuntimeError

        with pytest.raises(RuntimeError):
            t.rt.db.transact(lambda tx: work(tx, True))
        t.run_until_idle()
        assert workflow.status == "waiting"

        t.rt.db.transact(lambda tx: work(tx, False))
        assert workflow.status == "waiting"
        t.run_until_idle()
        assert workflow.output == "joined"

    def test_a_joined_early_event_finds_its_run(self, t: ThinkTest):
        """News for a workflow that does not exist yet becomes an early event when it is delivered."""

        def work(tx):
            with t.rt.db.joining(tx):
                DESK.send_workflow_event("Flow", "w1", type="go", payload="early")

        t.rt.db.transact(work)
        t.run_until_idle()

        assert begin(t, waiting()).output == "early"


class TestDeadlines:
    def test_it_is_fixed_at_the_first_pass(self, t: ThinkTest):
        """FR-60: wait(10 s); woken at 4 s and at 8 s, it still times out 10 s after the first pass."""
        workflow = begin(t, waiting(timeout=10))
        began = t.clock.now()
        first = workflow.journal[0].deadline_at
        for _ in range(2):
            t.skip(4)
            workflow.send("other")
            t.run_until_idle()
            assert workflow.journal[0].deadline_at == first == began + timedelta(seconds=10)

        t.skip(1.9)
        assert workflow.status == "waiting"
        t.skip(1.2)
        assert workflow.output == ["late", "wait", 10.0]

    @pytest.mark.parametrize("crash", ["step:wait:looked", "workflow:before-park", "workflow:parked"])
    def test_a_crash_does_not_start_it_again(self, t: ThinkTest, crash: str):
        """FR-60: the deadline is stored with the entry, so it survives a worker's death at any point."""
        t.crash_at(crash)
        workflow = begin(t, waiting(timeout=30))
        deadline = workflow.journal[0].deadline_at

        t.skip("1 minute")

        assert t.crashes == [crash]
        assert workflow.output == ["late", "wait", 30.0]
        assert workflow.journal[0].deadline_at == deadline

    def test_an_event_at_the_deadline_wins_however_late_the_run_wakes(self, t: ThinkTest):
        """Event against deadline is a rule: sent at or before it, the event wins…"""
        workflow = begin(t, waiting(timeout=10))
        t.clock.advance(timedelta(seconds=10))
        workflow.send("go", "in time")
        t.lose_messages()
        t.clock.advance(timedelta(days=1))
        t.skip(1)

        assert workflow.output == "in time"

    def test_an_event_after_the_deadline_stays_in_the_inbox(self, t: ThinkTest):
        """…and sent after it, it stays unread, though the run has not looked yet."""
        workflow = begin(t, waiting(timeout=10))
        t.clock.advance(timedelta(seconds=10, microseconds=1))
        workflow.send("go", "late")
        t.run_until_idle()

        assert workflow.output == ["late", "wait", 10.0]
        assert [event.consumed_by for event in workflow.inbox] == [None]

    def test_a_timeout_is_the_same_on_replay(self, t: ThinkTest):
        """The recorded timeout raises an equal error each time; an event that comes later changes nothing."""
        seen: list[WorkflowTimeoutError] = []

        def run(event, step):
            try:
                step.wait_for_event("wait", type="go", timeout=10)
            except WorkflowTimeoutError as error:
                seen.append(error)
            return step.wait_for_event("next", type="go").payload

        workflow = begin(t, run)
        t.skip(11)
        workflow.send("go", "second")
        t.run_until_idle()

        assert workflow.output == "second"
        assert [error.args for error in seen] == [("wait", 10.0)] * 2
        assert {type(error) for error in seen} == {WorkflowTimeoutError}

    def test_zero_looks_once(self, t: ThinkTest):
        """timeout=0: an event that is there already counts; else the time is up."""
        empty = begin(t, waiting(timeout=0))
        full = start(t.rt, None, id="w2")
        full.send("go", "there")
        t.run_until_idle()

        assert empty.output == ["late", "wait", 0.0]
        assert full.output == "there"

    def test_not_caught_it_is_the_runs_error(self, t: ThinkTest):
        """A timeout that run() does not catch ends the run in error, type and text in two fields."""
        workflow = begin(t, lambda event, step: step.wait_for_event("wait", type="go", timeout=1))
        t.skip(2)

        assert (workflow.status, workflow.row.error_type) == ("errored", "WorkflowTimeoutError")
        assert "WorkflowTimeoutError" not in workflow.row.error

    @pytest.mark.parametrize("timeout", ["soon", -1, True, float("nan")])
    def test_an_unfit_timeout_is_refused_before_anything_is_stored(self, quick: ThinkTest, timeout: Any):
        """A span that can't be read is an error of the call."""
        workflow = begin(quick, lambda event, step: step.wait_for_event("wait", type="go", timeout=timeout))

        assert workflow.row.error_type == InvalidDuration.__name__
        assert workflow.keys == []


class TestApprovals:
    def test_granted(self, t: ThinkTest):
        """A24: a plain event of that shape counts; reason and metadata come back."""

        def run(event, step):
            approval = step.wait_for_approval(timeout="1 week")
            return [approval.reason, approval.metadata]

        workflow = begin(t, run)
        assert workflow.keys == [("approval", "waiting")]
        workflow.send("approval", {"approved": True, "reason": "fine", "metadata": {"by": "ann"}})
        t.run_until_idle()

        assert workflow.output == ["fine", {"by": "ann"}]

    def test_refused_the_same_on_replay(self, t: ThinkTest):
        """A24: a refusal raises WorkflowRejectedError with its reason, recorded; caught, the run goes on."""
        seen: list[Any] = []

        def run(event, step):
            try:
                step.wait_for_approval("release")
            except WorkflowRejectedError as error:
                seen.append((error.step, error.reason))
            step.wait_for_event("go", type="go")
            return "went on"

        workflow = begin(t, run)
        workflow.send("approval", {"approved": False, "reason": "not today"})
        t.run_until_idle()
        workflow.send("go")
        t.run_until_idle()

        assert workflow.output == "went on"
        assert seen == [("release", "not today")] * 2

    def test_overdue(self, t: ThinkTest):
        """Nobody decides: WorkflowTimeoutError."""
        workflow = begin(t, lambda event, step: step.wait_for_approval(timeout="1 hour"))
        t.skip("2 hours")

        assert workflow.row.error_type == "WorkflowTimeoutError"

    @pytest.mark.parametrize("decide", DECISIONS)
    @pytest.mark.parametrize("spelling", ["on step", "on the workflow"])
    def test_however_it_is_spelled(self, quick: ThinkTest, spelling: str, decide: str):
        """A24: `step.wait_for_approval` or `self.wait_for_approval(step)`; by the agent's methods, or by an event."""

        class Awaiter(ThinkWorkflow[Desk, dict[str, Any]]):
            def run(self, event: Any, step: Any) -> list[Any]:
                try:
                    if spelling == "on step":
                        approval = step.wait_for_approval("release", timeout="1 day")
                    else:
                        approval = self.wait_for_approval(step, "release", timeout="1 day")
                    said = [approval.reason, approval.metadata]
                except (WorkflowRejectedError, WorkflowTimeoutError) as error:
                    said = [type(error).__name__, *error.args]
                step.sleep("so that it is replayed", 5)
                return said

        workflow_id = DESK.run_workflow(Awaiter)
        quick.run_until_idle()
        assert [(each.name, each.status) for each in quick.steps(workflow_id)] == [("release", "waiting")]
        if decide != "nobody":
            assert DECISIONS[decide][0](workflow_id)
        quick.skip("2 days")

        assert quick.output(Awaiter, workflow_id) == DECISIONS[decide][1]

    @pytest.mark.parametrize(
        "payload", [None, True, {}, {"approved": "yes"}, {"approved": 1}, {"approved": True, "reason": 5}]
    )
    def test_what_is_no_decision_is_said_to_be_none(self, t: ThinkTest, payload: Any):
        """A payload without a boolean `approved` is an error that shows the right form, not a silent wait."""

        def run(event, step):
            try:
                step.wait_for_approval()
            except StepError as error:
                return [error.error_type, '{"approved": true}' in error.message]

        workflow = begin(t, run)
        workflow.send("approval", payload)
        t.run_until_idle()

        assert workflow.output == ["InvalidApproval", True]


class TestSleep:
    def test_it_ends_when_it_is_due(self, t: ThinkTest):
        """A24: without a worker, for days; other events wake the run and do not shorten it."""
        workflow = begin(t, lambda event, step: step.sleep("nap", "3 days") or "rested")
        t.skip("2 days")
        workflow.send("go")
        t.run_until_idle()
        assert workflow.status == "waiting"

        t.skip("23 hours")
        assert workflow.status == "waiting"
        t.skip("1 hour")
        assert workflow.output == "rested"

    def test_a_worker_that_was_down_finds_it_later(self, t: ThinkTest):
        """FR-60: waits are found by scanning rows, so nothing is lost while nobody runs."""
        workflow = begin(t, lambda event, step: step.sleep("nap", 10) or "rested")
        t.lose_messages()
        t.clock.advance(timedelta(days=30))
        t.skip(1)

        assert workflow.output == "rested"


def test_the_tick_says_when_the_next_wait_ends(t: ThinkTest):
    """`next_wake` is the earliest deadline of a parked run."""
    begin(t, waiting(timeout=60))
    start(t.rt, waiting(timeout=30), id="w2")
    t.run_until_idle()
    from think_celery.store import wakes as rows

    due = t.rt.db.read(rows.next_wake)

    assert due == t.clock.now() + timedelta(seconds=30)
    assert workflows.wake_due(t.rt, 10) == 0
