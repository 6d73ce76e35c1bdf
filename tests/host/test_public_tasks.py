"""Tasks for callers that have nothing but Celery: sent by name, by a beat's entry, again and again."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.exceptions import Reject
from celery.schedules import schedule
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from tests.host.project import Chore, Lodger
from tests.host.world import World, everything_in, until
from think_celery import current, publictasks
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import runs, workflows
from think_celery.errors import InvalidValue, TaskFailed, UnknownClass
from think_celery.ids import WorkflowRef
from think_celery.store import tables
from think_celery.tasks import register
from think_celery.testing import ThinkTest, think_test

WHO = {"agent_class": "Lodger", "agent_name": "p"}


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture
def app(t: ThinkTest) -> Celery:
    made = Celery("public", broker="memory://", set_as_current=False)
    register(made, lambda: t.rt)
    return made


def ask(app: Celery, name: str, task_id: str | None = None, **kwargs: Any) -> Any:
    """What a worker does that gets such a message."""
    result = app.tasks[name].apply(kwargs=kwargs, task_id=task_id, throw=True)
    return result.get()


class TestWhatTheyDo:
    def test_submit(self, t: ThinkTest, app: Celery) -> None:
        """The id is the result; the same key, id or message again is the same submission."""
        first = ask(app, "think.submit", "m1", **WHO, messages="Hello", metadata={"order": 7})
        again = ask(app, "think.submit", "m1", **WHO, messages="Hello", metadata={"order": 7})
        other = ask(app, "think.submit", "m2", **WHO, messages=["Hello"])
        keyed = [
            ask(app, "think.submit", f"k{n}", **WHO, messages="Hi", idempotency_key="key") for n in (1, 2)
        ]
        named = ask(app, "think.submit", **WHO, messages="Ho", submission_id="mine")

        assert first == again != other
        assert keyed[0] == keyed[1]
        assert named == "mine"
        row = submissions.get(t.rt, first)
        assert (row.agent_class, row.agent_name, row.metadata, row.status) == (
            "Lodger",
            "p",
            {"order": 7},
            "pending",
        )
        assert len(submissions.find(t.rt, None)) == 4

    @pytest.mark.parametrize("missing", ["agent_class", "agent_name"])
    def test_no_workflow_is_started_without_an_agent(self, t: ThinkTest, app: Celery, missing: str) -> None:
        """A6: the error names what is missing, and nothing is stored."""
        who = {name: value for name, value in WHO.items() if name != missing}
        with pytest.raises(InvalidValue, match=f"{missing} is missing"):
            ask(app, "think.workflow.start", workflow="Chore", workflow_id="alone", **who)
        assert len(current().get_workflows()) == 0

    def test_start_and_send(self, t: ThinkTest, app: Celery) -> None:
        """A workflow of an agent with params; an event for it. Each once, however often the message comes."""
        started = [
            ask(app, "think.workflow.start", "m1", workflow="Chore", **WHO, params={"n": 1}) for _ in "ab"
        ]
        named = ask(
            app, "think.workflow.start", workflow="Chore", **WHO, workflow_id="wf-1", metadata={"a": 1}
        )
        sent = [
            ask(
                app,
                "think.workflow.send_event",
                "m2",
                workflow="Chore",
                workflow_id="wf-1",
                type="go",
                payload=[1],
            )
            for _ in "ab"
        ]
        ask(
            app,
            "think.workflow.send_event",
            workflow="Chore",
            workflow_id="wf-1",
            type="go",
            idempotency_key="k",
        )
        ask(
            app,
            "think.workflow.send_event",
            workflow="Chore",
            workflow_id="wf-1",
            type="go",
            idempotency_key="k",
        )

        assert started[0] == started[1]
        assert (named, sent) == ("wf-1", ["wf-1", "wf-1"])
        assert runs.look_up(t.rt, started[0]).agent.name == "p"
        assert runs.look_up(t.rt, "wf-1").metadata == {"a": 1}
        events = t.rt.db.read(lambda tx: list(tx.execute(select(tables.events.c.payload))))
        assert [row.payload for row in events] == ["[1]", "null"]

    @pytest.mark.parametrize(
        ("name", "kwargs", "error", "told"),
        [
            ("think.submit", {}, InvalidValue, "agent_class, agent_name, messages is missing"),
            (
                "think.submit",
                {**WHO, "mesages": "x", "messages": "x"},
                InvalidValue,
                "Did you mean 'messages'",
            ),
            ("think.submit", {**WHO, "agent_class": "Lodge", "messages": "x"}, UnknownClass, "Lodger"),
            ("think.submit", {**WHO, "agent_name": "", "messages": "x"}, InvalidValue, "agent_name="),
            ("think.submit", {**WHO, "agent_class": 5, "messages": "x"}, InvalidValue, "agent_class=5"),
            ("think.submit", {**WHO, "messages": []}, ValueError, "message"),
            (
                "think.submit",
                {**WHO, "messages": "x", "idempotency_key": 5},
                TypeError,
                "idempotency_key=5",
            ),
            ("think.submit", {**WHO, "messages": "x", "metadata": [1]}, TypeError, "metadata is a list"),
            ("think.workflow.start", {**WHO, "workflow": "Nope"}, UnknownClass, "Nope"),
            ("think.workflow.start", {**WHO, "workflow": 5}, InvalidValue, "workflow=5"),
            ("think.workflow.start", {**WHO, "workflow": "Chore", "params": [1]}, InvalidValue, "params"),
            (
                "think.workflow.start",
                {**WHO, "workflow": "Chore", "workflow_id": ""},
                ValueError,
                "workflow_id=",
            ),
            (
                "think.workflow.send_event",
                {"workflow": "Chore", "workflow_id": "w", "type": "think-x"},
                InvalidValue,
                "reserved",
            ),
        ],
    )
    def test_what_can_not_be_used_is_told_in_words(
        self, t: ThinkTest, app: Celery, name: str, kwargs: Any, error: Any, told: str
    ) -> None:
        """Nothing is stored, and the task fails: it is red in Flower, for there is nobody else to tell."""
        with pytest.raises(error, match=told):
            ask(app, name, **kwargs)
        assert submissions.find(t.rt, None) == []
        with pytest.raises(InvalidValue, match="all by name"):
            app.tasks[name].apply(args=[1], throw=True)

    def test_a_failure_keeps_none_of_the_caller_s_texts(self, t: ThinkTest, app: Celery) -> None:
        """What a result backend would store of one: its message, and its traceback with every cause."""
        secret = "secret-tulip"
        wrong: list[tuple[str, Any]] = [
            ("think.submit", {**WHO, "messages": [{"role": secret, "parts": secret}]}),
            ("think.submit", {**WHO, "messages": "x", "metadata": [secret]}),
            ("think.workflow.start", {**WHO, "workflow": "Chore", "params": [secret]}),
            (
                "think.workflow.send_event",
                {"workflow": "Chore", "workflow_id": "w", "type": "t", "pay": secret},
            ),
        ]
        for name, kwargs in wrong:
            failed = app.tasks[name].apply(kwargs=kwargs)
            assert failed.state == "FAILURE", name
            assert "tulip" not in str(failed.result) + str(failed.traceback), name

    def test_while_the_database_is_away(
        self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The message is all that there is of the request: it goes back to the broker. Other faults end it."""

        def fails(error: Exception) -> Any:
            def submit(*_: Any, **__: Any) -> Any:
                raise error

            return submit

        kwargs = {**WHO, "messages": "secret-tulip"}
        with monkeypatch.context() as away:
            away.setattr(submissions, "submit", fails(OperationalError("INSERT secret-tulip", {}, OSError())))
            with pytest.raises(Reject) as refused:
                publictasks.perform(t.rt, "think.submit", (), kwargs, "m1")
            assert refused.value.requeue
        with monkeypatch.context() as broken:
            broken.setattr(submissions, "submit", fails(RuntimeError("row with secret-tulip")))
            with caplog.at_level(logging.INFO), pytest.raises(TaskFailed, match="RuntimeError") as failed:
                publictasks.perform(t.rt, "think.submit", (), kwargs, "m1")
        assert "tulip" not in str(failed.value) + caplog.text
        assert submissions.get(t.rt, publictasks.perform(t.rt, "think.submit", (), kwargs, "m1")) is not None


@pytest.mark.services
class TestWithAWorker:
    def test_from_a_beat_and_by_name(self, threads: World) -> None:
        """A26. Entries of `beat_schedule`, as a host writes them: a real worker does what they say."""
        threads.starts()
        entry = {"schedule": schedule(60.0)}
        threads.app.conf.beat_schedule = {
            "ask": {
                **entry,
                "task": "think.submit",
                "kwargs": {**WHO, "messages": "Hi", "idempotency_key": "daily"},
            },
            "begin": {
                **entry,
                "task": "think.workflow.start",
                "kwargs": {
                    **WHO,
                    "workflow": "Chore",
                    "workflow_id": "by-beat",
                    "params": {"prompt": "go on"},
                },
            },
        }
        beat = Scheduler(app=threads.app, lazy=True)
        beat.setup_schedule()
        for _ in range(2):
            for each in ("ask", "begin"):
                beat.apply_entry(beat.schedule[each])

        lodger = Lodger._bound_to(threads.rt, "p")
        until(lambda: lodger.get_submission_by_key("daily"), threads.report)
        submission = lodger.get_submission_by_key("daily")
        assert submission is not None
        threads.ended(submission.submission_id)
        until(lambda: workflows.get(threads.rt, WorkflowRef("Chore", "by-beat")), threads.report)
        until(lambda: threads.run("by-beat").status == "waiting" and threads.waits_at("go"), threads.report)
        sent = threads.app.send_task(
            "think.workflow.send_event",
            kwargs={"workflow": "Chore", "workflow_id": "by-beat", "type": "go", "payload": {"by": "name"}},
        )
        until(lambda: threads.run("by-beat").status == "complete", threads.report)
        assert sent.get(timeout=60) == "by-beat"  # the host has a result backend
        asked = threads.app.send_task(
            "think.submit", kwargs={**WHO, "messages": "Hi", "idempotency_key": "daily"}
        )
        assert asked.get(timeout=60) == submission.submission_id
        unfit = threads.app.send_task(
            "think.submit", kwargs={**WHO, "mesages": "secret-tulip", "messages": "x"}
        )
        with pytest.raises(InvalidValue, match="Did you mean 'messages'"):
            unfit.get(timeout=60)
        assert "tulip" not in everything_in(threads.environ["HOST_RESULTS"])

        assert threads.run("by-beat").output["go"] == {"by": "name"}
        assert len([row for row in lodger.list_submissions() if row.idempotency_key == "daily"]) == 1
        until(lambda: "task-succeeded" in threads.events_of(sent.id), threads.report)
        (done,) = [
            event
            for event in threads.events
            if event.get("uuid") == sent.id and event["type"] == "task-succeeded"
        ]
        assert done["result"] == "'by-beat'"
        assert Chore.workflow_name == "Chore"
