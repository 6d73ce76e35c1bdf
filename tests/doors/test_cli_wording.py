"""What the commands say about names that nobody has, about where they looked, and about how much will be gone."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery

from tests.doors.commands import as_json, own_runtime, run
from think_celery import Think, ThinkWorkflow
from think_celery.cli.common import Unusable, think_of
from think_celery.store.migrate import upgrade
from think_celery.testing import ThinkTest, think_test


class Wordsmith(Think):
    """Has jobs and workflows."""

    def forge(self) -> None:
        """Does nothing."""


class Forging(ThinkWorkflow[Wordsmith, Any]):
    """Ends at once."""

    def run(self, event: Any, step: Any) -> Any:
        return step.do("forge", lambda: "forged")


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture(autouse=True)
def own_default() -> Iterator[None]:
    with own_runtime():
        yield


class TestNames:
    def test_a_class_that_no_row_and_no_module_has(self, t: ThinkTest, sqlite_url: str) -> None:
        """The list is empty, and standard error says which name may be meant."""
        listed = run("workflows", "list", "--workflow", "Forgin", "--database-url", sqlite_url)
        known = run("workflows", "list", "--workflow", "Forging", "--database-url", sqlite_url)

        assert listed.exit_code == 0
        assert "'Forgin' is registered" in listed.stderr
        assert "Did you mean Forging?" in listed.stderr
        assert known.stderr == ""

    def test_an_event_for_one(self, t: ThinkTest, sqlite_url: str) -> None:
        """It is kept, and both are said: that no such class is known, and how long the event stays."""
        words = ("workflows", "send-event", "w", "--type", "go", "--database-url", sqlite_url, "--workflow")
        for name, warned in (("Forgin", True), ("Forging", False)):
            sent = run(*words, name)
            assert sent.exit_code == 0, sent.output
            assert "is kept for 24 hours" in sent.stderr
            assert ("Did you mean Forging?" in sent.stderr) is warned


class TestWhere:
    def test_without_an_app_it_is_said_which_database_was_looked_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On standard error, of lists and details; programs that ask for JSON know what they ask."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("THINK_DATABASE_URL", raising=False)
        upgrade(f"sqlite:///{tmp_path}/think.db")

        assert "this is of sqlite:///" in run("jobs", "list").stderr
        assert run("jobs", "list", "--json").stderr == ""
        assert run("jobs", "list", "--database-url", "sqlite:///think.db").stderr == ""

    def test_an_app_without_a_think_celery(self, sqlite_url: str) -> None:
        """It names no database of ours: the error has the line to write. With --database-url there is one."""
        bare = Celery("bare", set_as_current=False)
        with pytest.raises(Unusable, match=r"think = ThinkCelery\(app\)"):
            think_of(bare, None)
        assert not hasattr(bare, "think")
        with click.Context(click.Command("list")):
            assert think_of(bare, sqlite_url).app is bare


class TestHowMuch:
    def test_bulk_deletes_say_how_many_before_they_ask(self, t: ThinkTest, sqlite_url: str) -> None:
        """A no changes nothing."""
        agent = Wordsmith("a")
        for number in range(3):
            agent.run_workflow(Forging, workflow_id=f"w{number}")
        agent.submit_messages("Hello")
        t.run_until_idle()

        refused = run(
            "workflows", "delete", "--workflow", "Forging", "--database-url", sqlite_url, input="n\n"
        )
        turns = run(
            "submissions", "delete", "--agent", "Wordsmith:a", "--database-url", sqlite_url, input="n\n"
        )

        assert "(3 just now)" in refused.output
        assert "(1 just now)" in turns.output
        assert len(as_json("workflows", "list", "--database-url", sqlite_url)) == 3
        assert len(agent.list_submissions()) == 1

    def test_a_completed_job_is_made_again_only_with_a_yes(self, t: ThinkTest, sqlite_url: str) -> None:
        """Nothing failed, so the same call once more may be a slip."""
        job = Wordsmith("a").queue("forge")
        t.run_until_idle()
        words = ("jobs", "retry", job.job_id, "--database-url", sqlite_url)

        assert "is completed" in run(*words, input="n\n").output
        assert len(as_json("jobs", "list", "--database-url", sqlite_url)) == 1
        assert run(*words, "--yes").exit_code == 0
        assert len(as_json("jobs", "list", "--database-url", sqlite_url)) == 2


def test_the_list_has_the_class_the_id_and_the_run(
    t: ThinkTest, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each under its own head; a queued run names the queue of whose worker it waits for."""
    with monkeypatch.context() as there:
        there.setattr(Forging, "queue", "iron", raising=False)
        Wordsmith("a").run_workflow(Forging, workflow_id="w")

    head = run("workflows", "list", "--database-url", sqlite_url).output.splitlines()[0].split()
    shown = run("workflows", "show", "w", "--database-url", sqlite_url).output

    assert head[:3] == ["workflow", "id", "run"]
    assert "Waits for a worker of the queue iron" in shown


def test_a_worker_of_another_version_says_so_once(t: ThinkTest, caplog: pytest.LogCaptureFixture) -> None:
    """Each knock of the tick finds its runs again; the log has one line for a version and process, which says where
    the others are named."""
    for workflow_id in ("w1", "w2"):
        Wordsmith("a").run_workflow(Forging, workflow_id=workflow_id)
    Forging.version, before = "2", Forging.version
    try:
        with caplog.at_level(logging.ERROR):
            for _ in range(4):
                t.run_until_idle()
                t.skip("1 minute")
    finally:
        Forging.version = before
    said = [
        record.getMessage() for record in caplog.records if "it was started by version" in record.getMessage()
    ]
    assert len(said) == 1
    assert "think-celery doctor" in said[0]
