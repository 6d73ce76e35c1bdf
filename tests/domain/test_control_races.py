"""Control against what workers do at that moment: real threads, on both databases.

Each move of a workflow that somebody else than its holder makes has its race here, and the invariants that hold
whoever wins. THINK_ROUNDS makes it more rounds.
"""

import os
import random
import threading
from collections import deque
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.crowd import rows
from tests.domain.flows import DESK, Handle, flow, start
from tests.domain.test_workflow_races import together
from think_celery import Think
from think_celery.domain import tick
from think_celery.domain.submissions import claims
from think_celery.domain.work import perform
from think_celery.domain.workflows import control, workflows
from think_celery.errors import WorkflowNotFound
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.runtime import Runtime
from think_celery.store import tables

pytestmark = pytest.mark.timeout(400)

ROUNDS = int(os.environ.get("THINK_ROUNDS", "10"))


class Ruling(BaseModel):
    """Some answer: which asking it answers."""

    text: str


class Umpire(Think):
    """The agent that is prompted."""


def flows_of(live: Runtime, run: Any, count: int = ROUNDS) -> list[Handle]:
    flow(run)
    return [start(live, None, id=f"w{number}") for number in range(count)]


def finish(workflow: Handle) -> None:
    """Run what is queued, as the knocks that were sent would."""
    for _ in range(20):
        if workflow.row is None or workflow.status != "queued":
            return
        workflow.advance()


def test_terminate_and_the_run_s_own_end(live: Runtime):
    """running → terminated against running → complete: one of them, and its answer tells which."""
    flows = flows_of(live, lambda event, step: step.do("a", lambda: "done", timeout=None))
    won: dict[int, bool] = {}

    with together(
        lambda number: flows[number].advance(),
        lambda number: won.update({number: control.terminate(live, flows[number].ref)}),
        rounds=ROUNDS,
    ):
        pass

    for number, workflow in enumerate(flows):
        assert workflow.status == ("terminated" if won[number] else "complete")
        assert workflow.row.process_id is None
        assert (workflow.row.output is None) == won[number]


def test_pause_and_a_claim(live: Runtime):
    """queued → paused against queued → running: it pauses at once or at its next step; each step runs once."""
    ran: list[str] = []

    def run(event: Any, step: Any) -> str:
        for name in "ab":
            step.do(name, lambda name=name: ran.append(f"{event.workflow_id}{name}"), timeout=None)
        return "done"

    flows = flows_of(live, run)
    asked: dict[int, bool] = {}
    with together(
        lambda number: flows[number].advance(),
        lambda number: asked.update({number: control.pause(live, flows[number].ref)}),
        rounds=ROUNDS,
    ):
        pass

    for number, workflow in enumerate(flows):
        # One that was asked in its last step has come to its end: there was no next one.
        assert workflow.status in (("paused", "complete") if asked[number] else ("complete",))
        assert workflow.row.process_id is None
        control.resume(live, workflow.ref)
        finish(workflow)
        assert (workflow.status, workflow.row.pause_at) == ("complete", None)
    assert sorted(ran) == sorted(f"w{number}{name}" for number in range(ROUNDS) for name in "ab")


def test_pause_and_a_park_and_an_event(live: Runtime):
    """running → waiting, waiting → queued and → paused, all at once: nothing is lost, and no pause is forgotten."""
    flows = flows_of(live, lambda event, step: step.wait_for_event("a", type="go").payload)
    with together(
        lambda number: flows[number].advance(),
        lambda number: flows[number].send("go", number),
        lambda number: control.pause(live, flows[number].ref),
        rounds=ROUNDS,
    ):
        for workflow in flows:
            finish(workflow)

    for number, workflow in enumerate(flows):
        assert workflow.status in ("paused", "complete")
        control.resume(live, workflow.ref)
        finish(workflow)
        assert workflow.output == number


def test_resume_and_the_pause_that_was_wanted(live: Runtime):
    """A wish and its withdrawal: whichever came last holds, and the run is never left with neither worker nor pause."""

    def run(event: Any, step: Any) -> str:
        for name in "abcd":
            step.do(name, lambda: None, timeout=None)
        return "done"

    flows = flows_of(live, run)

    def pause_and_resume(number: int) -> None:
        control.pause(live, flows[number].ref)
        control.resume(live, flows[number].ref)

    with together(lambda number: flows[number].advance(), pause_and_resume, rounds=ROUNDS):
        for workflow in flows:
            finish(workflow)

    assert {(workflow.status, workflow.row.pause_at) for workflow in flows} == {("complete", None)}


def test_two_who_resume_restart_or_delete(live: Runtime):
    """paused → queued is one's; each restart makes a run of its own; one deletes."""
    flows = flows_of(live, lambda event, step: step.wait_for_event("a", type="go").payload)
    for workflow in flows:
        control.pause(live, workflow.ref)
    resumed: list[bool] = []
    restarted: list[int] = []
    deleted: list[bool] = []

    with together(
        *[lambda number: resumed.append(control.resume(live, flows[number].ref))] * 3, rounds=ROUNDS
    ):
        pass
    with together(
        *[lambda number: restarted.append(control.restart(live, flows[number].ref))] * 3, rounds=ROUNDS
    ):
        pass
    with together(
        *[lambda number: deleted.append(control.delete(live, flows[number].ref))] * 3, rounds=ROUNDS
    ):
        pass

    assert sorted(resumed) == [False] * 2 * ROUNDS + [True] * ROUNDS
    assert sorted(restarted) == sorted([2, 3, 4] * ROUNDS)
    assert sorted(deleted) == [False] * 2 * ROUNDS + [True] * ROUNDS


def test_delete_and_two_starts(live: Runtime):
    """Whoever starts it while it is deleted gets the old run or makes the new one: one, that then runs."""
    flows = flows_of(live, lambda event, step: event.payload.get("who", "old"))
    for workflow in flows:
        workflow.advance()

    def begin(who: str) -> Any:
        return lambda number: workflows.start(live, DESK._ref, "Flow", {"who": who}, workflow_id=f"w{number}")

    with together(
        lambda number: control.delete(live, flows[number].ref), begin("a"), begin("b"), rounds=ROUNDS
    ):
        for workflow in flows:
            finish(workflow)

    for workflow in flows:
        assert workflow.row is None or (workflow.row.run, workflow.output) in [(2, "a"), (2, "b")]


def test_restart_and_the_prompt_s_turn(live: Runtime):
    """The turn's end and the restart's cancel: the new run never gets the old answer, and asks anew."""
    asked: list[str] = []

    def respond(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        return answer({"text": str(asked.count(asked[-1]))})

    live.stand_in = lambda _: FunctionModel(respond)
    flow(lambda event, step: step.prompt("p", prompt=event.workflow_id, output=Ruling).text, name="Trial")
    trials = []
    for number in range(ROUNDS):
        workflows.start(live, Umpire(f"j{number}")._ref, "Trial", workflow_id=f"w{number}")
        trials.append(Handle(live, WorkflowRef("Trial", f"w{number}")))
        trials[-1].advance()
    first = [row.id for row in rows(live, tables.submissions)]

    with together(
        lambda number: claims.run(live, first[number]),
        lambda number: control.restart(live, trials[number].ref),
        rounds=ROUNDS,
    ):
        pass
    live.knock = knocks = deque()  # type: ignore[assignment]
    live.knock = knocks.append  # type: ignore[attr-defined]
    settle(live, knocks, trials)

    mine = {row.workflow_key: row for row in rows(live, tables.submissions) if row.workflow_run == 2}
    for number, trial in enumerate(trials):
        assert (trial.status, trial.row.run) == ("complete", 2)
        assert mine[trial.ref.key].status == "completed"
        assert trial.output == str(asked.count(f"w{number}"))
    assert {row.run for row in rows(live, tables.events)} == {2}


# --- everything at once ---------------------------------------------------------------------------


def settle(rt: Runtime, knocks: deque[Any], handles: list[Handle]) -> None:
    """Let workers and the tick go on until each has ended, for a while at most."""
    for _ in range(600):
        work_off(rt, knocks)
        tick.run(rt)
        if not knocks and all(h.row is None or h.status in ("complete", "terminated") for h in handles):
            return
        threading.Event().wait(0.02)
    raise AssertionError([(h.ref.workflow_id, h.row and h.status, h.keys) for h in handles])


def work_off(rt: Runtime, knocks: deque[Any]) -> None:
    while True:
        try:
            knock = knocks.popleft()
        except IndexError:
            return
        perform(rt, knock)


def test_whatever_is_done_at_random_each_run_ends_with_its_own_answer(live: Runtime):
    """A26. Six workflows, two workers, and two who control them as they like.

    Then everything that is left goes on: nothing hangs, and no run has got what another had asked for.
    """
    count, seconds = 6, 1.2 if ROUNDS <= 10 else 20.0
    knocks: deque[Any] = deque()
    live.knock = knocks.append
    number = iter(range(10**6))

    def respond(request: Any) -> Any:
        threading.Event().wait(random.random() * 0.01)
        return answer({"text": f"{request.messages[-1].text}/{next(number)}"})

    live.stand_in = lambda _: FunctionModel(respond)

    def run(event: Any, step: Any) -> list[str]:
        step.do("first", lambda: threading.Event().wait(random.random() * 0.005))
        one = step.prompt("one", prompt=f"{event.workflow_id} one", output=Ruling).text
        two = step.prompt("two", prompt=f"{event.workflow_id} two", output=Ruling, timeout="1 hour").text
        return [one, two]

    flow(run, name="Trial")
    handles = [Handle(live, WorkflowRef("Trial", f"w{each}")) for each in range(count)]
    stop = threading.Event()
    raised: list[BaseException] = []

    def begin(handle: Handle) -> None:
        name = handle.ref.workflow_id
        workflows.start(live, Umpire(f"of-{name}")._ref, "Trial", workflow_id=name)

    def guarded(work: Any) -> Any:
        def loop() -> None:
            while not stop.is_set():
                try:
                    work()
                except WorkflowNotFound:
                    continue
                except BaseException as error:
                    raised.append(error)
                    return

        return loop

    def worker() -> None:
        work_off(live, knocks)
        tick.run(live)
        threading.Event().wait(0.002)

    def controller() -> None:
        handle = random.choice(handles)
        act = random.choice(
            [begin, begin, *(lambda h, do=do: do(live, h.ref) for do in ACTS)]  # type: ignore[misc]
        )
        act(handle)
        threading.Event().wait(random.random() * 0.01)

    for handle in handles:
        begin(handle)
    threads = [threading.Thread(target=guarded(each)) for each in (worker, worker, controller, controller)]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert raised == []

    for handle in handles:
        begin(handle)
        control.resume(live, handle.ref)
        if handle.status == "terminated":
            control.restart(live, handle.ref)
    settle(live, knocks, handles)

    asked = rows(live, tables.submissions)
    for handle in handles:
        assert handle.status == "complete"
        mine = [row for row in asked if row.workflow_key == handle.ref.key]
        now = [row for row in mine if row.workflow_run == handle.row.run]
        assert [row.status for row in now] == ["completed"] * 2
        assert {row.status for row in mine} <= {"completed", "aborted"}
        assert [text.rpartition("/")[0] for text in handle.output] == [
            f"{handle.ref.workflow_id} one",
            f"{handle.ref.workflow_id} two",
        ]
        told = [row for row in rows(live, tables.events) if row.workflow_key == handle.ref.key]
        assert {row.run for row in told} == {handle.row.run}
        assert len(told) == 2
    assert [row for row in rows(live, tables.outbox) if row.status == "pending"] == []


ACTS = (
    control.pause,
    control.resume,
    control.restart,
    control.restart,
    control.terminate,
    control.delete,
)
