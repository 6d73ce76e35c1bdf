"""What a test asks of a run's journal: what was recorded, and whether today's code still fits it."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doors.commands import own_runtime, run
from tests.journals import record
from tests.journals.flows import Bill
from think_celery import Retry, Think, ThinkWorkflow, serialization
from think_celery.domain.workflows.recordedruns import from_dict, of_run
from think_celery.errors import (
    InvalidJournal,
    ReplayMismatch,
    StepError,
    SuspendSwallowed,
    UnknownClass,
    UnreadableValue,
    WorkflowNotFound,
)
from think_celery.store.tables import metadata
from think_celery.testing import StepRecord, ThinkTest, think_test
from think_celery.wording import shown
from think_celery.workflow import ThinkWorkflowStep

RECORDED = sorted(Path(record.__file__).parent.glob("*.json"))
CALLS: list[str] = []


class ReplayAgent(Think):
    """An agent for these tests."""


class ReplayWorkflow(ThinkWorkflow):
    """Three steps; the third one waits."""

    def run(self, event: Any, step: ThinkWorkflowStep) -> Any:
        first = step.do("first", lambda: CALLS.append("first") or 1)
        second = step.do("second", lambda: CALLS.append("second") or 2)
        sent = step.wait_for_event("go", type="go").payload
        return [first, second, sent]


@pytest.fixture
def t() -> Iterator[ThinkTest]:
    CALLS.clear()
    with think_test() as t:
        yield t


@pytest.fixture
def waiting(t: ThinkTest) -> str:
    workflow_id = ReplayAgent("a").run_workflow(ReplayWorkflow, workflow_id="wf-1")
    t.run_until_idle()
    return workflow_id


@pytest.fixture
def complete(t: ThinkTest, waiting: str) -> str:
    t.send_event(ReplayWorkflow, waiting, type="go", payload="now")
    t.run_until_idle()
    assert t.workflow(ReplayWorkflow, waiting).status == "complete"
    return waiting


def change(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Deploy other code."""
    monkeypatch.setattr(ReplayWorkflow, "run", run)


def everything(t: ThinkTest) -> dict[str, list[Any]]:
    """All rows of the database."""
    tables = metadata.sorted_tables
    return t.rt.db.read(
        lambda tx: {each.name: list(tx.execute(each.select().order_by(*each.primary_key))) for each in tables}
    )


class TestSteps:
    def test_they_are_what_was_recorded(self, t: ThinkTest, waiting: str) -> None:
        """In the order of the calls: name, kind, status, output; what waits has none yet."""
        steps = t.steps(waiting)

        assert [(s.name, s.kind, s.status, s.output) for s in steps] == [
            ("first", "do", "done", 1),
            ("second", "do", "done", 2),
            ("go", "event", "waiting", None),
        ]
        assert steps[0].completed_at is not None
        assert steps[2].completed_at is None

    def test_failures_are_told(self, t: ThinkTest) -> None:
        """How often it failed, with what; a step of the same name has a number."""

        class ReplayFailing(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> None:
                step.do("once", lambda: None)
                step.do("once", lambda: 1 / 0, retry=Retry(max_attempts=2, delay=1))

        workflow_id = ReplayAgent("a").run_workflow(ReplayFailing)
        t.run_until_idle()

        second: StepRecord = t.steps(workflow_id)[1]
        assert (second.name, second.status, second.attempts) == ("once#2", "failed", 2)
        assert (second.error_type, second.error) == ("ZeroDivisionError", "division by zero")
        assert second.output is None

    def test_none(self, t: ThinkTest) -> None:
        """A run that is not there is an error, not an empty journal."""
        with pytest.raises(WorkflowNotFound):
            t.steps("nope")


class TestReplay:
    def test_code_that_fits(self, t: ThinkTest, waiting: str) -> None:
        """It says where the run waits; at its end it says what it returned (FR-63)."""
        seen = t.replay(waiting)
        t.send_event(ReplayWorkflow, waiting, type="go", payload="now")
        t.run_until_idle()

        ended = t.replay(waiting)

        assert (seen.at, seen.steps, seen.output) == ("go", ["first", "second"], None)
        assert (ended.at, ended.steps, ended.output) == (None, ["first", "second", "go"], [1, 2, "now"])

    def test_nothing_happens(self, t: ThinkTest, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """No function is called, nothing is submitted, taken or stored, no message is sent: not even where the code
        goes on behind the journal."""

        def longer(self: Any, event: Any, step: Any) -> None:
            step.do("first", lambda: CALLS.append("again"))
            step.do("second", lambda: CALLS.append("again"))
            step.do("third", lambda: CALLS.append("third"))

        def prompting(self: Any, event: Any, step: Any) -> None:
            step.do("first", lambda: CALLS.append("again"))
            step.do("second", lambda: CALLS.append("again"))
            step.prompt("third", prompt="Hello", output=dict[str, int])

        t.rt.db.transact(
            lambda tx: tx.execute(
                metadata.tables["think_steps"].delete().where(metadata.tables["think_steps"].c.step == "go")
            )
        )
        t.send_event(ReplayWorkflow, waiting, type="go")
        t.lose_messages()
        before = everything(t)
        for code in (ReplayWorkflow.run, longer):
            change(monkeypatch, code)
            t.replay(waiting)

        assert CALLS == ["first", "second"]
        assert everything(t) == before
        assert t.lose_messages() == 0

    @pytest.mark.parametrize(
        ("names", "position", "recorded", "asked"),
        [
            (["second", "first"], 0, "do 'first'", "do 'second'"),
            (["first", "other"], 1, "do 'second'", "do 'other'"),
            (["first"], 1, "do 'second'", "nothing more: it returned"),
        ],
    )
    def test_the_first_step_that_differs(
        self,
        names: list[str],
        position: int,
        recorded: str,
        asked: str,
        t: ThinkTest,
        waiting: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The error says which step, what is recorded and what the code asks for; no function of it runs (FR-63)."""

        def other(self: Any, event: Any, step: Any) -> None:
            for name in names:
                step.do(name, lambda: CALLS.append("other"))

        change(monkeypatch, other)

        with pytest.raises(ReplayMismatch) as raised:
            t.replay(waiting)

        error = raised.value
        assert (error.position, error.recorded, error.asked) == (position, recorded, asked)
        assert error.__notes__ == ["Replayed in a test: ReplayWorkflow('wf-1'). No run was touched."]
        assert CALLS == ["first", "second"]

    def test_another_kind_of_step(self, t: ThinkTest, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name is not enough."""
        change(monkeypatch, lambda self, event, step: step.sleep("first", 1))

        with pytest.raises(ReplayMismatch, match="recorded do 'first'"):
            t.replay(waiting)

    def test_a_step_behind_the_end_of_a_complete_run(
        self, t: ThinkTest, complete: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that waits goes on there; one that is complete never asked for it."""
        before = ReplayWorkflow.run

        def longer(self: Any, event: Any, step: Any) -> None:
            before(self, event, step)
            step.do("last", lambda: CALLS.append("last"))

        change(monkeypatch, longer)

        with pytest.raises(ReplayMismatch, match="nothing more") as raised:
            t.replay(complete)

        assert raised.value.asked == "do 'last'"
        assert CALLS == ["first", "second"]

    def test_recorded_failures_are_raised_again(self, t: ThinkTest) -> None:
        """The code takes the way that it took."""

        class ReplayCatching(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> str:
                try:
                    step.do("fail", lambda: 1 / 0, retry=Retry(max_attempts=1))
                except StepError as error:
                    return str(step.do("tell", self.tell)) + error.error_type
                return "fine"

            def tell(self) -> str:
                CALLS.append("told")
                return "told "

        workflow_id = ReplayAgent("a").run_workflow(ReplayCatching)
        t.run_until_idle()

        assert t.replay(workflow_id).output == "told ZeroDivisionError"
        assert CALLS == ["told"]

    def test_a_run_that_ended_in_an_error(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same error again is what fits; another one is raised."""

        class ReplayRaising(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> None:
                step.do("one", lambda: None)
                raise LookupError("gone")

        workflow_id = ReplayAgent("a").run_workflow(ReplayRaising)
        t.run_until_idle()
        same = t.replay(workflow_id)

        def other(self: Any, event: Any, step: Any) -> None:
            step.do("one", lambda: None)
            raise OSError("elsewhere")

        monkeypatch.setattr(ReplayRaising, "run", other)

        assert isinstance(same.error, LookupError)
        with pytest.raises(OSError, match="elsewhere"):
            t.replay(workflow_id)

    def test_code_that_swallows_the_stop(
        self, t: ThinkTest, waiting: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bare `except` is found out, as it is in a worker."""

        def swallow(self: Any, event: Any, step: Any) -> str:
            step.do("first", lambda: None)
            step.do("second", lambda: None)
            try:
                step.wait_for_event("go", type="go")
            except BaseException:
                return "went on"
            return "sent"

        change(monkeypatch, swallow)

        with pytest.raises(SuspendSwallowed):
            t.replay(waiting)

    def test_a_step_that_is_tried_again_later(self, t: ThinkTest) -> None:
        """There the replay ends, and the function is not called: neither before its time nor after it."""

        class ReplayRetrying(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> None:
                step.do("flaky", self.fail, retry=Retry(max_attempts=3, delay=60))

            def fail(self) -> None:
                CALLS.append("failed")
                raise OSError("busy")

        workflow_id = ReplayAgent("a").run_workflow(ReplayRetrying)
        t.run_until_idle()
        now = t.replay(workflow_id)
        t.clock.advance(timedelta(hours=1))
        later = t.replay(workflow_id)

        assert (now.at, later.at, later.steps) == ("flaky", "flaky", [])
        assert CALLS == ["failed"]

    def test_another_version(self, t: ThinkTest, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers of that version leave such a run alone, so there is nothing to be tried."""
        monkeypatch.setattr(ReplayWorkflow, "version", "2")

        with pytest.raises(InvalidJournal, match="recorded by version '1'"):
            t.replay(waiting)


class TestFiles:
    @pytest.fixture(autouse=True)
    def own_default(self) -> Iterator[None]:
        with own_runtime():
            yield

    def test_an_exported_run_is_replayed_elsewhere(self, t: ThinkTest, waiting: str, tmp_path: Path) -> None:
        """What the command prints is what `t.record` writes; another database replays it."""
        exported = run("workflows", "export", waiting, "--database-url", str(t.rt.db.url))
        (tmp_path / "exported.json").write_text(exported.stdout)
        t.record(waiting, tmp_path / "recorded.json")
        with think_test() as elsewhere:
            seen = elsewhere.replay(str(tmp_path / "exported.json"))

        assert (seen.at, seen.steps) == ("go", ["first", "second"])
        assert (tmp_path / "recorded.json").read_text() == exported.stdout

    def test_values_come_back_as_they_were(self, t: ThinkTest, tmp_path: Path) -> None:
        """Whatever a step may return, through the file, too."""
        workflow_id = record.every_kind(t)
        t.record(workflow_id, tmp_path / "run.json")
        with think_test() as elsewhere:
            output = elsewhere.replay(tmp_path / "run.json").output

        assert isinstance(t.steps(workflow_id)[0].output, Bill)
        assert output == t.workflow("JournalWorkflow", workflow_id).output

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "",
            "null",
            0,
            False,
            [],
            {},
            [None],
            {"a": None},
            b"",
            10**3000,
            -0.0,
            5e-324,
            "é\u2028",
            "\ud800",
        ],
        ids=lambda value: shown(value),
    )
    def test_a_value_that_is_next_to_nothing(self, value: Any, t: ThinkTest, tmp_path: Path) -> None:
        """Each comes out of the file as the step has returned it: of any kind, in a run that waits or is complete."""

        class ReplayNothing(ThinkWorkflow):
            def run(self, event: Any, step: ThinkWorkflowStep) -> Any:
                done = step.do("do", lambda: value)
                stored = step.transaction("transaction", lambda conn: value)
                child = step.run_workflow("child", ReplayNothings, params={"value": value})
                step.sleep("rest", 1)
                return [done, stored, child, step.wait_for_event("go", type="go").payload]

        class ReplayNothings(ThinkWorkflow):
            def run(self, event: Any, step: ThinkWorkflowStep) -> Any:
                return event.payload["value"]

        path = tmp_path / "run.json"
        workflow_id = ReplayAgent("a").run_workflow(ReplayNothing)
        t.skip("1 minute")
        t.record(workflow_id, path)
        at = t.replay(path).at
        exported = run("workflows", "export", workflow_id, "--database-url", str(t.rt.db.url)).stdout
        written = path.read_text(encoding="utf-8")
        t.send_event(ReplayNothing, workflow_id, type="go", payload=value)
        t.run_until_idle()
        t.record(workflow_id, path)

        assert (at, written) == ("go", exported)
        assert repr(t.replay(path).output) == repr([value, value, value, value])

    def test_a_run_that_gives_nothing(self, t: ThinkTest, tmp_path: Path) -> None:
        """Its params and what it returns may be ``None``, too."""

        class ReplaySilent(ThinkWorkflow):
            def run(self, event: Any, step: ThinkWorkflowStep) -> None:
                step.do("say", lambda: CALLS.append("said"))

        workflow_id = ReplayAgent("a").run_workflow(ReplaySilent)
        t.run_until_idle()
        t.record(workflow_id, tmp_path / "run.json")
        exported = json.loads((tmp_path / "run.json").read_text())
        (tmp_path / "run.json").write_text(json.dumps({**exported, "params": None}))

        assert t.replay(tmp_path / "run.json").output is None
        assert from_dict(exported, "run.json") == of_run(t.rt, workflow_id)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (None, "there is no such file"),
            ("{", "it is no JSON"),
            ("[]", "it is no exported journal"),
            ('{"think_celery_journal": 99}', "format 99"),
            ('{"think_celery_journal": 1, "steps": []}', "KeyError: 'workflow'"),
        ],
    )
    def test_a_file_that_is_none(self, text: str | None, told: str, t: ThinkTest, tmp_path: Path) -> None:
        """The error names the file, and how to make one."""
        if text is not None:
            (tmp_path / "x.json").write_text(text)

        with pytest.raises(InvalidJournal, match=told) as raised:
            t.replay(tmp_path / "x.json")

        assert "think-celery workflows export" in str(raised.value)
        assert str(tmp_path / "x.json") in str(raised.value)

    def test_a_class_that_is_gone(self, t: ThinkTest, waiting: str, tmp_path: Path) -> None:
        """The workflow's own, or that of a value: both say what is missing."""
        t.record(waiting, tmp_path / "a.json")
        text = (tmp_path / "a.json").read_text()
        (tmp_path / "workflow.json").write_text(text.replace("ReplayWorkflow", "ReplayGone"))
        gone = json.loads(text)
        gone["steps"][0]["output"] = {"$think": "model", "c": "tests.journals.flows:Gone", "v": {}}
        (tmp_path / "value.json").write_text(json.dumps(gone))

        with pytest.raises(UnknownClass, match="ReplayGone"):
            t.replay(tmp_path / "workflow.json")
        with pytest.raises(UnreadableValue, match="Gone"):
            t.replay(tmp_path / "value.json")


@pytest.mark.parametrize("journal", RECORDED, ids=lambda path: path.stem)
def test_runs_that_were_recorded_before_still_fit(journal: Path, t: ThinkTest) -> None:
    """A run that waits in a user's database goes on after an upgrade of this package: these files never change."""
    stored = json.loads(journal.read_text())

    seen = t.replay(journal)

    ended = [step["step"] for step in stored["steps"] if step["completed_at"] is not None]
    assert seen.steps == ended
    if stored["status"] == "complete":
        assert seen.at is None
        assert json.loads(serialization.dumps(seen.output, what="output")) == stored["output"]
    else:
        assert seen.at == stored["steps"][-1]["step"]
    fresh = t.steps(record.RUNS[journal.stem](t))
    assert [(step.name, step.kind, step.status) for step in fresh] == [
        (step["step"], step["kind"], step["status"]) for step in stored["steps"]
    ]
