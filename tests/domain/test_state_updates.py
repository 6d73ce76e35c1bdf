"""`step.update_agent_state`: a change of the agent's state that happens once."""

import threading
from typing import Any

import pytest

from tests.domain.flows import Desk, Handle, begin, flow
from think_celery import Think
from think_celery.domain.agents import agents
from think_celery.domain.workflows import workflows
from think_celery.ids import WorkflowRef
from think_celery.runtime import Runtime
from think_celery.testing import ThinkTest


class Tally(Think):
    """An agent that counts, and notes what it is told of."""

    initial_state = {"n": 0}  # noqa: RUF012
    told: list[Any] = []  # noqa: RUF012

    def on_state_changed(self, state: Any, source: str) -> None:
        self.told.append(state)


def count(step: Any) -> Any:
    return step.update_agent_state(lambda state: {**state, "n": state["n"] + 1})


def counting(rt: Runtime, run: Any, id: str = "w1") -> Handle:
    """A run whose agent counts."""
    flow(run)
    workflows.start(rt, Tally("c")._ref, "Flow", workflow_id=id)
    return Handle(rt, WorkflowRef("Flow", id))


def state(rt: Runtime) -> Any:
    return agents.get_state(rt, Tally("c")._ref, Tally.initial_state)


class TestOnce:
    def test_a_function_or_a_dict(self, t: ThinkTest):
        """A25: the new state is returned, now and on replay; a dict is merged; the agent is told as of any change."""
        seen: list[Any] = []
        Tally.told.clear()

        def run(event, step):
            seen.append([count(step), step.update_agent_state({"by": "flow"})])
            step.sleep("nap", 5)

        workflow = counting(t.rt, run)
        t.run_until_idle()
        t.skip(6)

        assert seen == [[{"n": 1}, {"n": 1, "by": "flow"}]] * 2
        assert state(t.rt) == {"n": 1, "by": "flow"}
        assert Tally.told == [{"n": 1}, {"n": 1, "by": "flow"}]
        assert workflow.keys[:2] == [("update-agent-state", "done"), ("update-agent-state#2", "done")]

    @pytest.mark.parametrize("point", ["before", "before-commit", "committed"])
    def test_killed_anywhere_it_counts_once(self, t: ThinkTest, point: str):
        """State and entry are one transaction."""
        t.crash_at(f"step:update-agent-state:{point}")
        workflow = counting(t.rt, lambda event, step: count(step))
        t.run_until_idle()
        t.skip(60)

        assert t.crashes == [f"step:update-agent-state:{point}"]
        assert workflow.output == state(t.rt) == {"n": 1}

    def test_somebody_else_was_faster(self, t: ThinkTest):
        """The function is called again with what that one has stored."""
        calls: list[int] = []

        def change(state):
            calls.append(state["n"])
            if len(calls) == 1:
                Tally("c").update_state(lambda state: {"n": state["n"] + 10})
            return {"n": state["n"] + 1}

        workflow = counting(t.rt, lambda event, step: step.update_agent_state(change))
        t.run_until_idle()

        assert workflow.output == state(t.rt) == {"n": 11}
        assert calls == [0, 10]

    def test_what_is_left_as_it_is_tells_nobody(self, t: ThinkTest):
        """The entry is recorded all the same."""
        Tally("c").set_state({"n": 5})
        Tally.told.clear()
        workflow = counting(t.rt, lambda event, step: step.update_agent_state(lambda state: state))
        t.run_until_idle()

        assert workflow.output == {"n": 5}
        assert Tally.told == []

    def test_a_step_in_its_function_is_refused(self, t: ThinkTest):
        """What it would record has no place of its own."""

        def run(event, step):
            try:
                step.update_agent_state(lambda state: {"at": step.now()})
            except Exception as error:
                return str(error)

        assert "can't hold another" in begin(t, run).output
        assert Desk("front").state == {}


def test_many_at_once_all_count(live: Runtime):
    """Runs, and callers outside of them, change one agent's state at once: real threads, no change is lost."""
    rounds = 10

    def run(event, step):
        for _ in range(rounds):
            count(step)

    runs = [counting(live, run, id=f"w{number}") for number in range(3)]
    agent = Tally._bound_to(live, "c")

    def outside() -> None:
        for _ in range(rounds):
            agent.update_state(lambda state: {**state, "n": state["n"] + 1})

    threads = [threading.Thread(target=each) for each in (*(run.advance for run in runs), outside)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert {run.status for run in runs} == {"complete"}
    assert state(live) == {"n": 4 * rounds}
