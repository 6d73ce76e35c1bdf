"""Pause, resume, terminate, restart, delete: in every state of a run, and what becomes of what it had asked for."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import select

from tests.domain.crowd import at_once
from tests.domain.flows import DESK, Desk, Handle, flow, start, worker_dies
from think_celery import Think, current
from think_celery.domain import outbox
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.work import perform
from think_celery.domain.workflows import control, workflows
from think_celery.errors import StepError, ThinkPromptError, WorkflowNotFound
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import health, tables
from think_celery.testing import SimulatedCrash, ThinkTest


class Verdict(BaseModel):
    """What the prompt asks for: the number of the answer, so that one is told from the next."""

    number: int


class Referee(Think):
    """The agent that is prompted."""


@dataclass
class Scene:
    """Workflows with one prompt each, and what happens while their code and their model run."""

    t: ThinkTest
    answers: int = 0
    ran: list[str] = field(default_factory=list)
    in_step: dict[str, Callable[[], object]] = field(default_factory=dict)
    in_turn: dict[str, Callable[[], object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scene = self

        def run(event: Any, step: Any) -> int:
            name = event.workflow_id
            step.do("first", lambda: scene.in_step.pop(name, lambda: None)() and None)
            number = step.prompt("ask", prompt=name, output=Verdict).number
            step.do("after", lambda: scene.ran.append(name))
            if event.payload.get("fail"):
                raise ValueError("as told")
            return number

        def respond(request: Any) -> Any:
            scene.answers += 1
            given = answer({"number": scene.answers})
            scene.in_turn.pop(request.messages[-1].text, lambda: None)()
            return given

        flow(run, name="Game")
        self.t.use_model(FunctionModel(respond))

    def begin(self, name: str, **params: Any) -> Handle:
        """Start one whose knock gets lost, so that it goes only as far as the test takes it."""
        workflows.start(self.t.rt, Referee(name)._ref, "Game", params, workflow_id=name)
        self.t.lose_messages()
        return Handle(self.t.rt, WorkflowRef("Game", name))

    def settle(self) -> None:
        """Let everything go on that can."""
        self.t.run_until_idle()
        self.t.skip("1 minute")

    # --- what is there ----------------------------------------------------------------------------

    def prompts(self, name: str) -> list[Any]:
        """The submissions of a workflow, oldest first."""
        mine = tables.submissions.c.workflow_key == WorkflowRef("Game", name).key
        query = select(tables.submissions).where(mine).order_by(tables.submissions.c.seq)
        return self.t.rt.db.read(lambda tx: list(tx.execute(query)))

    def news(self, name: str, status: str) -> list[Any]:
        """News for a workflow that stands so."""
        mine = (
            tables.outbox.c.workflow_key == WorkflowRef("Game", name).key,
            tables.outbox.c.status == status,
        )
        return self.t.rt.db.read(lambda tx: list(tx.execute(select(tables.outbox).where(*mine))))

    def events(self, name: str) -> list[Any]:
        """Everything in its inbox, of every run."""
        query = select(tables.events).where(tables.events.c.workflow_key == WorkflowRef("Game", name).key)
        return self.t.rt.db.read(lambda tx: list(tx.execute(query)))

    def entries(self, name: str) -> list[Any]:
        """Its journals, of every run."""
        query = select(tables.steps).where(tables.steps.c.workflow_key == WorkflowRef("Game", name).key)
        return self.t.rt.db.read(lambda tx: list(tx.execute(query)))


@pytest.fixture
def scene(t: ThinkTest) -> Scene:
    return Scene(t)


Act = Callable[[str], object]


def queued(scene: Scene, name: str, act: Act) -> None:
    """No worker has seen it yet."""
    scene.begin(name)
    act(name)


def in_a_step(scene: Scene, name: str, act: Act) -> None:
    """A worker runs its first step."""
    scene.in_step[name] = lambda: act(name)
    scene.begin(name).advance()


def turn_pending(scene: Scene, name: str, act: Act) -> None:
    """It waits for its prompt, whose turn nobody has begun."""
    scene.begin(name).advance()
    scene.t.lose_messages()
    act(name)


def turn_running(scene: Scene, name: str, act: Act) -> None:
    """It waits for its prompt, and the model is being asked."""
    scene.in_turn[name] = lambda: act(name)
    scene.begin(name).advance()
    scene.t.lose_messages()
    claims.run(scene.t.rt, scene.prompts(name)[0].id)


def news_undelivered(scene: Scene, name: str, act: Act) -> None:
    """The answer is there, and the news of it is not."""
    scene.begin(name).advance()
    scene.t.crash_at("outbox:before-delivery")
    with suppress(SimulatedCrash):
        claims.run(scene.t.rt, scene.prompts(name)[0].id)
    scene.t.lose_messages()
    assert len(scene.news(name, "pending")) == 1
    act(name)


def news_delivered(scene: Scene, name: str, act: Act) -> None:
    """The answer is in its inbox, and no worker has looked."""
    news_undelivered(scene, name, lambda _: outbox.deliver(scene.t.rt, scene.news(name, "pending")[0].id))
    scene.t.lose_messages()
    act(name)


def paused(scene: Scene, name: str, act: Act) -> None:
    """It waits for its prompt, and somebody has paused it."""
    turn_pending(scene, name, lambda _: control.pause(scene.t.rt, WorkflowRef("Game", name)))
    act(name)


def of_a_dead_worker(scene: Scene, name: str, act: Act) -> None:
    """Its worker died in a step, and nobody has taken it over."""
    scene.t.crash_at("step:first:ran")
    handle = scene.begin(name)
    with suppress(BaseException):
        handle.advance()
    worker_dies(scene.t)
    act(name)


def complete(scene: Scene, name: str, act: Act) -> None:
    """It is complete."""
    scene.begin(name)
    scene.settle()
    act(name)


def errored(scene: Scene, name: str, act: Act) -> None:
    """It has ended in error."""
    scene.begin(name, fail=True)
    scene.settle()
    act(name)


LIVE = [
    queued,
    in_a_step,
    turn_pending,
    turn_running,
    news_undelivered,
    news_delivered,
    paused,
    of_a_dead_worker,
]
ENDED = [complete, errored]


def in_every_state(scene: Scene, states: list[Any], act: Act) -> Iterator[str]:
    """Bring a workflow into each state, do that to it there, and let everything go on that can."""
    for state in states:
        name = state.__name__
        state(scene, name, act)
        scene.settle()
        yield name


def ref(name: str) -> WorkflowRef:
    return WorkflowRef("Game", name)


class TestInEveryState:
    """A26. Nothing hangs, no news of an old run arrives, and the new run ends."""

    def test_terminate(self, scene: Scene):
        """It ends where it stands, with its prompt; nothing of it starts after that, and nothing more is told."""
        rt = scene.t.rt
        ended: list[bool] = []
        for name in in_every_state(scene, LIVE, lambda n: ended.append(control.terminate(rt, ref(n)))):
            handle = Handle(rt, ref(name))
            assert (handle.status, handle.row.completed_at is None, name in scene.ran) == (
                "terminated",
                False,
                False,
            )
            assert all(is_terminal(SubmissionStatus(row.status)) for row in scene.prompts(name))
            assert scene.news(name, "pending") == []
            assert not control.terminate(rt, ref(name))
        assert ended == [True] * len(LIVE)

        for name in in_every_state(scene, ENDED, lambda n: ended.append(control.terminate(rt, ref(n)))):
            assert Handle(rt, ref(name)).status == name
        assert ended == [True] * len(LIVE) + [False] * len(ENDED)

    def test_restart(self, scene: Scene):
        """The next run has a journal of its own, asks its prompt again, and gets the answer to that one."""
        rt = scene.t.rt
        runs: list[int] = []
        for name in in_every_state(
            scene, [*LIVE, complete], lambda n: runs.append(control.restart(rt, ref(n)))
        ):
            handle = Handle(rt, ref(name))
            assert (handle.status, handle.row.run) == ("complete", 2), name
            assert [step for step, _ in handle.keys] == ["first", "ask:submit", "ask:wait", "after"]
            asked = scene.prompts(name)
            mine = [row for row in asked if row.workflow_run == 2]
            assert [row.status for row in mine] == ["completed"]
            assert handle.output == scene.answers, "the answer to the prompt of the run before"
            assert all(is_terminal(SubmissionStatus(row.status)) for row in asked)
            assert {row.run for row in scene.events(name)} == {2}
            assert [row.idempotency_key for row in asked if row.workflow_run == 1] == [None] * (
                len(asked) - 1
            )
            assert scene.news(name, "pending") == []
        assert runs == [2] * (len(LIVE) + 1)

    @pytest.mark.parametrize("ended", ["errored", "terminated"])
    def test_restart_of_one_that_ended_badly(self, t: ThinkTest, ended: str):
        """A26. Nothing of its error or its end is left, and the code of today goes its own way."""

        def run(event: Any, step: Any) -> str:
            step.do("first", lambda: None)
            if ended == "errored":
                raise LookupError("no such order")
            return str(step.wait_for_event("go", type="go").payload)

        workflow = start(t.rt, run)
        t.run_until_idle()
        if ended == "terminated":
            DESK.terminate_workflow("w1")
        before = workflow.row
        flow(lambda event, step: step.do("only", lambda: "mended"))

        assert (before.status, before.completed_at is None) == (ended, False)
        assert DESK.restart_workflow("w1") == 2
        again = workflow.row
        assert (again.status, again.error_type, again.error, again.completed_at) == (
            "queued",
            None,
            None,
            None,
        )
        t.run_until_idle()
        assert (workflow.output, workflow.keys) == ("mended", [("only", "done")])

    def test_pause(self, scene: Scene):
        """It stands still, however much time passes and whatever comes; resumed, it goes on where it was."""
        rt = scene.t.rt
        done: list[bool] = []
        states = [state for state in LIVE if state is not paused]
        for name in in_every_state(scene, states, lambda n: done.append(control.pause(rt, ref(n)))):
            handle = Handle(rt, ref(name))
            scene.t.skip("1 day")
            assert (handle.status, name in scene.ran) == ("paused", False), name
            assert not control.pause(rt, ref(name))

            assert control.resume(rt, ref(name))
            scene.settle()
            assert (handle.status, handle.row.run, handle.row.pause_at) == ("complete", 1, None), name
            assert len(scene.prompts(name)) == 1
            assert not control.resume(rt, ref(name))
        assert done == [True] * len(states)

        for name in in_every_state(scene, ENDED, lambda n: done.append(control.pause(rt, ref(n)))):
            assert Handle(rt, ref(name)).status == name
        assert done == [True] * len(states) + [False] * len(ENDED)

    def test_delete(self, scene: Scene):
        """Nothing of it is left but the row that remembers its number, and nobody finds that."""
        rt = scene.t.rt
        done: list[bool] = []
        for name in in_every_state(scene, [*LIVE, *ENDED], lambda n: done.append(control.delete(rt, ref(n)))):
            with pytest.raises(WorkflowNotFound):
                current().get_workflow(name)
            assert workflows.get(rt, ref(name)) is None
            assert (scene.entries(name), scene.events(name), scene.news(name, "pending")) == ([], [], [])
            assert all(is_terminal(SubmissionStatus(row.status)) for row in scene.prompts(name))
            assert not control.delete(rt, ref(name))
        assert done == [True] * len([*LIVE, *ENDED])

        scene.t.skip("2 days")
        left = rt.db.read(lambda tx: list(tx.execute(select(tables.workflows.c.key))))
        assert left == []

    def test_delete_and_start_again(self, scene: Scene):
        """The same id is a new workflow: it prompts anew, and nothing of the one before reaches it."""
        rt = scene.t.rt

        def again(name: str) -> None:
            control.delete(rt, ref(name))
            workflows.start(rt, Referee(name)._ref, "Game", {"again": True}, workflow_id=name)

        for name in in_every_state(scene, [*LIVE, *ENDED], again):
            handle = Handle(rt, ref(name))
            assert (handle.status, handle.output) == ("complete", scene.answers), name
            assert handle.row.params == '{"again":true}'
            assert {row.run for row in scene.events(name)} == {handle.row.run} == {2}
            mine = [row.status for row in scene.prompts(name) if row.workflow_run == 2]
            assert mine == ["completed"]


class TestPause:
    def test_a_wish_is_seen_at_the_next_step(self, t: ThinkTest):
        """The step in hand is stored; the next one does not begin. A wish that is taken back changes nothing."""
        ran: list[str] = []

        def run(event: Any, step: Any) -> list[str]:
            step.do("a", lambda: ran.append("a") or DESK.pause_workflow("w1"))
            step.do("b", lambda: ran.append("b"))
            step.do("c", lambda: DESK.pause_workflow("w1") and DESK.resume_workflow("w1"))
            step.do("d", lambda: ran.append("d"))
            return ran

        workflow = start(t.rt, run)
        assert workflow.advance().word == "paused"
        assert (workflow.status, workflow.keys, ran) == ("paused", [("a", "done")], ["a"])
        assert workflow.row.process_id is None

        assert DESK.resume_workflow("w1")
        t.run_until_idle()
        assert workflow.output == ["a", "b", "d"]

    def test_a_wish_while_it_begins_to_wait(self, t: ThinkTest):
        """Parking and pausing are one decision: it does not wait as if nobody had asked for a pause."""
        t.rt.failpoint = lambda point: (  # type: ignore[assignment]
            control.pause(t.rt, WorkflowRef("Flow", "w1")) if point == "workflow:before-park" else None
        )
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)

        assert workflow.advance().word == "paused"
        assert workflow.status == "paused"

    def test_a_worker_that_stops_or_dies_leaves_it_paused(self, t: ThinkTest):
        """Nobody takes over what shall stand still."""

        def run(event: Any, step: Any) -> str:
            step.do("a", lambda: DESK.pause_workflow(event.workflow_id) and stop(event.workflow_id))
            step.do("b", lambda: None)
            return "done"

        def stop(name: str) -> None:
            if name == "stops":
                t.rt.stopping.abort("told to")

        flow(run)
        dies = start(t.rt, None, id="dies")
        t.crash_at("step:a:ran")
        t.run_until_idle()
        assert (dies.status, dies.row.process_id, dies.row.knock_at) == ("paused", None, None)

        stops = start(t.rt, None, id="stops")
        assert stops.advance().word == "paused"
        assert stops.status == "paused"

    def test_events_and_deadlines_while_it_is_paused(self, t: ThinkTest):
        """Events are kept, and one that came in time wins over a deadline that passed meanwhile."""

        def run(event: Any, step: Any) -> list[Any]:
            got = step.wait_for_event("a", type="go", timeout="1 hour").payload
            try:
                step.wait_for_event("b", type="never", timeout="1 hour")
            except Exception as error:
                return [got, type(error).__name__]
            return []

        workflow = start(t.rt, run)
        t.run_until_idle()
        assert DESK.pause_workflow("w1")
        t.skip("30 minutes")
        workflow.send("go", 1)
        t.skip("2 hours")
        assert workflow.status == "paused"

        DESK.resume_workflow("w1")
        t.run_until_idle()
        assert workflow.status == "waiting"
        DESK.pause_workflow("w1")
        t.skip("2 hours")
        DESK.resume_workflow("w1")
        t.run_until_idle()
        assert workflow.output == [1, "WorkflowTimeoutError"]

    def test_the_doctor_minds_only_what_stopped_by_itself(self, t: ThinkTest):
        """A pause that somebody wanted is nobody's fault."""
        start(t.rt, lambda event, step: step.wait_for_event("a", type="go"))
        t.run_until_idle()
        DESK.pause_workflow("w1")

        assert t.rt.db.read(lambda tx: health.paused_runs(tx, 10)) == []

    def test_one_that_stopped_with_an_error_is_resumed_as_well(self, t: ThinkTest):
        """And pausing it changes nothing: it is paused already."""
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go"))
        t.run_until_idle()
        flow(lambda event, step: step.do("other", lambda: 1))
        workflow.send("go")
        t.run_until_idle()
        assert (workflow.status, workflow.row.error_type) == ("paused", "ReplayMismatch")
        assert not DESK.pause_workflow("w1")

        flow(lambda event, step: step.wait_for_event("a", type="go").type)
        assert DESK.resume_workflow("w1")
        t.run_until_idle()
        assert (workflow.output, workflow.row.error_type) == ("go", None)


class TestEnds:
    def test_the_step_in_flight_loses_its_entry_and_nothing_starts_after_it(self, t: ThinkTest):
        """Its holder can't write any more, though it is the same process."""
        ran: list[str] = []

        def run(event: Any, step: Any) -> None:
            step.do("a", lambda: ran.append("a") or DESK.terminate_workflow("w1"))
            step.do("b", lambda: ran.append("b"))

        workflow = start(t.rt, run)

        assert workflow.advance().word == "lease-lost"
        assert (workflow.status, workflow.keys, ran) == ("terminated", [], ["a"])

    def test_not_in_a_transaction_of_its_own(self, t: ThinkTest):
        """A step.transaction that took its own lease away could never be committed, and would be tried for ever."""

        def run(event: Any, step: Any) -> list[Any]:
            told = []
            for name in ("terminate_workflow", "restart_workflow", "delete_workflow"):
                try:
                    step.transaction(name, lambda conn, name=name: getattr(DESK, name)("w1"))
                except StepError as error:
                    told.append([error.error_type, error.attempts])
            return told

        workflow = start(t.rt, run)
        t.run_until_idle()
        assert workflow.output == [["StepMisuse", 1]] * 3

    def test_not_the_run_that_waits_for_it_either(self, t: ThinkTest):
        """The end of a parent, or of its parent, ends the run whose transaction it would be; another's does not."""

        def deepest(event: Any, step: Any) -> list[Any]:
            told: list[Any] = []
            for named in ("w1", "middle", "own", "bystander"):
                for call in (DESK.terminate_workflow, DESK.restart_workflow, DESK.delete_workflow):
                    ends = partial(call, named)
                    try:
                        step.transaction(f"{call.__name__} {named}", lambda conn, ends=ends: bool(ends()))
                        told.append("done")
                    except StepError as error:
                        told.append([error.error_type, error.attempts])
            return told

        flow(lambda event, step: step.run_workflow("own", "Deepest", workflow_id="own"), name="Middle")
        flow(deepest, name="Deepest")
        flow(lambda event, step: step.wait_for_event("a", type="go"), name="Bystander")
        start(t.rt, None, id="bystander", name="Bystander")
        workflow = start(t.rt, lambda event, step: step.run_workflow("m", "Middle", workflow_id="middle"))
        t.run_until_idle()
        assert workflow.output == [["StepMisuse", 1]] * 9 + ["done"] * 3

    def test_a_wish_in_a_transaction_of_its_own(self, t: ThinkTest):
        """A pause is none of these: it stands once the step is committed, and the next step does not begin."""
        ran: list[str] = []

        def run(event: Any, step: Any) -> None:
            step.transaction("a", lambda conn: DESK.pause_workflow("w1"))
            step.do("b", lambda: ran.append("b"))

        workflow = start(t.rt, run)
        t.run_until_idle()
        assert (workflow.status, workflow.keys, ran) == ("paused", [("a", "done")], [])

    def test_a_deleted_one_in_hand_writes_nothing_into_its_successor(self, t: ThinkTest):
        """Tokens go on counting: the old holder and the new one are of one process, and only one can write."""
        ran: list[str] = []

        def run(event: Any, step: Any) -> str:
            return step.do("a", lambda: replace(event.payload["round"]))

        def replace(number: int) -> str:
            ran.append(f"round {number}")
            if number == 1:
                DESK.delete_workflow("w1")
                again = start(t.rt, None, {"round": 2})
                (outcome,) = at_once(1, lambda _: again.advance())
                assert outcome.word == "complete"
            return f"of round {number}"

        workflow = start(t.rt, run, {"round": 1})

        assert workflow.advance().word == "lease-lost"
        assert (workflow.output, ran) == ("of round 2", ["round 1", "round 2"])

    def test_its_children_end_with_it_and_its_parent_is_told(self, t: ThinkTest):
        """A run that is terminated takes its child with it; a child that is deleted is told of to its parent."""

        def parent(event: Any, step: Any) -> str:
            try:
                return str(step.run_workflow("child", "Child", workflow_id=f"child-of-{event.workflow_id}"))
            except Exception as error:
                return f"{type(error).__name__}: {error.status}"  # type: ignore[attr-defined]

        flow(lambda event, step: step.wait_for_event("a", type="go").payload, name="Child")
        flow(parent, name="Parent")
        above = {
            name: start(t.rt, None, id=name, name="Parent") for name in ("ends", "told", "deleted", "anew")
        }
        t.run_until_idle()
        child = {name: Handle(t.rt, WorkflowRef("Child", f"child-of-{name}")) for name in above}

        assert DESK.terminate_workflow("ends")
        assert child["ends"].status == "terminated"
        assert control.terminate(t.rt, child["told"].ref)
        assert control.delete(t.rt, child["deleted"].ref)
        assert DESK.restart_workflow("anew") == 2
        t.run_until_idle()

        assert above["told"].output == "ChildWorkflowError: terminated"
        assert above["deleted"].output == "ChildWorkflowError: deleted"
        assert (above["anew"].status, child["anew"].row.run, child["anew"].status) == (
            "waiting",
            2,
            "waiting",
        )
        child["anew"].send("go", "from the second child")
        t.run_until_idle()
        assert above["anew"].output == "from the second child"

    def test_a_prompt_is_cancelled_and_its_key_is_new(self, scene: Scene):
        """The key that was released stays in the row; the submission says why it ended."""
        turn_pending(scene, "w1", lambda name: control.restart(scene.t.rt, ref(name)))
        old = scene.prompts("w1")[0]

        assert (old.status, old.error) == ("aborted", control.RESTARTED)
        assert (old.idempotency_key, old.released_key) == (None, "think-workflow:Game:w1:ask")
        scene.settle()
        assert scene.prompts("w1")[1].idempotency_key == "think-workflow:Game:w1:ask"

    def test_the_ids_of_a_chain_are_new_with_each_run(self, t: ThinkTest):
        """Celery must not take a task of the new run for one of the old."""
        heard: list[Any] = []
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        t.lose_messages()
        t.rt.knock = heard.append
        workflow.advance()
        for act in (control.restart, control.delete, None):
            workflow.send("go") if act is None else act(t.rt, workflow.ref)
            if act is control.delete:
                start(t.rt, None)
            workflow.advance()

        ids = [knock.task_id for knock in heard]
        assert len(ids) == len(set(ids)) == 3
        assert heard[0].root_id != heard[1].root_id == heard[2].root_id

    def test_a_key_of_an_event_is_new_with_each_run(self, t: ThinkTest):
        """What was sent to the run before does not hide what is sent to this one, in a joined transaction either."""
        flow(lambda event, step: step.wait_for_event("a", type="go").payload)
        for name, joined in (("alone", False), ("joined", True)):
            workflow = start(t.rt, None, id=name)

            def send(value: int, workflow: Handle = workflow, joined: bool = joined) -> None:
                def inside(tx: Any) -> None:
                    with t.rt.db.joining(tx):
                        workflow.send("go", value, idempotency_key="k")

                if joined:
                    t.rt.db.transact(inside)
                else:
                    workflow.send("go", value, idempotency_key="k")

            for run in (1, 2):
                if run == 2:
                    control.restart(t.rt, workflow.ref)
                send(run)
                send(run + 10)
                t.run_until_idle()
                workflow.send("go", run + 20, idempotency_key="k")
                assert (workflow.row.run, workflow.output, len(workflow.inbox)) == (run, run, 1)

    def test_what_is_sent_to_a_deleted_one_waits_for_the_next(self, t: ThinkTest):
        """By name and id, as before its first start."""
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        t.run_until_idle()
        control.delete(t.rt, workflow.ref)
        workflow.send("go", "early")
        t.skip("5 seconds")

        start(t.rt, None)
        t.run_until_idle()
        assert workflow.output == "early"

    def test_in_a_callers_transaction(self, scene: Scene):
        """All of it happens with the caller's commit, and none of it if that fails."""
        rt = scene.t.rt
        turn_pending(scene, "w1", lambda name: None)

        def work(tx: Any, fail: bool) -> None:
            with rt.db.joining(tx):
                assert Referee("w1").restart_workflow("w1") == 2
            if fail:
                raise RuntimeError

        with pytest.raises(RuntimeError):
            rt.db.transact(lambda tx: work(tx, True))
        assert (Handle(rt, ref("w1")).row.run, scene.prompts("w1")[0].status) == (1, "pending")

        rt.db.transact(lambda tx: work(tx, False))
        scene.settle()
        assert (Handle(rt, ref("w1")).row.run, Handle(rt, ref("w1")).status) == (2, "complete")


class TestWhose:
    def test_an_agent_controls_its_own(self, t: ThinkTest):
        """Another one's is not found, and the error says whose methods to call; by id all are found."""
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        t.run_until_idle()
        other = Desk("back")
        for act in (
            other.pause_workflow,
            other.resume_workflow,
            other.terminate_workflow,
            other.restart_workflow,
            other.delete_workflow,
        ):
            with pytest.raises(
                WorkflowNotFound, match=r"Desk\('back'\) has started no workflow 'w1'.*another"
            ):
                act("w1")
            with pytest.raises(WorkflowNotFound, match="There is no workflow 'nope'"):
                act("nope")
        assert list(other.get_workflows()) == []
        assert other.get_workflow_status("w1") == "waiting"
        assert workflow.row.run == 1

        think = current()
        assert think.pause_workflow("w1")
        assert think.get_workflow_status("w1") == "paused"
        assert think.resume_workflow("w1", workflow="Flow")
        assert think.terminate_workflow("w1")
        assert think.restart_workflow("w1") == 2
        assert think.delete_workflow("w1")

    def test_a_restart_takes_the_class_of_today(self, t: ThinkTest):
        """Its version and its queue: an old run restarted after a deploy is a run of the new code."""
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go"))
        t.run_until_idle()
        flow(lambda event, step: step.do("b", lambda: "new"), version="2")

        DESK.restart_workflow("w1")
        t.run_until_idle()
        assert (workflow.output, workflow.row.version) == ("new", "2")


class TestMany:
    def test_those_that_have_ended_and_match(self, t: ThinkTest):
        """Oldest first and strictly before; none that goes on; an agent's own only."""

        def run(event: Any, step: Any) -> int:
            return int(step.wait_for_event("a", type="go").payload if event.payload.get("wait") else 1)

        flow(run)
        for number in range(3):
            start(t.rt, None, id=f"old{number}")
        start(t.rt, None, {"wait": True}, id="waits")
        t.run_until_idle()
        t.skip("1 day")
        start(t.rt, None, id="new")
        workflows.start(t.rt, Desk("back")._ref, "Flow", workflow_id="theirs")
        t.run_until_idle()
        ended = DESK.get_workflow("new").completed_at
        assert ended is not None

        assert DESK.delete_workflows(completed_before=ended) == 3
        assert DESK.delete_workflows(status=["errored", "terminated"]) == 0
        assert DESK.delete_workflows(status=["queued", "waiting"]) == 0
        assert {run.workflow_id for run in DESK.get_workflows()} == {"new", "waits"}
        assert current().delete_workflows(workflow="Nobody") == 0
        assert current().delete_workflows() == 2
        assert [run.workflow_id for run in current().get_workflows()] == ["waits"]
        with pytest.raises(ValueError, match="no time zone"):
            DESK.delete_workflows(completed_before=ended.replace(tzinfo=None))
        with pytest.raises(ValueError, match="gone"):
            DESK.delete_workflows(status="gone")

    def test_after_a_month_the_keys_of_its_prompts_are_new(self, scene: Scene):
        """Retention removes the workflow; one of the same id prompts anew, though the old turn is remembered."""
        scene.begin("w1")
        scene.settle()
        scene.t.skip("31 days")
        assert workflows.get(scene.t.rt, ref("w1")) is None
        assert [row.idempotency_key for row in scene.prompts("w1")] == [None]

        scene.begin("w1")
        scene.settle()
        assert Handle(scene.t.rt, ref("w1")).output == 2

    def test_what_a_prompt_of_a_restarted_run_never_does(self, scene: Scene):
        """It never meets the submission of the run before and waits for news that was used up."""
        for _ in range(3):
            scene.begin("w1") if workflows.get(scene.t.rt, ref("w1")) is None else control.restart(
                scene.t.rt, ref("w1")
            )
            scene.settle()
            assert not isinstance(Handle(scene.t.rt, ref("w1")).output, ThinkPromptError)
        assert Handle(scene.t.rt, ref("w1")).output == scene.answers == 3


def test_a_knock_of_an_old_run_finds_the_new_one(t: ThinkTest):
    """Messages name the workflow, so one that was under way serves the run that is there."""
    workflow = start(t.rt, lambda event, step: "done")
    knocks = list(t._knocks)
    t.lose_messages()
    control.restart(t.rt, workflow.ref)
    t.lose_messages()

    assert [perform(t.rt, knock).word for knock in knocks] == ["complete"]
    assert workflow.row.run == 2


def test_submissions_that_are_awaited_stay(t: ThinkTest):
    """`delete_submissions` leaves alone what a restarted run has asked for and not been told of."""
    assert submissions.delete_all(t.rt, DESK._ref, completed_before=t.clock.now() + timedelta(days=1)) == 0
