"""``step.transaction``: what it writes and its journal entry are one commit."""

import threading
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select, text, update

from tests.domain.flows import DESK, Desk, Handle, begin, seize_of, start, worker
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import workflows
from think_celery.errors import StepError
from think_celery.ids import WorkflowRef
from think_celery.retries import Retry
from think_celery.runtime import Runtime
from think_celery.testing import ThinkTest

ONCE = Retry(max_attempts=1)
meta = MetaData()
payments = Table(
    "payments", meta, Column("id", Integer, primary_key=True), Column("what", String(50), nullable=False)
)


def create(rt: Runtime) -> None:
    """A table of the user's; PostgreSQL's test database may have it from another test."""
    rt.db.transact(lambda tx: (meta.drop_all(tx.conn), meta.create_all(tx.conn)))


def paid(rt: Runtime) -> list[str]:
    return rt.db.read(
        lambda tx: list(tx.conn.execute(select(payments.c.what).order_by(payments.c.id)).scalars())
    )


def pay(what: str = "book") -> Any:
    return lambda conn: conn.execute(insert(payments).values(what=what)) and what


class TestExactlyOnce:
    @pytest.mark.parametrize("point", ["before", "before-commit", "ran", "committed"])
    def test_a_crash_anywhere_leaves_one_row(self, t: ThinkTest, point: str):
        """The effect and the entry commit together, so a crash at any point leaves exactly one."""
        create(t.rt)
        t.crash_at(f"step:pay:{point}")

        workflow = begin(t, lambda event, step: step.transaction("pay", pay()))

        assert t.crashes == [f"step:pay:{point}"]
        assert workflow.output == "book"
        assert paid(t.rt) == ["book"]

    def test_a_failed_attempt_leaves_nothing(self, t: ThinkTest):
        """An exception rolls back what its attempt wrote; the next attempt begins afresh."""
        create(t.rt)
        tries: list[int] = []

        def flaky(conn):
            conn.execute(insert(payments).values(what=f"try {len(tries)}"))
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("not yet")
            return len(tries)

        workflow = begin(
            t, lambda event, step: step.transaction("pay", flaky, retry=Retry(delay=1, backoff="constant"))
        )

        assert workflow.output == 3
        assert paid(t.rt) == ["try 2"]

    def test_a_result_that_cannot_be_stored_rolls_back(self, t: ThinkTest):
        """No entry, no effect: a value that the codec refuses undoes the whole, and fails for good."""
        create(t.rt)

        def run(event, step):
            try:
                step.transaction(
                    "pay", lambda conn: conn.execute(insert(payments).values(what="x")) and {1, 2}
                )
            except StepError as error:
                return [error.error_type, error.attempts]

        assert begin(t, run).output == ["NotSerializable", 1]
        assert paid(t.rt) == []

    def test_a_worker_that_lost_its_lease_commits_nothing(self, t: ThinkTest):
        """The fence is the last statement: with the lease gone, what the function wrote is undone."""
        create(t.rt)
        process = t.rt.monitor.process_id()

        def taken_over(point: str) -> None:
            if point == "step:pay:before":
                assert t.rt.db.transact(lambda tx: seize_of(tx, workflow.ref.key, process))

        workflow = start(t.rt, lambda event, step: step.transaction("pay", pay()))
        t.rt.failpoint = taken_over
        outcome = workflow.advance()

        assert outcome.word == "lease-lost"
        assert paid(t.rt) == []
        assert workflow.keys == []
        assert workflow.status == "running"

    def test_the_fence_comes_last(self, postgres_url: str):
        """While the function runs, no lock of ours is on the workflow's row: an event gets in at once."""
        done: list[str] = []

        def run(event, step):
            def body(conn):
                sender = threading.Thread(target=lambda: workflow.send("go") or done.append("sent"))
                sender.start()
                sender.join(10)
                done.append("function")

            step.transaction("pay", body)

        with worker(postgres_url) as rt:
            workflow = start(rt, run)
            workflow.advance()

        assert done == ["sent", "function"]


class TestJoining:
    def test_our_own_calls_join_it(self, t: ThinkTest):
        """A submission, a workflow and an event made inside are there if the step commits…"""

        def run(event, step):
            def body(conn):
                Desk("front").submit_messages("hello", idempotency_key="k")
                DESK.run_workflow("Other", {"n": 1}, workflow_id="child")
                DESK.send_workflow_event("Other", "child", type="early", payload=5)
                return "ok"

            return step.transaction("all", body)

        other = start(
            t.rt, lambda event, step: step.wait_for_event("e", type="early").payload, id="x", name="Other"
        )
        t.script(Desk, *_nothing())
        workflow = begin(t, run)
        child = Handle(t.rt, WorkflowRef("Other", "child"))

        assert workflow.output == "ok"
        assert submissions.get_by_key(t.rt, DESK._ref, "k").status == "completed"
        assert child.output == 5
        assert other.status == "waiting"

    def test_they_are_gone_if_it_fails(self, t: ThinkTest):
        """…and are not if it fails: no submission, no workflow, no event, no knock."""
        start(t.rt, lambda event, step: None, id="x", name="Other")
        t.run_until_idle()

        def run(event, step):
            def body(conn):
                Desk("front").submit_messages("hello", idempotency_key="k")
                DESK.run_workflow("Other", workflow_id="child")
                DESK.send_workflow_event("Other", "child", type="early", payload=5)
                raise ValueError("no")

            step.transaction("all", body, retry=ONCE)

        workflow = begin(t, run)

        assert workflow.row.error_type == "StepError"
        assert submissions.get_by_key(t.rt, DESK._ref, "k") is None
        assert workflows.get(t.rt, WorkflowRef("Other", "child")) is None

    def test_other_steps_inside_are_refused(self, t: ThinkTest):
        """A step inside the transaction would be recorded on another connection: StepMisuse."""
        create(t.rt)

        def run(event, step):
            step.transaction("outer", lambda conn: pay()(conn) and step.do("inner", lambda: 1))

        workflow = begin(t, run)

        assert "StepMisuse" in workflow.row.error
        assert paid(t.rt) == []


class TestLimits:
    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_the_function_may_not_end_it(self, t: ThinkTest, end: str):
        """A function that commits by itself breaks the unit: StepMisuse says so, and no retry repeats it."""
        create(t.rt)
        calls: list[int] = []

        def body(conn):
            calls.append(1)
            getattr(conn, end)()

        workflow = begin(t, lambda event, step: step.transaction("pay", body))

        assert "StepMisuse" in workflow.row.error
        assert "ended the transaction itself" in workflow.row.error
        assert calls == [1]

    def test_a_savepoint_inside_is_fine(self, t: ThinkTest):
        """A part may be undone with a nested transaction."""
        create(t.rt)

        def body(conn):
            try:
                with conn.begin_nested():
                    conn.execute(insert(payments).values(id=1, what="undone"))
                    raise ValueError
            except ValueError:
                conn.execute(insert(payments).values(id=1, what="done"))

        begin(t, lambda event, step: step.transaction("pay", body))

        assert paid(t.rt) == ["done"]

    def test_one_that_takes_too_long_is_rolled_back(self, t: ThinkTest):
        """Longer than 5 s (SQLite: a third of the lease): rolled back, a failed attempt, said in the error."""
        create(t.rt)

        def body(conn):
            conn.execute(insert(payments).values(what="slow"))
            t.clock.sleep(5.5)

        workflow = begin(t, lambda event, step: step.transaction("pay", body, retry=ONCE))

        assert "TransactionTooLong" in workflow.row.error
        assert paid(t.rt) == []

    def test_postgresql_ends_a_statement_that_hangs(self, postgres_url: str, monkeypatch):
        """`statement_timeout` ends the statement itself: others don't wait for a hanging one."""
        monkeypatch.setattr("think_celery.domain.steps.effects.TRANSACTION_SECONDS", 0.3)
        with worker(postgres_url) as rt:
            create(rt)
            workflow = start(
                rt,
                lambda event, step: step.transaction(
                    "hang", lambda conn: conn.execute(text("SELECT pg_sleep(20)")) and None, retry=ONCE
                ),
            )
            workflow.advance()

            assert workflow.row.error_type == "StepError"
            assert "QueryCanceled" in workflow.row.error

    def test_a_deadlock_is_a_failed_attempt(self, postgres_url: str):
        """The function is a user's and runs once an attempt: a deadlock victim is counted, not repeated silently."""
        attempts: list[int] = []
        with worker(postgres_url) as rt:
            create(rt)
            rt.db.transact(
                lambda tx: tx.conn.execute(insert(payments), [{"id": 1, "what": "a"}, {"id": 2, "what": "b"}])
            )
            first, second = threading.Event(), threading.Event()

            def lock(conn, id):
                conn.execute(update(payments).where(payments.c.id == id).values(what="locked"))

            def other():
                def work(tx):
                    # It waits less long than the other for the deadlock to be found, so the other is the victim.
                    tx.conn.execute(text("SET LOCAL deadlock_timeout = '60s'"))
                    lock(tx.conn, 2)
                    second.set()
                    first.wait(10)
                    lock(tx.conn, 1)

                rt.db.transact(work)

            def body(conn):
                attempts.append(1)
                if len(attempts) > 1:
                    return "done"
                conn.execute(text("SET LOCAL deadlock_timeout = '100ms'"))
                lock(conn, 1)
                second.wait(10)
                first.set()
                lock(conn, 2)
                return "no deadlock"

            thread = threading.Thread(target=other)
            thread.start()
            workflow = start(
                rt, lambda event, step: step.transaction("pay", body, retry=Retry(max_attempts=2, delay=0))
            )
            workflow.advance()
            thread.join(20)

            assert workflow.output == "done"
            assert attempts == [1, 1]
            assert workflow.journal[0].attempts == 1

    def test_it_takes_one_argument(self, quick: ThinkTest):
        """A function without the connection is refused before anything runs."""
        workflow = begin(quick, lambda event, step: step.transaction("pay", lambda: 1))

        assert workflow.row.error_type == "StepMisuse"


def _nothing():
    from think_celery.providers.scripted import say

    return [say("Hello.")]
