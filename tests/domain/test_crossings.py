"""Schedules and jobs that one transaction changes while another has them locked: nobody is the victim of a deadlock."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.domain.crowd import transaction, wait_for_lock, workers
from tests.domain.ringing import Ringer, declare, ringer, rules, slots
from tests.domain.test_schedule_races import make_due, work_off
from think_celery.domain.agents.removal import destroy
from think_celery.domain.schedules import schedules
from think_celery.ids import AgentRef
from think_celery.recurrence import parse
from think_celery.store import tables

SOON = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def silence():
    """No bell has rung yet."""
    Ringer.rung, Ringer.zone = [], None


def beside(work: Callable[[], Any]) -> threading.Thread:
    """Do that in another thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    """Wait for it."""
    thread.join(60)
    assert not thread.is_alive(), "a thread hangs"


class TestDestroying:
    def test_waits_for_a_job_that_a_caller_has_locked_with_no_lock_held(self, postgres_url):
        """A caller that has cancelled a job may go on with turns of the agent; its agent is destroyed after that."""
        with workers(postgres_url) as rt:
            agent = ringer(rt)
            job, turn = agent.queue("ring", 1), agent.submit_messages("hi")
            with transaction(rt) as session:
                assert agent.cancel_job(job.job_id)
                other = beside(partial(destroy, rt, agent._ref))
                wait_for_lock(rt)
                assert agent.cancel_submission(turn.submission_id)
                session.commit()
            ended(other)

            assert (agent.list_jobs(), agent.list_submissions(), agent.messages) == ([], [], [])

    def test_ends_what_commits_late_though_the_agent_is_there_again(self, postgres_url):
        """A schedule that was made before and commits after never comes, whoever has asked for the agent since."""
        with workers(postgres_url) as rt:
            agent = ringer(rt)
            with transaction(rt) as session:
                agent.schedule("every 10 minutes", "ring", "old")
                ended(beside(partial(destroy, rt, agent._ref)))
                ended(beside(agent.start))
                session.commit()
            make_due(rt, SOON)
            schedules.fire_due(rt)

            assert slots(rt) == []
            assert agent.list_schedules() == []

    @pytest.mark.parametrize("what", ["method", "task"])
    def test_leaves_nothing_that_a_new_life_would_take_for_its_own(self, postgres_url, what):
        """The same call after that makes a schedule of its own, which does come."""
        with workers(postgres_url) as rt:
            agent = ringer(rt)
            make: Callable[[], Any] = partial(agent.schedule, "every 10 minutes", "ring")
            if what == "task":
                make = partial(rt.db.accept, partial(declared, rt))
            with transaction(rt) as session:
                make()
                ended(beside(partial(destroy, rt, agent._ref)))
                session.commit()
            make()
            make_due(rt, SOON)
            schedules.fire_due(rt)

            assert [status for _, status, _ in slots(rt)] == ["open"]
            assert [rule.ended_at is None for rule in rules(rt)] == [False, True]


def declared(rt: Any, tx: Any) -> bool:
    """Declare a task in this transaction."""
    rule = parse("every 10 minutes")
    ref = AgentRef("Ringer", "a")
    return schedules.upsert_declared(
        rt, tx, ref, "digest", rule, "every 10 minutes", digest="1", version="1", prompt="Write it."
    )


class TestCancelling:
    @pytest.mark.parametrize("what", ["method", "prompt"])
    def test_skips_a_slot_whose_work_a_tick_has_locked_just_then(self, postgres_url, what):
        """Nobody looks at the slot of an ended schedule again, so the cancellation does, when the lock is gone."""
        table = tables.jobs if what == "method" else tables.submissions
        with workers(postgres_url) as rt:
            agent = ringer(rt)
            if what == "method":
                agent.schedule("every 10 minutes", "ring", "never")
            else:
                declare(rt, spec="every 10 minutes")
            make_due(rt)
            schedules.fire_due(rt)
            [made] = agent.list_schedules()
            held, gone = threading.Event(), threading.Event()

            def hold(tx: Any) -> None:
                tx.execute(update(table).values(knocks=1))
                held.set()
                gone.wait(60)

            tick = beside(partial(rt.db.transact, hold))
            assert held.wait(60)
            cancels = beside(partial(agent.cancel_schedule, made.schedule_id))
            wait_for_lock(rt)
            gone.set()
            ended(tick)
            ended(cancels)
            work_off(rt)

            assert [(status, reason) for _, status, reason in slots(rt)] == [("skipped", "cancelled")]
            assert (Ringer.rung, agent.messages) == ([], [])
            [row] = rt.db.read(lambda tx: list(tx.execute(select(table.c.status))))
            assert row.status in ("aborted", "skipped")


class TestLanes:
    def test_the_one_behind_a_call_that_is_just_cancelled_is_looked_for(self, postgres_url):
        """The first of a lane ends while a caller cancels the second: the tick comes for the third by itself."""
        with workers(postgres_url) as rt:
            agent = ringer(rt)
            first, second, third = (agent.queue("ring", number) for number in (1, 2, 3))
            rt.knock = lambda knock: None  # every message is lost from here on
            rt.db.transact(lambda tx: tx.execute(update(tables.jobs).values(knock_at=None)))
            with transaction(rt) as session:
                assert agent.cancel_job(second.job_id)
                other = beside(lambda: agent.cancel_job(first.job_id))
                wait_for_lock(rt)
                session.commit()
            ended(other)

            query = select(tables.jobs.c.id).where(tables.jobs.c.knock_at.is_not(None))
            assert rt.db.read(lambda tx: tx.execute(query).scalars().all()) == [third.job_id]
