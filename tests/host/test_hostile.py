"""The engine under a configuration that suits nobody: short limits, early acks, pickles, and a task class."""

from pathlib import Path

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from tests.host.story import GO, Story
from tests.host.world import Command, everything_in
from think_celery.errors import TurnFailed

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]


class TestTheCore:
    def test_a_turn_that_takes_longer_than_the_hosts_limit(self, story: Story) -> None:
        """A limit of one second, from the app, its annotations and the command line, cuts no turn of ours."""
        row = story.row("slow")

        assert (row.status, row.error_type, row.takeovers) == ("completed", None, 1)
        assert (row.completed_at - row.started_at).total_seconds() > 1.5
        answer = story.world.agent("a").messages[-1]
        assert [part.type for part in answer.parts if "tool" in part.type] == ["tool-note"]

    def test_a_workflow_with_a_long_step_a_prompt_an_event_and_a_transaction(self, story: Story) -> None:
        """Each step once, whatever the host does with its own tasks."""
        run = story.world.run("wf-1")

        assert (run.status, run.output) == ("complete", {"good": True, "go": GO, "booked": 42})

    def test_a_turn_is_cancelled_and_the_next_one_follows(self, story: Story) -> None:
        """Cancelling does not depend on Celery."""
        assert (story.row("held").status, story.row("next").status) == ("aborted", "completed")

    def test_failures_end_their_rows(self, story: Story) -> None:
        """And are not tried again, though the host's tasks are."""
        failed, broken = story.row("failed"), story.world.run("wf-2")

        assert (failed.status, failed.error_type, failed.takeovers) == ("error", "ModelError", 1)
        assert (broken.status, broken.error_type) == ("errored", "ValueError")

    def test_a_queue_of_a_class_comes_before_routes(self, story: Story) -> None:
        """Class before Celery's task_routes, which send everything else to one queue."""
        world = story.world

        assert story.row("elsewhere").status == "pending"
        assert story.ids["elsewhere"] in story.broker
        sent = [event for event in list(world.events) if event.get("uuid") == story.ids["elsewhere"]]
        assert {event["queue"] for event in sent if event["type"] == "task-sent"} == {"elsewhere"}


class TestTheHostsOwn:
    def test_its_limits_hold_for_its_own_tasks(self, prefork_story: Story) -> None:
        """So the tests above can fail: the same worker cuts the host's task after a second."""
        assert isinstance(prefork_story.results["sleep"], SoftTimeLimitExceeded | TimeLimitExceeded)

    def test_another_app_of_the_process_has_none_of_our_tasks(self, story: Story) -> None:
        """Our tasks belong to one app (shared=False)."""
        names = story.results["another app"]

        assert "host.sleep" in names
        assert [name for name in names if name.startswith("think.")] == []

    def test_its_task_class_sees_its_own_tasks_alone(self, story: Story) -> None:
        """A context or a transaction around each call of the host's would hold a connection for a whole turn."""
        calls = Path(story.world.environ["HOST_CALLS"]).read_text().split()
        assert "host.another_app" in calls
        assert [name for name in calls if name.startswith("think.")] == []


class TestResults:
    def test_nothing_is_stored_of_them(self, story: Story) -> None:
        """Although the host's backend stores everything, errors of ignored tasks and starts too."""
        stored = everything_in(story.world.environ["HOST_RESULTS"])

        kept = [what for what, name in story.ids.items() if name in stored]
        assert kept == ["asked"]  # by a message that asks for it

    def test_an_error_survives_a_backend(self, story: Story) -> None:
        """Whoever asks for a result gets the same exception, through pickle and through JSON."""
        error = story.results["failed"]

        assert isinstance(error, TurnFailed)
        assert (error.row, error.error_type) == (story.ids["asked"], "ModelError")
        assert str(error) == f"{story.ids['asked']} ended in error: ModelError"


def test_a_worker_that_refuses_json_does_not_start(threads_story: Story, tmp_path: Path) -> None:
    """Our messages are JSON. It would drop each of them, and the rows would wait with nobody the wiser."""
    environ = {**threads_story.world.environ, "HOST_ACCEPTS": "pickle"}
    worker = Command(environ, tmp_path / "log", "worker", "--pool", "threads")

    status = worker.process.wait(30)

    assert status != 0
    assert "accept_content of the Celery app 'host' is ['pickle']." in worker.output()
    assert "Add 'json' to accept_content" in worker.output()
