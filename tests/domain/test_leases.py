"""Leases: the fence, renewal, and how a worker learns that its work is cancelled, overdue or another's."""

import logging
import os
import threading
from datetime import timedelta

import pytest
from sqlalchemy import event, update

from tests.domain.crowd import (
    FORK,
    PATIENCE,
    Clerk,
    at_once,
    change,
    everything,
    line,
    prompt,
    row,
    said,
    transaction,
    wait_for_lock,
    workers,
)
from tests.domain.flows import start
from think_celery.domain import leases, recovery, tick
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.domain.workflows import advance
from think_celery.errors import LeaseLost, TurnCancelled
from think_celery.providers.scripted import FunctionModel, say
from think_celery.store import leases as lease_rows
from think_celery.store import lines as line_rows
from think_celery.store import processes, tables
from think_celery.store.database import Database


def submit(t, name="s", agent=Clerk):
    agent("a").submit_messages("Hello", submission_id=name)
    return name


@pytest.fixture
def held(t):
    """A claimed turn under the monitor's eyes."""
    claimed = claims.claim(t.rt, submit(t))
    with t.rt.monitor.hold(claimed.lease, submission_id="s", seconds=100) as hold:
        yield hold


def seize(t, lease):
    return t.rt.db.transact(lambda tx: line_rows.seize_from(tx, lease))


class TestRenewal:
    def test_a_caller_s_open_transaction_stops_nothing(self, postgres_url, by_hand):
        """While a caller that has submitted and cancelled keeps its transaction open, beats and turns go on."""
        with workers(postgres_url) as rt:
            agent = Clerk._bound_to(rt, "a")
            agent.submit_messages("one", submission_id="one")
            agent.submit_messages("two", submission_id="two")
            with transaction(rt):
                agent.submit_messages("open")
                agent.submit_messages("two", submission_id="two", idempotency_key="k")
                agent.cancel_submission("two")
                agent.cancel_submission("two")

                ended = at_once(1, lambda _: claims.claim(rt, "one"))[0]
                at_once(1, lambda _: rt.monitor.beat())

            assert turns.run(rt, ended).word == "completed"

    def test_it_has_its_own_connections(self, database_url):
        """When every other connection of the process is in use, renewal goes on."""
        with workers(database_url) as rt:
            rt.monitor.process_id()
            before = rt.monitor._renewed
            taken = [rt.db.engine.connect() for _ in range(15)]
            try:
                at_once(1, lambda _: rt.monitor.beat())
            finally:
                for connection in taken:
                    connection.close()

            assert rt.monitor._renewed > before

    def test_its_thread_survives_a_database_that_is_away(self, database_url, monkeypatch, caplog):
        """FR-13: whatever the database says, the next beat comes."""
        monkeypatch.setattr(leases, "RENEW_SECONDS", 0.01)
        caplog.set_level(logging.WARNING)
        with workers(database_url) as rt:
            rt.monitor.process_id()
            right = rt.monitor.db
            rt.monitor.db = Database("postgresql+psycopg://nobody@/think?host=/nowhere", rt.clock)
            until(lambda: "could not renew" in caplog.text)

            rt.monitor.db = right
            before = rt.monitor._renewed
            until(lambda: rt.monitor._renewed > before)

            assert rt.monitor._thread.is_alive()

    def test_after_a_restart_of_the_database_nobody_sees_an_error(self, postgres_url):
        """FR-13: every connection was closed by the server: beat, accept, turn and tick go on with new ones."""
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        with workers(postgres_url) as rt:
            agent = Clerk._bound_to(rt, "a")
            agent.submit_messages("Hello", submission_id="s")
            rt.monitor.process_id()
            admin = Database(postgres_url, rt.clock)

            def cut():
                admin.read(lambda tx: tx.conn.exec_driver_sql(f"{others} AND pid <> pg_backend_pid()").all())

            for call in (
                lambda: agent.submit_messages("More", submission_id="more"),
                rt.monitor.beat,
                lambda: tick.run(rt),
                lambda: claims.run(rt, "s"),
                lambda: claims.run(rt, "more"),
            ):
                cut()
                call()
            admin.dispose()

            assert said(agent, "assistant") == ["re: Hello", "re: More"]

    def test_one_beat_for_all_the_work_in_hand(self, t):
        """However many turns run, a beat is the same few statements, and one of them writes."""
        submit(t)
        first = claims.claim(t.rt, "s").lease

        def statements(count):
            seen = []
            with t.rt.monitor.hold(first, submission_id="s", seconds=99):
                holds = [
                    t.rt.monitor.hold(first, submission_id=f"s{number}", seconds=99)
                    for number in range(count)
                ]
                for hold in holds:
                    hold.__enter__()

                def note(*args):
                    seen.append(args[2])

                event.listen(t.rt.db.engine, "before_cursor_execute", note)
                t.rt.monitor.beat()
                event.remove(t.rt.db.engine, "before_cursor_execute", note)
                for hold in holds:
                    hold.__exit__(None, None, None)
            return seen

        few, many = statements(1), statements(50)

        assert len(many) == len(few)
        assert sum(statement.startswith("UPDATE") for statement in few) == 1


def until(condition):
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


class TestDeath:
    def test_dead_is_final(self, t, held):
        """A process declared dead renews nothing, loses its leases, and goes on under a new id."""
        before = t.rt.monitor.process_id()
        t.rt.db.transact(lambda tx: processes.declare_dead(tx, before, known=True))

        t.rt.monitor.beat()

        assert held.lost
        assert held.signal.aborted
        with pytest.raises(LeaseLost):
            held.check()
        assert t.rt.monitor.process_id() != before
        assert not t.rt.db.transact(lambda tx: processes.renew(tx, before, timedelta(seconds=15)))

    def test_a_process_that_stops_signs_off(self, database_url):
        """What it held needs no two looks; started again, it has another id and beats again."""
        with workers(database_url) as rt:
            before = rt.monitor.process_id()
            rt.monitor.stop()

            alive = [process_id for process_id, _ in rt.db.read(processes.alive)]
            again = rt.monitor.process_id()

            assert before not in alive
            assert again != before
            assert rt.monitor._thread.is_alive()

    def test_a_fork_is_another_process(self, database_url, by_hand):
        """The child has its own id, holds nothing, and no lock of the parent's stops it."""
        with workers(database_url) as rt:
            agent = Clerk._bound_to(rt, "a")
            agent.submit_messages("Hello", submission_id="s")
            claimed = claims.claim(rt, "s")
            answers = FORK.Queue()

            def child():
                lost = False
                try:
                    hold.check()
                except LeaseLost:
                    lost = True
                answers.put((lost, rt.monitor._holds, rt.monitor.process_id(), os.getpid()))

            with rt.monitor.hold(claimed.lease, submission_id="s", seconds=99) as hold:
                locked, done = threading.Event(), threading.Event()

                def hold_the_lock():
                    with rt.monitor._lock:
                        locked.set()
                        done.wait(PATIENCE)

                holder = threading.Thread(target=hold_the_lock)
                holder.start()
                locked.wait(PATIENCE)
                process = FORK.Process(target=child, daemon=True)
                process.start()
                lost, holds, process_id, pid = answers.get(timeout=PATIENCE)
                done.set()
                holder.join()
                process.join(PATIENCE)
                hold.check()

            assert (lost, holds) == (True, [])
            assert process_id != rt.monitor.process_id()
            assert pid != os.getpid()


class TestSignals:
    def test_a_cancel_comes_with_the_next_beat(self, t, held):
        """B6, FR-08: whoever cancels, from wherever: the worker learns of it in the database."""
        held.check()
        Clerk("a").cancel_submission("s")

        t.rt.monitor.beat()

        with pytest.raises(TurnCancelled):
            held.check()
        assert held.signal.reason == "cancelled"

    def test_a_callback_that_fails_is_its_own_work_s_alone(self, t, held, caplog):
        """The beat goes on, to all the other work; nobody else is told of what one work's callback raised."""
        Clerk("b").submit_messages("Hello", submission_id="other")
        claimed = claims.claim(t.rt, "other")
        held.signal.on_abort(lambda: 1 // 0)
        with t.rt.monitor.hold(claimed.lease, submission_id="other", seconds=100) as other:
            Clerk("a").cancel_submission("s")
            Clerk("b").cancel_submission("other")

            t.rt.monitor.beat()

            assert held.cancelled
            assert other.cancelled
        assert "ZeroDivisionError" in caplog.text

    @pytest.mark.parametrize("anew", [False, True])
    def test_also_of_one_that_was_deleted_at_once(self, t, held, anew):
        """It was cancelled and deleted between two beats; by now another may have its key, and so its id."""
        Clerk("a").cancel_submission("s")
        Clerk("a").delete_submission("s")
        if anew:
            Clerk("a").submit_messages("Hello", submission_id="s")

        t.rt.monitor.beat()

        assert held.cancelled

    def test_a_line_that_was_taken_away_is_lost(self, t, held):
        """Reset, and whoever else takes the line, is seen with the next beat."""
        seize(t, held.lease)

        t.rt.monitor.beat()

        assert held.lost

    def test_after_a_pause_the_database_is_asked_first(self, t, held):
        """Two thirds of a lease without renewal, and no effect begins before the lease is confirmed."""
        t.clock.advance(timedelta(seconds=9))
        held.check()
        before = t.rt.monitor._renewed
        t.clock.advance(timedelta(seconds=2))
        held.check()
        renewed = t.rt.monitor._renewed

        t.clock.advance(timedelta(seconds=11))
        seize(t, held.lease)

        assert renewed > before
        with pytest.raises(LeaseLost):
            held.check()

    def test_a_deadline_is_a_signal_and_then_the_end(self, t, held):
        """Past the deadline the signal; 30 s later the lease goes, and late writes are refused."""
        submit(t, "next")
        t.lose_messages()
        seen = []
        for seconds in (99, 2, 28, 3):
            t.clock.advance(timedelta(seconds=seconds))
            t.rt.monitor.beat()
            seen.append((held.overdue, held.lost, str(row(t.rt, "s").status)))

        assert seen == [
            (False, False, "running"),
            (True, False, "running"),
            (True, False, "running"),
            (True, True, "error"),
        ]
        assert row(t.rt, "s").error_type == "TurnTimeout"
        assert [knock.task_id for knock in t._knocks] == ["next"]
        with pytest.raises(LeaseLost):
            t.rt.db.transact(lambda tx: lease_rows.fence(tx, held.lease))

    def test_letting_go_is_tried_until_it_works(self, t, held, monkeypatch):
        """A database error at that moment does not leave the line held for ever."""
        right, failures = recovery.let_go, iter([1, 2])

        def let_go(rt, lease):
            if next(failures, None):
                raise ConnectionError("away")
            right(rt, lease)

        monkeypatch.setattr(recovery, "let_go", let_go)
        t.clock.advance(timedelta(seconds=131))
        for _ in range(3):
            t.rt.monitor.beat()

        assert row(t.rt, "s").status == "error"
        assert line(t.rt, Clerk("a")).process_id is None

    def test_letting_go_does_not_hold_up_the_beat(self, postgres_url, by_hand):
        """A caller has the row locked; the beat of the process goes on all the same."""
        with workers(postgres_url) as rt:
            agent = Clerk._bound_to(rt, "a")
            agent.submit_messages("Hello", submission_id="s")
            claimed = claims.claim(rt, "s")
            with rt.monitor.hold(claimed.lease, submission_id="s", seconds=-31) as hold:
                with transaction(rt):
                    agent.cancel_submission("s")
                    at_once(2, lambda _: rt.monitor.beat())
                    wait_for_lock(rt)
                until(lambda: row(rt, "s").status == "error")

            assert hold.lost

    def test_the_workflow_is_told_of_a_timeout(self, t):
        """The end of a turn that ignored its deadline is news as any other is."""
        waits = prompt(t.rt)
        claimed = claims.claim(t.rt, waits)
        with t.rt.monitor.hold(claimed.lease, submission_id=waits, seconds=1):
            t.clock.advance(timedelta(seconds=40))
            t.rt.monitor.beat()

        assert len(everything(t.rt)["think_outbox"]) == 1


class TestLeasesWithoutWork:
    def test_one_that_nobody_works_under_is_given_up(self, t):
        """Giving a line back failed, or a claim's answer got lost: it does not stay held as long as we live."""
        t.use_model(FunctionModel(lambda _: say("Hi")))
        claims.claim(t.rt, submit(t))

        for _ in range(4):
            t.clock.advance(timedelta(seconds=1))
            tick.run(t.rt)
        t.run_until_idle()

        assert row(t.rt, "s").status == "completed"
        assert row(t.rt, "s").takeovers == 2
        assert said(Clerk("a"), "assistant") == ["Hi"]

    def test_not_at_once(self, t):
        """Between its commit and the moment at which the work begins, a claim is nobody's: that is normal."""
        lease = claims.claim(t.rt, submit(t)).lease

        t.rt.monitor.beat()
        t.clock.advance(timedelta(seconds=1))
        t.rt.monitor.beat()

        assert t.rt.db.read(lambda tx: lease_rows.is_held(tx, lease))

    def test_work_that_begins_after_the_look_is_left_alone(self, t):
        """The beat is another thread's; among greenlets, one that computes keeps both the work and the news of it."""
        lease = claims.claim(t.rt, submit(t)).lease
        for _ in range(2):
            t.rt.monitor.beat()
            t.clock.advance(timedelta(seconds=1))
        news = list(t.rt.monitor._beat(t.rt.db))

        with t.rt.monitor.hold(lease, submission_id="s", seconds=100) as hold:
            for tell in news:
                tell()
            t.rt.monitor.beat()

            assert (len(news), hold.lost) == (1, False)
            assert t.rt.db.read(lambda tx: lease_rows.is_held(tx, lease))

    def test_work_in_hand_is_left_alone(self, t, held):
        """What somebody here works under is theirs, however long it takes."""
        for _ in range(10):
            t.clock.advance(timedelta(seconds=1))
            t.rt.monitor.beat()

        held.check()

    def test_a_workflow_s_too(self, t):
        """The same for the lease on a workflow."""
        handle = start(t.rt, lambda event, step: "done")
        advance.claim_run(t.rt, handle.ref)

        for _ in range(4):
            t.clock.advance(timedelta(seconds=1))
            t.rt.monitor.beat()
        t.run_until_idle()

        assert handle.status == "complete"

    def test_a_process_forgotten_long_ago(self, t):
        """What a process holds whose row is deleted by now is free, too: a line, and a workflow."""
        claims.claim(t.rt, submit(t))
        handle = start(t.rt, lambda event, step: "done")
        advance.claim_run(t.rt, handle.ref)
        change(t.rt, update(tables.lines).values(process_id="nobody"))
        change(t.rt, update(tables.workflows).values(process_id="nobody"))

        freed = recovery.sweep(t.rt)

        assert freed == 2
        assert line(t.rt, Clerk("a")).process_id is None
        assert handle.row.process_id is None
