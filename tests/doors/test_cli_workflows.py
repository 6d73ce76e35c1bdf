"""``think-celery workflows``: the timeline of a run, what it waits for, and what can be done about it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import Result
from pydantic import BaseModel

from tests.doors.test_cli import run
from think_celery import Think, ThinkWorkflow
from think_celery.domain.workflows.advance import advance
from think_celery.errors import StepError
from think_celery.retries import Retry
from think_celery.store.tables import processes, steps
from think_celery.testing import ThinkTest, think_test


class Grade(BaseModel):
    """What the prompt asks for."""

    mark: int


class Examiner(Think):
    """Starts the workflows of these tests."""


class Exam(ThinkWorkflow[Examiner, dict[str, Any]]):
    """Stops where its params say."""

    def run(self, event: Any, step: Any) -> Any:
        clock = event.payload["clock"]
        step.do("prepare", lambda: tick(clock))
        match event.payload["until"]:
            case "approval":
                return step.wait_for_approval("release", timeout="3 days").reason
            case "event":
                return step.wait_for_event("papers", type="papers").payload
            case "sleep":
                step.sleep("rest", "1 hour")
            case "prompt":
                return step.prompt("grade", prompt="Grade it", output=Grade).mark
            case "both":
                asked = [step.start_prompt(name, prompt="Grade it", output=Grade) for name in ("one", "two")]
                return [grade.mark for grade in step.gather(*asked)]
            case "either":
                return step.wait_any("yes", "no", name="which").name
            case "child":
                params = {"until": "event", "clock": clock}
                return step.run_workflow("resit", Exam, params, workflow_id=f"{event.workflow_id}-child")
            case "retry":
                step.do("send", fails, retry=Retry(max_attempts=2, delay=60))
            case "error":
                try:
                    step.do("send", fails, retry=Retry(max_attempts=1))
                except StepError as error:
                    raise ValueError("not sent") from error
        return "done"


_clocks: dict[int, Any] = {}


def tick(number: int) -> None:
    _clocks[number].sleep(90)


def fails() -> None:
    raise OSError("no mail today")


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        _clocks[1] = test.clock
        yield test


@pytest.fixture
def cli(sqlite_url: str) -> Any:
    def call(*words: str) -> Result:
        return run("workflows", *words, "--database-url", sqlite_url)

    return call


def begin(t: ThinkTest, until: str = "approval", name: str = "e1", **options: Any) -> None:
    Examiner("a").run_workflow(Exam, {"until": until, "clock": 1}, workflow_id=name, **options)
    t.run_until_idle()


def advance_alone(t: ThinkTest, name: str = "e1") -> None:
    """Let the workflow go as far as it can, and no turn that it asks for begin."""
    advance(t.rt, "Exam", name)
    t.lose_messages()


def pending(url: str, submission_id: str, step: str) -> str:
    """What is said of an answer whose turn has not begun."""
    show = f"think-celery submissions show {submission_id} --database-url {url}"
    return f"the answer of submission {submission_id}, which is pending: {show} ({step!r})"


def lives_until(t: ThinkTest, year: int) -> None:
    """Let the worker be heard of until then: the command goes by the host's clock."""
    with t.rt.db.engine.begin() as conn:
        conn.execute(processes.update().values(until=datetime(year, 1, 1, tzinfo=UTC)))


def shown(cli: Any, name: str = "e1") -> Any:
    return json.loads(cli("show", name, "--json").stdout)


class TestShow:
    def test_the_timeline(self, t: ThinkTest, cli: Any):
        """When each step began, counted from the run's start, how long it took, and how often it was tried."""
        begin(t, "error")
        text = cli("show", "e1").stdout

        lines = [line.split() for line in text.splitlines() if line.startswith(("start ", "+"))]
        assert lines[0] == ["start", "step", "kind", "status", "took", "attempts", "until", "raised", "error"]
        assert lines[1][:9] == ["+0", "ms", "prepare", "do", "done", "1", "min", "30", "s"]
        assert lines[2][:8] == ["+1", "min", "30", "s", "send", "do", "failed", "0"]
        assert "OSError: no mail today" in text
        assert "Waits for" not in text
        steps = shown(cli)["steps"]
        assert [(step["step"], step["seconds"], step["attempts"]) for step in steps] == [
            ("prepare", 90.0, 1),
            ("send", 0.0, 1),
        ]

    @pytest.mark.parametrize(
        ("until", "told"),
        [
            (
                "approval",
                "a decision, until 2027-01-04 12:01:30Z ('release'): think-celery workflows approve e1",
            ),
            (
                "event",
                "an event of type 'papers' ('papers'): think-celery workflows send-event e1 --type papers",
            ),
            ("sleep", "2027-01-01 13:01:30Z ('rest')"),
            ("retry", "the next attempt of 'send', at 2027-01-01 12:0"),
        ],
    )
    def test_what_it_waits_for(self, t: ThinkTest, cli: Any, until: str, told: str, monkeypatch: Any):
        """In words, with the command that helps."""
        monkeypatch.setenv("TZ", "UTC")
        begin(t, until)

        assert f"Waits for {told}" in cli("show", "e1").stdout
        assert shown(cli)["waits_for"][0].startswith(told)

    def test_that_it_waits_for_an_answer_a_worker_or_somebody(self, t: ThinkTest, cli: Any, sqlite_url: str):
        """A prompt's submission with its status; a queued run a worker; a paused one somebody."""
        Examiner("a").run_workflow(Exam, {"until": "prompt", "clock": 1}, workflow_id="e1")
        assert shown(cli)["waits_for"][0].startswith("a worker. If none comes: think-celery doctor")

        advance_alone(t)
        (asked,) = Examiner("a").list_submissions()
        assert shown(cli)["waits_for"] == [pending(sqlite_url, asked.submission_id, "grade:wait")]

        begin(t, "event", "e2")
        cli("pause", "e2")
        assert shown(cli, "e2")["waits_for"][0].startswith(
            "somebody who resumes it: think-celery workflows resume e2"
        )
        assert shown(cli, "e2")["pause_at"] is not None

    def test_code_that_runs(self, t: ThinkTest, cli: Any, monkeypatch: Any):
        """What a worker has in hand is told before a step of it has ended, and between its steps."""
        monkeypatch.setenv("TZ", "UTC")
        said: list[str] = []

        def look() -> None:
            lives_until(t, 9000)
            said.append(cli("show", "e1").stdout.partition("\n\n")[2].partition("\n\n")[2])
            said.append(shown(cli)["now"])
            tick(1)
            if len(said) == 4:
                raise OSError
            if len(said) == 6:
                with t.rt.db.engine.begin() as conn:
                    conn.execute(steps.update().values(deadline_at=datetime(2020, 1, 1, tzinfo=UTC)))
                look()

        class Running(ThinkWorkflow[Examiner, Any], name="RunningExam"):
            def run(self, event: Any, step: Any) -> None:
                step.do("first", look)
                step.do("second", look, retry=Retry(max_attempts=2, delay=5))

        Examiner("a").run_workflow(Running, workflow_id="e1")
        t.run_until_idle()

        assert shown(cli)["now"] is None
        assert said[1::2] == [
            "Its code runs, since 2027-01-01 12:00:00Z.",
            "Its code runs, behind 'first': a step is recorded when its function has ended.",
            "A worker waits for attempt 2 of 'second', at 2027-01-01 12:03:05Z.",
            "In hand is attempt 2 of 'second', due since 2020-01-01 00:00:00Z.",
        ]
        assert all(text == f"{now}\n" for text, now in zip(said[::2], said[1::2], strict=True))

    @pytest.mark.parametrize(
        ("killed_in", "now", "end"),
        [
            ("first", "Its code runs.", "It has begun, and no step of it has ended: a step is recorded when"),
            (
                "second",
                "Its code runs, behind 'first': a",
                "It got no further than 'first'. What its code did",
            ),
        ],
    )
    def test_code_that_kills_its_workers(self, t: ThinkTest, cli: Any, killed_in: str, now: str, end: str):
        """How often it was begun meanwhile is told, that a worker is missing, and how far it came."""
        told: list[Any] = []

        def look() -> None:
            lives_until(t, 2020)
            told.append(shown(cli)["waits_for"][0])
            lives_until(t, 9000)
            told.append(shown(cli)["now"])

        class Killing(ThinkWorkflow[Examiner, Any], name="KillingExam"):
            def run(self, event: Any, step: Any) -> None:
                for name in ("first", "second"):
                    step.do(name, look if name == killed_in else lambda: None)

        Examiner("a").run_workflow(Killing, workflow_id="e1")
        t.crash_at(f"step:{killed_in}:ran", times=5)
        t.run_until_idle()

        assert all(
            text.startswith("a worker, for the one that had it is not heard of. If") for text in told[::2]
        )
        assert "workers in a row" not in told[1]
        assert told[3].startswith(now)
        assert told[3].endswith(
            " 2 workers in a row have had it: those before this one died in it, or lost it."
        )
        assert told[-1].endswith(
            " 5 workers in a row have had it: those before this one died in it, or lost it."
        )
        text = cli("show", "e1").stdout
        assert f"\n{end}" in text
        assert "workers in a row" not in text

    @pytest.mark.parametrize(
        ("before", "after", "told"),
        [
            ([], [], "It has done nothing yet."),
            ([], ["terminate", "e1", "--yes"], "It has done nothing."),
            (["advance"], [], "Its code asked for no step."),
        ],
    )
    def test_a_run_without_steps(
        self, t: ThinkTest, cli: Any, before: list[str], after: list[str], told: str
    ):
        """It has not begun, never will, or needed none."""

        class Stepless(ThinkWorkflow[Examiner, Any], name="SteplessExam"):
            def run(self, event: Any, step: Any) -> None:
                pass

        Examiner("a").run_workflow(Stepless, workflow_id="e1")
        if before:
            t.run_until_idle()
        if after:
            cli(*after)

        assert f"\n{told}\n" in cli("show", "e1").stdout

    def test_what_it_waits_for_beside_others(self, t: ThinkTest, cli: Any, sqlite_url: str):
        """Each answer of a gather that is still out; each of several of which the first counts; a child."""
        begin(t, "either", "e2")
        begin(t, "child", "e3")
        Examiner("a").run_workflow(Exam, {"until": "both", "clock": 1}, workflow_id="e1")
        advance_alone(t)
        second, first = (each.submission_id for each in Examiner("a").list_submissions())
        assert shown(cli)["waits_for"] == [
            pending(sqlite_url, first, "one:wait"),
            pending(sqlite_url, second, "two:wait"),
        ]

        assert shown(cli, "e2")["waits_for"] == [
            f"an event {name!r}, or what else comes first: think-celery workflows send-event e2 --type {name} "
            f"--database-url {sqlite_url} ('which')"
            for name in ("yes", "no")
        ]

        (told,) = shown(cli, "e3")["waits_for"]
        assert told.startswith(
            "the end of workflow Exam('e3-child'), which is waiting: think-celery workflows show e3-child"
        )
        assert told.endswith("('resit:wait')")


class TestList:
    def test_pages_and_metadata(self, t: ThinkTest, cli: Any):
        """JSON for programs, with the cursor on standard error."""
        for number in range(3):
            begin(t, name=f"e{number}", metadata={"room": number, "kind": "oral"})
            t.skip(1)

        first = cli("list", "--limit", "2", "--json")
        cursor = first.stderr.split()[-1]
        rest = cli("list", "--limit", "2", "--cursor", cursor, "--json")
        assert [each["workflow_id"] for each in json.loads(first.stdout)] == ["e2", "e1"]
        assert [each["workflow_id"] for each in json.loads(rest.stdout)] == ["e0"]
        assert rest.stderr == ""

        def found(*words: str) -> list[str]:
            return [each["workflow_id"] for each in json.loads(cli("list", *words, "--json").stdout)]

        assert found("--metadata", "room=1") == ["e1"]
        assert found("--metadata", "kind=oral", "--metadata", "room=2") == ["e2"]
        assert found("--agent", "Examiner:b") == []
        assert cli("list", "--metadata", "room").exit_code == 2
        assert cli("list", "--cursor", "x").exit_code == 2


class TestActions:
    def test_each_and_the_next_command_where_it_can_t(self, t: ThinkTest, cli: Any):
        """A26 from the shell. Exit code 1 and the command to run next where there is nothing to do."""
        begin(t)
        steps: list[tuple[tuple[str, ...], int, str]] = [
            (("pause", "e1"), 0, "Paused 'e1'."),
            (
                ("pause", "e1"),
                1,
                "'e1' is paused, so there is nothing to pause. See think-celery workflows show e1",
            ),
            (("resume", "e1"), 0, "Resumed 'e1'."),
            (("resume", "e1"), 1, "so there is nothing to resume. See think-celery workflows show e1"),
            (("restart", "e1"), 1, "End that run, and begin anew?"),
            (("restart", "e1", "--yes"), 0, "Restarted 'e1': run 2."),
            (("terminate", "e1", "--yes"), 0, "Terminated 'e1'."),
            (("terminate", "e1", "--yes"), 1, "To run it again: think-celery workflows restart e1"),
            (("pause", "e1"), 1, "is terminated, so there is nothing to pause"),
            (("resume", "e1"), 1, "is not paused (terminated)"),
            (("send-event", "e1", "--type", "x"), 1, "nobody will take the event"),
            (("approve", "e1"), 1, "nobody will take the decision. Nothing was sent. To run it again"),
            (("restart", "e1"), 0, "Restarted 'e1': run 3."),
            (("delete", "e1"), 1, "Delete Exam('e1'), which is queued?"),
            (("delete", "e1", "--yes"), 0, "Deleted 'e1'."),
            (("show", "e1"), 1, "There is no workflow 'e1'."),
        ]
        for words, code, told in steps:
            ran = cli(*words)
            assert (ran.exit_code, told in ran.output, "Traceback" in ran.output) == (code, True, False), (
                words,
                ran.output,
            )

    def test_decisions(self, t: ThinkTest, cli: Any):
        """Approve with a reason and metadata; reject."""
        begin(t)
        begin(t, name="e2")
        assert (
            cli("approve", "e1", "--reason", "fine", "--metadata", '{"by": "Ada"}').stdout
            == "Approved 'e1'.\n"
        )
        assert cli("reject", "e2", "--reason", "late").stdout == "Rejected 'e2'.\n"
        t.skip(5)

        assert t.output(Exam, "e1") == "fine"
        rejected = t.workflow(Exam, "e2")
        assert (rejected.status, rejected.error_type) == ("errored", "WorkflowRejectedError")
        assert "late" in str(rejected.error)
        assert cli("approve", "e2", "--metadata", "[1]").exit_code == 1
        begin(t, name="e3")
        assert cli("approve", "e3", "--metadata", "[1]").exit_code == 2
        assert cli("approve", "e3", "--metadata", "{").exit_code == 2

    def test_delete_many(self, t: ThinkTest, cli: Any):
        """Those that have ended and match, and no other; without a filter nothing."""
        begin(t, "nothing", "e1")
        begin(t, "error", "e2")
        begin(t, name="e3")

        assert cli("delete", "--yes").exit_code == 2
        assert cli("delete", "e1", "--status", "errored", "--yes").exit_code == 2
        assert cli("delete", "--older-than", "1 day", "--yes").stdout in (
            "Deleted 0 workflows.\n",
            "Deleted 2 workflows.\n",  # by this machine's clock the test's time may be long ago
        )
        assert cli("delete", "--status", "errored", "--workflow", "Exam", "--yes").exit_code == 0
        assert {each.workflow_id for each in Examiner("a").get_workflows()} <= {"e1", "e3"}
        assert cli("delete", "--agent", "Examiner:a", "--yes").exit_code == 0
        assert [each.workflow_id for each in Examiner("a").get_workflows()] == ["e3"]

    def test_one_in_a_workers_hands(self, t: ThinkTest, cli: Any):
        """The pause is a wish, and that is told."""
        said: list[str] = []

        class Busy(ThinkWorkflow[Examiner, Any], name="BusyExam"):
            def run(self, event: Any, step: Any) -> None:
                step.do("a", lambda: said.append(cli("pause", "e1").stdout))
                step.do("b", lambda: said.append("b"))

        Examiner("a").run_workflow(Busy, workflow_id="e1")
        t.run_until_idle()

        assert said == ["'e1' is in a worker's hands, and pauses before its next step.\n"]
        assert Examiner("a").get_workflow_status("e1") == "paused"
