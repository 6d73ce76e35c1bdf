"""The Celery tasks: their names, their words, and what a host's configuration can't do to them."""

import logging
from asyncio import CancelledError
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject

from think_celery import Retry, Think
from think_celery.domain.work import WORK
from think_celery.errors import (
    ConfigurationError,
    JobFailed,
    TaskFailed,
    TaskInterrupted,
    TurnFailed,
    WorkflowFailed,
)
from think_celery.providers.scripted import ScriptedModel, say
from think_celery.settings import Settings
from think_celery.tasks import ThinkTask, check_content, register, set_limits
from think_celery.testing import ThinkTest, think_test
from think_celery.worker import inspection
from think_celery.workflow import ThinkWorkflow

NAMES = [
    "think.agent.start",
    "think.job.run",
    "think.outbox.deliver",
    "think.submission.run",
    "think.submit",
    "think.tick",
    "think.workflow.advance",
    "think.workflow.send_event",
    "think.workflow.start",
]


class HostsTask(Task):  # type: ignore[type-arg]
    """A class of the host's, with which its tasks are made."""

    abstract = True


class TaskClerk(Think):
    """Answers what its script says."""

    def lose(self, what: str) -> None:
        """What is queued."""
        raise ValueError(f"{what} is lost")


class Errand(ThinkWorkflow[TaskClerk, dict[str, Any]]):
    """Waits where it is told to, or fails."""

    def run(self, event: Any, step: Any) -> str:
        """Do what the params say."""
        if event.payload.get("fail"):
            raise ValueError("no such errand: tulip")
        step.wait_for_event("go", type="go")
        return "done"


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture
def app(t: ThinkTest) -> Celery:
    """A Celery app whose tasks work with the test's runtime."""
    made = Celery("tasks", broker="memory://", set_as_current=False)
    register(made, lambda: t.rt)
    return made


class TestWords:
    def test_a_run_that_ends_its_row_says_how(self, t: ThinkTest, app: Celery) -> None:
        """Flower shows the outcome word as the task's result."""
        t.script(TaskClerk, say("Good morning."))
        submission = TaskClerk("ada").submit_messages("Hello")

        word = app.tasks["think.submission.run"](submission_id=submission.submission_id)

        assert word == "completed"

    def test_one_that_does_not_is_ignored_and_says_so_in_the_log(
        self, t: ThinkTest, app: Celery, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A returned word would count as success for ever, and hide a later failure in Flower."""
        t.script(TaskClerk, say("One."), say("Two."))
        first = TaskClerk("ada").submit_messages("One?")
        second = TaskClerk("ada").submit_messages("Two?")
        run = app.tasks["think.submission.run"]

        with caplog.at_level(logging.INFO, "think_celery.tasks"):
            with pytest.raises(Ignore, match="not-head"):
                run(submission_id=second.submission_id)
            run(submission_id=first.submission_id)
            with pytest.raises(Ignore, match="ended-before"):
                run(submission_id=first.submission_id)
            with pytest.raises(Ignore, match="not-found"):
                run(submission_id="nobody")

        assert [record.message for record in caplog.records if record.name == "think_celery.tasks"] == [
            f"{second.submission_id}: not-head",
            f"{first.submission_id}: ended-before",
            "nobody: not-found",
        ]

    @pytest.mark.parametrize("kind", [OSError, CancelledError, SystemExit])
    def test_an_error_that_is_not_the_row_s_shows_no_words_of_a_database(
        self,
        kind: type[BaseException],
        t: ThinkTest,
        app: Celery,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Celery prints and sends what a task raises, and its pools don't survive every BaseException."""

        words = f"Failing row contains ({'s3cret'})"

        def refuse(rt: Any, submission_id: str) -> Any:
            raise kind(words)

        work = replace(WORK["think.submission.run"], run=refuse)
        monkeypatch.setitem(WORK, "think.submission.run", work)  # type: ignore[arg-type]
        own = Celery("own", set_as_current=False)
        register(own, lambda: t.rt)

        with pytest.raises(TaskInterrupted) as raised:
            own.tasks["think.submission.run"](submission_id="s-1")

        assert (raised.value.row, raised.value.error_type) == ("s-1", kind.__name__)
        assert raised.value.__cause__ is None
        assert "s3cret" not in str(raised.value)
        assert "s3cret" not in caplog.text
        assert kind.__name__ in caplog.text

    def test_a_workflow_that_parks_is_ignored(self, t: ThinkTest, app: Celery) -> None:
        """Parking ends no row, so the task has no state yet; the last one of the run has."""
        workflow_id = TaskClerk("ada").run_workflow(Errand, {})
        advance = app.tasks["think.workflow.advance"]

        with pytest.raises(Ignore, match="parked"):
            advance(workflow="Errand", workflow_id=workflow_id)
        with pytest.raises(Ignore, match="waiting"):
            advance(workflow="Errand", workflow_id=workflow_id)
        t.send_event(Errand, workflow_id, type="go")

        assert advance(workflow="Errand", workflow_id=workflow_id) == "complete"

    def test_celery_shows_no_state_for_an_ignored_run(self, t: ThinkTest, app: Celery) -> None:
        """The same through Celery's own tracing: the state is neither success nor failure."""
        result = app.tasks["think.submission.run"].apply(kwargs={"submission_id": "nobody"})

        assert result.state == "IGNORED"

    def test_a_word_brings_no_traceback_of_celery_s_with_it(self, t: ThinkTest, app: Celery) -> None:
        """Copying it takes Celery longer than all else, twice for each run that parks; and children send it."""
        task: Any = app.tasks["think.submission.run"]
        task.__trace__ = build_tracer(task.name, task, app=app)  # as a worker does when it starts
        request = {"id": "nobody", "delivery_info": {}}

        result, traced, *_ = task.__trace__("nobody", (), {"submission_id": "nobody"}, request)

        assert (traced.state, str(traced.retval)) == ("IGNORED", "not-found")
        assert result.tb.tb_frame.f_code.co_name == "_report"
        assert result.tb.tb_next is None

    def test_the_tick_says_how_many_rows_it_moved(self, t: ThinkTest, app: Celery) -> None:
        """For schedulers other than the workers' own timer."""
        assert app.tasks["think.tick"]() == "0 rows"

    def test_a_worker_that_stops_gives_its_messages_back(self, t: ThinkTest, app: Celery) -> None:
        """What it hands over is knocked for while it still listens: it must not swallow that knock."""
        t.script(TaskClerk, say("Good morning."))
        submission = TaskClerk("ada").submit_messages("Hello")
        t.rt.stopping.abort("told to")

        with pytest.raises(Reject) as refused:
            app.tasks["think.submission.run"](submission_id=submission.submission_id)

        assert refused.value.requeue
        assert submission.message() is None


class TestErrorsAreRed:
    def test_a_turn_that_ended_in_error_fails_its_task(self, t: ThinkTest, app: Celery) -> None:
        """FAILURE in Flower and in error trackers, with ids and the error's type and no text."""
        t.use_model(ScriptedModel())
        submission = TaskClerk("ada").submit_messages("my-password-is-tulip")

        with pytest.raises(TurnFailed) as failed:
            app.tasks["think.submission.run"](submission_id=submission.submission_id)

        row = TaskClerk("ada").inspect_submission(submission.submission_id)
        assert row is not None
        assert row.status == "error"
        assert str(failed.value) == f"{submission.submission_id} ended in error: {row.error_type}"
        assert (failed.value.__cause__, failed.value.__context__) == (None, None)
        assert TurnFailed not in ThinkTask.throws

    def test_a_workflow_that_ended_in_error_fails_its_task(self, t: ThinkTest, app: Celery) -> None:
        """The same for workflows."""
        workflow_id = TaskClerk("ada").run_workflow(Errand, {"fail": True})

        with pytest.raises(WorkflowFailed) as failed:
            app.tasks["think.workflow.advance"](workflow="Errand", workflow_id=workflow_id)

        assert failed.value.error_type == "ValueError"
        assert "tulip" not in str(failed.value)
        assert isinstance(failed.value, TaskFailed)

    def test_a_job_that_ended_in_error_fails_its_task(self, t: ThinkTest, app: Celery) -> None:
        """The same for jobs; an attempt that is followed by another fails nothing."""
        clerk = TaskClerk("ada")
        task, twice = app.tasks["think.job.run"], Retry(max_attempts=2, delay=0)
        job = clerk.queue("lose", "tulip", retry=twice)

        with pytest.raises(Ignore, match="retrying"):
            task(job=job.job_id)
        with pytest.raises(JobFailed) as failed:
            task(job=job.job_id)

        assert str(failed.value) == f"{job.job_id} ended in error: ValueError"
        with pytest.raises(Ignore, match="ended-before"):
            task(job=job.job_id)

    def test_it_can_be_turned_off(self, t: ThinkTest, app: Celery) -> None:
        """With think_fail_tasks = False the task succeeds, and its word is the outcome."""
        t.rt.settings = replace(t.rt.settings, fail_tasks=False)
        workflow_id = TaskClerk("ada").run_workflow(Errand, {"fail": True})

        word = app.tasks["think.workflow.advance"](workflow="Errand", workflow_id=workflow_id)

        assert word == "error"


class TestTheHostsConfiguration:
    """It must not reach our tasks. FR: an app-wide soft limit of 20 s would cut every turn."""

    @pytest.fixture
    def hostile(self, t: ThinkTest) -> Celery:
        made = Celery("hostile", broker="memory://", set_as_current=False, task_cls=HostsTask)
        made.conf.update(
            task_soft_time_limit=1,
            task_time_limit=2,
            task_serializer="pickle",
            task_acks_late=False,
            task_acks_on_failure_or_timeout=False,
            task_reject_on_worker_lost=False,
            task_ignore_result=False,
            task_store_errors_even_if_ignored=True,
            task_track_started=True,
            task_default_rate_limit="1/h",
            task_annotations={
                "*": {"rate_limit": "1/m", "acks_late": False, "max_retries": 9, "serializer": "yaml"}
            },
        )
        register(made, lambda: t.rt)
        inspection.register(made, lambda: t.rt)
        return made

    @pytest.mark.parametrize("name", NAMES)
    def test_it_does_not_reach_them(self, hostile: Celery, name: str) -> None:
        """Neither what Celery copies from the app nor annotations, nor the host's own task class."""
        task = hostile.tasks[name]

        assert isinstance(task, ThinkTask)
        assert not isinstance(task, HostsTask)
        assert (task.acks_late, task.acks_on_failure_or_timeout, task.reject_on_worker_lost) == (
            True,
            True,
            True,
        )
        public = name in (
            "think.submit",
            "think.workflow.start",
            "think.workflow.send_event",
        )  # those return an id
        assert (task.ignore_result, task.store_errors_even_if_ignored) == (not public, False)
        assert (task.max_retries, task.rate_limit, task.serializer) == (0, None, "json")
        assert task.track_started is False

    def test_but_it_reaches_the_hosts_own(self, hostile: Celery) -> None:
        """So the test above can fail."""

        @hostile.task(name="own", shared=False)
        def own() -> None:
            pass

        assert isinstance(hostile.tasks["own"], HostsTask)
        assert hostile.tasks["own"].rate_limit == "1/m"
        assert hostile.tasks["own"].serializer == "yaml"

    def test_its_limits_are_ours(self, hostile: Celery) -> None:
        """Limits lie beyond every deadline of ours: a pool gives the host's to a task that has none."""
        set_limits(hostile, Settings(turn_timeout_seconds=100.0))

        run, advance = hostile.tasks["think.submission.run"], hostile.tasks["think.workflow.advance"]
        assert (run.soft_time_limit, run.time_limit) == (260, 320)
        assert advance.soft_time_limit > 86_400
        ping = hostile.tasks["think.ping"]
        assert (ping.soft_time_limit, ping.time_limit) == (260, 320)
        assert advance.time_limit > advance.soft_time_limit


class TestContent:
    """Messages of ours are JSON."""

    @pytest.mark.parametrize("accepted", [["json"], ["pickle", "application/json"], ("yaml", "json"), None])
    def test_a_worker_that_takes_json_serves(self, app: Celery, accepted: Any) -> None:
        """By whatever name, and whatever else it takes."""
        app.conf.accept_content = accepted

        check_content(app)

    @pytest.mark.parametrize("accepted", [["pickle"], ["yaml", "msgpack"], []])
    def test_one_that_refuses_it_says_so(self, app: Celery, accepted: list[str]) -> None:
        """Celery would drop each message, and the tick would send it again, for ever."""
        app.conf.accept_content = accepted

        with pytest.raises(ConfigurationError, match="Add 'json' to accept_content") as refused:
            check_content(app)

        assert f"accept_content of the Celery app 'tasks' is {sorted(accepted)}." in str(refused.value)


class TestNames:
    def test_they_are_explicit_and_of_this_app_alone(self, app: Celery) -> None:
        """Names are stable, and no other app of the process gets our tasks (shared=False)."""
        other = Celery("other", broker="memory://", set_as_current=False)

        assert sorted(name for name in app.tasks if name.startswith("think.")) == NAMES
        assert not [name for name in other.tasks if name.startswith("think.")]
