"""Schedules that many processes fire at one moment, or that are cancelled, declared or ended just then."""

import os
import signal
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import select

from tests.domain.crowd import FORK, at_once, count, in_processes, workers
from tests.domain.ringing import Ringer, change_rule, declare, ringer, rules
from think_celery.clock import SystemClock
from think_celery.domain.agents.removal import destroy
from think_celery.domain.schedules import schedules
from think_celery.domain.work import perform
from think_celery.states import SlotStatus
from think_celery.store import health, tables
from think_celery.store.schedule_tables import slots as slot_table

ROUNDS = 4
AGO = timedelta(seconds=90)


@pytest.fixture(autouse=True)
def silence():
    """No bell has rung yet."""
    Ringer.rung, Ringer.zone = [], None


def make_due(rt, ago=AGO):
    """Let the next slot of every schedule be so long ago."""
    then = rt.db.read(health.now) - ago
    change_rule(rt, next_run_at=then, due_at=then, anchor_at=then - timedelta(minutes=10), last_slot_at=None)


def fire_all(rt):
    """Fire until nothing is due, as one process does; how many that were."""
    done = 0
    while (due := schedules.next_due(rt)) is not None and due <= rt.db.read(health.now):
        done += schedules.fire_due(rt, 25)
    return done


def work_off(rt):
    """Do the work of every message that is under way, as one worker does."""
    knocks = rt.knock.__self__
    while knocks:
        perform(rt, knocks.pop(0))


def open_slots(rt):
    """The slots that are open, and the unfinished work of slots."""
    work = [
        rt.db.read(
            lambda tx, table=table: list(
                tx.execute(
                    select(table.c.id, table.c.slot_id).where(
                        table.c.slot_id.is_not(None), table.c.status.in_(["pending", "running"])
                    )
                )
            )
        )
        for table in (tables.jobs, tables.submissions)
    ]
    opened = rt.db.read(
        lambda tx: list(tx.execute(select(slot_table).where(slot_table.c.status == SlotStatus.OPEN)))
    )
    return {row.id for row in opened}, {row.slot_id for rows in work for row in rows}


class TestFiring:
    def test_by_eight_threads_each_slot_comes_once(self, database_url):
        """FR-20, FR-21: eight that fire the same twelve schedules at once make twelve jobs and twelve slots."""
        with workers(database_url) as rt:
            for number in range(6):
                ringer(rt).schedule("every 10 minutes", "ring", number)
                declare(rt, f"task-{number}", "every 10 minutes")
            make_due(rt)

            fired = at_once(8, lambda _: fire_all(rt))

            assert sum(fired) == 12
            assert (count(rt, slot_table), count(rt, tables.jobs), count(rt)) == (12, 6, 6)
            opened, unfinished = open_slots(rt)
            assert opened == unfinished

    def test_by_processes_with_clocks_of_their_own(self, postgres_url):
        """FR-19: three processes, one an hour ahead and one an hour behind: the database's clock decides."""
        with workers(postgres_url) as rt:
            ringer(rt).schedule("30 minutes", "ring", "later")
            ringer(rt).schedule("every 10 minutes", "ring", "due", idempotent=False)
            due = rules(rt)[-1].id
            then = rt.db.read(health.now) - AGO
            change_rule(rt, due, next_run_at=then, due_at=then, anchor_at=then)

        def child(number, ready):
            class Skewed(SystemClock):
                def now(self):
                    return super().now() + timedelta(hours=number - 1)

            with workers(postgres_url) as rt:
                rt.clock = rt.db.clock = Skewed()
                ready()
                return fire_all(rt)

        fired = in_processes(3, child)
        with workers(postgres_url) as rt:
            assert (sum(fired), count(rt, slot_table), count(rt, tables.jobs)) == (1, 1, 1)
            assert [rule.next_run_at > rt.db.read(health.now) for rule in rules(rt)] == [True, True]

    def test_two_passes_over_a_crowd_share_the_work(self, database_url):
        """Thousands of agents: what one has locked the other leaves out; nobody waits, and none comes twice."""
        with workers(database_url) as rt:
            for number in range(60):
                ringer(rt, f"a{number}").schedule("every 10 minutes", "ring")
            make_due(rt)

            assert sum(at_once(2, lambda _: fire_all(rt))) == 60
            assert count(rt, tables.jobs) == 60

    def test_of_one_that_is_killed_another_goes_on(self, database_url):
        """FR-20: kill -9 with a slot under way: nothing of it is stored, and the next pass fires it, once."""
        with workers(database_url) as rt:
            ringer(rt).schedule("every 10 minutes", "ring")
            declare(rt, spec="every 10 minutes")
            make_due(rt)

        def die():
            with workers(database_url) as rt:
                rt.failpoint = lambda point: os.kill(os.getpid(), signal.SIGKILL)
                fire_all(rt)

        child = FORK.Process(target=die)
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL

        with workers(database_url) as rt:
            before = count(rt, slot_table), count(rt, tables.jobs), count(rt)
            assert fire_all(rt) == 2
            assert (before, count(rt, slot_table), count(rt, tables.jobs), count(rt)) == ((0, 0, 0), 2, 1, 1)


class TestMeanwhile:
    @pytest.mark.parametrize("what", ["prompt", "method"])
    def test_it_is_cancelled(self, database_url, what):
        """Cancelled before, it never comes; after, its slot is skipped: in no case does anything of it run."""
        for number in range(ROUNDS):
            with workers(database_url) as rt:
                agent = ringer(rt, f"{what}{number}")
                if what == "prompt":
                    declare(rt, spec="every 10 minutes", agent=agent.name)
                else:
                    agent.schedule("every 10 minutes", "ring")
                [made] = agent.list_schedules()
                then = rt.db.read(health.now) - AGO
                change_rule(rt, made.schedule_id, next_run_at=then, due_at=then)

                both = (partial(schedules.fire_due, rt), partial(agent.cancel_schedule, made.schedule_id))
                at_once(2, lambda n, both=both: both[n]())
                work_off(rt)

                assert agent.list_schedules() == []
                assert (Ringer.rung, agent.messages) == ([], [])
                assert {slot.status for slot in agent.list_slots(made.schedule_id)} <= {"skipped"}
                assert open_slots(rt) == (set(), set())

    def test_it_is_declared_again_in_another_way(self, database_url):
        """FR-23: the slot that was due comes once or, where the change was first, not at all; never twice."""
        for number in range(ROUNDS):
            with workers(database_url) as rt:
                name = f"r{number}"
                declare(rt, spec="every 10 minutes", agent=name)
                [made] = ringer(rt, name).list_schedules()
                then = rt.db.read(health.now) - AGO
                change_rule(rt, made.schedule_id, next_run_at=then, due_at=then)

                def act(number, rt=rt, name=name):
                    if number < 2:
                        schedules.fire_due(rt)
                    else:
                        declare(rt, spec=f"every {number + 9} minutes", agent=name)

                at_once(4, act)
                found = ringer(rt, name).list_slots(made.schedule_id)
                [after] = ringer(rt, name).list_schedules()

                assert len(found) <= 1
                assert after.next_run_at > rt.db.read(health.now)
                assert len(ringer(rt, name).list_submissions()) == len(found)

    @pytest.mark.parametrize("what", ["prompt", "method"])
    def test_the_one_before_it_ends(self, database_url, what):
        """A slot comes as the turn or the job of the one before ends: it is skipped or it runs, and never stuck."""
        for number in range(ROUNDS):
            with workers(database_url) as rt:
                agent = ringer(rt, f"e{number}")
                if what == "prompt":
                    declare(rt, spec="every 10 minutes", agent=agent.name)
                else:
                    agent.schedule("every 10 minutes", "ring")
                [made] = agent.list_schedules()

                def fire(ago, rt=rt, made=made):
                    then = rt.db.read(health.now) - ago
                    change_rule(rt, made.schedule_id, next_run_at=then, due_at=then)
                    fire_all(rt)

                fire(2 * AGO)
                [knock] = rt.knock.__self__
                both = (partial(fire, AGO), partial(perform, rt, knock))
                at_once(2, lambda n, both=both: both[n]())
                if (
                    len(agent.list_slots(made.schedule_id)) == 1
                ):  # it was claimed just then: looked at a second later
                    change_rule(rt, made.schedule_id, due_at=rt.db.read(health.now))
                    fire_all(rt)
                work_off(rt)

                found = {str(slot.status) for slot in agent.list_slots(made.schedule_id)}
                assert len(agent.list_slots(made.schedule_id)) == 2
                assert found in ({"done"}, {"done", "skipped"})
                assert open_slots(rt) == (set(), set())

    def test_its_agent_is_destroyed(self, database_url):
        """Nothing of it is left, whoever was first; nobody waits for the other for ever."""
        for number in range(ROUNDS):
            with workers(database_url) as rt:
                agent = ringer(rt, f"d{number}")
                for task in ("a", "b"):
                    declare(rt, task, "every 10 minutes", agent=agent.name)
                    make_due(rt, 2 * AGO)
                    fire_all(rt)
                make_due(rt)

                three = (partial(destroy, rt, agent._ref), *[partial(schedules.fire_due, rt)] * 2)
                at_once(3, lambda n, three=three: three[n]())
                work_off(rt)

                assert agent.list_schedules() == []
                assert (agent.list_submissions(), agent.messages) == ([], [])
                assert open_slots(rt) == (set(), set())

    def test_the_same_call_is_scheduled_by_many(self, database_url):
        """FR-22: while it fires, twenty calls find the one schedule that there is."""
        with workers(database_url) as rt:
            agent = ringer(rt)
            made = agent.schedule("every 10 minutes", "ring")
            make_due(rt)

            def act(number):
                if number:
                    return {agent.schedule("every 10 minutes", "ring").schedule_id for _ in range(5)}
                fire_all(rt)
                return {made.schedule_id}

            found = set().union(*at_once(5, act))

            assert found == {made.schedule_id}
            assert len(agent.list_slots(made.schedule_id)) == 1
