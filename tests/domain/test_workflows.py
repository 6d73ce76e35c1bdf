"""Starting, claiming, parking, handing over, ending and resuming workflow runs."""

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel

from tests.domain.flows import DESK, Desk, Handle, begin, flow, start, worker_dies
from think_celery.domain import advance, tick, workflows
from think_celery.errors import (
    AsyncNotSupported,
    InvalidValue,
    NotSerializable,
    PayloadTooLarge,
    UnknownClass,
    WorkflowError,
    WorkflowExists,
    WorkflowNotFound,
)
from think_celery.ids import AgentRef, WorkflowRef, advance_task_id
from think_celery.retries import Retry
from think_celery.runtime import Registry, Runtime
from think_celery.settings import Settings
from think_celery.signals import AbortController
from think_celery.store import steps
from think_celery.store import workflows as rows
from think_celery.testing import SimulatedCrash, ThinkTest, think_test
from think_celery.workflow import ThinkWorkflow

T = TypeVar("T")


class Params(BaseModel):
    """What a typed workflow is started with."""

    number: int
    note: str = "none"


@dataclass
class Plain:
    """Params as a dataclass."""

    number: int


class Typed(ThinkWorkflow["Desk", Params]):
    """The agent's class is given as a text."""

    def run(self, event: Any, step: Any) -> Any:
        return [type(event.payload).__name__, event.payload.number, event.payload.note]


class WithDataclass(ThinkWorkflow[Desk, "Plain"]):
    """The params' type is given as a text."""

    def run(self, event: Any, step: Any) -> Any:
        return [type(event.payload).__name__, event.payload.number]


class Base(ThinkWorkflow[Desk, T], Generic[T]):
    """A generic class between."""

    def run(self, event: Any, step: Any) -> Any:
        return type(event.payload).__name__


class Inherited(Base[Params]):
    """Its params' type comes through the class between."""


class Further(Inherited):
    """And is inherited further."""


class Bare(ThinkWorkflow):  # type: ignore[type-arg]
    """Without types."""

    def run(self, event: Any, step: Any) -> Any:
        return [event.payload, event.metadata, event.workflow_id, event.workflow_name, repr(self.agent)]


class TestStart:
    def test_what_a_run_gets(self, t: ThinkTest):
        """A1, A4, A5: params, metadata, ids, the time, and the agent that started it."""
        workflow_id = DESK.run_workflow(Bare, {"a": 1}, metadata={"m": [1]})
        t.run_until_idle()

        assert workflow_id.startswith("wf_")
        assert t.output(Bare, workflow_id) == [{"a": 1}, {"m": [1]}, workflow_id, "Bare", "Desk('front')"]

    @pytest.mark.parametrize(
        ("cls", "params", "output"),
        [
            (Typed, {"number": "7"}, ["Params", 7, "none"]),
            (Typed, Params(number=1, note="x"), ["Params", 1, "x"]),
            (WithDataclass, {"number": 3}, ["Plain", 3]),
            (WithDataclass, Plain(4), ["Plain", 4]),
            (Inherited, {"number": 1}, "Params"),
            (Further, {"number": 1}, "Params"),
            ("Typed", {"number": 2}, ["Params", 2, "none"]),
        ],
    )
    def test_params_are_validated_at_the_start(self, t: ThinkTest, cls: Any, params: Any, output: Any):
        """A1: of the class's params type, whether given as such or as a dict, and whoever names the type."""
        workflow_id = DESK.run_workflow(cls, params)
        t.run_until_idle()

        assert t.output(cls, workflow_id) == output

    @pytest.mark.parametrize(
        ("cls", "params"), [(Typed, {}), (Typed, {"number": "x"}), (Typed, None), (Bare, [1]), (Bare, {1: 2})]
    )
    def test_unfit_params_store_nothing(self, quick: ThinkTest, cls: Any, params: Any):
        """A bad call is an error that names the path; there is no row."""
        with pytest.raises(InvalidValue):
            DESK.run_workflow(cls, params, workflow_id="w1")
        assert quick.workflow(cls, "w1") is None

    def test_what_can_not_be_stored_stores_nothing(self, sqlite_url: str):
        """Params above the limit, metadata that is no JSON."""
        with think_test(settings=Settings(max_payload=100), database_url=sqlite_url) as t:
            with pytest.raises(PayloadTooLarge):
                DESK.run_workflow(Bare, {"a": "x" * 200}, workflow_id="w1")
            with pytest.raises(PayloadTooLarge):
                DESK.run_workflow(Bare, {}, metadata={"a": "x" * 200}, workflow_id="w1")
            with pytest.raises(NotSerializable):
                DESK.run_workflow(Bare, {}, metadata={"a": object()}, workflow_id="w1")
            assert t.workflow(Bare, "w1") is None

    def test_one_id_is_one_run(self, t: ThinkTest):
        """A5: the same id again gives the same run back, also when it has ended; `on_conflict="raise"` on request."""
        first = DESK.run_workflow(Bare, {"n": 1}, workflow_id="w1")
        again = DESK.run_workflow(Bare, {"n": 2}, workflow_id="w1")
        t.run_until_idle()
        ended = DESK.run_workflow(Bare, {"n": 3}, workflow_id="w1")
        t.run_until_idle()

        assert first == again == ended == "w1"
        assert t.output(Bare, "w1")[0] == {"n": 1}
        with pytest.raises(WorkflowExists):
            DESK.run_workflow(Bare, workflow_id="w1", on_conflict="raise")
        with pytest.raises(ValueError, match="on_conflict"):
            DESK.run_workflow(Bare, workflow_id="w1", on_conflict="replace")

    def test_the_id_is_the_classs(self, t: ThinkTest):
        """Two classes may have runs of one id."""
        DESK.run_workflow(Bare, {}, workflow_id="w1")
        DESK.run_workflow(Typed, {"number": 1}, workflow_id="w1")
        t.run_until_idle()

        assert t.output(Typed, "w1")[1] == 1
        assert t.output(Bare, "w1")[2] == "w1"

    @pytest.mark.parametrize("workflow_id", ["", "x" * 201, "a\nb", 5])
    def test_unfit_ids_are_refused(self, quick: ThinkTest, workflow_id: Any):
        """An id is 1 to 200 printable characters."""
        with pytest.raises(ValueError, match="workflow_id="):
            DESK.run_workflow(Bare, workflow_id=workflow_id)

    def test_an_unknown_name_is_refused(self, quick: ThinkTest):
        """A name that no class has registered: the error lists the known ones."""
        with pytest.raises(UnknownClass, match="Bare"):
            DESK.run_workflow("Missing")

    def test_in_a_joined_transaction(self, t: ThinkTest):
        """Engine §12: it is there if the caller's transaction commits, and is not if that fails."""

        def work(tx, fail):
            with t.rt.db.joining(tx):
                DESK.run_workflow(Bare, workflow_id="w1")
                assert t.workflow(Bare, "w1").status == "queued"
            if fail:
                raise RuntimeError

        with pytest.raises(RuntimeError):
            t.rt.db.transact(lambda tx: work(tx, True))
        assert t.workflow(Bare, "w1") is None

        t.rt.db.transact(lambda tx: work(tx, False))
        t.run_until_idle()
        assert t.workflow(Bare, "w1").status == "complete"

    @pytest.mark.parametrize(
        ("own", "setting", "queue"), [("gpu", "all", "gpu"), (None, "all", "all"), (None, None, None)]
    )
    def test_its_queue(self, sqlite_url: str, own: Any, setting: Any, queue: Any):
        """Design §5: the class's queue, else `think_queue`, else Celery's own; stored, and sent with each knock."""
        cls = flow(lambda event, step: None)
        cls.queue = own
        with think_test(settings=Settings(queue=setting), database_url=sqlite_url) as t:
            heard: list[Any] = []
            t.rt.knock = heard.append
            start(t.rt, None)

            assert [knock.queue for knock in heard] == [queue]
            assert t.workflow("Flow", "w1").queue == queue


class TestClasses:
    def test_async_run_is_refused_when_the_class_is_made(self):
        """Design §3: with the remedy."""
        with pytest.raises(AsyncNotSupported, match=r"Later\.run"):

            class Later(ThinkWorkflow):  # type: ignore[type-arg]
                async def run(self, event: Any, step: Any) -> Any:
                    return 1

    @pytest.mark.parametrize("name", ["a:b", "a b", "x" * 201])
    def test_unfit_names_are_refused(self, name: str):
        """A name is part of idempotency keys, whose parts colons tell apart."""
        with pytest.raises(InvalidValue, match="workflow name"):

            class Named(ThinkWorkflow, name=name):  # type: ignore[type-arg]
                pass

    def test_an_unfit_version_is_refused(self):
        """A version is a short text."""
        with pytest.raises(InvalidValue, match="version"):

            class Versioned(ThinkWorkflow):  # type: ignore[type-arg]
                version = 2  # type: ignore[assignment]

    def test_a_run_that_was_not_written(self, quick: ThinkTest):
        """The error says which method to write."""

        class Empty(ThinkWorkflow):  # type: ignore[type-arg]
            pass

        DESK.run_workflow(Empty, workflow_id="w1")
        quick.run_until_idle()

        assert "run(self, event, step)" in quick.workflow(Empty, "w1").error


class TestKnocks:
    def test_a_knock_names_the_run_and_its_wake(self, t: ThinkTest):
        """Design §5: the task id is made of id, run and wakes, so a re-knock reuses it; the first is the root."""
        heard: list[Any] = []
        t.rt.knock = heard.append
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        workflow.advance()
        workflow.send("go")
        first, second = heard

        assert first.kwargs == second.kwargs == {"workflow": "Flow", "workflow_id": "w1"}
        assert first.task_id == first.root_id == second.root_id == advance_task_id(workflow.ref, 1, 0)
        assert second.task_id == advance_task_id(workflow.ref, 1, 1)

    @pytest.mark.parametrize("status", ["queued", "waiting", "paused", "complete", "missing"])
    def test_a_knock_that_finds_no_work_says_why(self, t: ThinkTest, status: str):
        """Promise 1: repeated and late knocks change nothing."""
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        words = {"queued": "parked", "waiting": "waiting", "paused": "paused", "complete": "ended-before"}
        if status != "queued":
            workflow.advance()
        if status == "complete":
            workflow.send("go")
            workflow.advance()
        if status == "paused":
            t.rt.db.transact(
                lambda tx: tx.conn.exec_driver_sql("UPDATE think_workflows SET status = 'paused'")
            )
        if status == "missing":
            workflow = Handle(t.rt, WorkflowRef("Flow", "none"))

        assert workflow.advance().word == words.get(status, "not-found")

    def test_a_class_that_is_not_imported_leaves_the_run_alone(self, t: ThinkTest, caplog, monkeypatch):
        """Engine §4: not claimed, no attempt counted, the import to add is logged; with it the run goes on."""
        workflow = start(t.rt, lambda event, step: "done")
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(advance, "workflow_classes", Registry("workflow class"))
            for _ in range(3):
                assert workflow.advance().word == "unknown-class"
                t.skip(3)

        assert (workflow.row.attempts, workflow.status) == (0, "queued")
        assert "think_imports" in caplog.text
        t.skip("1 minute")
        assert workflow.output == "done"

    def test_so_does_an_agent_class_that_is_not_imported(self, t: ThinkTest):
        """The agent that started the run must be known, too: steps call it."""
        flow(lambda event, step: "done")
        workflows.start(t.rt, AgentRef("Nobody", "x"), "Flow", workflow_id="w1")

        assert workflows.advance(t.rt, "Flow", "w1").word == "unknown-class"
        assert t.workflow("Flow", "w1").attempts == 0

    def test_another_version_is_left_to_a_worker_that_has_it(self, t: ThinkTest, caplog):
        """Design §7: a run of a version that a worker lacks stays queued; with the old code it goes on."""
        workflow = start(t.rt, lambda event, step: "old")
        flow(lambda event, step: "new", version="2")
        assert workflow.advance().word == "unknown-class"
        assert "version '1'" in caplog.text

        flow(lambda event, step: "old", version="1")
        assert workflow.advance().word == "complete"
        assert workflow.output == "old"


class TestEnd:
    def test_a_result_that_can_not_be_stored(self, t: ThinkTest):
        """The output goes through the codec: what would not come back equal ends the run in error."""
        workflow = begin(t, lambda event, step: {1, 2})

        assert (workflow.status, workflow.row.error_type) == ("errored", "NotSerializable")
        assert "the result of run()" in workflow.row.error

    def test_an_error_has_two_fields(self, t: ThinkTest):
        """Truth §0: error_type and error, not one folded into the other; any text can be stored."""

        def run(event, step):
            raise LookupError("no\x00where")

        workflow = begin(t, run)

        assert (workflow.row.error_type, workflow.row.error) == ("LookupError", "no\N{SYMBOL FOR NULL}where")
        with pytest.raises(WorkflowError, match="errored"):
            _ = workflow.output

    def test_what_its_task_reports(self, t: ThinkTest):
        """Engine §15: the outcome carries ids and the error's type only."""

        def run(event, step):
            raise LookupError("secret")

        outcome = start(t.rt, run).advance()

        assert (outcome.word, outcome.ended, outcome.error_type) == ("error", True, "LookupError")
        assert "secret" not in repr(outcome)

    def test_nothing_leaves_a_terminal_status(self, t: ThinkTest):
        """Promise 5: no event, resume, knock or sweep moves a run that has ended."""
        workflow = begin(t, lambda event, step: 1)
        process = t.rt.monitor.process_id()
        workflow.send("go")

        assert not workflows.resume(t.rt, workflow.ref)
        assert t.rt.db.transact(lambda tx: rows.seize_of(tx, workflow.ref.key, process)) is None
        assert workflow.advance().word == "ended-before"
        assert workflow.status == "complete"

    def test_the_steps_are_kept(self, t: ThinkTest):
        """The journal of an ended run can be read."""
        workflow = begin(t, lambda event, step: step.do("a", lambda: 1))

        assert workflow.keys == [("a", "done")]

    def test_unknown_ones(self, quick: ThinkTest):
        """Resuming or reading what is not there is an error that names it."""
        with pytest.raises(WorkflowNotFound, match="nope"):
            workflows.resume(quick.rt, WorkflowRef("Flow", "nope"))
        with pytest.raises(WorkflowNotFound, match="nope"):
            workflows.output(quick.rt, WorkflowRef("Flow", "nope"))


class TestAttempts:
    def test_a_run_that_kills_its_worker_ends(self, t: ThinkTest):
        """Promise 10: attempts are counted before the work; at the cap the run ends in TooManyAttempts."""
        t.crash_at("workflow:claimed", times=20)
        workflow = begin(t, lambda event, step: "done")

        assert len(t.crashes) == 5
        assert (workflow.status, workflow.row.error_type) == ("errored", "TooManyAttempts")
        assert "5 times" in workflow.row.error

    def test_progress_starts_the_count_again(self, t: ThinkTest):
        """Engine §7: a new journal entry means that the claim before it was no poison."""

        def run(event, step):
            return [step.do(f"s{n}", lambda n=n: n) for n in range(4)]

        for n in range(4):
            t.crash_at(f"step:s{n}:before", times=4)
        workflow = begin(t, run)

        assert len(t.crashes) == 16
        assert workflow.output == [0, 1, 2, 3]
        assert workflow.row.takeovers == 17

    def test_parking_starts_the_count_again(self, t: ThinkTest):
        """Engine §7: an orderly end of a claim sets attempts to 0."""
        t.crash_at("workflow:claimed", times=4)
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go").payload)
        assert (workflow.row.attempts, workflow.row.takeovers) == (0, 0)

        t.crash_at("workflow:claimed", times=4)
        workflow.send("go", "done")
        t.run_until_idle()
        assert workflow.output == "done"

    def test_going_round_in_circles_ends_too(self, t: ThinkTest, monkeypatch):
        """Engine §7: `takeovers` only grows between parks and ends a run whose claims all made "progress"."""
        monkeypatch.setattr(advance, "MAX_TAKEOVERS", 6)

        def run(event, step):
            for n in range(100):
                step.do(f"s{n}", lambda: 1)

        for n in range(100):
            t.crash_at(f"step:s{n}:committed")
        workflow = begin(t, run)

        assert workflow.row.error_type == "TooManyAttempts"
        assert len(t.crashes) == 6

    def test_each_point_of_a_run_survives_a_crash(self, t: ThinkTest):
        """Promises 1 and 2: killed once at every point in turn, the run ends as it would have."""
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
            "event:woken",
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
        """Promise 3: taken over at any point, the stalled worker's next write is refused; the other one's stands."""
        flow(lambda event, step: [step.do("a", lambda: 1), step.wait_for_event("w", type="go").payload])
        workflow = start(t.rt, None)
        workflow.send("go", 2)
        if point == "workflow:before-park":
            flow(lambda event, step: [step.do("a", lambda: 1), step.sleep("w", 60)])
        process = t.rt.monitor.process_id()
        before: list[Any] = []

        def taken_over(at: str) -> None:
            if at == point:
                assert t.rt.db.transact(lambda tx: rows.seize_of(tx, workflow.ref.key, process))
                before.append((workflow.row, workflow.keys))

        t.rt.failpoint = taken_over
        assert workflow.advance().word == "lease-lost"
        assert before == [(workflow.row, workflow.keys)]

        t.rt.failpoint = lambda at: None
        assert workflow.advance().word in ("complete", "parked")

    def test_the_one_that_took_over_has_another_token(self, t: ThinkTest):
        """Engine §2: whoever takes a lease away raises the token in that same statement."""
        workflow = start(t.rt, lambda event, step: step.sleep("w", 60))
        workflow.advance()
        first = workflow.row.token
        t.clock.advance(timedelta(seconds=61))
        workflows.wake_due(t.rt, 10)
        claim = advance.claim_run(t.rt, workflow.ref)
        assert not isinstance(claim, advance.Outcome)

        assert claim.lease.token == first + 1
        t.rt.db.transact(lambda tx: rows.seize_of(tx, workflow.ref.key, claim.lease.process_id))
        assert workflow.row.token == first + 2

    def test_a_stale_renewal_asks_the_database_before_an_effect(self, t: ThinkTest):
        """Engine §3: after ⅔ of a lease without a renewal, the step function is not called before a look."""
        ran: list[int] = []
        workflow = start(t.rt, lambda event, step: step.do("a", lambda: ran.append(1)))
        process = t.rt.monitor.process_id()

        def stall(at: str) -> None:
            if at == "workflow:claimed":
                t.rt.db.transact(lambda tx: rows.seize_of(tx, workflow.ref.key, process))
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
        insert = steps.insert

        def fails(*args: Any, **options: Any) -> Any:
            if broken:
                broken.pop()
                raise RuntimeError("storing failed")
            return insert(*args, **options)

        monkeypatch.setattr(steps, "insert", fails)

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
    def test_a_lost_knock_is_made_up_for(self, t: ThinkTest):
        """Promise 1: 2 s after the start the tick knocks, then at doubling distances, 5 minutes at most."""
        start(t.rt, lambda event, step: "done")
        began = t.clock.now()
        heard: list[float] = []
        for _ in range(1000):
            t.lose_messages()
            t.clock.advance(timedelta(seconds=1))
            if workflows.knock_missed(t.rt, 10):
                heard.append((t.clock.now() - began).total_seconds())

        assert heard == [2, 4, 8, 16, 32, 64, 128, 256, 512, 812]

    def test_a_waiting_run_is_not_knocked_for(self, t: ThinkTest):
        """Promise 9: parked rows cost the tick nothing."""
        begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        t.clock.advance(timedelta(hours=1))

        assert workflows.knock_missed(t.rt, 10) == 0
        assert workflows.wake_due(t.rt, 10) == 0
        assert workflows.wake_unread(t.rt, 10) == 0

    def test_the_backstop_wakes_a_run_with_unread_events(self, t: ThinkTest):
        """Engine §8: should a run ever wait beside an event that it has not seen, the tick wakes it."""
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
        """Engine §5: each row is its own transaction."""
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
        """Engine §2: the sweep frees it (running, no process, next token), and it is knocked at once."""
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
        """Engine §4: `knock_now` lets the next pass knock for every run that waits for a worker, and for no other."""
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
        """§8: should both have died before their looks, the tick moves the events."""
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
        assert workflows.advance(t.rt, "Flow", "w1").word == "parked"

        assert workflows.adopt_early(t.rt) == 1
        t.run_until_idle()
        assert t.output("Flow", "w1") == 7
