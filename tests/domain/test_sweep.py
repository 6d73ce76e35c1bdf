"""Who is dead, and what becomes of their work: looked for again and again, never once and for all."""

import logging
import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from tests.domain.crowd import (
    FORK,
    PATIENCE,
    Clerk,
    broken,
    change,
    die,
    echo,
    line,
    row,
    said,
    transaction,
    workers,
)
from think_celery.domain import liveness, recovery, tick
from think_celery.domain.submissions import claims
from think_celery.store import messages as message_rows
from think_celery.store import processes, tables
from think_celery.testing import think_test

SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=15)
ELSEWHERE = {"boot": "another machine", "namespace": "pid:[1]", "pid": 1, "started": "1"}


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").use_model(echo())


def elsewhere(t, *names):
    """The turns of these agents run on another machine; its process's id. Nothing is known of it but its row."""
    claimed = []
    for name in names:
        Clerk(name).submit_messages("Hello", submission_id=name)
        claimed.append(claims.claim(t.rt, name))
    process_id = t.rt.monitor.forget_process()
    change(t.rt, update(tables.processes).where(tables.processes.c.id == process_id).values(host=ELSEWHERE))
    return process_id


def pass_time(t, *seconds):
    """Let that much time pass, with a pass at the end of each."""
    for span in seconds:
        t.clock.advance(timedelta(seconds=span))
        tick.watch(t.rt)


def is_dead(t, process_id):
    query = select(tables.processes.c.dead).where(tables.processes.c.id == process_id)
    return t.rt.db.read(lambda tx: tx.execute(query).scalar())


def renew(t, process_id):
    return t.rt.db.transact(lambda tx: processes.renew(tx, process_id, LEASE))


class TestTwoLooks:
    def test_two_seconds_apart(self, t):
        """The first look notes it, one at least two seconds later takes the work over."""
        process_id = elsewhere(t, "a")

        pass_time(t, 14.9)
        before = t.rt.db.read(processes.lapsed)
        pass_time(t, 1, 1)
        after_one = is_dead(t, process_id)
        pass_time(t, 1)

        assert (before, after_one, is_dead(t, process_id)) == ([], False, True)
        assert line(t.rt, Clerk("a")).process_id is None
        t.run_until_idle()
        assert (row(t.rt, "a").status, row(t.rt, "a").takeovers) == ("completed", 2)

    def test_a_renewal_between_them_clears_it(self, t):
        """Whoever renews before the second look is alive, and starts from the beginning."""
        process_id = elsewhere(t, "a")
        pass_time(t, 16, 1)

        renewed = renew(t, process_id)
        pass_time(t, 1, 1, 1)

        assert renewed
        assert not is_dead(t, process_id)
        pass_time(t, *[1] * 14)
        assert not is_dead(t, process_id)
        pass_time(t, 1)
        assert is_dead(t, process_id)

    def test_after_a_stall_of_everybody_nobody_is_dead(self, t):
        """The database was away for three leases; each gets time to renew before the second look."""
        process_id = elsewhere(t, "a")
        pass_time(t, *[1] * 5)

        pass_time(t, 45)
        first = is_dead(t, process_id)
        pass_time(t, 1)
        renewed = renew(t, process_id)
        pass_time(t, 1, 1, 1)

        assert (first, renewed, is_dead(t, process_id)) == (False, True, False)

    def test_looks_with_a_gap_between_them_start_over(self, t):
        """Passes more than three seconds apart are no watching: the process may have had no chance either."""
        process_id = elsewhere(t, "a")
        pass_time(t, 16)

        seen = []
        for gap in (3.1, 3.1, 10):
            pass_time(t, gap)
            seen.append(is_dead(t, process_id))
        pass_time(t, 2.9)

        assert seen == [False, False, False]
        assert is_dead(t, process_id)

    def test_a_pass_that_is_held_up_itself_does_not_judge(self, t):
        """It looked, then everything stood still, then it goes on: its look is not two."""
        process_id = elsewhere(t, "a")
        pass_time(t, 16)
        t.clock.advance(timedelta(seconds=10))

        declared = t.rt.db.transact(lambda tx: processes.declare_dead(tx, process_id))

        assert not declared

    def test_nor_does_one_that_went_on_after_a_gap(self, t):
        """Looks from before and after a gap between passes are not two, whoever made the pass between."""
        process_id = elsewhere(t, "a")
        pass_time(t, 16)
        t.clock.advance(timedelta(seconds=10))
        t.rt.db.transact(lambda tx: processes.admit(tx, processes.LIVENESS, SECOND))

        declared = t.rt.db.transact(lambda tx: processes.declare_dead(tx, process_id))

        assert not declared

    def test_one_renews_before_one_judges(self, t):
        """A worker that was held up itself does not find itself dead, nor its own work lost."""
        Clerk("a").submit_messages("Hello", submission_id="a")
        lease = claims.claim(t.rt, "a").lease
        with t.rt.monitor.hold(lease, submission_id="a", seconds=1000) as hold:
            pass_time(t, 40, 1, 1, 1)

            hold.check()

        assert not is_dead(t, lease.process_id)


class TestKnownDead:
    @pytest.fixture
    def child(self):
        """A process of this machine."""
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        yield process
        process.kill()
        process.wait()

    def facts(self, child, **changes):
        found = liveness._state_and_start(child.pid)
        return {**liveness.host_facts(), "pid": child.pid, "started": found[1], **changes}

    def test_one_that_runs_is_not(self, child):
        """As long as it is there with its own start time, nothing is proven."""
        assert not liveness.known_dead(self.facts(child))
        assert not liveness.known_dead(liveness.host_facts())

    def test_one_that_is_gone_is(self, child):
        """The pid is absent."""
        facts = self.facts(child)
        child.kill()
        child.wait()

        assert liveness.known_dead(facts)

    def test_a_zombie_is(self, child):
        """It has ended, though nobody has asked for its exit code."""
        facts = self.facts(child)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert liveness.known_dead(facts)

    def test_another_process_of_that_pid_is_another(self, child):
        """The pid was given to a new process, so the old one is gone."""
        assert liveness.known_dead(self.facts(child, started="1"))

    @pytest.mark.parametrize(
        "changes",
        [
            {"boot": "another"},
            {"boot": None},
            {"namespace": "pid:[1]"},
            {"namespace": None},
            {"started": None},
            {"pid": None},
            {"pid": "1"},
            {"pid": 0},
            {"pid": -1},
            {"pid": -(2**22) - 1},
        ],
    )
    def test_what_can_t_be_compared_proves_nothing(self, child, changes):
        """Another boot, another pid namespace (a container's), anything unreadable: wait."""
        facts = self.facts(child)
        child.kill()
        child.wait()

        assert not liveness.known_dead({**facts, **changes})

    @pytest.mark.parametrize("fact", ["boot", "namespace"])
    def test_nor_does_a_machine_that_shows_nothing(self, child, monkeypatch, fact):
        """Where our own facts can't be read, nothing is known of others."""
        facts = self.facts(child)
        child.kill()
        child.wait()
        monkeypatch.setattr(liveness, {"boot": "_boot_id", "namespace": "_pid_namespace"}[fact], lambda: None)

        assert not liveness.known_dead({**facts, fact: None})

    def test_it_needs_one_look(self, t, child):
        """Its work goes on with the next pass, long before its lease is over."""
        process_id = elsewhere(t, "a")
        facts = self.facts(child)
        child.kill()
        child.wait()
        here = tables.processes.c.id == process_id

        change(t.rt, update(tables.processes).where(here).values(host={**facts, "namespace": "pid:[1]"}))
        pass_time(t, 1)
        another_container = is_dead(t, process_id)
        change(t.rt, update(tables.processes).where(here).values(host=facts))
        pass_time(t, 1)

        assert (another_container, is_dead(t, process_id)) == (False, True)

    def test_a_worker_that_is_killed(self, database_url, by_hand):
        """FR-04, FR-05: kill -9 in the middle of a turn: the next pass frees it, it runs again, attempts = 2."""
        with workers(database_url) as rt:
            agent = Clerk._bound_to(rt, "a")
            agent.submit_messages("Hello", submission_id="a")
            claimed = FORK.Event()

            def child():
                claims.claim(rt, "a")
                claimed.set()
                signal.pause()

            worker = FORK.Process(target=child, daemon=True)
            worker.start()
            assert claimed.wait(PATIENCE)
            os.kill(worker.pid, signal.SIGKILL)
            worker.join(PATIENCE)

            freed = recovery.sweep(rt)
            again = claims.claim(rt, "a")

        assert (freed, again.attempt) == (1, 2)


class TestFreeing:
    def test_all_of_a_dead_worker_s_work_moves_on(self, t, caplog):
        """FR-15: 25 turns of a dead worker, and the database refuses one of them in the first pass."""
        names = [f"agent-{number:02}" for number in range(25)]
        process_id = elsewhere(t, *names)
        t.rt.db.transact(lambda tx: processes.declare_dead(tx, process_id, known=True))
        caplog.set_level(logging.CRITICAL, "think_celery.tick")

        with broken(t.rt, "think_lines", f"NEW.agent_id = '{Clerk(names[4])._ref.id}'"):
            pass_time(t, 1)
        held = [name for name in names if line(t.rt, Clerk(name)).process_id is not None]
        pass_time(t, 1)
        t.run_until_idle()

        assert held == [names[4]]
        assert {row(t.rt, name).status for name in names} == {"completed"}

    def test_a_row_that_somebody_has_locked_is_freed_later(self, postgres_url, caplog):
        """A caller's open transaction holds up its own agent's recovery, and no other's."""
        caplog.set_level(logging.CRITICAL, "think_celery.tick")
        with think_test(echo(), database_url=postgres_url) as t:
            process_id = elsewhere(t, "a", "b")
            t.rt.db.transact(lambda tx: processes.declare_dead(tx, process_id, known=True))
            with transaction(t.rt):
                Clerk("a").cancel_submission("a")
                Clerk("a").submit_messages("next", submission_id="next")
                Clerk("a").cancel_submission("next")
                pass_time(t, 1)
                freed = line(t.rt, Clerk("b")).process_id is None
            pass_time(t, 1)

            assert freed
            assert line(t.rt, Clerk("a")).process_id is None

    def test_a_line_without_a_running_turn_is_freed_too(self, t):
        """Its turn was cancelled, then its worker died: what it had said takes its place."""
        Clerk("a").submit_messages("Hello", submission_id="a")
        claimed = claims.claim(t.rt, "a")
        partial = {
            "message_id": claimed.message_id,
            "role": "assistant",
            "parts": [{"type": "text", "text": "Hel"}],
            "created_at": t.clock.now(),
        }
        t.rt.db.transact(lambda tx: message_rows.store_unfinished(tx, claimed.agent.id, partial))
        Clerk("a").cancel_submission("a")
        Clerk("a").submit_messages("next")
        die(t.rt)

        pass_time(t, 1)
        t.run_until_idle()

        assert line(t.rt, Clerk("a")).process_id is None
        assert [message.text for message in Clerk("a").messages] == ["Hello", "Hel", "next", "re: next"]

    def test_a_takeover_does_not_settle_what_goes_on(self, t):
        """The message of a turn that will be taken over keeps waiting for its end."""
        Clerk("a").submit_messages("Hello", submission_id="a")
        claimed = claims.claim(t.rt, "a")
        partial = {
            "message_id": claimed.message_id,
            "role": "assistant",
            "parts": [{"type": "text", "text": "Hel"}],
            "created_at": t.clock.now(),
        }
        t.rt.db.transact(lambda tx: message_rows.store_unfinished(tx, claimed.agent.id, partial))
        die(t.rt)

        pass_time(t, 1)

        stored = t.rt.db.read(lambda tx: message_rows.get(tx, claimed.agent.id, claimed.message_id))
        assert stored.status == message_rows.STREAMING
        assert said(Clerk("a")) == ["Hello"]

    def test_a_failing_look_at_processes_hides_nothing(self, t, caplog):
        """FR-15: a process that can't be declared dead keeps nobody else's work from moving on."""
        first = elsewhere(t, "a")
        second = elsewhere(t, "b")
        caplog.set_level(logging.CRITICAL, "think_celery.tick")

        with broken(t.rt, "think_processes", f"NEW.id = '{first}'"):
            pass_time(t, 16, 1, 1)

        assert not is_dead(t, first)
        assert is_dead(t, second)
        assert line(t.rt, Clerk("b")).process_id is None
