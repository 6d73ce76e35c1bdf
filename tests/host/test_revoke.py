"""Revoking in Celery and Flower: a submission is cancelled by it, and nothing else of ours is lost."""

from pathlib import Path
from typing import Any

import pytest

from tests.host.flower import Flower
from tests.host.project import Aside, Chore, Lodger
from tests.host.story import Story
from tests.host.world import Command, World, a_worker, until
from think_celery import Job
from think_celery.ids import WorkflowRef, advance_task_id, named_id

pytestmark = pytest.mark.services

TWIN = "twin@host"
"""A second worker of a host."""


@pytest.fixture
def world(story: Story) -> World:
    """A host whose worker has nothing to do any more."""
    return story.world


def was_revoked(world: World, submission_id: str) -> None:
    """Return once it is cancelled, for that reason."""
    world.ended(submission_id)
    row = world.submission(submission_id)
    assert (row.status, row.error) == ("aborted", "revoked in Celery")


def goes_on(world: World, agent: Lodger) -> None:
    """The agent's next turn runs, and soon."""
    following = agent.submit_messages("and then?")
    world.ended(following.submission_id)
    assert world.status(following.submission_id) == "completed"


class TestASubmission:
    def test_that_waits_its_turn(self, world: World) -> None:
        """No worker has its message any more, and it is cancelled; the turn before it goes on."""
        agent = world.agent("waits")
        head = agent.submit_messages("slow").submission_id
        waiting = agent.submit_messages("never").submission_id
        until(lambda: world.status(head) == "running", world.report)

        world.app.control.revoke(waiting)

        was_revoked(world, waiting)
        world.ended(head)
        assert world.status(head) == "completed"

    def test_that_runs(self, world: World) -> None:
        """Celery itself does nothing then; here the turn ends, and the next one runs."""
        agent = world.agent("runs")
        running = agent.submit_messages("hold").submission_id
        until(lambda: world.status(running) == "running", world.report)

        world.app.control.revoke(running)

        was_revoked(world, running)
        goes_on(world, agent)

    @pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
    def test_that_is_terminated(self, world: World, signal: str) -> None:
        """In prefork that ends the process, in threads Celery can't do it: the same comes of both."""
        agent = world.agent(f"ended by {signal}")
        running = agent.submit_messages("hold").submission_id
        until(lambda: world.status(running) == "running", world.report)

        world.app.control.revoke(running, terminate=True, signal=signal)

        was_revoked(world, running)
        goes_on(world, agent)

    def test_whose_message_no_worker_has_got(self, world: World) -> None:
        """It is cancelled at once, and when its message comes, it is dropped: Flower shows it as revoked."""
        agent = Aside._bound_to(world.rt, "revoked")
        queued = agent.submit_messages("never").submission_id

        world.app.control.revoke(queued)
        was_revoked(world, queued)
        world.app.control.add_consumer("aside", destination=[world.name])

        until(lambda: "task-revoked" in world.events_of(queued), world.report)
        assert "task-started" not in world.events_of(queued)
        world.app.control.cancel_consumer("aside", destination=[world.name])

    def test_in_flower(self, threads_story: Story, flower: Flower) -> None:
        """Its button does what Celery's command does."""
        world = threads_story.world
        agent = world.agent("in Flower")
        running = agent.submit_messages("hold").submission_id
        until(lambda: world.status(running) == "running", world.report)

        assert flower.revoke(running) == {"message": f"Revoked '{running}'"}

        was_revoked(world, running)
        goes_on(world, agent)

    def test_that_is_deleted_and_accepted_anew(self, threads_story: Story, tmp_path: Path) -> None:
        """The same key gives the same id, which every worker remembers as revoked. A worker that starts then, as at a
        deployment, is told so by its neighbour, and does not cancel it; it runs although its message is dropped."""
        world = threads_story.world
        agent = world.agent("anew")
        head = agent.submit_messages("hold").submission_id
        first = agent.submit_messages("never", idempotency_key="k")
        world.app.control.revoke(first.submission_id)
        was_revoked(world, first.submission_id)
        assert agent.delete_submission(first.submission_id)

        again = agent.submit_messages("hello", idempotency_key="k")
        twin = Command(
            world.environ,
            tmp_path / "log",
            *(
                word
                for word in a_worker(world.environ["HOST_QUEUE"], name=TWIN)
                if word != "--without-mingle"
            ),
            "--loglevel",
            "info",
        )
        twin.says("sync complete")
        twin.serves(world.app, TWIN)
        knows_of_all_before(world, TWIN)

        assert (again.submission_id, world.status(again.submission_id)) == (first.submission_id, "pending")
        agent.cancel_submission(head)
        world.ended(again.submission_id)
        twin.stop()
        assert world.status(again.submission_id) == "completed"


def knows_of_all_before(world: World, worker: str) -> None:
    """Return once this worker has acted on whatever was revoked until now: one more is told to it alone."""
    one_more = Aside._bound_to(world.rt, worker).submit_messages("never").submission_id
    world.app.control.revoke(one_more, destination=[worker])
    was_revoked(world, one_more)


class TestAnythingElse:
    def test_a_workflow_goes_on(self, world: World) -> None:
        """Its knocks have one id until it moves. Were they dropped, it would wait for as long as Celery remembers."""
        ref = WorkflowRef("Chore", "wf-revoked")
        world.app.control.revoke([advance_task_id(ref.key, 1, wakes) for wakes in range(3)])
        until(lambda: "Tasks flagged as revoked" in world.worker.output(), world.report)

        world.agent("w").run_workflow(Chore, {"prompt": "say"}, workflow_id=ref.workflow_id)
        world.agent("w").send_workflow_event(Chore, ref.workflow_id, type="go")

        until(lambda: world.run(ref.workflow_id).status == "complete", world.report)

    def test_even_if_its_process_is_killed(self, prefork_story: Story) -> None:
        """A step in hand is lost with the process, and runs again in another."""
        world, ref = prefork_story.world, WorkflowRef("Chore", "wf-killed")
        world.agent("w").run_workflow(Chore, {"prompt": "say", "rest": 2}, workflow_id=ref.workflow_id)
        until(lambda: world.run(ref.workflow_id).status == "running", world.report)

        first = advance_task_id(ref.key, 1, 0)
        world.app.control.revoke(first, terminate=True, signal="SIGKILL")
        world.agent("w").send_workflow_event(Chore, ref.workflow_id, type="go")

        until(lambda: "task-revoked" in world.events_of(first), world.report)
        until(lambda: world.run(ref.workflow_id).status == "complete", world.report)

    def test_a_job_is_called_all_the_same(self, world: World) -> None:
        """All its knocks have its own id: were they dropped, it would wait for as long as Celery remembers."""
        agent, key = world.agent("called"), "revoked before"
        world.app.control.revoke(named_id("job", agent._ref.id, "queue", key))
        until(lambda: "Tasks flagged as revoked" in world.worker.output(), world.report)

        job = agent.queue("carry", "it", idempotency_key=key)

        until(lambda: found(agent, job.job_id).status not in ("pending", "running"), world.report)
        assert (found(agent, job.job_id).status, found(agent, job.job_id).error) == ("completed", None)

    @pytest.mark.parametrize("how", [{}, {"terminate": True, "signal": "SIGKILL"}])
    def test_a_job_in_hand_goes_on(self, world: World, how: dict[str, Any]) -> None:
        """Revoked, it runs to its end. Where its process is killed with it, another one makes the call again."""
        agent = world.agent(f"in hand {how}")
        job = agent.queue("carry", "slowly")
        until(lambda: found(agent, job.job_id).status == "running", world.report)

        world.app.control.revoke(job.job_id, **how)

        until(lambda: found(agent, job.job_id).status not in ("pending", "running"), world.report)
        assert (found(agent, job.job_id).status, found(agent, job.job_id).error) == ("completed", None)


def found(agent: Lodger, job_id: str) -> Job:
    """How a job stands."""
    job = agent.get_job(job_id)
    assert job is not None
    return job
