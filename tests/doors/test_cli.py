"""The command line: what it prints for people and for programs, and its exit codes."""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.doors.commands import as_json, own_runtime, run
from think_celery import Think, ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent
from think_celery.cli import main
from think_celery.cli.common import Given
from think_celery.cli.printing import shown as as_shown
from think_celery.domain.conversation import conversation
from think_celery.errors import NonRetryableError
from think_celery.ids import AgentRef
from think_celery.messages import user
from think_celery.plain import plain_value
from think_celery.providers.scripted import say
from think_celery.testing import ThinkTest, think_test


class CliAgent(Think):
    """An agent for these tests."""


class Decision(BaseModel):
    note: str


class CliWorkflow(ThinkWorkflow[CliAgent, Any]):
    """Waits for an approval."""

    def run(self, event: WorkflowEvent[Any], step: ThinkWorkflowStep) -> dict[str, Any]:
        step.do("prepare", lambda: {"prepared": event.payload["issue"]})
        return {"reason": step.wait_for_approval(timeout="1 day").reason}


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture(autouse=True)
def own_default() -> Iterator[None]:
    with own_runtime():
        yield


class TestSubmissions:
    def test_they_are_listed_newest_first(self, t: ThinkTest, sqlite_url: str) -> None:
        """A table for people, JSON for programs; by status and by agent (B5)."""
        t.script(CliAgent, say("Done."))
        first = CliAgent("a").submit_messages("Hello", idempotency_key="k-1")
        t.run_until_idle()
        second = CliAgent("b").submit_messages("Hello again")

        listed = as_json("submissions", "list", "--database-url", sqlite_url)
        pending = as_json("submissions", "list", "--status", "pending", "--database-url", sqlite_url)
        of_a = as_json("submissions", "list", "--agent", "CliAgent:a", "--database-url", sqlite_url)
        table = run("submissions", "list", "--database-url", sqlite_url).stdout.splitlines()

        assert [each["submission_id"] for each in listed] == [second.submission_id, first.submission_id]
        assert [each["submission_id"] for each in pending] == [second.submission_id]
        assert [each["idempotency_key"] for each in of_a] == ["k-1"]
        assert table[0].split() == ["submission", "agent", "status", "attempts", "accepted", "error"]
        assert "CliAgent:b  pending" in table[1]
        assert len(table) == 3

    def test_one_is_shown_with_its_answer(self, t: ThinkTest, sqlite_url: str) -> None:
        """Everything about it, and the text of the answer."""
        t.script(CliAgent, say("It is done."))
        submission_id = CliAgent("a").submit_messages("Hello", metadata={"ticket": 5}).submission_id
        t.run_until_idle()

        shown = as_json("submissions", "show", submission_id, "--database-url", sqlite_url)
        text = run("submissions", "show", submission_id, "--database-url", sqlite_url).stdout

        assert (shown["status"], shown["answer"], shown["metadata"]) == (
            "completed",
            "It is done.",
            {"ticket": 5},
        )
        assert "It is done." in text
        assert "completed" in text

    def test_the_question_is_shown_wherever_it_is_stored(self, t: ThinkTest, sqlite_url: str) -> None:
        """In the row before the turn begins, in the conversation after it, nowhere once that was reset."""
        t.script(CliAgent, say("Yes."), say("No."))
        agent = CliAgent("a")
        agent.submit_messages("Another one first")
        asked = agent.submit_messages([user("Is it done?"), user("I mean now.")]).submission_id
        arguments = ("submissions", "show", asked, "--database-url", sqlite_url)

        before = as_json(*arguments)
        t.run_until_idle()
        after, text = as_json(*arguments), run(*arguments).stdout
        conversation.reset(t.rt, AgentRef("CliAgent", "a"))
        gone = as_json(*arguments)

        assert (before["question"], before["answer"]) == ("Is it done?\nI mean now.", None)
        assert (after["question"], after["answer"]) == ("Is it done?\nI mean now.", "No.")
        assert text.endswith("\n\nQuestion:\nIs it done?\nI mean now.\n\nAnswer:\nNo.\n")
        assert (gone["question"], gone["answer"]) == (None, None)

    def test_one_is_cancelled_once(self, t: ThinkTest, sqlite_url: str) -> None:
        """The reason is kept; one that has ended can't be cancelled, and the exit code says so (B6)."""
        submission = CliAgent("a").submit_messages("Hello")
        arguments = ("submissions", "cancel", submission.submission_id, "--database-url", sqlite_url)

        first = run(*arguments, "--reason", "by mistake")
        second = run(*arguments)

        found = CliAgent("a").inspect_submission(submission.submission_id)
        assert found is not None
        assert (found.status, found.error) == ("aborted", "by mistake")
        assert first.exit_code == 0
        assert (second.exit_code, "had ended before: aborted" in second.stderr) == (1, True)

    @pytest.mark.parametrize("command", ["show", "cancel"])
    def test_an_unknown_one_is_an_error_without_a_traceback(self, command: str, sqlite_url: str) -> None:
        """Exit code 1, and a text that says what to check."""
        ran = run("submissions", command, "nope", "--database-url", sqlite_url)

        assert ran.exit_code == 1
        assert ran.stderr.startswith("Error: There is no submission 'nope'.")


class TestWorkflows:
    def start(self, t: ThinkTest, workflow_id: str = "wf-1") -> None:
        CliAgent("a").run_workflow(CliWorkflow, {"issue": 42}, workflow_id=workflow_id)
        t.run_until_idle()

    def test_they_are_listed_newest_first(self, t: ThinkTest, sqlite_url: str) -> None:
        """A table for people, JSON for programs; by status and by class."""
        self.start(t)
        t.skip("1 minute")
        self.start(t, "wf-2")

        listed = as_json("workflows", "list", "--database-url", sqlite_url)
        waiting = as_json("workflows", "list", "--status", "waiting", "--database-url", sqlite_url)
        others = run("workflows", "list", "--workflow", "Other", "--database-url", sqlite_url)
        table = run("workflows", "list", "--database-url", sqlite_url).stdout.splitlines()

        assert [each["workflow_id"] for each in listed] == ["wf-2", "wf-1"]
        assert len(waiting) == 2
        assert others.stdout == "There are no such workflows.\n"
        assert table[1].split()[:5] == ["CliWorkflow", "wf-2", "1", "CliAgent:a", "waiting"]

    def test_params_are_shown_without_the_marks_of_their_classes(self, t: ThinkTest, sqlite_url: str) -> None:
        """A model is shown as its fields, for people and for programs."""

        class CliTyped(ThinkWorkflow[CliAgent, Decision]):
            def run(self, event: Any, step: Any) -> timedelta:
                return timedelta(hours=2)

        CliAgent("a").run_workflow(CliTyped, Decision(note="yes"), workflow_id="wf-1")
        t.run_until_idle()
        arguments = ("workflows", "show", "wf-1", "--database-url", sqlite_url)

        shown, text = as_json(*arguments), run(*arguments).stdout

        assert (shown["params"], shown["output"]) == ({"note": "yes"}, "2:00:00")
        assert '{"note": "yes"}' in text
        assert "$think" not in text

    def test_an_event_for_a_run_that_has_ended_is_not_sent(self, t: ThinkTest, sqlite_url: str) -> None:
        """Nobody would take it: exit code 1, with and without --workflow."""
        self.start(t)
        event = ("workflows", "send-event", "wf-1", "--type", "approval", "--database-url", sqlite_url)
        run(*event, "--payload", '{"approved": true}')
        t.skip("5 seconds")

        late = [run(*event), run(*event, "--workflow", "CliWorkflow")]

        assert [each.exit_code for each in late] == [1, 1]
        for each in late:
            assert "has ended (complete): nobody will take the event" in each.stderr
            assert each.stdout == ""

    def test_an_event_before_its_run_is_kept_and_that_is_told(self, t: ThinkTest, sqlite_url: str) -> None:
        """With --workflow there need be no run yet; a slip in its name shows on standard error (A7)."""
        early = run(
            *("workflows", "send-event", "wf-1", "--workflow", "CliWorkflow", "--type", "approval"),
            *("--payload", '{"approved": true, "reason": "early"}', "--database-url", sqlite_url),
        )

        self.start(t)
        t.skip("5 seconds")

        assert (early.exit_code, early.stdout) == (0, "")
        assert "There is no run" in early.stderr
        assert "kept for 24 hours for one that comes" in early.stderr
        assert t.output(CliWorkflow, "wf-1") == {"reason": "early"}

    def test_one_is_shown_with_its_journal(self, t: ThinkTest, sqlite_url: str) -> None:
        """What it has done and what it waits for, under the names that the code gave (A18)."""
        self.start(t)

        shown = as_json("workflows", "show", "wf-1", "--database-url", sqlite_url)
        text = run("workflows", "show", "wf-1", "--database-url", sqlite_url).stdout

        assert (shown["status"], shown["params"]) == ("waiting", {"issue": 42})
        assert [(step["step"], step["status"]) for step in shown["steps"]] == [
            ("prepare", "done"),
            ("approval", "waiting"),
        ]
        assert "prepare   do        done" in text

    def test_it_shows_where_a_step_failed(self, t: ThinkTest, sqlite_url: str) -> None:
        """The table has the last frame of the recorded trace, JSON the whole of it."""

        def pay() -> None:
            raise NonRetryableError("no money")

        class CliFailing(ThinkWorkflow[CliAgent, Any]):
            def run(self, event: Any, step: Any) -> None:
                step.do("pay", pay)

        CliAgent("a").run_workflow(CliFailing, workflow_id="wf-1")
        t.run_until_idle()

        shown = as_json("workflows", "show", "wf-1", "--database-url", sqlite_url)
        text = run("workflows", "show", "wf-1", "--database-url", sqlite_url).stdout

        assert 'raise NonRetryableError("no money")' in shown["steps"][0]["trace"]
        assert f'File "{__file__}", line ' in text
        assert ", in pay" in text
        assert 'raise NonRetryableError("no money")' not in text

    def test_a_paused_run_is_resumed_once(self, t: ThinkTest, sqlite_url: str, monkeypatch: Any) -> None:
        """A run that stopped because its code did not fit goes on when told; one that is not paused can't."""
        self.start(t)
        monkeypatch.setattr(CliWorkflow, "run", lambda self, event, step: step.do("other", dict))
        CliAgent("a").send_workflow_event(CliWorkflow, "wf-1", type="approval", payload={"approved": True})
        t.run_until_idle()
        assert CliAgent("a").get_workflow("wf-1").status == "paused"
        monkeypatch.undo()

        resumed = [run("workflows", "resume", "wf-1", "--database-url", sqlite_url) for _ in range(2)]
        t.skip("5 seconds")

        assert (resumed[0].exit_code, resumed[0].stdout) == (0, "Resumed 'wf-1'.\n")
        assert resumed[1].exit_code != 0
        assert "is not paused" in resumed[1].stderr
        assert CliAgent("a").get_workflow("wf-1").status == "complete"

    def test_an_event_goes_to_the_run_that_waits_for_it(self, t: ThinkTest, sqlite_url: str) -> None:
        """An approval sent by hand: the payload is JSON, and the same key twice is one event (A7)."""
        self.start(t)
        payload = json.dumps({"approved": True, "reason": "looks right"})
        arguments = (
            "workflows",
            "send-event",
            "wf-1",
            "--type",
            "approval",
            "--payload",
            payload,
            "--idempotency-key",
            "k",
        )

        sent = [run(*arguments, "--database-url", sqlite_url) for _ in range(2)]
        t.skip("5 seconds")

        assert [each.exit_code for each in sent] == [0, 0]
        assert t.output(CliWorkflow, "wf-1") == {"reason": "looks right"}
        assert as_json("workflows", "show", "wf-1", "--database-url", sqlite_url)["output"] == {
            "reason": "looks right"
        }

    @pytest.mark.parametrize(
        ("arguments", "code", "told"),
        [
            (["show", "nope"], 1, "There is no workflow 'nope'."),
            (["send-event", "nope", "--type", "x"], 1, "There is no workflow 'nope'."),
            (["send-event", "wf-1", "--type", "x", "--payload", "{"], 2, "it is no JSON"),
            (["send-event", "wf-1", "--type", "think-x"], 2, "reserved"),
            (["list", "--status", "gone"], 2, "is not one of"),
            (["list", "--limit", "0"], 2, "0 is not in the range"),
        ],
    )
    def test_what_can_t_be_done_is_told_with_its_exit_code(
        self, arguments: list[str], code: int, told: str, t: ThinkTest, sqlite_url: str
    ) -> None:
        """1: tried and failed; 2: what was given can't be used. Never a traceback."""
        self.start(t)

        ran = run("workflows", *arguments, "--database-url", sqlite_url)

        assert ran.exit_code == code
        assert told in ran.stderr
        assert "Traceback" not in ran.output

    def test_one_id_of_two_classes_asks_which(self, t: ThinkTest, sqlite_url: str) -> None:
        """The error names the classes; --workflow chooses."""

        class CliOtherWorkflow(CliWorkflow):
            pass

        self.start(t)
        CliAgent("a").run_workflow(CliOtherWorkflow, {"issue": 1}, workflow_id="wf-1")

        ran = run("workflows", "show", "wf-1", "--database-url", sqlite_url)
        chosen = as_json(
            "workflows", "show", "wf-1", "--workflow", "CliOtherWorkflow", "--database-url", sqlite_url
        )

        assert ran.exit_code == 1
        assert "CliOtherWorkflow, CliWorkflow" in ran.stderr
        assert chosen["status"] == "queued"


class TestDatabase:
    def test_upgrade_makes_what_current_asks_for(self, empty_database_url: str) -> None:
        """`db current` exits with 1 and names the remedy until `db upgrade` has run, on both databases."""
        before = run("db", "current", "--database-url", empty_database_url)
        upgraded = run("db", "upgrade", "--database-url", empty_database_url)
        again = run("db", "upgrade", "--database-url", empty_database_url)
        after = as_json("db", "current", "--database-url", empty_database_url)

        assert before.exit_code == 1
        assert "think-celery db upgrade" in before.stdout
        assert [upgraded.exit_code, again.exit_code] == [0, 0]
        assert after["up_to_date"] is True
        assert after["version"] == after["needed"]

    def test_a_newer_schema_is_said_to_be_newer(self, sqlite_url: str) -> None:
        """Neither that it is at this package's version nor that something was done."""
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as conn, conn:
            conn.execute("UPDATE think_alembic_version SET version_num = '9999'")

        upgraded = run("db", "upgrade", "--database-url", sqlite_url)
        current = run("db", "current", "--database-url", sqlite_url)

        assert (upgraded.exit_code, current.exit_code) == (0, 0)
        assert "is at version 9999, newer than" in upgraded.stdout
        assert "nothing was done" in upgraded.stdout
        assert "9999 (newer than" in current.stdout

    @pytest.mark.parametrize(
        ("given", "printed"),
        [
            (Given(), "think-celery db upgrade"),
            (Given(app="shop"), "think-celery db upgrade -A shop"),
            (
                Given(app="shop", database_url="sqlite:///my shop.db"),
                "think-celery db upgrade -A shop --database-url 'sqlite:///my shop.db'",
            ),
            *(
                (Given(database_url=url), "think-celery db upgrade (with the same --database-url)")
                for url in ("postgresql://u:secret@db/x", "postgresql://db/x?password=secret", "secret")
            ),
        ],
    )
    def test_a_command_that_is_told_has_the_options_that_were_given(self, given: Given, printed: str) -> None:
        """Typed as it is printed, it meets the same database; no password is printed."""
        assert given.command("db upgrade") == printed

    def test_looking_makes_no_database(self, tmp_path: Path) -> None:
        """In a wrong folder the commands say so, and leave no empty file behind."""
        url = f"sqlite:///{tmp_path / 'none.db'}"

        ran = [run(*words, "--database-url", url) for words in (("workflows", "list"), ("db", "current"))]

        assert [each.exit_code for each in ran] == [2, 1]
        assert "--database-url" in ran[0].stderr
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("url", "code", "told"),
        [
            ("nonsense", 2, "it must be a database URL"),
            ("postgresql://someone:secret@127.0.0.1:1/x", 1, "The database can't be reached: "),
        ],
    )
    def test_a_database_that_can_t_be_used_is_told(self, url: str, code: int, told: str) -> None:
        """No traceback, and no password."""
        ran = run("submissions", "list", "--database-url", url)

        assert ran.exit_code == code
        assert told in ran.stderr
        assert "Traceback" not in ran.output
        assert "secret" not in ran.output

    @pytest.mark.parametrize("words", [("workflows", "list"), ("db", "current"), ("db", "upgrade")])
    def test_a_file_that_is_no_database_is_named(self, words: tuple[str, ...], tmp_path: Path) -> None:
        """One line: which file, and what to do; exit code 2."""
        (tmp_path / "broken.db").write_text("This is no database. " * 100)

        ran = run(*words, "--database-url", f"sqlite:///{tmp_path / 'broken.db'}")

        assert (ran.exit_code, ran.stdout) == (2, "")
        assert ran.stderr.startswith(
            f"Error: The database {tmp_path / 'broken.db'} can't be used: file is not a"
        )
        assert "--database-url" in ran.stderr
        assert ran.stderr.count("\n") == 1

    def test_a_tick_needs_a_broker_that_outlives_it(self, sqlite_url: str) -> None:
        """A knock into this process's own memory would be lost, and its row would wait the longer."""
        ran = run("tick", "--database-url", sqlite_url)

        assert ran.exit_code == 2
        assert "CELERY_BROKER_URL" in ran.stderr


PROJECT = """
from celery import Celery
from think_celery import Think, ThinkCelery
from think_celery.providers.scripted import FunctionModel, say

app = Celery("proj")
app.conf.update(think_database_url="sqlite:///proj.db", {settings})
think = ThinkCelery(app)


class ProjAgent(Think, name="ProjAgent"):
    def get_model(self):
        return FunctionModel(lambda request: say("Answered."))
"""


def project(folder: Path, settings: str = "") -> dict[str, str]:
    (folder / "proj").mkdir()
    (folder / "proj" / "__init__.py").write_text("")
    (folder / "proj" / "app.py").write_text(PROJECT.format(settings=settings))
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def command(folder: Path, environ: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "think_celery.cli", *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SUBMIT = """
from proj.app import ProjAgent
submission = ProjAgent("x").submit_messages("Hello")
for event in ProjAgent("x").listen(submission.submission_id):
    if event.type == "done":
        print(event.data["status"])
print(submission.message().text)
"""


@pytest.mark.services
class TestDev:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_serves_the_user_s_app_until_it_is_stopped(self, number: int, tmp_path: Path) -> None:
        """No broker and no server: another process submits to the same file, and its turn is run."""
        environ = project(tmp_path)
        served = command(tmp_path, environ, "dev", "-A", "proj.app")
        try:
            assert served.stdout is not None
            ready = served.stdout.readline()

            other = subprocess.run(
                [sys.executable, "-c", SUBMIT],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
            )
            served.send_signal(number)
            out, errors = served.communicate(timeout=60)
        finally:
            served.kill()

        assert ready.startswith("Ready: proj on memory://")
        assert other.stdout.split() == ["completed", "Answered."], other.stderr
        assert served.returncode == 0, errors
        assert "Stopping" in out

    def test_other_commands_take_the_app_s_settings(self, tmp_path: Path) -> None:
        """-A names the app, found from the folder where one stands: its database is used."""
        environ = project(tmp_path)

        upgraded = command(tmp_path, environ, "db", "upgrade", "-A", "proj.app")
        out, errors = upgraded.communicate(timeout=60)

        assert upgraded.returncode == 0, errors
        assert f"{tmp_path}/proj.db" in out
        assert (tmp_path / "proj.db").exists()

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("nothing.here", "there is no such module"),
            ("proj.broken", "RuntimeError"),
            ("proj.none", "AttributeError"),
        ],
    )
    def test_an_app_that_can_t_be_loaded_is_told(self, name: str, told: str, tmp_path: Path) -> None:
        """What was tried, why it failed, what to name; exit code 2."""
        environ = project(tmp_path)
        (tmp_path / "proj" / "none.py").write_text("x = 1\n")
        (tmp_path / "proj" / "broken.py").write_text("raise RuntimeError('at import')\n")

        ran = command(tmp_path, environ, "dev", "-A", name)
        _, errors = ran.communicate(timeout=60)

        assert ran.returncode == 2
        assert f"--app {name}: the Celery app can't be loaded: " in errors
        assert told in errors

    def test_a_setting_that_is_unknown_is_told(self, tmp_path: Path) -> None:
        """A misspelled setting is an error of its own, without a traceback."""
        ran = command(tmp_path, project(tmp_path, "think_leas=5"), "dev", "-A", "proj.app")
        _, errors = ran.communicate(timeout=60)

        assert ran.returncode == 2
        assert "think_lease" in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("stored", "plain"),
    [
        (
            {"$think": "model", "c": "m:A", "v": {"a": {"$think": "UUID", "v": "u"}}, "x": {"b": [1]}},
            {"a": "u", "b": [1]},
        ),
        ({"$think": "dict", "v": {"$think": "mine"}}, {"$think": "mine"}),
        ([{"$think": "enum", "c": "m:E", "v": "RED"}], ["RED"]),
        (
            {"$think": "datetime", "v": {"at": "2026-01-01T00:00:00", "zone": "Europe/Berlin"}},
            "2026-01-01T00:00:00[Europe/Berlin]",
        ),
        ({"$think": "time", "v": {"at": "08:00:00"}}, "08:00:00"),
        ({"$think": "str", "v": "7aC97bCA"}, "\ufffd" * 6),
        ({"$think": "later", "v": 1}, {"$think": "later", "v": 1}),
    ],
)
def test_a_stored_value_is_shown_plainly(stored: Any, plain: Any) -> None:
    """Without classes, which need not be known here; a kind of a later version stays as it is."""
    assert plain_value(json.dumps(stored)) == plain


def test_a_time_is_shown_with_its_zone() -> None:
    """Two readers in two zones can't mistake it."""
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)

    told = as_shown(moment)

    assert told.endswith("Z") or told[-6] in "+-"
    assert datetime.fromisoformat(told) == moment
    assert datetime.fromisoformat(told).utcoffset() == moment.astimezone().utcoffset()


def on_terminal(columns: int, *arguments: str) -> str:
    controller, terminal = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(columns)}
    process = subprocess.Popen(
        [sys.executable, "-m", "think_celery.cli", *arguments], stdout=terminal, stderr=terminal, env=environ
    )
    os.close(terminal)
    told = b""
    with suppress(OSError):  # its other end was closed
        while piece := os.read(controller, 65536):
            told += piece
    os.close(controller)
    assert process.wait(timeout=60) == 0, told
    return re.sub(r"\x1b\[[\d;]*m", "", told.decode())


def test_a_long_error_is_cut_where_the_terminal_ends(t: ThinkTest, sqlite_url: str) -> None:
    """One line a row on a terminal; whole where a program reads."""
    long = "the reason " * 30
    CliAgent("a").cancel_submission(CliAgent("a").submit_messages("x").submission_id, long)
    arguments = ("submissions", "list", "--database-url", sqlite_url)

    seen, piped = on_terminal(150, *arguments).splitlines(), run(*arguments).stdout

    assert len(seen[1]) == 150
    assert seen[1].endswith("…")
    assert long.strip() in piped


@pytest.mark.parametrize("words", [("submissions", "list"), ("submissions", "list", "--json")])
def test_a_reader_that_leaves_is_no_error_to_tell(
    words: tuple[str, ...], t: ThinkTest, sqlite_url: str
) -> None:
    """`| head -2` ends the output; nothing is said about it."""
    for _ in range(3):
        CliAgent("a").submit_messages("x")
    reader, writer = os.pipe()
    os.close(reader)

    ran = subprocess.run(
        [sys.executable, "-m", "think_celery.cli", *words, "--database-url", sqlite_url],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)

    assert ran.stderr == b""


def test_help_names_every_command() -> None:
    """`think-celery --help` lists them, and each explains itself."""
    told = run("--help")

    assert told.exit_code == 0
    for name, each in main.commands.items():
        assert name in told.stdout
        assert each.help
        assert run(name, "--help").exit_code == 0
