"""What the command line does to submissions, agents and news; and the same commands through ``celery``."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery.bin.celery import celery
from click.testing import CliRunner
from pydantic import BaseModel

from tests.doors.commands import as_json, own_runtime, run
from tests.test_docs import ROOT
from tests.test_docs_reference import table_of
from think_celery import Think, ThinkWorkflow
from think_celery.cli import main, think
from think_celery.cli.common import Given
from think_celery.domain.workflows import inbox
from think_celery.providers.scripted import answer, say
from think_celery.testing import ThinkTest, think_test


class ActionAgent(Think):
    """An agent for these tests."""

    def nothing(self) -> None:
        """What its jobs do."""


class Verdict(BaseModel):
    good: bool


class ActionWorkflow(ThinkWorkflow):
    """Asks its agent once."""

    def run(self, event: Any, step: Any) -> Any:
        return step.prompt("judge", prompt="Is it good?", output=Verdict).good


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture(autouse=True)
def own_default() -> Iterator[None]:
    with own_runtime():
        yield


def done(t: ThinkTest, name: str, key: str | None = None) -> str:
    t.script(ActionAgent, say("Done."))
    submission_id = ActionAgent(name).submit_messages("Hello", idempotency_key=key).submission_id
    t.run_until_idle()
    return submission_id


class TestSubmissions:
    def test_one_is_found_by_its_key(self, t: ThinkTest, sqlite_url: str) -> None:
        """Keys are per agent: without --agent those of all agents are found (B5)."""
        first, second = done(t, "a", "evt-1"), done(t, "b", "evt-1")
        find = ("submissions", "find", "--key", "evt-1", "--database-url", sqlite_url)

        found, of_a = as_json(*find), as_json(*find, "--agent", "ActionAgent:a")
        none = run("submissions", "find", "--key", "other", "--database-url", sqlite_url)

        assert [each["submission_id"] for each in found] == [second, first]
        assert [each["submission_id"] for each in of_a] == [first]
        assert none.stdout == "No submission was accepted with the key 'other'.\n"

    def test_one_that_has_ended_is_deleted(self, t: ThinkTest, sqlite_url: str) -> None:
        """Its key is free then; one that has not ended stays, and the exit code says so (B5)."""
        ended = done(t, "a", "evt-1")
        waiting = ActionAgent("a").submit_messages("Another").submission_id

        deleted = run("submissions", "delete", ended, "--database-url", sqlite_url)
        refused = run("submissions", "delete", waiting, "--database-url", sqlite_url)

        assert (deleted.exit_code, deleted.stdout) == (0, f"{ended} was deleted.\n")
        assert ActionAgent("a").get_submission_by_key("evt-1") is None
        assert (refused.exit_code, "Cancel it first" in refused.stderr) == (1, True)
        assert ActionAgent("a").inspect_submission(waiting) is not None

    def test_an_agent_s_ended_ones_are_deleted_by_age_and_status(self, t: ThinkTest, sqlite_url: str) -> None:
        """It asks first; --yes answers, and without a yes nothing is done (B5)."""
        done(t, "a")
        t.skip("2 days")
        kept = done(t, "a")
        words = ("submissions", "delete", "--agent", "ActionAgent:a", "--older-than", "1 day")

        asked = run(*words, "--database-url", sqlite_url, input="n\n")
        # The command reads the machine's clock, and the rows are of the year in which these tests play.
        other = run(*words, "--status", "error", "--yes", "--database-url", sqlite_url)

        assert asked.exit_code == 1
        assert len(ActionAgent("a").list_submissions()) == 2
        assert other.stdout == "0 submissions were deleted.\n"
        everything = run(*words[:4], "--yes", "--database-url", sqlite_url)
        assert everything.stdout == "2 submissions were deleted.\n"
        assert ActionAgent("a").inspect_submission(kept) is None

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ((), "Name a submission, or an agent"),
            (("x", "--agent", "A:b"), "Name a submission, or an agent"),
            (("x", "--status", "error"), "leave the id away"),
            (("--agent", "A"), "is no CLASS:NAME"),
            (("--agent", "A:b", "--older-than", "soon"), "soon"),
            (("--agent", "A:b", "--status", "pending"), "is not one of"),
            (("nope",), "There is no submission 'nope'"),
        ],
    )
    def test_what_can_t_be_deleted_is_told(self, words: tuple[str, ...], told: str, sqlite_url: str) -> None:
        """Before anything is done."""
        ran = run("submissions", "delete", *words, "--database-url", sqlite_url)

        assert ran.exit_code != 0
        assert told in ran.stderr


class TestAgents:
    def test_turns_are_ended_and_the_conversation_stays(self, t: ThinkTest, sqlite_url: str) -> None:
        """`--messages` empties it, too (B28)."""
        done(t, "a")
        ActionAgent("a").submit_messages("Another")
        words = ("agents", "reset", "ActionAgent:a", "--yes", "--database-url", sqlite_url)

        ended = run(*words)
        left = len(ActionAgent("a").messages)
        cleared = run(*words, "--messages")

        assert (ended.stdout, left) == ("1 turn was ended.\n", 2)
        assert cleared.stdout == "0 turns were ended.\n"
        assert ActionAgent("a").messages == []

    def test_one_is_destroyed(self, t: ThinkTest, sqlite_url: str) -> None:
        """Only after a yes; then it is not listed any more (B28)."""
        done(t, "a")
        words = ("agents", "destroy", "ActionAgent", "a", "--database-url", sqlite_url)

        refused = run(*words, input="n\n")
        kept = as_json("agents", "list", "--database-url", sqlite_url)
        destroyed = run(*words, input="y\n")

        assert (refused.exit_code, len(kept)) == (1, 1)
        assert "ActionAgent('a') is gone." in destroyed.stdout
        assert as_json("agents", "list", "--database-url", sqlite_url) == []

    @pytest.mark.parametrize("command", ["show", "reset", "destroy"])
    def test_an_unknown_one(self, command: str, sqlite_url: str) -> None:
        """Exit code 1; nothing is made or asked."""
        ran = run("agents", command, "ActionAgent:nobody", "--database-url", sqlite_url)

        assert ran.exit_code == 1
        assert "There is no agent ActionAgent('nobody')" in ran.stderr


class TestOutbox:
    @pytest.fixture
    def undelivered(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch) -> str:
        """News of a turn's end whose delivery fails until `monkeypatch.undo()`; its workflow's id."""
        t.script(ActionAgent, answer({"good": True}))
        workflow_id = ActionAgent("a").run_workflow(ActionWorkflow, workflow_id="wf-1")

        def refuse(*_: Any) -> None:
            raise ConnectionError("the inbox is full")

        monkeypatch.setattr(inbox, "take", refuse)
        t.run_until_idle()
        return workflow_id

    def test_undelivered_news_is_listed_with_its_last_error(self, undelivered: str, sqlite_url: str) -> None:
        """For whom, how often it was tried, why it failed, when it is tried again."""
        (news,) = as_json("outbox", "list", "--database-url", sqlite_url)
        table = run("outbox", "list", "--database-url", sqlite_url).stdout

        assert (news["workflow"], news["workflow_id"]) == ("ActionWorkflow", undelivered)
        assert (news["status"], news["attempts"]) == ("pending", 1)
        assert news["last_error"] == "ConnectionError: the inbox is full"
        assert news["next_try_at"] is not None
        assert "ActionWorkflow:wf-1" in table
        assert "the inbox is full" in table

    def test_it_is_shown_with_what_it_says(self, undelivered: str, sqlite_url: str) -> None:
        """As long as it is undelivered; after that nothing of it is kept (A20)."""
        (news,) = as_json("outbox", "list", "--database-url", sqlite_url)

        shown = as_json("outbox", "show", news["outbox_id"], "--database-url", sqlite_url)

        assert shown["payload"]["output"] == {"good": True}

    def test_it_is_delivered_now(
        self, t: ThinkTest, undelivered: str, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
    ) -> None:
        """A delivery that fails again says why; one that succeeds lets the workflow go on."""
        (news,) = as_json("outbox", "list", "--database-url", sqlite_url)
        words = ("outbox", "retry", "--database-url", sqlite_url)

        failed = run(*words, news["outbox_id"])
        monkeypatch.undo()
        delivered, again = run(*words, "--all"), run(*words, news["outbox_id"])
        listed = as_json("outbox", "list", "--status", "delivered", "--database-url", sqlite_url)
        t.skip("5 seconds")

        assert failed.exit_code == 1
        assert "the inbox is full" in failed.stdout
        assert "tried again by themselves" in failed.stderr
        assert delivered.stdout == f"{news['outbox_id']} was delivered.\n"
        assert again.stdout == f"{news['outbox_id']} was settled before.\n"
        assert t.output(ActionWorkflow, undelivered) is True
        assert [each["outbox_id"] for each in listed] == [news["outbox_id"]]

    def test_what_can_t_be_done_is_told(self, sqlite_url: str) -> None:
        """Nothing named, both named, unknown."""
        ran = [
            run("outbox", *words, "--database-url", sqlite_url)
            for words in (("retry",), ("retry", "x", "--all"), ("retry", "x"), ("show", "x"))
        ]

        assert [each.exit_code for each in ran] == [2, 2, 1, 1]
        assert "There is no news 'x'" in ran[3].stderr


PROJECT = """
from celery import Celery
from think_celery import Think, ThinkCelery

app = Celery("shop", broker="memory://")
app.conf.update(think_database_url="sqlite:///shop.db")
think = ThinkCelery(app)
other = Celery("other", broker="memory://", set_as_current=False)


class ShopAgent(Think, name="PluginShopAgent"):
    autostart = ["till"]

    def on_start(self):
        pass
"""


class TestThroughCelery:
    def test_the_app_of_celery_is_the_one_that_is_used(self, tmp_path: Path) -> None:
        """`celery -A proj think …` in real processes: its database, its classes; both doors show the same."""
        (tmp_path / "shop.py").write_text(PROJECT)

        def through(*words: str) -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-m", "celery", *words]
            return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

        upgraded = through("-A", "shop", "think", "db", "upgrade")
        started = through("-A", "shop", "think", "agents", "start", "--all")
        listed = through("-A", "shop", "think", "agents", "list", "--json")
        plainly = subprocess.run(
            [sys.executable, "-m", "think_celery.cli", "agents", "list", "--json", "-A", "shop"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert upgraded.returncode == 0, upgraded.stderr
        assert f"{tmp_path}/shop.db" in upgraded.stdout
        assert started.returncode == 0, started.stderr
        assert [each["name"] for each in json.loads(listed.stdout)] == ["till"]
        assert listed.stdout == plainly.stdout

    def test_what_is_told_to_be_run_is_spelled_as_it_was_run(self, tmp_path: Path) -> None:
        """The remedy can be typed as it is printed; errors have their exit code, and no traceback."""
        (tmp_path / "shop.py").write_text(PROJECT)

        ran = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", "think", "workflows", "list"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COLUMNS": "200"},
        )

        assert ran.returncode == 2
        assert "celery -A shop think db upgrade" in ran.stderr
        assert "Traceback" not in ran.stderr

    @pytest.mark.parametrize(
        "words",
        [
            ("-A", "cli_front", "agents", "list"),
            ("agents", "--app", "cli_front", "list"),
            ("agents", "list", "-A", "cli_front"),
            ("-A", "cli_front", "agents", "list", "-A", "cli_front"),
        ],
        ids=" ".join,
    )
    def test_the_app_may_be_named_in_front(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
    ) -> None:
        """As Celery's users write it, and then no database but that app's is looked into."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "cli_front.py").write_text(
            "from celery import Celery\nfrom think_celery import ThinkCelery\n"
            "app = Celery('cli_front', broker='memory://', set_as_current=False)\n"
            "app.conf.think_database_url = 'sqlite:///front.db'\nthink = ThinkCelery(app)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

        ran = run(*words)
        two = run("-A", "cli_front", "agents", "list", "-A", "cli_other")

        assert ran.exit_code == 2
        assert "There is no database" in ran.stderr
        assert "db upgrade -A cli_front" in ran.stderr
        assert "Two apps are named: -A cli_front, and -A cli_other" in two.stderr

    def test_two_apps_are_one_too_many(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Named twice, `-A` must name the same."""
        (tmp_path / "cli_two.py").write_text(
            "from celery import Celery\napp = Celery('cli_two', broker='memory://', set_as_current=False)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        words = ["-A", "cli_two", "think", "submissions", "list", "-A", "cli_three"]

        ran = CliRunner().invoke(celery, words)

        assert ran.exit_code == 2
        assert "Two apps are named: celery -A cli_two, and -A cli_three" in ran.stderr

    def test_both_doors_have_the_same_commands(self) -> None:
        """Whatever is added to one is in the other."""
        assert think.commands == main.commands
        assert Given(app="shop", celery=True).command("tick") == "celery -A shop think tick"


class TestReference:
    """The page on the command line is complete."""

    PAGE = ROOT / "docs" / "reference" / "cli.md"

    def test_the_fields_of_each_noun_are_the_real_ones(self, t: ThinkTest, sqlite_url: str) -> None:
        """A program is written by that table; `show` has what the list has, and more."""
        t.script(ActionAgent, answer({"good": True}))
        workflow_id = ActionAgent("a").run_workflow(ActionWorkflow, workflow_id="wf-1")
        ActionAgent("a").queue("nothing")
        t.run_until_idle()
        ActionAgent("a").schedule("1 hour", "nothing")
        ids = {"agents": "ActionAgent:a", "workflows": workflow_id}

        told = table_of(self.PAGE.read_text(), "objects of")
        for noun, *cells in told:
            listed, more = (re.findall(r"`(\w+)`", cell) for cell in cells)
            name = noun.strip("`| ")
            status = ["--status", "delivered"] if name == "outbox" else []
            found = as_json(name, "list", *status, "--database-url", sqlite_url)
            shown_id = ids.get(name) or found[0][f"{name.removesuffix('s')}_id"]
            shown = as_json(name, "show", shown_id, "--database-url", sqlite_url)

            assert list(found[0]) == listed, name
            assert list(shown) == [*listed, *more], name

    def test_each_command_is_in_its_table(self) -> None:
        """And no other."""
        named: set[tuple[str, ...]] = set()
        for cell, _ in table_of(self.PAGE.read_text(), "command"):
            first, *others = (tuple(words.split()) for words in re.findall(r"`([\w -]+)`", cell))
            named |= {first, *((first[0], *each[len(each) - 1 :]) for each in others)}
        real = {
            (name, *rest)
            for name, command in main.commands.items()
            for rest in ([(each,) for each in command.commands] if isinstance(command, click.Group) else [()])
        }

        assert named == real
