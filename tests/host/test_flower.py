"""What Flower and `celery inspect` show: one line for each row, one chain for each run, and red for errors."""

from typing import Any

import pytest

from tests.host.flower import Flower
from tests.host.story import Story
from tests.host.world import until
from think_celery.ids import WorkflowRef, advance_task_id

pytestmark = pytest.mark.services

RUN = WorkflowRef("Chore", "wf-1")


@pytest.fixture
def tasks(threads_story: Story, flower: Flower) -> dict[str, Any]:
    """What Flower knows of the tasks, once it knows the last."""
    last = advance_task_id(RUN.key, 1, 2)
    until(lambda: flower.tasks().get(last, {}).get("state") == "SUCCESS", flower.output)
    return flower.tasks()


class TestTheChain:
    def test_a_run_is_one(self, tasks: dict[str, Any]) -> None:
        """Each task of it has the run's first one as its root, and as its parent the one that woke it, or else the
        first: a client's event woke the last; and what takes two seconds on a busy machine, the tick sends again."""
        first, second, third = (advance_task_id(RUN.key, 1, wakes) for wakes in range(3))
        chain = {each["uuid"]: each for each in tasks.values() if each["root_id"] == first}
        names = {each["name"]: each for each in chain.values() if each["uuid"] not in (first, second, third)}

        assert len(chain) == 4
        prompt = names["think.submission.run"]
        assert chain[first]["parent_id"] is None
        assert prompt["parent_id"] == first
        assert chain[second]["parent_id"] in (prompt["uuid"], first)
        assert chain[third]["parent_id"] == first

    def test_what_it_shows(self, tasks: dict[str, Any], threads_story: Story) -> None:
        """Ids, and the word for how it went; of arguments the few that tell which row it is."""
        last, slow = tasks[advance_task_id(RUN.key, 1, 2)], tasks[threads_story.ids["slow"]]

        assert (last["name"], last["state"], last["result"]) == (
            "think.workflow.advance",
            "SUCCESS",
            "'complete'",
        )
        assert last["kwargs"] == "{'workflow': 'Chore', 'id': 'wf-1'}"
        assert (slow["name"], slow["state"], slow["result"]) == (
            "think.submission.run",
            "SUCCESS",
            "'completed'",
        )
        assert slow["kwargs"] == f"{{'submission': '{threads_story.ids['slow']}', 'agent': 'Lodger/a'}}"
        assert [task["uuid"] for task in tasks.values() if task["args"] not in ("()", None)] == []


class TestErrorsAreRed:
    def test_a_turn_that_failed(self, tasks: dict[str, Any], threads_story: Story) -> None:
        """FAILURE, with ids and the error's type; a knock that came later, for nothing, changes no state."""
        events = threads_story.world.events_of(threads_story.ids["failed"])
        failed = tasks[threads_story.ids["failed"]]

        assert events.index("task-failed") < len(events) - 1 - events[::-1].index("task-started")
        assert failed["state"] == "FAILURE"
        assert failed["exception"] == f"TurnFailed('{threads_story.ids['failed']}', 'ModelError')"

    def test_a_workflow_that_failed(self, tasks: dict[str, Any]) -> None:
        """The same."""
        failed = tasks[advance_task_id(WorkflowRef("Chore", "wf-2").key, 1, 0)]

        assert failed["state"] == "FAILURE"
        assert failed["exception"] == "WorkflowFailed(\"Chore('wf-2')\", 'ValueError')"


def test_celery_inspect(story: Story) -> None:
    """Workers answer what they have, and what they do; of ours no rate limit is shown, for the host's reach none."""
    asked = story.world.app.control.inspect([story.world.name], timeout=10)
    registered, ping = asked.registered(), asked.ping()

    [names] = registered.values()
    assert {"think.submission.run", "think.workflow.advance", "think.outbox.deliver", "think.tick"} <= set(
        names
    )
    assert any("rate_limit" in name for name in names if name.startswith("host."))
    until(lambda: list(asked.active().values()) == [[]], story.world.report)
    assert list(ping.values()) == [{"ok": "pong"}]
