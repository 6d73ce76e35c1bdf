"""What the database says of how the work goes: each fault is found, named, and told with what to do."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from tests.domain.crowd import Clerk, change, die
from tests.domain.flows import DESK, begin, flow
from tests.domain.porter import porter
from think_celery import Think
from think_celery.cli import checks
from think_celery.cli.checks import Finding
from think_celery.cli.common import Given
from think_celery.clock import SystemClock
from think_celery.domain import health, tick
from think_celery.domain.submissions import claims
from think_celery.domain.turns import takeover
from think_celery.domain.workflows import advance
from think_celery.ids import WorkflowRef
from think_celery.store import heads, submissions, tables
from think_celery.store.database import Database
from think_celery.testing import ThinkTest, think_test
from think_celery.worker.inspection import Worker, Workers

GIVEN = Given(app="shop")
NOBODY = Workers(answered=[], route=lambda task: "celery")
NOT_ASKED = Workers(answered=None, route=lambda task: "celery")
ABLE = Worker(
    name="w1",
    queues=frozenset({"celery"}),
    agents=frozenset({"Clerk", "Desk"}),
    workflows={"Flow": ["1"]},
    slots=4,
    busy=1,
)


@pytest.fixture
def t(database_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=database_url) as test:
        yield test


@pytest.fixture
def quick(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


def one(**changes: Any) -> Workers:
    """One worker, that is like ABLE but for these."""
    told = {name: getattr(ABLE, name) for name in ABLE.__dataclass_fields__} | changes
    return Workers(answered=[Worker(**told)], route=lambda task: "celery")


def only(found: list[Finding]) -> Finding:
    """The one finding that there is."""
    (finding,) = found
    return finding


def start(t: ThinkTest) -> WorkflowRef:
    """A run that no worker has begun."""
    ref = WorkflowRef("Flow", "run-1")
    flow(lambda event, step: "done")
    DESK.run_workflow("Flow", {}, workflow_id=ref.workflow_id)
    t.lose_messages()
    return ref


def later(t: ThinkTest, **span: float) -> None:
    """Let time pass in which nobody looks."""
    t.clock.advance(timedelta(**span))


class TestTheDatabase:
    def test_a_schema_is_current_older_or_newer(self, t: ThinkTest) -> None:
        """Older stops the workers and is a problem; newer serves, as in a rolling release."""

        def at(version: str) -> Finding:
            statement = f"UPDATE think_alembic_version SET version_num = '{version}'"
            t.rt.db.transact(lambda tx: tx.conn.exec_driver_sql(statement))
            return only(checks.schema(t.rt.db, GIVEN))

        fine = only(checks.schema(t.rt.db, GIVEN))
        needed = fine.text.split("schema ")[1].split()[0]
        older, newer = at("0000"), at("9999")
        at(needed)

        assert (fine.level, older.level, newer.level) == ("ok", "problem", "warning")
        assert "think-celery db upgrade -A shop" in older.text
        assert ("SQLite" in fine.text) != ("PostgreSQL" in fine.text)

    def test_one_without_tables_is_a_problem(self, empty_database_url: str) -> None:
        """And says how to make them."""
        db = Database(empty_database_url, SystemClock())
        try:
            finding = only(checks.schema(db, GIVEN))
        finally:
            db.dispose()

        assert (finding.level, "think-celery db upgrade -A shop" in finding.text) == ("problem", True)

    @pytest.mark.parametrize(("seconds", "how"), [(5, "behind"), (-5, "ahead of"), (0.2, None)])
    def test_a_database_whose_clock_is_another_is_told(
        self, postgres_url: str, seconds: float, how: str | None
    ) -> None:
        """More than a second apart is a warning: leases and due times go by the database's clock."""

        class Off(SystemClock):
            def now(self) -> datetime:
                return super().now() + timedelta(seconds=seconds)

        db = Database(postgres_url, SystemClock())
        try:
            finding = only(checks.clocks(db, Off()))
        finally:
            db.dispose()

        assert finding.level == ("ok" if how is None else "warning")
        assert how is None or re.search(rf"[45]\.\d\d\d s {how} this machine", finding.text)

    def test_sqlite_has_no_clock_of_its_own(self, quick: ThinkTest) -> None:
        """So there is nothing to compare."""
        assert only(checks.clocks(quick.rt.db, SystemClock())).level == "ok"


class TestWhoLooks:
    def test_somebody_looks_nobody_looks_nobody_ever_did(self, t: ThinkTest) -> None:
        """Each kind of pass counts: one that has stopped is a problem, though the other goes on."""
        never = only(checks.passes(t.rt.db))
        tick.run(t.rt)
        fresh = only(checks.passes(t.rt.db))
        later(t, seconds=30)
        tick.watch(t.rt)
        half = only(checks.passes(t.rt.db))

        assert [each.level for each in (never, fresh, half)] == ["problem", "ok", "problem"]
        assert "Start a worker" in never.text
        assert "30 seconds" in half.text
        assert "'work'" in half.text

    def test_leases_of_the_living_the_lapsed_and_the_long_dead(self, t: ThinkTest) -> None:
        """A holder that is out of time is taken over within seconds; after a minute something is wrong."""
        Clerk("a").submit_messages("Hello", submission_id="s-1")
        claims.claim(t.rt, "s-1")
        found = [only(checks.leases(t.rt.db))]
        later(t, seconds=20)
        found.append(only(checks.leases(t.rt.db)))
        later(t, minutes=2)
        found.append(only(checks.leases(t.rt.db)))
        t.rt.monitor.forget_process()
        change(t.rt, tables.processes.delete())
        found.append(only(checks.leases(t.rt.db)))
        for _ in range(4):
            later(t, seconds=1)
            tick.watch(t.rt)
        found.append(only(checks.leases(t.rt.db)))

        assert [each.level for each in found] == ["ok", "warning", "problem", "problem", "ok"]
        assert "turn " in found[1].text


class TestWaiting:
    def test_nothing_waits(self, t: ThinkTest) -> None:
        """Then one line says so; turns behind another, and runs that are parked, don't count."""
        begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        t.run_until_idle()

        assert only(checks.waiting(t.rt.db, NOBODY, GIVEN)).level == "ok"

    @pytest.mark.parametrize(
        ("who", "level", "words"),
        [
            (NOBODY, "problem", "no worker that answered listens to it"),
            (one(), "ok", "none of them in vain"),
            (one(queues=frozenset({"other"})), "problem", "worker -Q celery"),
            (one(knows_us=False), "problem", "no worker that answered listens to it"),
            (one(agents=frozenset({"Desk"})), "problem", "has imported Clerk"),
            (NOT_ASKED, "ok", "none of them in vain"),
        ],
    )
    def test_a_turn_waits_in_vain(self, t: ThinkTest, who: Workers, level: str, words: str) -> None:
        """Because nobody consumes its queue, or nobody there has its class."""
        Clerk("a").submit_messages("Hello", submission_id="s-1")

        finding = only(checks.waiting(t.rt.db, who, GIVEN))

        assert finding.level == level
        assert words in finding.text
        assert level == "ok" or ("1 turn of Clerk" in finding.text and "s-1" in finding.text)

    @pytest.mark.parametrize(
        ("who", "level", "words"),
        [
            (one(), "ok", "none of them in vain"),
            (one(workflows={"Flow": ["2"]}), "problem", "version '1'"),
            (one(workflows={"Flow": ["2", "1"]}), "ok", "none of them in vain"),
            (one(workflows={}), "problem", "version '1'"),
            (one(agents=frozenset()), "problem", "the agent Desk"),
            (NOBODY, "problem", "no worker that answered listens to it"),
        ],
    )
    def test_a_run_waits_for_its_version(self, t: ThinkTest, who: Workers, level: str, words: str) -> None:
        """A run of a version that no worker has is not lost, and says which worker it needs."""
        start(t)

        finding = only(checks.waiting(t.rt.db, who, GIVEN))

        assert (finding.level, words in finding.text) == (level, True), finding.text

    def test_a_run_that_is_on_its_way_to_a_step_of_another_queue(self, t: ThinkTest) -> None:
        """It waits for a worker of that queue, not of its own."""
        start(t)
        change(t.rt, update(tables.workflows).values(step_queue="gpu"))

        finding = only(checks.waiting(t.rt.db, one(), GIVEN))

        assert finding.level == "problem"
        assert "gpu" in finding.text

    def test_a_run_that_a_dead_worker_left_waits_too(self, t: ThinkTest) -> None:
        """One that was taken from its holder is still `running`, and waits for a worker."""
        ref = start(t)
        change(t.rt, update(tables.workflows).values(status="running", process_id=None))

        finding = only(checks.waiting(t.rt.db, NOBODY, GIVEN))

        assert (finding.check, ref.workflow_id in finding.text) == ("waiting", True)

    def test_each_queue_and_class_is_told_of_by_itself(self, t: ThinkTest) -> None:
        """A fault of one hides none of another; the queue of a row counts before the default one."""
        Clerk("a").submit_messages("Hello")
        Clerk("b").submit_messages("Hello")
        change(
            t.rt,
            update(tables.submissions).where(tables.submissions.c.agent_name == "b").values(queue="slow"),
        )
        start(t)

        found = checks.waiting(t.rt.db, NOBODY, GIVEN)

        assert {each.check for each in found} == {"waiting"}
        assert [(each.text.split(",")[0].split(" wait")[0], "'slow'" in each.text) for each in found] == [
            ("1 turn of Clerk", False),
            ("1 turn of Clerk", True),
            ("1 run of Flow", False),
        ]

    def test_calls_of_a_class_or_a_method_that_no_worker_has(self, t: ThinkTest) -> None:
        """Queued calls and fibers; a worker of an older release does not say which methods it has."""
        job = porter(t.rt).queue("carry", 1)
        ways: dict[str, dict[str, Any]] = {
            "lacks the class": {},
            "has the method": {"agents": frozenset({"Hauler"}), "methods": {"Hauler": ["carry"]}},
            "lacks the method": {"agents": frozenset({"Hauler"}), "methods": {"Hauler": ["rest"]}},
            "does not say": {"agents": frozenset({"Hauler"})},
        }

        said = {way: only(checks.waiting(t.rt.db, one(**has), GIVEN)) for way, has in ways.items()}

        assert [said[way].level for way in ways] == ["problem", "ok", "problem", "ok"]
        for way in ("lacks the class", "lacks the method"):
            assert "1 call of Hauler.carry waits" in said[way].text
            assert job.job_id in said[way].text

    def test_rows_that_no_tick_sees_to(self, t: ThinkTest) -> None:
        """A knock that was due a minute ago was not made: nobody looks, or looking fails."""
        Clerk("a").submit_messages("Hello")
        later(t, seconds=50)
        before = only(checks.waiting(t.rt.db, one(), GIVEN))
        later(t, seconds=20)
        after = only(checks.waiting(t.rt.db, one(), GIVEN))

        assert (before.level, after.level) == ("ok", "problem")
        assert "more than a minute ago" in after.text

    @pytest.mark.parametrize(("busy", "level"), [(1, "problem"), (4, "warning")])
    def test_rows_that_are_knocked_for_and_not_taken(self, t: ThinkTest, busy: int, level: str) -> None:
        """A problem, unless all slots are busy: then more workers would help, and waiting helps too."""
        Clerk("a").submit_messages("Hello")
        for _ in range(checks.OFTEN_KNOCKED + 2):
            later(t, minutes=1)
            tick.run(t.rt)

        finding = only(checks.waiting(t.rt.db, one(busy=busy), GIVEN))

        assert finding.level == level
        assert ("all 4 slots" in finding.text) == (level == "warning")

    def test_a_turn_that_may_not_begin_yet_does_not_wait(self, t: ThinkTest) -> None:
        """One that waits for a model's Retry-After is nobody's fault."""
        Clerk("a").submit_messages("Hello")
        t.lose_messages()
        soon = t.clock.now() + timedelta(hours=1)
        change(t.rt, update(tables.submissions).values(not_before=soon, knock_at=soon))

        assert only(checks.waiting(t.rt.db, NOBODY, GIVEN)).level == "ok"

    def test_news_waits_for_its_queue(self, t: ThinkTest) -> None:
        """News goes to the queue of its workflow."""
        news(t)

        finding = only(checks.waiting(t.rt.db, NOBODY, GIVEN))

        assert (finding.check, finding.level) == ("waiting", "problem")
        assert "1 piece of news" in finding.text


def news(t: ThinkTest, count: int = 1, **values: Any) -> None:
    """Undelivered news."""
    for number in range(count):
        row = {
            "id": f"news-{number}",
            "dedupe_key": f"news-{number}",
            "workflow_key": "nobody",
            "run": 1,
            "event_type": "answer",
            "status": "pending",
            "created_at": t.clock.now(),
            "knock_at": t.clock.now(),
            **values,
        }
        change(t.rt, tables.outbox.insert().values(row))


class TestWhatNeedsSomebody:
    def test_a_turn_that_kills_its_workers(self, t: ThinkTest) -> None:
        """Named from the second death on, with the number of attempts that are left."""
        Clerk("a").submit_messages("Hello", submission_id="s-1")
        found = []
        for _ in range(3):
            claims.claim(t.rt, "s-1")
            found.append(only(checks.dying(t.rt.db, 5)))
            die(t.rt)
            later(t, seconds=1)
            tick.watch(t.rt)

        assert [each.level for each in found] == ["ok", "ok", "warning"]
        assert "s-1" in found[2].text
        assert "Clerk('a')" in found[2].text
        assert "After 5" in found[2].text

    def test_what_has_ended_is_past_that(self, t: ThinkTest) -> None:
        """The tick may still look by its row for the turn after it; that makes no unfinished turn of it."""
        Clerk("a").submit_messages("Hello", submission_id="s-1")
        Clerk("a").cancel_submission("s-1")
        t.rt.db.transact(lambda tx: heads.look_later(tx, submissions.get(tx, "s-1").seq))
        change(t.rt, update(tables.submissions).values(attempts=3))

        assert only(checks.dying(t.rt.db, 5)).level == "ok"

    def test_a_run_that_kills_its_workers(self, t: ThinkTest) -> None:
        """Likewise."""
        ref = start(t)
        change(t.rt, update(tables.workflows).values(attempts=3))

        finding = only(checks.dying(t.rt.db, 5))

        assert (finding.level, str(ref) in finding.text) == ("warning", True)
        assert "begun 3 times in a row" in finding.text

    def test_what_is_taken_again_and_again(self, t: ThinkTest) -> None:
        """Every claim counts there, also after an orderly hand-over: it is told from half of the limit on, which is
        another for turns than for workflows, and no death is made of it."""
        ref = start(t)
        Clerk("a").submit_messages("Hello", submission_id="s-1")
        found = []
        for less in (1, 0):
            for table, most in (
                (tables.submissions, takeover.MAX_TAKEOVERS),
                (tables.workflows, advance.MAX_TAKEOVERS),
            ):
                change(t.rt, update(table).values(takeovers=most // 2 - less))
            found.append(checks.dying(t.rt.db, 5))
        (well,), (turn, run) = found

        assert (well.level, turn.level, run.level) == ("ok", "warning", "warning")
        assert "s-1" in turn.text
        assert "50 times" in turn.text
        assert "At 100 it ends" in turn.text
        assert str(ref) in run.text
        assert "At 1000 it ends" in run.text
        assert "die" not in turn.text + run.text

    def test_a_paused_workflow_says_how_to_resume_it(self, t: ThinkTest) -> None:
        """With the kind of its error, and the command."""
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="go"))
        t.run_until_idle()
        flow(lambda event, step: step.do("a", lambda: 1))
        workflow.send("go")
        t.run_until_idle()
        assert workflow.status == "paused"

        finding = only(checks.paused(t.rt.db, GIVEN))

        assert (finding.level, "ReplayMismatch" in finding.text) == ("problem", True)
        assert (
            f"think-celery workflows resume {workflow.ref.workflow_id} --workflow Flow -A shop"
            in finding.text
        )

    def test_news_that_is_not_taken(self, t: ThinkTest) -> None:
        """After a hundred attempts, with the last error."""
        news(t, attempts=99, last_error="DeliveryRefused: 99")
        before = only(checks.undelivered(t.rt.db))
        change(t.rt, update(tables.outbox).values(attempts=100, last_error="DeliveryRefused: 100"))
        after = only(checks.undelivered(t.rt.db))

        assert (before.level, after.level) == ("ok", "problem")
        assert "news-0" in after.text
        assert "DeliveryRefused: 100" in after.text

    def test_many_of_a_kind_are_not_all_named(self, quick: ThinkTest) -> None:
        """Five, and that there are more."""
        news(quick, count=9, attempts=100)

        found = checks.undelivered(quick.rt.db)

        assert len(found) == checks.SHOWN + 1
        assert {each.level for each in found} == {"problem"}
        assert "more" in found[-1].text


class TestPings:
    def test_an_answer_counts_for_its_queue_and_from_its_time_on(self, t: ThinkTest) -> None:
        """A worker's answer of yesterday says nothing of today."""
        names = ["celery", "q" * 200]
        began = checks.database_now(t.rt.db)
        nobody = checks.unanswered(t.rt.db, names, began)
        health.answer_ping(t.rt, names[1])
        one = checks.unanswered(t.rt.db, names, began)
        later(t, seconds=1)
        again = checks.unanswered(t.rt.db, names, checks.database_now(t.rt.db))
        health.answer_ping(t.rt, names[1])

        assert nobody == names
        assert one == ["celery"]
        assert again == names
        assert checks.unanswered(t.rt.db, names, began + timedelta(seconds=1)) == ["celery"]


def test_a_start_that_fails(t: ThinkTest) -> None:
    """The agent is named, with the type of the error and not its words; once it has started all is well."""

    class Sleeper(Think):
        version = "1"
        fails = True

        def on_start(self) -> None:
            if Sleeper.fails:
                raise RuntimeError("words")

    Sleeper("a").start()
    t.run_until_idle()
    found = only(checks.unstarted(t.rt.db, Given()))
    assert found.level == "problem"
    assert "Sleeper('a')" in found.text
    assert "RuntimeError" in found.text
    assert "words" not in found.text

    Sleeper.fails = False
    Sleeper("a").start()
    t.run_until_idle()
    assert only(checks.unstarted(t.rt.db, Given())).level == "ok"
