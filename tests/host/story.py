"""What happens on a host, once for all tests: turns, a workflow, failures and a cancel, at the same time."""

import copy
from dataclasses import dataclass, field
from typing import Any

from tests.host.project import MARK, Chore, Elsewhere, Lodger
from tests.host.world import SECONDS, World, everything_in, until
from think_celery import Retry
from think_celery.domain import knocks

GO = {"said": f"{MARK}-event"}


@dataclass
class Story:
    """The ids of what happened, by what it was, and what was in the broker in the midst of it."""

    world: World
    ids: dict[str, str] = field(default_factory=dict)
    broker: str = ""
    results: dict[str, Any] = field(default_factory=dict)

    def row(self, what: str) -> Any:
        """The row of that submission."""
        return self.world.submission(self.ids[what])


def play(world: World) -> Story:
    """Let it happen, and return when all has ended."""
    story = Story(world)
    told = {"metadata": {"note": f"{MARK}-metadata"}}

    def submit(what: str, agent: Lodger, prompt: str) -> None:
        key = f"{MARK}-key-{what}"
        done = agent.submit_messages(f"{prompt} {MARK}-prompt", idempotency_key=key, **told)
        story.ids[what] = done.submission_id

    submit("held", world.agent("c"), "hold")
    submit("next", world.agent("c"), "then")
    params = {"prompt": f"tool {MARK}-prompt-of-a-workflow", "rest": 1.5, "secret": f"{MARK}-param"}
    story.ids["workflow"] = world.agent("w").run_workflow(Chore, params, workflow_id="wf-1", **told)
    submit("slow", world.agent("a"), "tool slow")
    submit("elsewhere", Elsewhere._bound_to(world.rt, "e"), "nobody takes it")
    story.ids["broken"] = world.agent("w").run_workflow(Chore, {"fail": True}, workflow_id="wf-2")
    submit("failed", world.agent("b"), "fail")
    jobs = world.agent("j")
    calls = {
        "job": jobs.queue("carry", f"{MARK}-payload", idempotency_key=f"{MARK}-key-of-a-job", **told),
        "failed job": jobs.queue("carry", f"fail {MARK}-payload", retry=Retry(max_attempts=1)),
    }
    story.ids |= {what: job.job_id for what, job in calls.items()}
    story.ids["fiber"] = jobs.start_fiber("walk", f"{MARK}-payload-of-a-fiber", **told).fiber_id
    asked = {
        "another app": world.app.tasks["host.another_app"].apply_async(),
        "sleep": world.app.tasks["host.sleep"].apply_async(),
        "failed": ask_for_the_result(world, f"fail {MARK}-prompt"),
    }
    story.ids["asked"] = asked["failed"].id

    until(lambda: world.status(story.ids["held"]) == "running", world.report)
    story.broker = everything_in(world.environ["HOST_BROKER"])
    assert world.agent("c").cancel_submission(story.ids["held"], f"{MARK}-reason")
    world.ended(*(story.ids[what] for what in ("held", "next", "slow", "failed")))
    world.rt.knock(knocks.for_submission(story.row("failed")))  # once more, for nothing
    until(lambda: world.run("wf-1").status == "waiting" and world.waits_at("go"), world.report)
    world.agent("w").send_workflow_event(Chore, "wf-1", type="go", payload=GO)
    for workflow_id in ("wf-1", "wf-2"):
        until(lambda id=workflow_id: world.run(id).status in ("complete", "errored"), world.report)
    until(lambda: not jobs.list_jobs(status=["pending", "running"]), world.report)
    for what, result in asked.items():
        story.results[what] = result.get(timeout=SECONDS, propagate=False)
    return story


def ask_for_the_result(world: World, prompt: str) -> Any:
    """Run a turn by a message that asks Celery to keep its result."""
    quiet = copy.copy(world.rt)
    quiet.knock = lambda knock: None
    row = Lodger._bound_to(quiet, "asked").submit_messages(prompt)
    knock = knocks.for_submission(world.submission(row.submission_id))
    return world.app.tasks[knock.task].apply_async(
        kwargs=knock.kwargs, task_id=knock.task_id, kwargsrepr=repr(knock.shows), ignore_result=False
    )
