"""``think-celery schedules`` and what ``doctor`` says of schedules."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from tests.doors.commands import as_json, own_runtime, run
from think_celery import Think
from think_celery.cli import schedulechecks
from think_celery.cli.checks import Finding
from think_celery.cli.common import Given
from think_celery.domain.schedules import drivers, schedules
from think_celery.store.schedule_tables import schedules as table
from think_celery.testing import ThinkTest, think_test
from think_celery.worker.inspection import Worker, Workers

__all__ = ["own_runtime"]

GIVEN = Given(app="shop")
HOUR = timedelta(hours=1)


class CliRinger(Think):
    """An agent whose schedules the commands find."""

    def ring(self, payload: Any) -> None:
        """What it does."""


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


def made(name: str = "a", **options: Any) -> str:
    """The id of a new schedule."""
    return str(CliRinger(name).schedule(options.pop("when", HOUR), "ring", **options).schedule_id)


def only(found: list[Finding]) -> Finding:
    """The one finding that there is."""
    (finding,) = found
    return finding


class TestTheList:
    def test_the_next_one_first(self, t: ThinkTest, sqlite_url: str) -> None:
        """A table for people, JSON for programs; of one agent or class alone; ended ones only when asked for."""
        later, sooner = made("a", when=2 * HOUR), made("b")
        daily = made("a", when="every day at 09:00 in Europe/Paris")
        ended = made("a", when=3 * HOUR)
        CliRinger("a").cancel_schedule(ended)
        here = ("--database-url", sqlite_url)

        listed = as_json("schedules", "list", *here)
        text = run("schedules", "list", *here).stdout.splitlines()
        of_one = as_json("schedules", "list", "--agent", "CliRinger:b", *here)
        of_nobody = as_json("schedules", "list", "--class", "Nobody", *here)
        past = as_json("schedules", "list", "--ended", *here)

        assert [each["schedule_id"] for each in listed] == [sooner, later, daily]
        assert len(text) == 4
        assert "CliRinger:b" in text[1]
        assert "ring()" in text[1]
        assert "every day at 09:00 in Europe/Paris" in text[3]
        assert [each["schedule_id"] for each in of_one] == [sooner]
        assert of_nobody == []
        assert [each["schedule_id"] for each in past] == [ended]

    def test_where_there_is_none(self, t: ThinkTest, sqlite_url: str) -> None:
        """It says so."""
        assert (
            run("schedules", "list", "--database-url", sqlite_url).stdout == "There are no such schedules.\n"
        )


class TestOne:
    def test_with_what_became_of_its_slots(self, t: ThinkTest, sqlite_url: str) -> None:
        """The latest first, with status and reason."""
        schedule = made("a", when="every hour")
        for _ in range(3):
            t.clock.advance(HOUR)
            drivers.once_a_second(t.rt)

        shown = as_json("schedules", "show", schedule, "--database-url", sqlite_url)
        text = run("schedules", "show", schedule, "--database-url", sqlite_url).stdout

        assert (shown["agent_name"], shown["method"], shown["kind"]) == ("a", "ring", "interval")
        assert [slot["status"] for slot in shown["slots"]] == ["open", "skipped", "skipped"]
        assert all(slot["reason"] for slot in shown["slots"][1:])
        assert len(re.findall("skipped", text)) >= 2

    @pytest.mark.parametrize("command", ["show", "cancel", "next"])
    def test_that_is_not_there(self, t: ThinkTest, sqlite_url: str, command: str) -> None:
        """Exits with 1, and names the list."""
        ran = run("schedules", command, "nobody", "--database-url", sqlite_url)

        assert ran.exit_code == 1
        assert "There is no schedule 'nobody'" in ran.output

    def test_is_cancelled_once(self, t: ThinkTest, sqlite_url: str) -> None:
        """It asks first, unless it is told not to; a second time exits with 1."""
        schedule = made()
        refused = run("schedules", "cancel", schedule, "--database-url", sqlite_url)
        before = schedules.get(t.rt, schedule).ended_at
        ran = [run("schedules", "cancel", schedule, "--yes", "--database-url", sqlite_url) for _ in range(2)]

        assert (refused.exit_code, before) == (1, None)
        assert [each.exit_code for each in ran] == [0, 1]
        assert f"{schedule} has ended." in ran[0].stdout
        assert "had ended before" in ran[1].output
        assert schedules.get(t.rt, schedule).ended_at is not None


class TestTheNextInstants:
    def test_of_all(self, t: ThinkTest, sqlite_url: str) -> None:
        """What fires next, whoever's it is."""
        made("a", when=2 * HOUR)
        made("b")

        told = as_json("schedules", "next", "--limit", "1", "--database-url", sqlite_url)

        assert [(each["agent_name"], each["next_run_at"]) for each in told] == [
            ("b", "2027-01-01T13:00:00+00:00")
        ]

    def test_of_one_rule(self, t: ThinkTest, sqlite_url: str) -> None:
        """As the calendar of its zone has them: over the night on which clocks change, too."""
        t.clock.advance(datetime(2027, 3, 27, 12, tzinfo=UTC) - t.clock.now())
        schedule = made("a", when="every day at 02:30 in Europe/Paris")

        told = as_json("schedules", "next", schedule, "--limit", "3", "--database-url", sqlite_url)

        assert [each["scheduled_for"] for each in told] == [
            "2027-03-28T01:00:00+00:00",
            "2027-03-29T00:30:00+00:00",
            "2027-03-30T00:30:00+00:00",
        ]
        assert [each["local"] for each in told] == [
            "Sun 2027-03-28 03:00 Europe/Paris",
            "Mon 2027-03-29 02:30 Europe/Paris",
            "Tue 2027-03-30 02:30 Europe/Paris",
        ]

    def test_of_one_that_comes_once(self, t: ThinkTest, sqlite_url: str) -> None:
        """One instant; none once it has come."""
        schedule = made()
        once = as_json("schedules", "next", schedule, "--database-url", sqlite_url)
        t.clock.advance(HOUR)
        drivers.once_a_second(t.rt)
        text = run("schedules", "next", schedule, "--database-url", sqlite_url).stdout

        assert len(once) == 1
        assert text == "It has ended: it has no further slot.\n"


class TestTheDoctor:
    @pytest.fixture
    def on(self, database_url: str) -> Iterator[ThinkTest]:
        with think_test(database_url=database_url) as test:
            yield test

    def look(self, t: ThinkTest) -> Finding:
        """What it says."""
        return only(schedulechecks.fired(t.rt.db, GIVEN))

    def test_no_schedules_need_nobody(self, on: ThinkTest) -> None:
        """All is well, whether somebody looks or not."""
        before = self.look(on)
        drivers.once_a_second(on.rt)

        assert (before.level, self.look(on).level) == ("ok", "ok")

    def test_nobody_fires(self, on: ThinkTest) -> None:
        """A problem once a minute is over, with both remedies: a beat, or a task of another scheduler."""
        made()
        new = self.look(on)
        on.clock.advance(timedelta(seconds=61))
        never = self.look(on)
        drivers.once_a_second(on.rt)
        fine = self.look(on)
        on.clock.advance(timedelta(minutes=5))
        stopped = self.look(on)

        assert [each.level for each in (new, never, fine, stopped)] == ["ok", "problem", "ok", "problem"]
        assert "nothing has ever fired any" in never.text
        assert "nothing has fired any for 5 minutes" in stopped.text
        for each in (never, stopped):
            assert "celery -A shop beat -S think_celery.beat:ThinkScheduler" in each.text
            assert "think.tick with schedules=True" in each.text

    def test_one_that_can_not_be_fired_is_named(self, on: ThinkTest) -> None:
        """With its error, and the command that shows it."""
        schedule = made()
        values = {"failures": 3, "error_type": "UnknownClass", "error": "there is no such class"}
        on.rt.db.transact(lambda tx: tx.execute(update(table).values(values)))
        drivers.once_a_second(on.rt)

        found = self.look(on)
        assert found.level == "problem"
        assert (
            f"Schedule {schedule} of CliRinger('a') could not be fired, 3 times in a row: UnknownClass"
            in found.text
        )
        assert f"think-celery schedules show {schedule} -A shop" in found.text

    def test_one_that_is_late_though_somebody_looks_is_named(
        self, on: ThinkTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One beat may not come round to all."""
        made()
        monkeypatch.setattr(schedules, "fire_due", lambda rt, limit: 0)
        on.clock.advance(HOUR + timedelta(minutes=3))
        drivers.once_a_second(on.rt)

        found = self.look(on)
        assert found.level == "problem"
        assert "is 3 minutes late, though somebody looks" in found.text

    def test_those_that_will_call_what_no_worker_has(self, on: ThinkTest) -> None:
        """Before they are due: a class that was renamed, a method that is gone. A method of ours is in each class."""
        rings = made()
        made("b")
        CliRinger("a").schedule(HOUR, "clear_messages")
        ways = [
            {"agents": frozenset({"CliRinger"}), "methods": {"CliRinger": ["ring"]}},
            {"agents": frozenset({"CliRinger"})},
            {"agents": frozenset({"CliRinger"}), "methods": {"CliRinger": ["rest"]}},
            {"agents": frozenset({"Other"}), "methods": {"Other": ["ring"]}},
        ]

        said = [
            schedulechecks.unserved(
                on.rt.db,
                Workers(
                    answered=[Worker(name="w", queues=frozenset({"celery"}), **has)],  # type: ignore[arg-type]
                    route=lambda task: "celery",
                ),
            )
            for has in ways
        ]

        assert [len(found) for found in said] == [0, 0, 1, 2]
        assert (
            "2 schedules will fire for CliRinger.ring, which no worker that answered has" in said[2][0].text
        )
        assert rings in said[2][0].text
        assert "CliRinger.clear_messages" in said[3][0].text
        nobody = Workers(answered=[], route=lambda task: "celery")
        assert schedulechecks.unserved(on.rt.db, nobody) == []

    def test_a_beat_s_own_check(self, on: ThinkTest) -> None:
        """Whether somebody looked within seconds, also where there is nothing to fire: for a container's health."""

        def look() -> str:
            return only(schedulechecks.looked_at(on.rt.db, GIVEN)).level

        never = look()
        drivers.once_a_second(on.rt)
        now = look()
        on.clock.advance(timedelta(seconds=11))

        assert (never, now, look()) == ("problem", "ok", "problem")

    def test_as_a_command(self, t: ThinkTest, sqlite_url: str) -> None:
        """`doctor --beat` looks at nothing else: no broker is asked."""
        ill = run("doctor", "--beat", "--database-url", sqlite_url)
        drivers.once_a_second(t.rt)

        assert ill.exit_code == 1
        assert "schedules" in ill.stdout
        assert "broker" not in ill.stdout
