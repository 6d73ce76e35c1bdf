"""Races of handles and children that end while their run parks: real threads, on both databases."""

import os
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import select

from tests.domain.flows import Desk, Handle, flow, runs_of, start
from tests.domain.test_workflow_races import drain, handle, together
from think_celery.domain import outbox, tick
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.workflows import workflows
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.runtime import Runtime
from think_celery.store import tables, wakes

pytestmark = pytest.mark.timeout(600)

ROUNDS = int(os.environ.get("THINK_ROUNDS", "8"))


class Vote(BaseModel):
    """Some answer."""

    yes: bool


class Voter(Desk):
    """Who answers here."""


def jury(event: Any, step: Any) -> Any:
    handles = [
        step.start_prompt(
            "vote", prompt="?", output=Vote, key=name, agent=("Voter", f"{event.payload['n']}-{name}")
        )
        for name in "abc"
    ]
    return [vote.yes for vote in step.gather(*handles)]


def first(event: Any, step: Any) -> Any:
    handles = [
        step.start_prompt(
            "vote", prompt="?", output=Vote, key=name, agent=("Voter", f"{event.payload['n']}-{name}")
        )
        for name in "ab"
    ]
    won = step.wait_any("stop", *handles, name="first")
    return [won.name, len(step.gather(*handles))]


def deliver_all(rt: Runtime, workflow: Handle) -> None:
    """Deliver what news there is for it, as the knocks would."""
    mine = select(tables.outbox.c.id).where(
        tables.outbox.c.workflow_key == workflow.ref.key, tables.outbox.c.status == "pending"
    )
    for outbox_id in rt.db.read(lambda tx: tx.execute(mine).scalars().all()):
        outbox.deliver(rt, outbox_id)


def to_the_end(rt: Runtime, workflow: Handle) -> None:
    for _ in range(20):
        if workflow.status == "complete":
            return
        deliver_all(rt, workflow)
        drain(workflow)


def run_turn(rt: Runtime, agent: Any, workflow: Handle) -> None:
    """Run an agent's only turn and deliver its news, as two workers would."""
    for row in submissions.find(rt, agent._ref):
        claims.run(rt, row.id)
    deliver_all(rt, workflow)


@pytest.mark.parametrize(("run", "names"), [(jury, "abc"), (first, "ab")], ids=["gather", "wait_any"])
def test_handles_that_end_while_the_run_parks(live: Runtime, run: Any, names: str):
    """FR-64: whatever ends when, each was asked once, each answer is taken once, and the run goes on."""
    live.stand_in = lambda agent_class: FunctionModel(lambda request: answer({"yes": True}))
    flow(run)
    flows = []
    for number in range(ROUNDS):
        workflow = start(live, None, {"n": number}, id=f"w{number}")
        workflow.advance()
        workflow.send("other")  # it is queued again, and parks while they end
        flows.append(workflow)

    def turn(name: str) -> Any:
        return lambda number: run_turn(live, Voter._bound_to(live, f"{number}-{name}"), flows[number])

    with together(lambda number: flows[number].advance(), *[turn(name) for name in names], rounds=ROUNDS):
        for workflow in flows:
            to_the_end(live, workflow)

    for number, workflow in enumerate(flows):
        assert workflow.status == "complete", (number, workflow.keys, workflow.inbox)
        if run is jury:
            assert workflow.output == [True] * 3
        else:
            assert workflow.output[1] == 2
        asked = [len(submissions.find(live, Voter(f"{number}-{name}")._ref)) for name in names]
        assert asked == [1] * len(names)
        news = [event for event in workflow.inbox if event.type.startswith("think-")]
        assert [event.consumed_by for event in sorted(news, key=lambda event: event.type)].count(None) == 0
    assert live.db.read(lambda tx: wakes.unread(tx, 10)) == []


def test_a_child_that_ends_while_its_parent_parks(live: Runtime):
    """Whatever the order of its end, the delivery of its news and the park: its result is taken, once."""
    flow(lambda event, step: event.payload["n"], name="Quick")

    def run(event, step):
        return step.run_workflow("child", "Quick", event.payload, workflow_id=f"c{event.payload['n']}")

    flow(run)
    flows = []
    for number in range(ROUNDS):
        workflow = start(live, None, {"n": number}, id=f"w{number}")
        flows.append(workflow)

    def child(number: int) -> None:
        quick = handle(live, number, "Quick")
        quick = Handle(live, WorkflowRef("Quick", f"c{number}"))
        for _ in range(2000):
            if workflows.get(live, quick.ref) is not None:
                break
        quick.advance()
        deliver_all(live, flows[number])

    with together(lambda number: flows[number].advance(), child, rounds=ROUNDS):
        for workflow in flows:
            for _ in range(5):
                quick = Handle(live, WorkflowRef("Quick", f"c{workflow.ref.workflow_id[1:]}"))
                drain(quick)
                to_the_end(live, workflow)

    assert [workflow.output for workflow in flows] == list(range(ROUNDS))
    assert {row.run for row in runs_of(live, "Quick")} == {1}


def test_a_child_that_ends_at_its_deadline(live: Runtime):
    """Its end and the parent's deadline: its result counts, or it is terminated; never both."""
    flow(lambda event, step: event.payload["n"], name="Quick")

    def run(event, step):
        try:
            return step.run_workflow(
                "child", "Quick", event.payload, workflow_id=f"c{event.payload['n']}", timeout=0.01
            )
        except Exception as error:
            return type(error).__name__

    flow(run)
    flows = [start(live, None, {"n": number}, id=f"w{number}") for number in range(ROUNDS)]
    for workflow in flows:
        workflow.advance()

    def parent(number: int) -> None:
        workflows.wake_due(live, 1000)
        flows[number].advance()

    def child(number: int) -> None:
        Handle(live, WorkflowRef("Quick", f"c{number}")).advance()
        deliver_all(live, flows[number])

    with together(parent, child, rounds=ROUNDS):
        for workflow in flows:
            workflows.wake_due(live, 1000)
            to_the_end(live, workflow)

    for number, workflow in enumerate(flows):
        ended = Handle(live, WorkflowRef("Quick", f"c{number}")).status
        assert (workflow.output, ended) in [(number, "complete"), ("ChildWorkflowTimeoutError", "terminated")]
    tick.run(live)
