"""``think-celery agents``: what is there of agents, and starting them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

import pytest

from tests.domain.till import Till
from tests.doors.test_cli import as_json, own_default, run
from think_celery import Think
from think_celery.providers.scripted import call, say
from think_celery.testing import ThinkTest, think_test

__all__ = ["own_default"]


class Porter(Think):
    """An agent that the commands find."""

    version = "7"
    autostart = ("front", "back")
    started: ClassVar[list[str]] = []

    def carry(self) -> None:
        """What is called later."""

    def on_start(self) -> None:
        Porter.started.append(self.name)


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    Porter.started.clear()
    with think_test(database_url=sqlite_url) as test:
        test.script(Porter, say("Hello"))
        yield test


def test_they_are_listed_newest_first(t: ThinkTest, sqlite_url: str) -> None:
    """A table for people, JSON for programs; a class alone; a destroyed one is not among them."""
    for name in ("a", "b", "gone"):
        t.clock.advance(timedelta(seconds=1))
        Porter(name).set_state({"x": name})
    Porter("gone").destroy()

    listed = as_json("agents", "list", "--database-url", sqlite_url)
    none = as_json("agents", "list", "--class", "Nobody", "--database-url", sqlite_url)
    table = run("agents", "list", "--database-url", sqlite_url).stdout.splitlines()

    assert [each["name"] for each in listed] == ["b", "a"]
    assert (listed[0]["agent_class"], listed[0]["state_version"]) == ("Porter", 1)
    assert none == []
    assert len(table) == 3


def test_one_is_shown_with_its_state_and_what_it_used(t: ThinkTest, sqlite_url: str) -> None:
    """The state in JSON values, the turn that comes next, the tokens; nothing of it needs the class."""
    Porter("a").set_state({"x": 1})
    Porter("a").submit_messages("Go", submission_id="s-1")

    shown = as_json("agents", "show", "Porter", "a", "--database-url", sqlite_url)
    text = run("agents", "show", "Porter", "a", "--database-url", sqlite_url).stdout

    assert (shown["state"], shown["head"], shown["total_tokens"]) == ({"x": 1}, "s-1 (pending)", 0)
    assert "s-1 (pending)" in text


def test_calls_that_wait_are_counted(t: ThinkTest, sqlite_url: str) -> None:
    """Whoever looks at an agent sees that somebody must decide before its answer goes on."""
    agent = Till().agent("a")
    t.script(agent, [call("pay", {"euros": 5}), call("locate")])
    agent.save_messages("Go")

    shown = as_json("agents", "show", "Talker", "a", "--database-url", sqlite_url)

    assert shown["waiting_calls"] == 2


def test_one_that_is_not_there(t: ThinkTest, sqlite_url: str) -> None:
    """Exits with 1, and names the list."""
    ran = run("agents", "show", "Porter", "nobody", "--database-url", sqlite_url)

    assert ran.exit_code == 1
    assert "There is no agent Porter('nobody')" in ran.output
    assert "agents list" in ran.output


@pytest.mark.parametrize("work", ["turn", "schedule", "job", "state", "start"])
def test_one_that_has_only_waiting_work(t: ThinkTest, sqlite_url: str, work: str) -> None:
    """What `destroy` would remove is there to be shown, reset and removed, though the agent had no turn yet."""
    agent = Porter("fresh")
    match work:
        case "turn":
            agent.submit_messages("Go", submission_id="s-1")
        case "schedule":
            agent.schedule("1 hour", "carry")
        case "job":
            agent.queue("carry")
        case "state":
            agent.set_state(1)
        case "start":
            agent.start()

    shown = as_json("agents", "show", "Porter:fresh", "--database-url", sqlite_url)
    assert run("agents", "show", "Porter:fresh", "--database-url", sqlite_url).exit_code == 0
    assert (shown["name"], shown["head"]) == ("fresh", "s-1 (pending)" if work == "turn" else None)
    assert run("agents", "reset", "Porter:fresh", "--yes", "--database-url", sqlite_url).exit_code == 0

    gone = run("agents", "destroy", "Porter:fresh", "--yes", "--database-url", sqlite_url)
    assert gone.exit_code == 0, gone.output
    left = [agent.list_submissions(), agent.list_jobs(), agent.list_schedules()]
    assert left == [[], [], []]
    again = run("agents", "destroy", "Porter:fresh", "--yes", "--database-url", sqlite_url)
    assert (again.exit_code, "There is no agent" in again.output) == (1, True)


def test_one_is_started(t: ThinkTest, sqlite_url: str) -> None:
    """Its row is there at once; the worker runs `on_start`."""
    ran = run("agents", "start", "Porter", "a", "--database-url", sqlite_url)
    assert ran.exit_code == 0, ran.output
    assert Porter.started == []

    t.skip("5 seconds")
    assert Porter.started == ["a"]
    assert as_json("agents", "show", "Porter", "a", "--database-url", sqlite_url)["started_version"] == "7"


def test_all_that_classes_name_are_started(t: ThinkTest, sqlite_url: str) -> None:
    """Those in `autostart`."""
    ran = run("agents", "start", "--all", "--database-url", sqlite_url)
    assert "Porter('front') is there." in ran.output

    t.skip("5 seconds")
    assert sorted(Porter.started) == ["back", "front"]


def test_several_are_started(t: ThinkTest, sqlite_url: str) -> None:
    """Each by its class and name."""
    ran = run("agents", "start", "Porter:a", "Porter:b", "--database-url", sqlite_url)
    assert ran.stdout == "Porter('a') is there.\nPorter('b') is there.\n"

    t.skip("5 seconds")
    assert sorted(Porter.started) == ["a", "b"]


def test_what_can_not_be_started(t: ThinkTest, sqlite_url: str) -> None:
    """A class that is not known, half a name, nobody, or some and all: exits with 2."""
    for words in (("Nobody", "a"), ("Porter",), (), ("--all", "Porter:a")):
        assert run("agents", "start", *words, "--database-url", sqlite_url).exit_code == 2
