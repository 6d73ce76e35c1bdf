"""A schedule that is due is fired once for each slot: late ones, overlapping ones, failing ones, many at once."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, text

from tests.domain.crowd import broken, row, transaction
from tests.domain.ringing import (
    Ringer,
    change_rule,
    declare,
    rule,
    rules,
    slots,
    statuses,
)
from think_celery import Retry
from think_celery.domain.schedules import schedules
from think_celery.domain.submissions import submissions
from think_celery.ids import short_hash
from think_celery.providers.scripted import FunctionModel, say
from think_celery.settings import Settings
from think_celery.store import schedules as rows
from think_celery.store import tables
from think_celery.store.schedule_tables import schedules as schedule_table
from think_celery.store.schedule_tables import slots as slot_table
from think_celery.testing import think_test

AGENT = Ringer("a")
NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def pg(postgres_url):
    """On PostgreSQL alone: two open transactions that write are more than SQLite has."""
    with think_test(database_url=postgres_url) as test:
        yield test


@pytest.fixture(autouse=True)
def silence(request):
    """No bell has rung yet, and every agent answers."""
    Ringer.rung, Ringer.zone = [], None
    for name in ("t", "quick"):
        if name in request.fixturenames:
            request.getfixturevalue(name).use_model(FunctionModel(lambda request: say("done")))


class TestOneSlot:
    def test_of_a_prompt_is_a_turn(self, t):
        """C1: a submission of kind `scheduled`, with a key of agent, task and instant, and where it is from."""
        declare(t.rt, spec="every day at 09:00 in Europe/Paris", metadata={"team": "ops"}, queue="slow")
        t.skip("1 day")

        turn = AGENT.list_submissions()[0]
        slot = datetime(2027, 1, 2, 8, 0, tzinfo=UTC)
        assert (row(t.rt, turn.submission_id).kind, row(t.rt, turn.submission_id).queue) == (
            "scheduled",
            "slow",
        )
        assert turn.idempotency_key == f"think-schedule:{short_hash(AGENT._ref.id)}:digest:{1798876800000}"
        assert turn.metadata == {
            "team": "ops",
            "source": "scheduled-task",
            "schedule_id": rule(t.rt).id,
            "task_id": "digest",
            "scheduled_for": slot.isoformat(),
            "occurrence_key": "digest:1798876800000",
            "schedule": "every day at 09:00 in Europe/Paris",
            "schedule_kind": "wall",
            "timezone": "Europe/Paris",
        }
        assert [message.text for message in AGENT.messages] == ["Write the digest.", "done"]
        assert statuses(t.rt) == [("08:00:00", "done")]

    def test_of_a_method_is_a_job(self, t):
        """B21: the method is called in a worker with its payload, as often as the rule says."""
        AGENT.schedule("every 10 minutes", "ring", {"n": 1})
        AGENT.schedule("15 minutes", AGENT.ring)
        t.skip("30 minutes")

        assert Ringer.rung == [{"n": 1}, None, {"n": 1}, {"n": 1}]
        assert sorted(statuses(t.rt)) == [(f"12:{n}:00", "done") for n in (10, 15, 20, 30)]

    def test_what_comes_once_ends(self, t):
        """An instant in the past comes at once; then the schedule has ended, and is kept."""
        made = AGENT.schedule(NOON - HOUR, "ring", "late")
        t.run_until_idle()
        ended = AGENT.get_schedule(made.schedule_id)

        assert Ringer.rung == ["late"]
        assert (ended.next_run_at, ended.ended_at, ended.last_slot_at) == (None, NOON, NOON - HOUR)
        assert [each.status for each in AGENT.list_slots(made.schedule_id)] == ["done"]
        assert AGENT.list_slots(made.schedule_id, status=["open", "failed"]) == []

    def test_a_failing_one_does_not_hold_up_the_next(self, t):
        """C4: it is retried as its schedule says, then it has failed, and the next slot comes all the same."""
        AGENT.schedule("every 10 minutes", "fail", retry=Retry(max_attempts=2, delay=5))
        t.skip("25 minutes")

        assert len(Ringer.rung) == 4
        assert slots(t.rt) == [(f"12:{n}:00", "failed", "RuntimeError: the bell is broken") for n in (10, 20)]

    def test_of_a_turn_that_ends_in_error_has_failed(self, t):
        """The reason says how its turn ended."""
        declare(t.rt)
        t.script(Ringer)  # it has no answer
        t.skip(MINUTE)

        [(_, status, reason)] = slots(t.rt)
        assert (status, reason is None) == ("failed", False)

    @pytest.mark.parametrize("point", ["schedule:fired", "schedule:committed"])
    def test_killed_while_it_fires(self, t, point):
        """Nothing of a slot is stored, or all of it is: it is fired once."""
        AGENT.schedule("every minute", "ring")
        declare(t.rt)
        t.crash_at(point)
        t.skip("2 minutes")

        assert len(Ringer.rung) == 2
        assert len(AGENT.list_submissions()) == 2
        assert sorted(statuses(t.rt)) == [("12:01:00", "done")] * 2 + [("12:02:00", "done")] * 2


class TestLate:
    def test_the_latest_slot_runs_once(self, t):
        """FR-20, C4: down from 10:30 to 13:20, an hourly one runs once, for 13:00, and says what it missed."""
        made = AGENT.schedule("0 * * * *", "ring")
        t.clock.advance(timedelta(hours=3, minutes=20))
        t.run_until_idle()

        [slot] = AGENT.list_slots(made.schedule_id)
        assert Ringer.rung == [None]
        assert (slot.scheduled_for, slot.missed_from) == (NOON + 3 * HOUR, NOON + HOUR)
        assert rule(t.rt).next_run_at == NOON + 4 * HOUR

    def test_an_interval_keeps_its_phase(self, t):
        """A late one is counted from when it was made, not from when it ran."""
        AGENT.schedule_every("1 hour", "ring")
        t.clock.advance(timedelta(hours=2, minutes=30))
        t.run_until_idle()
        t.skip("30 minutes")

        assert [moment for moment, *_ in slots(t.rt)] == ["14:00:00", "15:00:00"]

    def test_a_clock_that_is_set_back(self, t):
        """FR-19: 13:00 was fired; back at 12:00:01 it is not fired again, and 14:00 is. Forward: the latest, once."""
        AGENT.schedule("0 * * * *", "ring")
        t.skip(HOUR)
        t.clock.advance(timedelta(seconds=1) - HOUR)
        t.skip("119 minutes")
        assert [moment for moment, *_ in slots(t.rt)] == ["13:00:00"]
        t.skip(60)
        assert [moment for moment, *_ in slots(t.rt)] == ["13:00:00", "14:00:00"]

        t.clock.advance(timedelta(hours=3, minutes=10))
        t.run_until_idle()
        assert [moment for moment, *_ in slots(t.rt)] == ["13:00:00", "14:00:00", "17:00:00"]
        t.clock.advance(-timedelta(hours=2))
        declare(t.rt, spec="every minute")  # declared with the clock set back: it goes on from there
        t.run_until_idle()
        assert len(Ringer.rung) == 3

    def test_a_rule_that_stands_behind_its_last_slot_goes_on(self, t):
        """FR-23: whatever was done to its row, no slot comes twice."""
        AGENT.schedule("0 * * * *", "ring")
        t.skip(HOUR)
        change_rule(t.rt, next_run_at=NOON + HOUR, due_at=NOON + HOUR)
        t.run_until_idle()
        change_rule(t.rt, next_run_at=NOON + HOUR, due_at=NOON + HOUR, last_slot_at=None)
        t.run_until_idle()

        assert (len(Ringer.rung), rule(t.rt).next_run_at) == (1, NOON + 2 * HOUR)
        assert statuses(t.rt) == [("13:00:00", "done")]


class TestOverlap:
    @pytest.mark.parametrize("what", ["prompt", "method"])
    def test_no_worker_for_ten_minutes(self, t, what):
        """FR-21: of ten slots that nobody worked on the last one runs; nine are skipped, and say why."""
        if what == "prompt":
            declare(t.rt)
        else:
            AGENT.schedule("every minute", "ring")
        for _ in range(10):
            t.clock.advance(MINUTE)
            assert schedules.fire_due(t.rt) == 1
        t.run_until_idle()

        assert slots(t.rt) == [
            *((f"12:{n:02}:00", "skipped", "overtaken") for n in range(1, 10)),
            ("12:10:00", "done", None),
        ]
        assert len(Ringer.rung) == (what == "method")
        assert [message.text for message in AGENT.messages] == ["Write the digest.", "done"][
            : 2 * (what == "prompt")
        ]
        ended = {str(turn.status) for turn in AGENT.list_submissions()}
        assert ended == ({"skipped", "completed"} if what == "prompt" else set())

    def test_one_that_runs_lets_the_next_ones_be_skipped(self, t):
        """FR-21: a turn of two and a half minutes: the slots meanwhile are skipped, the one after it runs."""

        def slowly(request):
            if t.clock.now() < NOON + 2 * MINUTE:
                for _ in range(5):
                    t.clock.advance(MINUTE / 2)
                    schedules.fire_due(t.rt)
            return say("done")

        t.use_model(FunctionModel(slowly))
        declare(t.rt)
        t.skip("4 minutes")

        assert slots(t.rt) == [
            ("12:01:00", "done", None),
            ("12:02:00", "skipped", "still running"),
            ("12:03:00", "skipped", "still running"),
            ("12:04:00", "done", None),
        ]

    def test_an_edit_while_another_one_runs(self, t):
        """FR-23: one is declared anew ten times while the turn of another runs: that one has one submission."""

        def slowly(request):
            for number in range(10):
                t.clock.advance(timedelta(seconds=0.5))
                declare(t.rt, "edited", f"every {number + 5} minutes")
                schedules.fire_due(t.rt)
            return say("done")

        t.use_model(FunctionModel(slowly))
        declare(t.rt, "runs", "every 10 minutes")
        declare(t.rt, "edited", "every 4 hours")
        t.skip("10 minutes")

        assert [turn.metadata["task_id"] for turn in AGENT.list_submissions()] == ["runs"]

    def test_a_job_that_waits_for_its_retry_is_not_overtaken(self, t):
        """It has begun, and is unfinished: the slots that come meanwhile are skipped."""
        AGENT.schedule("every minute", "fail", retry=Retry(max_attempts=2, delay=150))
        t.skip("4 minutes")

        assert [(status, reason) for _, status, reason in slots(t.rt)] == [
            ("failed", "RuntimeError: the bell is broken"),
            ("skipped", "still running"),
            ("skipped", "still running"),
            ("open", None),
        ]

    def test_a_turn_that_a_caller_has_locked_is_not_waited_for(self, pg):
        """The schedule is looked at again a second later, and holds up no other."""
        t = pg
        t.use_model(FunctionModel(lambda request: say("done")))
        declare(t.rt)
        AGENT.schedule("every minute", "ring")
        t.clock.advance(MINUTE)
        assert schedules.fire_due(t.rt) == 2
        t.clock.advance(MINUTE)
        turn = AGENT.list_submissions()[0].submission_id
        with transaction(t.rt) as session:
            submissions.cancel_by_id(t.rt, turn)
            assert schedules.fire_due(t.rt) == 1
            session.rollback()
        t.skip(1)

        assert sorted(slots(t.rt), key=str) == [
            ("12:01:00", "done", None),
            ("12:01:00", "skipped", "overtaken"),
            ("12:02:00", "done", None),
            ("12:02:00", "done", None),
        ]

    def test_an_open_slot_whose_work_is_gone_is_in_nobodys_way(self, t):
        """A backstop: rows deleted by hand don't stop a schedule for ever."""
        declare(t.rt)
        AGENT.schedule("every minute", "ring")
        t.clock.advance(MINUTE)
        schedules.fire_due(t.rt)
        t.rt.db.transact(
            lambda tx: [tx.execute(text(f"DELETE FROM {n}")) for n in ("think_submissions", "think_jobs")]
        )
        t.skip(MINUTE)

        assert sorted(slots(t.rt)) == [
            ("12:01:00", "failed", "its work is gone"),
            ("12:01:00", "failed", "its work is gone"),
            ("12:02:00", "done", None),
            ("12:02:00", "done", None),
        ]


class TestFailing:
    def test_one_that_can_not_be_fired_hides_no_other(self, t, caplog):
        """It is put off, twice as long each time; what is wrong stands in its row until it works again."""
        bad = AGENT.schedule("every minute", "ring", "bad")
        with broken(
            t.rt, "think_schedules", f"OLD.id = '{bad.schedule_id}' AND NEW.last_slot_at IS NOT NULL"
        ):
            AGENT.schedule("every minute", "ring", "good")
            with caplog.at_level(logging.ERROR):
                t.skip("3 minutes")
            failing = AGENT.get_schedule(bad.schedule_id)
            [named] = t.rt.db.read(lambda tx: rows.failing(tx, 10))

        assert Ringer.rung == ["good"] * 3
        assert (failing.next_run_at, named.failures) == (NOON + MINUTE, 6)
        assert "disk full" in failing.error
        assert named.due_at == NOON + MINUTE + timedelta(seconds=2 + 4 + 8 + 16 + 32 + 64)
        assert "could not fire a schedule" in caplog.text

        t.skip("5 minutes")
        mended = AGENT.get_schedule(bad.schedule_id)
        assert "bad" in Ringer.rung
        assert (mended.error_type, mended.error) == (None, None)

    def test_a_rule_that_this_version_can_not_read(self, t):
        """The same with a text of another version; the error is kept with the schedule."""
        AGENT.schedule("every minute", "ring")
        change_rule(t.rt, spec="every blue moon")
        t.skip("2 minutes")

        assert (rule(t.rt).failures > 1, rule(t.rt).error_type) == (True, "InvalidSchedule")
        assert Ringer.rung == []


class TestHowTurnsEnd:
    """However the turn of a slot ends, its slot ends with it, so that the next one runs."""

    def fire(self, t):
        declare(t.rt)
        t.clock.advance(MINUTE)
        schedules.fire_due(t.rt)
        return AGENT.list_submissions()[0].submission_id

    def test_cancelled_before_it_began(self, t):
        """Skipped, with the reason that was given."""
        AGENT.cancel_submission(self.fire(t), "not today")

        assert slots(t.rt) == [("12:01:00", "skipped", "not today")]

    def test_cancelled_while_it_runs(self, t):
        """Failed, for it had begun."""
        ids = []

        def stop(request):
            AGENT.cancel_submission(ids[0])
            return say("done")

        t.use_model(FunctionModel(stop))
        ids.append(self.fire(t))
        t.run_until_idle()

        assert slots(t.rt) == [("12:01:00", "failed", "cancelled")]

    def test_by_a_reset(self, t):
        """Clearing the conversation skips a turn that waits; the schedule goes on."""
        self.fire(t)
        AGENT.clear_messages()
        assert [status for _, status in statuses(t.rt)] == ["skipped"]
        t.skip(MINUTE)

        assert [status for _, status in statuses(t.rt)] == ["skipped", "done"]

    def test_a_reset_while_it_runs(self, t):
        """It is aborted, so its slot has failed."""

        def reset(request):
            if not AGENT.list_submissions(status="completed"):
                AGENT.reset_turn_state()
            return say("done")

        t.use_model(FunctionModel(reset))
        self.fire(t)
        t.run_until_idle()

        assert slots(t.rt) == [("12:01:00", "failed", "cancelled")]

    def test_given_up_after_too_many_deaths(self, t):
        """Poison: the workers that die in it don't stop the schedule."""
        t.crash_at("turn:claimed", times=Settings().max_attempts)
        self.fire(t)
        t.run_until_idle()
        for _ in range(20):
            t.skip(5)

        assert slots(t.rt)[0][1] == "failed"
        assert slots(t.rt)[0][2].startswith("TooManyAttempts")

    def test_deleted_when_it_has_ended(self, t):
        """What became of the slot stays when its submission is deleted."""
        turn = self.fire(t)
        t.run_until_idle()
        assert AGENT.delete_submission(turn)

        assert statuses(t.rt) == [("12:01:00", "done")]

    def test_cancelled_jobs(self, t):
        """Of a job that has not begun the slot is skipped."""
        AGENT.schedule("every minute", "ring")
        t.clock.advance(MINUTE)
        schedules.fire_due(t.rt)
        [job] = t.rt.db.read(lambda tx: list(tx.execute(select(tables.jobs))))
        from think_celery.domain.jobs import jobs

        t.rt.db.transact(lambda tx: jobs.cancel(t.rt, tx, job.id, "not today"))

        assert slots(t.rt) == [("12:01:00", "skipped", "not today")]


class TestRetention:
    def test_slots_and_ended_schedules_go(self, t):
        """After `think_retention`; what is open and what still comes stays, and no slot comes again."""
        once = AGENT.schedule(60, "ring")
        AGENT.schedule("0 0 1 * *", "ring")
        t.skip("29 days")
        assert len(slots(t.rt)) == 1
        t.skip("12 days")

        assert AGENT.get_schedule(once.schedule_id) is None
        assert [moment for moment, *_ in slots(t.rt)] == ["00:00:00"]
        assert len(rules(t.rt)) == 1


def explained(rt, statement):
    """How the database goes about a statement of two parameters: now, and how many at most."""
    compiled = statement.compile(rt.db.engine)
    given = dict.fromkeys(compiled.params, 1)
    how = "EXPLAIN " if rt.db.on_postgres else "EXPLAIN QUERY PLAN "
    values = (
        compiled.construct_params(given)
        if rt.db.on_postgres
        else tuple(given[n] for n in compiled.positiontup)
    )

    def work(tx):
        if rt.db.on_postgres:
            tx.conn.exec_driver_sql("ANALYZE think_schedules")
        return str(tx.conn.exec_driver_sql(how + str(compiled), values).all())

    return rt.db.transact(work)


def all_slots(rt):
    """The rows of all slots."""
    return rt.db.read(lambda tx: list(tx.execute(select(slot_table))))


class TestMany:
    def test_what_is_due_is_found_by_an_index(self, t):
        """FR-21, C4: among 5,000 schedules of as many agents the look takes an index, and fires what is due alone."""
        AGENT.schedule("every minute", "ring")
        one = dict(rule(t.rt)._mapping)
        later = NOON + timedelta(days=30)
        many = [
            {**one, "id": f"s{n}", "key": f"s{n}", "agent_id": f"a{n}", "agent_name": f"a{n}"}
            | {"next_run_at": later, "due_at": later}
            for n in range(5_000)
        ]
        t.rt.db.transact(
            lambda tx: [tx.execute(insert(schedule_table), many[n : n + 1000]) for n in range(0, 5_000, 1000)]
        )
        t.skip("3 minutes")
        plan = explained(t.rt, rows._DUE)

        assert Ringer.rung == [None] * 3
        assert schedules.next_due(t.rt) == NOON + timedelta(minutes=4)
        assert "ix_think_schedules_due" in plan

    def test_at_most_so_many_in_one_pass(self, t):
        """The rest comes in the next pass; the longest due comes first."""
        for number in range(7):
            AGENT.schedule(number + 1, "ring", number)
        t.clock.advance(timedelta(seconds=10))

        assert schedules.fire_due(t.rt, 3) == 3
        assert {each.scheduled_for for each in all_slots(t.rt)} == {
            NOON + timedelta(seconds=n) for n in (1, 2, 3)
        }
        t.run_until_idle()
        assert sorted(Ringer.rung) == list(range(7))

    def test_those_that_a_caller_has_locked_hide_no_other(self, pg):
        """More of them than a pass takes, and the ones behind them come all the same."""
        made = [AGENT.schedule(number + 1, "ring", number) for number in range(7)]
        pg.clock.advance(timedelta(seconds=10))
        with transaction(pg.rt) as session:
            for each in made[:5]:
                AGENT.cancel_schedule(each.schedule_id)
            assert schedules.fire_due(pg.rt, 2) == 2
            session.rollback()
        pg.run_until_idle()

        assert sorted(Ringer.rung) == list(range(7))
