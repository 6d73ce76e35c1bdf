"""Real processes that are killed with signal 9: workers under control moves, and whoever makes such a move."""

import os
import random
import signal
import threading
from collections import deque
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.crowd import FORK, rows
from tests.domain.flows import Desk, Handle, flow, start, worker
from tests.domain.test_control_races import settle
from think_celery.domain import recovery, tick
from think_celery.domain.work import perform
from think_celery.domain.workflows import control, workflows
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.runtime import Runtime
from think_celery.store import tables

COUNT = 5


class Sum(BaseModel):
    """What the prompt asks for."""

    of: str


def respond(request: Any) -> Any:
    threading.Event().wait(0.005)
    return answer({"of": request.messages[-1].text})


def long_flow() -> None:
    def run(event: Any, step: Any) -> str:
        for name in "abc":
            step.do(name, lambda: threading.Event().wait(0.005))
        return str(step.prompt("p", prompt=event.workflow_id, output=Sum).of)

    flow(run, name="Marathon")


def handle(rt: Runtime, number: int) -> Handle:
    return Handle(rt, WorkflowRef("Marathon", f"w{number}"))


def begin(rt: Runtime, number: int) -> None:
    workflows.start(rt, Desk(f"runner-{number}")._ref, "Marathon", workflow_id=f"w{number}")


def work_until_killed(url: str) -> None:
    """A worker without a broker: what it does not knock for itself, the tick finds."""
    with worker(url) as rt:
        knocks: deque[Any] = deque()
        rt.knock = knocks.append
        rt.stand_in = lambda _: FunctionModel(respond)
        while True:
            tick.run(rt)
            for number in range(COUNT):
                handle(rt, number).advance()
            while knocks:
                perform(rt, knocks.popleft())


def test_workers_that_are_killed_under_control(database_url: str):
    """A26. Whatever a worker is killed in, what was done to its runs stands, and the next worker goes on."""
    long_flow()
    with worker(database_url) as rt:
        knocks: deque[Any] = deque()
        rt.stand_in = lambda _: FunctionModel(respond)
        for number in range(COUNT):
            begin(rt, number)
        acts = [control.pause, control.resume, control.restart, control.terminate, control.delete]
        for _ in range(4):
            child = FORK.Process(target=work_until_killed, args=(database_url,))
            child.start()
            for _ in range(6):
                number = random.randrange(COUNT)
                begin(rt, number)
                random.choice(acts)(rt, WorkflowRef("Marathon", f"w{number}"))
                threading.Event().wait(random.random() * 0.05)
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join(60)
            begin_again(rt)
        recovery.reap(rt)
        rt.knock = knocks.append
        begin_again(rt)
        settle(rt, knocks, [handle(rt, number) for number in range(COUNT)])

        for number in range(COUNT):
            found = handle(rt, number)
            assert (found.status, found.output) == ("complete", f"w{number}")
            mine = [row for row in rows(rt, tables.submissions) if row.workflow_key == found.ref.key]
            assert [row.status for row in mine if row.workflow_run == found.row.run] == ["completed"]
            assert {row.status for row in mine} <= {"completed", "aborted"}


def begin_again(rt: Runtime) -> None:
    """Let each go on that stands still."""
    for number in range(COUNT):
        begin(rt, number)
        control.resume(rt, WorkflowRef("Marathon", f"w{number}"))
        if handle(rt, number).status == "terminated":
            control.restart(rt, WorkflowRef("Marathon", f"w{number}"))


@pytest.mark.parametrize("point", ["control:before-commit", "control:committed"])
def test_whoever_controls_is_killed(database_url: str, point: str):
    """Before the commit nothing has happened; after it all has, and the tick knocks where nobody could."""
    flow(lambda event, step: step.wait_for_event("a", type="go").payload, name="Marathon")
    happened = point == "control:committed"
    acts = {
        "pause": (control.pause, "paused"),
        "terminate": (control.terminate, "terminated"),
        "restart": (control.restart, "queued"),
        "delete": (control.delete, None),
    }
    with worker(database_url) as rt:
        flows = {name: start(rt, None, id=name, name="Marathon") for name in acts}
        for each in flows.values():
            each.advance()

        def die(name: str) -> None:
            with worker(database_url) as own:
                own.failpoint = lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == point else None
                acts[name][0](own, flows[name].ref)

        for name in acts:
            child = FORK.Process(target=die, args=(name,))
            child.start()
            child.join(60)
            assert child.exitcode == -signal.SIGKILL

        found = {name: each.row and each.status for name, each in flows.items()}
        assert found == {name: status if happened else "waiting" for name, (_, status) in acts.items()}
        if happened:
            assert flows["restart"].row.knock_at is not None


def test_the_step_under_way_is_told(live: Runtime):
    """A terminated or restarted run's `signal` comes within a beat or two, in whatever process it runs."""
    began, told = threading.Event(), threading.Event()

    def run(event: Any, step: Any) -> None:
        step.do("long", waits)
        step.do("next", told.clear)

    def waits(context: Any) -> str:
        began.set()
        if context.signal.wait(30):
            told.set()
        return "late"

    flow(run)
    workflow = start(live, None)
    words: list[str] = []
    thread = threading.Thread(target=lambda: words.append(workflow.advance().word))
    thread.start()
    assert began.wait(30)
    assert control.terminate(live, workflow.ref)
    assert told.wait(30)
    thread.join(30)

    assert (words, workflow.status, workflow.keys, told.is_set()) == (["lease-lost"], "terminated", [], True)
