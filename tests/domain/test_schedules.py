"""What can be scheduled and how it is written, that declaring again changes nothing, and how a schedule ends."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.domain.crowd import at_once, in_processes, transaction, workers
from tests.domain.ringing import Ringer, change_rule, declare, ringer, rule, rules, slots, statuses
from think_celery import Retry
from think_celery.domain.agents.removal import destroy
from think_celery.domain.schedules import schedules
from think_celery.errors import InvalidMethod, InvalidSchedule, InvalidValue, NotSerializable
from think_celery.providers.scripted import say

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)
AGENT = Ringer("a")


@pytest.fixture(autouse=True)
def silence():
    """No bell has rung yet."""
    Ringer.rung, Ringer.zone = [], None


class TestWhen:
    def test_an_instant_a_delay_or_a_rule(self, t):
        """B21: an aware datetime, seconds, a timedelta, words of a delay, cron, and words of a rule."""
        lisbon = timezone(timedelta(hours=-8))
        given = [
            (datetime(2027, 1, 1, 13, 30, 45, tzinfo=lisbon), "scheduled", datetime(2027, 1, 1, 21, 30, 45)),
            (90, "delayed", datetime(2027, 1, 1, 12, 1, 30)),
            (timedelta(hours=1), "delayed", datetime(2027, 1, 1, 13)),
            ("10 minutes", "delayed", datetime(2027, 1, 1, 12, 10)),
            ("2 days 3 hours 5 minutes", "delayed", datetime(2027, 1, 3, 15, 5)),
            ("0 9 * * *", "cron", datetime(2027, 1, 2, 9)),
            ("@hourly", "cron", datetime(2027, 1, 1, 13)),
            ("every 5 minutes", "interval", datetime(2027, 1, 1, 12, 5)),
            ("every day at 09:00 in Europe/Paris", "wall", datetime(2027, 1, 2, 8)),
        ]
        for when, kind, due in given:
            made = AGENT.schedule(when, "ring", repr(when))
            assert (made.kind, made.next_run_at, made.accepted) == (kind, due.replace(tzinfo=UTC), True), when

        assert AGENT.schedule_every("90 seconds", AGENT.ring).next_run_at == NOON + timedelta(seconds=90)

    def test_what_means_no_time_says_what_does(self, quick):
        """FR-25, C4: naive datetimes and unknown texts are refused at the call, and nothing is stored."""
        with pytest.raises(InvalidValue, match="has no time zone, so it names no instant"):
            AGENT.schedule(datetime(2027, 1, 1), "ring")
        with pytest.raises(InvalidValue, match="cron text such as") as told:
            AGENT.schedule("tomorrow", "ring")
        with pytest.raises(InvalidValue, match="only a cron text or schedule words have a time zone"):
            AGENT.schedule("10 minutes", "ring", timezone="Europe/Paris")
        with pytest.raises(InvalidSchedule, match="moonday"):
            AGENT.schedule("every week on moonday at 09:00", "ring", timezone="UTC")
        with pytest.raises(InvalidSchedule, match="Mars/Base"):
            AGENT.schedule("0 9 * * *", "ring", timezone="Mars/Base")
        for interval in (0.5, 0, timedelta(0)):
            with pytest.raises(InvalidSchedule, match=r"interval=.*one second at least.*10 minutes"):
                AGENT.schedule_every(interval, "ring")

        assert "'tomorrow'" in str(told.value)
        assert rules(quick.rt) == []

    def test_the_zone_of_a_rule(self, quick):
        """FR-24: `timezone=`, else `get_default_timezone()`; a cron text without either goes by the Celery app's."""
        quick.rt.timezone = "America/New_York"
        with pytest.raises(InvalidSchedule, match="zone"):
            AGENT.schedule("every day at 09:00", "ring")

        by_app = AGENT.schedule("0 9 * * *", "ring", 1)
        Ringer.zone = "Asia/Kolkata"
        by_agent = AGENT.schedule("0 9 * * *", "ring", 2), AGENT.schedule("every day at 09:00", "ring", 3)
        by_call = AGENT.schedule("0 9 * * *", "ring", 4, timezone="Europe/Paris")

        assert by_app.timezone == "America/New_York"
        assert {made.timezone for made in by_agent} == {"Asia/Kolkata"}
        assert (by_call.timezone, by_call.next_run_at) == (
            "Europe/Paris",
            datetime(2027, 1, 2, 8, tzinfo=UTC),
        )

    def test_a_method_that_can_not_be_called_is_refused(self, quick):
        """The name of a method is stored, so a lambda, another's method or an unfit payload fails at the call."""
        with pytest.raises(InvalidMethod):
            AGENT.schedule(1, lambda: None)
        with pytest.raises(InvalidMethod):
            AGENT.schedule(1, "rign")
        with pytest.raises(InvalidMethod):
            AGENT.schedule(1, AGENT.fail, {"a": 1})
        with pytest.raises(NotSerializable):
            AGENT.schedule(1, AGENT.ring, {1, 2})

        assert rules(quick.rt) == []


class TestOnceOrTwice:
    def test_what_recurs_is_made_once(self, t):
        """FR-22: the same method, payload and time again is the same schedule; its slots don't move."""
        first = AGENT.schedule("0 9 * * *", AGENT.ring, {"a": 1}), AGENT.schedule_every(600, "ring")
        t.skip(30)
        again = AGENT.schedule("0  9 * * *", "ring", {"a": 1}), AGENT.schedule_every("10 minutes", "ring")

        assert [made.schedule_id for made in again] == [made.schedule_id for made in first]
        assert [made.next_run_at for made in again] == [made.next_run_at for made in first]
        assert [made.accepted for made in first + again] == [True, True, False, False]
        assert AGENT.schedule("0 9 * * *", AGENT.ring, {"a": 2}).accepted
        assert AGENT.schedule("0 9 * * *", AGENT.ring, {"a": 1}, idempotent=False).accepted
        assert AGENT.schedule_every(601, "ring").accepted
        assert Ringer("b").schedule("0 9 * * *", "ring", {"a": 1}).accepted

    def test_instants_and_delays_are_made_each_time_unless_told_otherwise(self, t):
        """With `idempotent=True` they match on method, payload and time, the delay too, until they have come."""
        assert AGENT.schedule(60, "ring").accepted
        assert AGENT.schedule(60, "ring").accepted
        assert AGENT.schedule(NOON + timedelta(hours=1), "ring").accepted
        once = AGENT.schedule(60, "ring", "x", idempotent=True)
        assert not AGENT.schedule("1 minute", "ring", "x", idempotent=True).accepted
        assert AGENT.schedule(61, "ring", "x", idempotent=True).accepted

        t.skip(120)
        later = AGENT.schedule(60, "ring", "x", idempotent=True)

        assert later.accepted
        assert later.schedule_id != once.schedule_id
        assert later.next_run_at == NOON + timedelta(seconds=180)

    def test_a_repeat_brings_zone_retries_and_metadata_up_to_date(self, t):
        """FR-24: another zone counts from now on and never fires backwards."""
        made = AGENT.schedule("0 5 1 * *", "ring", timezone="UTC")
        t.skip("16 days")
        again = AGENT.schedule(
            "0 5 1 * *", "ring", timezone="Europe/Paris", retry=Retry(max_attempts=2), metadata={"by": "me"}
        )
        t.run_until_idle()

        assert again.schedule_id == made.schedule_id
        assert (again.timezone, again.metadata) == ("Europe/Paris", {"by": "me"})
        assert again.next_run_at == datetime(2027, 2, 1, 4, 0, tzinfo=UTC)
        assert rule(t.rt).retry["max_attempts"] == 2
        assert Ringer.rung == []

    def test_fifty_calls_in_five_processes_make_one(self, database_url):
        """FR-22: a start-up hook that runs in many processes at once leaves one schedule, declared tasks too."""

        def child(number, ready):
            with workers(database_url) as rt:
                ready()

                def call(_):
                    declare(rt)
                    return ringer(rt).schedule("0 9 * * *", "ring").schedule_id

                return at_once(10, call)

        made = {each for ids in in_processes(5, child) for each in ids}
        with workers(database_url) as rt:
            stored = rules(rt)

        assert len(made) == 1
        assert len(stored) == 2

    def test_a_schedule_of_an_open_transaction(self, t):
        """It is there once the caller commits, and never if they roll back."""
        with transaction(t.rt):
            AGENT.schedule(60, "ring", "never")
        with transaction(t.rt) as session:
            made = AGENT.schedule(60, "ring", "here")
            assert AGENT.get_schedule(made.schedule_id) is not None
            session.commit()
        t.skip(61)

        assert Ringer.rung == ["here"]


class TestDeclared:
    def test_the_same_again_is_left_alone(self, t):
        """FR-22: declaring by the same digest moves nothing; it is armed again if it had lost its next slot."""
        assert declare(t.rt, spec="every 10 minutes")
        before = rule(t.rt)
        t.skip(90)
        assert not declare(t.rt, spec="every 10 minutes")
        after = rule(t.rt)
        assert {**after._mapping, "declared_at": None} == {**before._mapping, "declared_at": None}
        assert after.declared_at == NOON + timedelta(seconds=90)

        change_rule(t.rt, next_run_at=None, due_at=None)
        assert declare(t.rt, spec="every 10 minutes")
        assert rule(t.rt).next_run_at == rule(t.rt).due_at == before.next_run_at

    def test_another_text_keeps_the_slot_and_another_time_counts_from_now(self, t):
        """FR-23: a changed prompt moves no slot; a changed time does, and what was fired is never fired again."""
        t.script(Ringer, *[say("ok")] * 9)
        declare(t.rt, spec="every 10 minutes", prompt="Old")
        t.skip("10 minutes")
        assert declare(t.rt, spec="every 10 minutes", prompt="New")
        kept = rule(t.rt)
        assert (kept.prompt, kept.next_run_at) == ("New", NOON + timedelta(minutes=20))

        t.skip(60)
        declare(t.rt, spec="every 3 minutes", prompt="New")
        changed = rule(t.rt)

        assert changed.id == kept.id
        assert (changed.last_slot_at, changed.next_run_at) == (
            NOON + timedelta(minutes=10),
            NOON + timedelta(minutes=14),
        )
        assert statuses(t.rt) == [("12:10:00", "done")]

    def test_removed_and_declared_again_its_slot_has_the_same_key(self, t):
        """The key of a slot is made of agent, task and instant, so a slot that ran does not run again."""
        t.script(Ringer, say("once"))
        declare(t.rt)
        t.skip(60)
        fired = rule(t.rt)
        t.rt.db.transact(lambda tx: schedules.end(t.rt, tx, fired.id))
        declare(t.rt)
        again = rules(t.rt)[-1]
        change_rule(t.rt, again.id, next_run_at=fired.last_slot_at, due_at=fired.last_slot_at)
        t.run_until_idle()

        assert again.id != fired.id
        assert [status for _, status, _ in slots(t.rt)] == ["done", "skipped"]
        assert slots(t.rt)[-1][2] == "has run before"


class TestLooking:
    def test_what_an_agent_has(self, t):
        """By id, by kind, method, task and time, the next one first; another agent's are not among them."""
        late = AGENT.schedule(120, "ring")
        soon = AGENT.schedule(60, "fail", metadata={"n": 1})
        cron = AGENT.schedule("0 9 * * *", "ring", {"a": 1})
        declare(t.rt, spec="every 3 hours")
        Ringer("b").schedule(1, "ring")
        ids = [each.schedule_id for each in AGENT.list_schedules()]

        def found(**wanted):
            return [each.schedule_id for each in AGENT.list_schedules(**wanted)]

        assert ids[:2] == [soon.schedule_id, late.schedule_id]
        assert len(ids) == 4
        assert found(kind=["cron"]) == [cron.schedule_id]
        assert found(method=AGENT.fail) == [soon.schedule_id]
        assert found(task_id="digest") == [ids[2]]
        assert found(due_before=NOON + timedelta(seconds=61)) == [soon.schedule_id]
        assert found(due_after=NOON + timedelta(hours=4)) == [cron.schedule_id]
        assert AGENT.get_schedule(cron.schedule_id).payload == {"a": 1}
        assert AGENT.get_schedule(soon.schedule_id).metadata == {"n": 1}
        assert Ringer("b").get_schedule(cron.schedule_id) is None
        assert AGENT.get_schedule("no\0where") is None
        with pytest.raises(InvalidValue, match="kind='weekly' is none of scheduled"):
            AGENT.list_schedules(kind="weekly")
        with pytest.raises(InvalidValue, match="limit"):
            AGENT.list_schedules(limit=0)
        with pytest.raises(InvalidValue, match="no time zone"):
            AGENT.list_schedules(due_before=datetime(2027, 1, 1))

    def test_by_id_whosever_it_is(self, t):
        """`current()` finds, lists and cancels the schedules of all agents."""
        from think_celery import current

        made = AGENT.schedule("0 9 * * *", "ring")
        think = current()

        assert think.get_schedule(made.schedule_id).agent == AGENT._ref
        assert [each.schedule_id for each in think.list_schedules(agent_class=Ringer)] == [made.schedule_id]
        assert think.list_schedules(agent_class="Nobody") == []
        with pytest.raises(TypeError, match="agent_class"):
            think.list_schedules(agent_class=7)
        assert think.cancel_schedule(made.schedule_id)
        assert not think.cancel_schedule(made.schedule_id)
        assert think.list_schedules() == []
        assert think.list_schedules(ended=True)[0].ended_at == NOON


class TestCancelling:
    def test_it_comes_no_more(self, t):
        """True once, then False; unknown ids and those of other agents are False. Its key is free again."""
        made = AGENT.schedule("* * * * *", "ring")

        assert not Ringer("b").cancel_schedule(made.schedule_id)
        assert not AGENT.cancel_schedule("nope")
        assert AGENT.cancel_schedule(made.schedule_id)
        assert not AGENT.cancel_schedule(made.schedule_id)
        t.skip("5 minutes")
        ended = AGENT.get_schedule(made.schedule_id)
        assert (Ringer.rung, ended.next_run_at, ended.ended_at) == ([], None, NOON)
        assert AGENT.schedule("* * * * *", "ring").accepted

    @pytest.mark.parametrize("what", ["prompt", "method"])
    def test_a_slot_that_has_not_begun_is_skipped(self, t, what):
        """Its turn is skipped, its job aborted, and neither runs."""
        if what == "prompt":
            declare(t.rt)
        else:
            AGENT.schedule("every minute", "ring")
        t.clock.advance(timedelta(minutes=1))
        assert schedules.fire_due(t.rt) == 1

        assert t.rt.db.transact(lambda tx: schedules.end(t.rt, tx, rule(t.rt).id))
        t.run_until_idle()

        assert slots(t.rt) == [("12:01:00", "skipped", "cancelled")]
        assert (Ringer.rung, AGENT.messages) == ([], [])

    def test_in_a_transaction_of_the_callers(self, t):
        """It is cancelled when the caller commits, and goes on if they roll back."""
        made = AGENT.schedule("every minute", "ring")
        with transaction(t.rt):
            assert AGENT.cancel_schedule(made.schedule_id)
        t.skip(60)
        with transaction(t.rt) as session:
            assert AGENT.cancel_schedule(made.schedule_id)
            session.commit()
        t.skip("5 minutes")

        assert Ringer.rung == [None]

    def test_one_that_came_once_and_waits_still_is_stopped(self, t):
        """A delay that is over has ended its schedule; as long as its job has not begun, cancelling stops it."""
        made = AGENT.schedule(60, "ring")
        t.clock.advance(timedelta(minutes=1))
        schedules.fire_due(t.rt)

        assert AGENT.get_schedule(made.schedule_id).ended_at is not None
        assert AGENT.cancel_schedule(made.schedule_id)
        assert not AGENT.cancel_schedule(made.schedule_id)
        t.run_until_idle()
        assert Ringer.rung == []

    def test_one_that_runs_goes_on(self, t):
        """The method in hand ends as it would have; its slot is done."""
        made = []

        def ring(self, payload=None):
            Ringer.rung.append(self.cancel_schedule(made[0].schedule_id))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ringer, "ring", ring)
            made.append(AGENT.schedule("every minute", "ring"))
            t.skip("3 minutes")

        assert Ringer.rung == [True]
        assert statuses(t.rt) == [("12:01:00", "done")]

    def test_destroying_an_agent_removes_its_schedules(self, t):
        """With their slots; nothing of them comes after it, and another agent's stay."""
        declare(t.rt)
        AGENT.schedule("every minute", "ring")
        other = Ringer("b").schedule("every minute", "ring", "b")
        t.clock.advance(timedelta(minutes=1))
        schedules.fire_due(t.rt)

        destroy(t.rt, AGENT._ref)
        t.skip("2 minutes")

        assert [each.id for each in rules(t.rt)] == [other.schedule_id]
        assert set(Ringer.rung) == {"b"}
        assert AGENT.messages == []

    def test_one_whose_transaction_was_open_when_its_agent_was_destroyed(self, t):
        """FR-22's other side: what commits after the end of its agent never comes."""
        AGENT.schedule("every minute", "ring", idempotent=False)
        before = rule(t.rt)
        t.clock.advance(timedelta(seconds=1))
        destroy(t.rt, AGENT._ref)
        AGENT.schedule("every minute", "ring")
        change_rule(t.rt, created_at=before.created_at)  # as if it had been stored then, and committed now
        t.skip("2 minutes")

        assert (Ringer.rung, rule(t.rt).ended_at is None) == ([], False)
