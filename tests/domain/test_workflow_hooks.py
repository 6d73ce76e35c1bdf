"""What the agent of a workflow is told: progress at once, ends and events by jobs that are stored with them."""

from typing import Any

import pytest
from sqlalchemy import select

from tests.domain.flows import flow, worker_dies
from think_celery import Think, WorkflowNews
from think_celery.domain.workflows import advance, control, hooks, workflows
from think_celery.errors import NonRetryableError, NotSerializable
from think_celery.ids import WorkflowRef
from think_celery.store import tables
from think_celery.testing import ThinkTest
from think_celery.workflow import ThinkWorkflow

told: list[tuple[str, WorkflowNews]] = []


class Listening(Think):
    """Notes what it is told, and fails where that says so."""

    def on_workflow_progress(self, news: WorkflowNews) -> None:
        note("progress", news, news.progress)

    def on_workflow_complete(self, news: WorkflowNews) -> None:
        note("complete", news, news.output)

    def on_workflow_error(self, news: WorkflowNews) -> None:
        note("error", news, news.error)

    def on_workflow_event(self, news: WorkflowNews) -> None:
        note("event", news, news.event)


class Deaf(Think):
    """Has no hook."""


def note(what: str, news: WorkflowNews, value: Any) -> None:
    told.append((what, news))
    if value == "fail":
        raise RuntimeError("the hook fails")


class Reporting(ThinkWorkflow[Any, Any]):
    """Reports, and does what its params say."""

    def run(self, event: Any, step: Any) -> Any:
        self.report_progress({"done": 0})
        step.do("a", lambda: self.report_progress("in a step"))
        self.broadcast_to_clients("half")
        self.report_progress(event.payload.get("progress", {"done": 1}))
        step.wait_for_event("go", type="go")
        self.report_progress({"done": 2})
        if event.payload.get("fail"):
            raise ValueError("no such order")
        return event.payload.get("output", "done")


@pytest.fixture(autouse=True)
def _nobody_was_told() -> None:
    told.clear()


def begin(t: ThinkTest, params: Any = None, agent: type[Think] = Listening, name: str = "w1") -> WorkflowRef:
    agent(name).run_workflow(Reporting, params or {}, workflow_id=name)
    t.run_until_idle()
    return WorkflowRef("Reporting", name)


def go(t: ThinkTest, name: str = "w1") -> None:
    t.send_event(Reporting, name, type="go")
    t.run_until_idle()


def heard(what: str) -> list[WorkflowNews]:
    return [news for kind, news in told if kind == what]


def hook_jobs(t: ThinkTest) -> list[Any]:
    return t.rt.db.read(lambda tx: list(tx.execute(select(tables.jobs).where(tables.jobs.c.kind == "hook"))))


class TestProgress:
    def test_it_is_told_at_once_and_once(self, t: ThinkTest):
        """A25. Silent while the journal is replayed; the last one is seen by whoever looks."""
        events: list[Any] = []
        t.rt.live.put = lambda frame: events.append(frame.event)  # type: ignore[method-assign]
        begin(t)
        agent = Listening("w1")
        assert [news.progress for news in heard("progress")] == [{"done": 0}, "in a step", {"done": 1}]
        assert agent.get_workflow("w1").progress == {"done": 1}
        assert hook_jobs(t) == []

        go(t)
        assert [news.progress for news in heard("progress")][3:] == [{"done": 2}]
        assert {(news.workflow, news.workflow_id, news.run) for _, news in told} == {("Reporting", "w1", 1)}
        assert [event["data"] for event in events if event["type"] == "broadcast"] == ["half"]
        assert agent.get_workflow("w1").progress == {"done": 2}

    def test_a_restart_begins_without_any(self, t: ThinkTest):
        """The progress of the run before is not this one's."""
        begin(t, {"progress": "far"})
        t.lose_messages()
        control.restart(t.rt, WorkflowRef("Reporting", "w1"))
        assert Listening("w1").get_workflow("w1").progress is None

    def test_after_a_crash_it_may_be_told_again(self, t: ThinkTest):
        """A hint: what was not recorded behind it is gone through again."""
        t.crash_at("step:a:before")
        begin(t)

        assert [news.progress for news in heard("progress")][:2] == [{"done": 0}, {"done": 0}]

    def test_a_hook_that_fails_changes_nothing(self, t: ThinkTest, caplog: pytest.LogCaptureFixture):
        """It is logged, without what it was told."""
        begin(t, {"progress": "fail"})
        go(t)

        assert Listening("w1").get_workflow("w1").output == "done"
        assert "on_workflow_progress of Listening('w1') failed" in caplog.text

    def test_what_is_not_stored_tells_nobody(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch):
        """Neither where the run is another's by now, nor where the database fails; the code goes on."""
        flow(lambda event, step: None, name="Unused")
        with monkeypatch.context() as broken:
            broken.setattr(hooks.control, "report_progress", lambda *_: 1 / 0)
            begin(t)
        assert heard("progress") == []

        class Taken(ThinkWorkflow[Any, Any], name="Taken"):
            def run(self, event: Any, step: Any) -> None:
                control.terminate(t.rt, WorkflowRef("Taken", "w2"))
                self.report_progress("late")
                step.do("a", lambda: None)

        Listening("w2").run_workflow(Taken, workflow_id="w2")
        t.run_until_idle()
        assert heard("progress") == []

    def test_what_can_not_be_stored_is_an_error(self, t: ThinkTest):
        """As of a step's value: the run ends in error, which says where."""
        begin(t, {"progress": {"n": 1}})
        with pytest.raises(NotSerializable, match="progress"):
            Listening("w1").run_workflow(Reporting, {"progress": object()})

        class OddReport(ThinkWorkflow[Any, Any]):
            def run(self, event: Any, step: Any) -> None:
                self.report_progress(object())

        Deaf("w3").run_workflow(OddReport, workflow_id="w3")
        t.run_until_idle()
        assert Deaf("w3").get_workflow("w3").error_type == "NotSerializable"

    def test_outside_a_run_nobody_is_told(self):
        """The object alone is no run."""
        Reporting().report_progress("nothing")
        Reporting().broadcast_to_clients("nothing")
        assert told == []


class TestEnds:
    @pytest.mark.parametrize(
        ("params", "what"), [({"output": {"n": 1}}, "complete"), ({"fail": True}, "error")]
    )
    def test_once_a_run(self, t: ThinkTest, params: Any, what: str):
        """A25. By a job that is stored with the end; a restarted run tells again."""
        begin(t, params)
        assert heard(what) == []
        go(t)
        (news,) = heard(what)
        if what == "complete":
            assert (news.output, news.error, news.error_type) == ({"n": 1}, None, None)
        else:
            assert (news.output, news.error_type, news.error) == (None, "ValueError", "no such order")
        assert (news.workflow, news.workflow_id, news.run) == ("Reporting", "w1", 1)
        (job,) = hook_jobs(t)
        assert (job.status, job.method) == ("completed", f"on_workflow_{what}")

        assert Listening("w1").restart_workflow("w1") == 2
        t.run_until_idle()
        go(t)
        assert [news.run for news in heard(what)] == [1, 2]

    def test_whoever_has_no_hook_has_no_job(self, t: ThinkTest):
        """And the end of its runs is one statement, as before."""
        begin(t, agent=Deaf)
        go(t)

        assert Deaf("w1").get_workflow("w1").status == "complete"
        assert hook_jobs(t) == []

    def test_a_crash_before_the_end_is_stored(self, t: ThinkTest):
        """End and job are one transaction: neither is there without the other."""
        begin(t)
        t.crash_at("workflow:before-end")
        go(t)
        t.skip("1 minute")

        assert len(heard("complete")) == len(hook_jobs(t)) == 1

    def test_a_hook_that_fails_is_logged(self, t: ThinkTest, caplog: pytest.LogCaptureFixture):
        """The run has ended all the same; the next one's hook is called."""
        begin(t, {"output": "fail"})
        go(t)
        begin(t, name="w2")
        go(t, "w2")
        t.skip("1 minute")

        assert [news.workflow_id for news in heard("complete")] == ["w1", "w2"]
        assert Listening("w1").get_workflow("w1").output == "fail"
        assert "on_workflow_complete" in caplog.text

    @pytest.mark.parametrize("act", [control.terminate, control.delete])
    def test_a_run_that_is_ended_from_outside_tells_nobody(self, t: ThinkTest, act: Any):
        """Whoever does that knows it."""
        act(t.rt, begin(t))
        t.skip("1 minute")

        assert heard("complete") == heard("error") == []

    def test_a_handled_error_is_none(self, t: ThinkTest):
        """Only the end of the run counts."""

        class Handling(ThinkWorkflow[Any, Any], name="Handling"):
            def run(self, event: Any, step: Any) -> str:
                try:
                    step.do("a", fails)
                except Exception:
                    return "handled"
                return ""

        def fails() -> None:
            raise NonRetryableError("no")

        Listening("w1").run_workflow(Handling, workflow_id="w1")
        t.run_until_idle()

        assert [what for what, _ in told] == ["complete"]

    def test_one_whose_workers_die_tells_of_its_error(self, t: ThinkTest):
        """Too many attempts is an end like any other."""
        workflows.start(t.rt, Listening("w1")._ref, Reporting, {}, workflow_id="w1")
        for _ in range(t.rt.settings.max_attempts):
            t.lose_messages()
            claimed = advance.claim_run(t.rt, WorkflowRef("Reporting", "w1"))
            assert isinstance(claimed, advance.Claim)
            worker_dies(t)
        t.run_until_idle()
        t.skip("1 minute")

        assert [news.error_type for news in heard("error")] == ["TooManyAttempts"]


class TestEnqueue:
    def test_what_a_step_sends(self, t: ThinkTest):
        """Each event of a run once, in order; the same one again is nothing new."""
        ref = begin(t)
        row = workflows.get(t.rt, ref)
        agent = Listening("w1")._ref
        for what, payload in (("event:a", 1), ("event:a", 2), ("event:b", {"n": 3}), ("complete", "early")):
            t.rt.db.transact(
                lambda tx, what=what, payload=payload: hooks.enqueue(t.rt, tx, agent, row, what, payload)
            )
        t.run_until_idle()
        assert [news.event for news in heard("event")] == [1, {"n": 3}]

        go(t)
        assert [news.output for news in heard("complete")] == ["early"]
