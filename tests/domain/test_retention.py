"""What has ended long ago is removed by the tick: how much of it, when, and what never is."""

import os
import signal
from datetime import timedelta

import pytest
from sqlalchemy import insert, select, update

from tests.domain.crowd import FORK, Clerk, change, count, echo, prompt, row, transaction, workers
from tests.domain.flows import DESK, flow
from think_celery.domain import retention, tick
from think_celery.settings import Settings
from think_celery.store import children, tables
from think_celery.testing import SimulatedCrash, think_test

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").use_model(echo())


def one(t, name="one", **options):
    """A turn that is done."""
    accepted = Clerk("a").submit_messages(name, submission_id=name, **options)
    t.run_until_idle()
    return accepted


def copies(rt, number, **values):
    """Many rows like the one that there is."""
    like = dict(rt.db.read(lambda tx: tx.execute(select(tables.submissions)).one())._mapping)
    rows = [
        {**like, "id": f"c{each}", "seq": 10_000 + each, "agent_id": f"agent-{each % 7}", **values}
        for each in range(number)
    ]

    def work(tx):
        for start in range(0, number, 1000):
            tx.execute(insert(tables.submissions), rows[start : start + 1000])

    rt.db.transact(work)


class TestSubmissions:
    def test_after_a_month_a_slim_row_stays(self, t):
        """Key, id, status, times and tokens: with them the key still says that this was accepted before."""
        one(t, metadata={"order": 7}, idempotency_key="k")
        t.skip("29 days")
        assert row(t.rt, "one").metadata == {"order": 7}

        t.skip("2 days")
        slim = row(t.rt, "one")
        assert (slim.metadata, slim.structure, slim.error, slim.messages) == (None, None, None, None)
        assert (slim.idempotency_key, str(slim.status), slim.completed_at is None) == (
            "k",
            "completed",
            False,
        )
        again = Clerk("a").submit_messages("one", idempotency_key="k")
        assert (again.accepted, again.submission_id) == (False, "one")

    def test_after_three_months_the_key_is_new(self, t):
        """The row goes, and what it used is still in the sum; messages stay."""
        one(t, idempotency_key="k")
        used = Clerk("a").usage()
        t.skip("91 days")

        assert count(t.rt) == 0
        assert Clerk("a").usage() == used
        assert [message.text for message in Clerk("a").messages] == ["one", "re: one"]
        assert Clerk("a").submit_messages("two", idempotency_key="k").accepted

    def test_what_has_not_ended_stays(self, t):
        """However old it is."""
        Clerk("a").submit_messages("waits", submission_id="waits")
        t.lose_messages()
        later = t.clock.now() + 400 * DAY
        change(t.rt, update(tables.submissions).values(not_before=later, knock_at=later))

        t.clock.advance(365 * DAY)
        tick.run(t.rt)

        assert row(t.rt, "waits").messages is not None

    def test_one_whose_workflow_has_not_got_the_news_stays(self, t):
        """Whole: the news may be asked for again."""
        prompted = prompt(t.rt)
        Clerk("a").cancel_submission(prompted, "enough")
        t.lose_messages()
        change(t.rt, update(tables.outbox).values(knock_at=None))

        t.clock.advance(365 * DAY)
        tick.run(t.rt)
        assert row(t.rt, prompted).error == "enough"

        change(t.rt, update(tables.outbox).values(knock_at=t.clock.now()))
        for _ in range(3):
            t.skip("2 minutes")
        assert count(t.rt) == 0

    def test_one_whose_workflow_goes_on_stays(self, t):
        """Its answer may be asked for again when the workflow is replayed; once that has ended, it goes."""
        DESK.run_workflow(flow(lambda event, step: step.wait_for_event("wait", type="go")), workflow_id="w")
        prompted = prompt(t.rt)
        t.run_until_idle()
        key = t.rt.db.read(lambda tx: tx.execute(select(tables.workflows.c.key)).scalar_one())
        change(t.rt, update(tables.submissions).values(workflow_key=key))
        t.skip("200 days")
        assert row(t.rt, prompted).slimmed_at is None

        DESK.send_workflow_event("Flow", "w", type="go")
        t.run_until_idle()
        t.skip("2 minutes")
        assert row(t.rt, prompted) is None

    def test_settings_say_how_long(self, database_url):
        """A key is kept at least as long as the row is whole."""
        settings = Settings(retention_seconds=10 * 86_400.0, key_retention_seconds=86_400.0)
        with think_test(echo(), database_url=database_url, settings=settings) as t:
            one(t, metadata={"x": 1})
            t.skip("9 days")
            assert row(t.rt, "one").metadata == {"x": 1}
            t.skip("2 days")
            assert count(t.rt) == 0

    @pytest.mark.parametrize("which", ["retention_seconds", "key_retention_seconds"])
    def test_never(self, sqlite_url, which):
        """Keeps whole rows, or slim ones, for ever."""
        with think_test(echo(), database_url=sqlite_url, settings=Settings(**{which: None})) as t:
            one(t, metadata={"x": 1})
            t.skip("400 days")
            kept = row(t.rt, "one")

            assert (kept.metadata == {"x": 1}) is (which == "retention_seconds")

    def test_one_that_a_caller_has_locked_is_left(self, postgres_url):
        """It hides no other, and goes the next time."""
        with think_test(echo(), database_url=postgres_url) as t:
            one(t)
            one(t, "two")
            t.clock.advance(91 * DAY)
            with transaction(t.rt) as session:
                Clerk("a").cancel_submission("one")
                tick.run(t.rt)
                assert row(t.rt, "two") is None
                session.rollback()
            t.skip("2 minutes")
            assert count(t.rt) == 0


class TestWorkflows:
    def test_after_a_month_an_ended_one_goes_with_its_journal(self, t):
        """And events; one that waits stays, however long it does."""
        done = flow(lambda event, step: step.do("add", lambda: 1), name="Done")
        waits = flow(lambda event, step: step.wait_for_event("wait", type="go"), name="Waits")
        DESK.run_workflow(done, workflow_id="d")
        DESK.run_workflow(waits, workflow_id="w")
        t.run_until_idle()
        DESK.send_workflow_event(done, "d", type="late")
        t.skip("29 days")
        assert count(t.rt, tables.workflows) == 2

        t.skip("2 days")
        left = t.rt.db.read(lambda tx: tx.execute(select(tables.workflows.c.workflow)).scalars().all())
        assert left == ["Waits"]
        assert [count(t.rt, table) for table in (tables.steps, tables.events)] == [1, 0]

    def test_the_same_id_is_a_new_run_then(self, t):
        """The id is free again."""
        ran = []
        done = flow(lambda event, step: ran.append(1), name="Again")
        for _ in range(2):
            DESK.run_workflow(done, workflow_id="x")
            t.run_until_idle()
        assert ran == [1]

        t.skip("31 days")
        DESK.run_workflow(done, workflow_id="x")
        t.run_until_idle()
        assert ran == [1, 1]


def assert_keys_are_alike(t):
    """The key of the child's news is the same in SQL, where it keeps the child, as where the news is stored."""
    its = tables.workflows.c
    child = select(*its, children.NEWS_KEY.label("in_sql")).where(its.parent_key.is_not(None))
    row = t.rt.db.read(lambda tx: tx.execute(child).one())
    stored = t.rt.db.read(lambda tx: tx.execute(select(tables.outbox.c.dedupe_key)).scalars().all())
    assert [row.in_sql] == stored == [children.news_key(row)]


class TestChildren:
    """What a parent waits for, and which news it has not got, is not removed."""

    def begin(self, t, child_id="child", parent_id="parent"):
        """A parent whose child has ended, and whose news nobody has delivered."""
        child = flow(lambda event, step: "packed", name="Child")
        parent = flow(
            lambda event, step: step.run_workflow(
                "pack", child, {}, workflow_id=child_id, timeout="200 days"
            ),
            name="Parent",
        )
        DESK.run_workflow(parent, workflow_id=parent_id)
        return parent

    def test_one_whose_parent_has_not_got_the_news_stays(self, t):
        """However late that is delivered, the answer counts; then the child goes, and its parent waits no more."""
        parent = self.begin(t)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("think_celery.domain.workflows.inbox.take", lambda *_: 1 / 0)
            patch.setattr("think_celery.store.outbox.deliver", lambda *_: 1 / 0)
            t.run_until_idle()
            t.clock.advance(100 * DAY)
            tick.run(t.rt)
            t.skip("2 minutes")
        left = t.rt.db.read(lambda tx: tx.execute(select(tables.workflows.c.workflow)).scalars().all())
        assert sorted(left) == ["Child", "Parent"]
        assert_keys_are_alike(t)

        for _ in range(3):
            t.skip("6 minutes")

        assert t.output(parent, "parent") == "packed"
        left = t.rt.db.read(lambda tx: tx.execute(select(tables.workflows.c.workflow)).scalars().all())
        assert left == ["Parent"]

    def test_a_parent_that_was_paused_meanwhile_has_its_answer(self, t):
        """The news is in its inbox, so the child itself may go."""
        child = flow(lambda event, step: step.wait_for_event("wait", type="go").payload, name="Child")
        parent = flow(
            lambda event, step: step.run_workflow("pack", child, {}, workflow_id="c"), name="Parent"
        )
        DESK.run_workflow(parent, workflow_id="parent")
        t.run_until_idle()
        DESK.pause_workflow("parent", workflow=parent)
        DESK.send_workflow_event("Child", "c", type="go", payload="packed")
        t.run_until_idle()
        t.skip("40 days")
        assert count(t.rt, tables.workflows) == 1

        DESK.resume_workflow("parent", workflow=parent)
        t.run_until_idle()

        assert t.output(parent, "parent") == "packed"

    def test_a_child_of_that_id_tells_its_own_parent(self, database_url):
        """Also where what has ended is kept for less time than news is."""
        settings = Settings(retention_seconds=3_600.0)
        with think_test(echo(), database_url=database_url, settings=settings) as t:
            for number in range(2):
                parent = self.begin(t, parent_id=f"parent-{number}")
                t.run_until_idle()
                assert t.output(parent, f"parent-{number}") == "packed"
                for _ in range(3):
                    t.skip("1 hour")
                assert count(t.rt, tables.workflows) == 0


class TestNews:
    def test_delivered_news_goes_after_a_day(self, t):
        """Undelivered never does."""
        prompted = prompt(t.rt)
        Clerk("a").cancel_submission(prompted)
        t.run_until_idle()
        assert count(t.rt, tables.outbox) == 1
        t.skip("2 days")

        assert count(t.rt, tables.outbox) == 0
        assert row(t.rt, prompted) is not None


class TestBatches:
    def test_ten_thousand_rows_in_batches(self, t):
        """Each batch is a transaction of its own, oldest first; their tokens stay in the sums."""
        one(t)
        copies(t.rt, 10_000, completed_at=t.clock.now() - 100 * DAY, total_tokens=1)

        retention.apply(t.rt, 500)

        assert count(t.rt) == 1
        kept = t.rt.db.read(lambda tx: tx.execute(select(tables.past_usage.c.total_tokens)).scalars().all())
        assert sum(kept) == 10_000

    def test_what_there_is_no_time_for_comes_in_the_next_look(self, t):
        """The time of this kind of work is short; the rest is left, and looked for at once."""
        one(t)
        copies(t.rt, 30, completed_at=t.clock.now() - 100 * DAY)
        t.rt.failpoint = lambda point: t.clock.advance(timedelta(seconds=0.15))

        assert retention.apply(t.rt, 5) < 30
        assert retention.apply(t.rt, 5) > 0
        for _ in range(10):
            retention.apply(t.rt, 5)
        assert count(t.rt) == 1

    def test_it_looks_once_a_minute(self, t):
        """In the whole database."""
        one(t)
        retention.apply(t.rt, 500)
        copies(t.rt, 3, completed_at=t.clock.now() - 100 * DAY)

        assert retention.apply(t.rt, 500) == 0
        t.clock.advance(timedelta(minutes=1))
        assert retention.apply(t.rt, 500) == 6  # made slim, and removed

    def test_killed_between_two_batches(self, t):
        """What was committed is gone, the rest goes with the next look."""
        one(t)
        copies(t.rt, 20, completed_at=t.clock.now() - 100 * DAY, total_tokens=2)
        t.crash_at("retention:removed", times=3)
        for _ in range(3):
            with pytest.raises(SimulatedCrash):
                retention.apply(t.rt, 5)
            t.clock.advance(timedelta(minutes=1))
        for _ in range(3):
            retention.apply(t.rt, 5)
            t.clock.advance(timedelta(minutes=1))

        assert count(t.rt) == 1
        kept = t.rt.db.read(lambda tx: tx.execute(select(tables.past_usage.c.total_tokens)).scalars().all())
        assert sum(kept) == 40


def test_kill_9_between_two_batches(database_url):
    """A real one: what was committed is gone with its tokens in the sum, and the next worker goes on there."""
    with think_test(echo(), database_url=database_url) as t:
        one(t)
        copies(t.rt, 20, completed_at=t.clock.now() - 4000 * DAY, total_tokens=2)

    def die():
        with workers(database_url) as rt:
            rt.failpoint = lambda point: os.kill(os.getpid(), signal.SIGKILL)
            retention.apply(rt, 15)

    child = FORK.Process(target=die)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL

    with workers(database_url) as rt:
        for _ in range(10):  # a pass ends with its time, too
            change(rt, tables.ticks.delete())  # a minute later
            retention.apply(rt, 15)
        old = tables.submissions.c.id.like("c%")
        assert rt.db.read(lambda tx: tx.execute(select(tables.submissions).where(old)).all()) == []
        kept = rt.db.read(lambda tx: tx.execute(select(tables.past_usage.c.total_tokens)).scalars().all())
        assert sum(kept) == 40
