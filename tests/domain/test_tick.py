"""The tick: admitted once a second, it knocks again for what seems lost, and costs little where much waits."""

import logging
import threading
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import event, select, text, update

from tests.domain.crowd import (
    Clerk,
    Watch,
    at_once,
    broken,
    change,
    clerk,
    echo,
    in_processes,
    prompt,
    row,
    said,
    workers,
)
from tests.domain.flows import start
from think_celery import retries
from think_celery.domain import recovery, tick
from think_celery.domain.passes import FULL, SECONDS, UNASKED, each_row
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.workflows import workflows
from think_celery.ids import AgentRef
from think_celery.store import agents, heads, processes, tables, wakes
from think_celery.store.statements import HOST_TIME
from think_celery.testing import think_test

SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").use_model(echo())


def submit(*names, agent="a"):
    for name in names:
        Clerk(agent).submit_messages(name, submission_id=name)


def knocked(t):
    """The submissions that were knocked for since the last look."""
    names = [knock.task_id for knock in t._knocks]
    t.lose_messages()
    return names


def pass_on(t, seconds=1.0):
    t.clock.advance(timedelta(seconds=seconds))
    tick.work(t.rt)


class TestAdmission:
    def test_of_many_threads_one_is_admitted(self, t):
        """Once a second per database and kind; the kinds don't count for each other."""

        def admit(kind):
            return t.rt.db.transact(lambda tx: processes.admit(tx, kind, SECOND))

        first = at_once(8, lambda _: admit("work"))
        other = at_once(8, lambda _: admit("leases"))
        t.clock.advance(timedelta(seconds=0.999))
        early = admit("work")
        t.clock.advance(timedelta(seconds=0.001))
        later = at_once(8, lambda _: admit("work"))

        assert (sum(first), sum(other), early, sum(later)) == (1, 1, False, 1)

    def test_of_many_processes_one_is_admitted(self, database_url):
        """Eight workers tick at once, by the database's clock; one of them makes the pass."""

        def ticks(number, ready):
            with workers(database_url) as rt:
                ready()
                return rt.db.transact(lambda tx: processes.admit(tx, "work", timedelta(minutes=1)))

        assert sum(in_processes(8, ticks)) == 1

    @pytest.mark.parametrize("broken", ["beat", "sweep"])
    def test_a_failing_kind_hides_no_other(self, t, monkeypatch, caplog, broken):
        """Whatever goes wrong with leases, heads are knocked for, and so on for every kind."""
        caplog.set_level(logging.CRITICAL)
        submit("one")
        t.lose_messages()
        t.clock.advance(timedelta(seconds=3))

        def fails(*_):
            raise ConnectionError("away")

        monkeypatch.setattr(*(t.rt.monitor, "beat") if broken == "beat" else (recovery, "sweep"), fails)
        monkeypatch.setitem(tick.KINDS, "due workflows", fails)
        monkeypatch.setitem(tick.KINDS, "live log", fails)

        tick.run(t.rt)

        assert knocked(t) == ["one"]


class TestMissedKnocks:
    @pytest.mark.parametrize(
        ("sentinel", "last"),
        [
            (Watch(), [64, 128, 256, 300, 300, 300]),
            (Watch(watching=False), [60] * 6),
            (None, [60] * 6),
        ],
        ids=["watched", "not watched now", "never watched"],
    )
    def test_the_distance_doubles(self, t, sentinel, last):
        """2 s after the row, then 2, 4, 8 … 256 s and at last 5 minutes after the knock before.

        Where nobody would notice that the broker was emptied, a minute is the most.
        """
        t.rt.sentinel = sentinel
        submit("one")
        t.lose_messages()
        at = [t.clock.now()]
        for _ in range(12):
            t.clock.advance(row(t.rt, "one").knock_at - t.clock.now() - SECOND)
            tick.work(t.rt)
            early = knocked(t)
            pass_on(t)
            assert (early, knocked(t)) == ([], ["one"])
            at.append(t.clock.now())

        gaps = [(later - earlier) // SECOND for earlier, later in pairwise(at)]
        assert gaps == [2, 2, 4, 8, 16, 32, *last]

    def test_however_often_it_was_lost(self, t):
        """A head that was knocked for a thousand times is knocked for again; no number is too large."""
        submit("one")
        t.lose_messages()
        change(t.rt, update(tables.submissions).values(knocks=1000))

        pass_on(t, 3)

        assert knocked(t) == ["one"]
        assert row(t.rt, "one").knock_at == t.clock.now() + retries.LONGEST_UNWATCHED

    def test_what_stands_behind_a_head_costs_one_look(self, t):
        """It gets no ``knock_at`` any more until it is the head; then it is knocked for."""
        submit("one", "two", "three")
        t.lose_messages()
        pass_on(t, 3)

        assert knocked(t) == ["one"]
        assert [row(t.rt, name).knock_at is None for name in ("one", "two", "three")] == [False, True, True]

        Clerk("a").cancel_submission("one")
        t.lose_messages()
        pass_on(t, 3)
        assert knocked(t) == ["two"]

    def test_one_that_became_the_head_meanwhile_is_not_forgotten(self, t):
        """Null is set only where nobody has set another time since the look."""
        submit("one", "two")
        t.clock.advance(timedelta(seconds=3))
        seen = t.rt.db.read(lambda tx: heads.missed(tx, 500))
        Clerk("a").cancel_submission("one")

        changed = t.rt.db.transact(lambda tx: heads.expect_none(tx, ["two"], max(r.knock_at for r in seen)))
        again = t.rt.db.transact(lambda tx: heads.knock_again(tx, "two", seen[1].knock_at, SECOND, 1))

        assert (changed, again) == (0, False)
        assert row(t.rt, "two").knock_at == t.clock.now() + timedelta(seconds=2)

    def test_a_head_that_nobody_expects_is_found_by_those_behind_it(self, t):
        """R1: the look at what stands behind a head makes sure that the head is knocked, unless it is in hand."""
        submit("one", "two")
        change(t.rt, update(tables.submissions).where(tables.submissions.c.id == "one").values(knock_at=None))
        t.lose_messages()

        pass_on(t, 3)
        found = knocked(t)
        expected = row(t.rt, "one").knock_at
        claims.claim(t.rt, "one")
        change(
            t.rt, update(tables.submissions).where(tables.submissions.c.id == "two").values(knock_at=expected)
        )
        pass_on(t, 3)

        assert (found, expected) == (["one"], t.clock.now() - timedelta(seconds=1))
        assert knocked(t) == []
        assert row(t.rt, "one").knock_at is None

    def test_of_eight_that_find_a_head_one_knocks(self, t):
        """Passes that overlap knock once for a row."""
        submit("one")
        t.lose_messages()
        t.clock.advance(timedelta(seconds=3))

        at_once(8, lambda _: tick.knock_missed_heads(t.rt, 500))

        assert knocked(t) == ["one"]

    def test_no_knock_while_the_line_is_held(self, t):
        """A cancelled turn's worker still has the line; its end knocks, and the tick need not."""
        submit("one", "two")
        claims.claim(t.rt, "one")
        Clerk("a").cancel_submission("one")
        t.lose_messages()

        pass_on(t, 3)

        assert knocked(t) == []
        assert row(t.rt, "two").knock_at > t.clock.now()

    def test_an_agent_whose_rows_fail_hides_no_other(self, t, caplog):
        """It is put off with a growing distance, or left where even that fails."""
        caplog.set_level(logging.CRITICAL)
        submit("bad")
        submit("good", agent="b")
        t.lose_messages()
        t.clock.advance(timedelta(seconds=3))

        with broken(t.rt, "think_submissions", "NEW.id = 'bad'"):
            tick.work(t.rt)
            first = knocked(t)
        pass_on(t)

        assert (first, knocked(t)) == (["good"], ["bad"])

    def test_a_failing_look_puts_the_row_off(self, t, monkeypatch, caplog):
        """The row that could not be looked after comes again later, not in every pass."""
        caplog.set_level(logging.CRITICAL)
        submit("bad")
        t.lose_messages()

        def fails(tx, agent_id):
            raise ValueError("a row that nobody can read")

        monkeypatch.setattr(heads, "head", fails)
        pass_on(t, 3)

        assert row(t.rt, "bad").knock_at == t.clock.now() + timedelta(seconds=2)
        assert row(t.rt, "bad").knocks == 1


class TestEachRow:
    def test_a_failing_row_hides_no_other(self, t, caplog):
        """Each row has a transaction of its own; what fails is logged and changes nothing."""

        def work(tx, name):
            tx.execute(update(tables.agents).where(tables.agents.c.name == name).values(epoch=7))
            return 1 // (name != "b")

        for name in "abc":
            t.rt.db.transact(lambda tx, name=name: agents.make(tx, AgentRef("Clerk", name)))

        done = each_row(t.rt, "count", "abc", work)

        seen = select(tables.agents.c.name).where(tables.agents.c.epoch == 7).order_by(tables.agents.c.name)
        assert done == 2
        assert t.rt.db.read(lambda tx: tx.execute(seen).scalars().all()) == ["a", "c"]
        assert "could not count; the next pass tries again: ZeroDivisionError" in caplog.text

    def test_what_is_done_instead_is_a_row_like_any_other(self, t, caplog):
        """It has a transaction of its own, counts, and may fail without harm."""
        caplog.set_level(logging.CRITICAL)

        def fails(tx, number):
            raise ValueError(number)

        assert each_row(t.rt, "count", [0, 4, 2], fails, lambda tx, number: 8 // number) == 6

    def test_it_ends_when_its_time_is_over(self, t):
        """200 ms for each kind of work; what is left comes in the next pass."""
        seen = []

        def slow(tx, number):
            seen.append(number)
            t.clock.advance(timedelta(seconds=0.15))
            return True

        assert each_row(t.rt, "count", range(9), slow) == 2
        assert seen == [0, 1]

    def test_every_pass_over_workflows_ends_then_too(self, t):
        """Due runs, lost knocks and news have the same limit as heads have."""
        for number in range(5):
            start(t.rt, lambda event, step: "done", id=f"w{number}")
        t.lose_messages()
        t.clock.advance(timedelta(seconds=3))
        t.rt.knock = lambda knock: t.clock.advance(timedelta(seconds=0.15))

        assert [workflows.knock_missed(t.rt, 500) for _ in range(3)] == [2, 2, 1]

    def test_a_kind_that_was_cut_off_comes_again_when_the_others_had_their_turn(self, t, monkeypatch):
        """What is left comes at once, until the next pass is due."""
        seen = []

        def busy(rt, limit):
            seen.append("busy")
            t.clock.advance(timedelta(seconds=0.3))
            return 1

        def idle(rt, limit):
            seen.append("idle")
            return 0

        monkeypatch.setattr(tick, "KINDS", {"busy": busy, "idle": idle})

        assert tick.work(t.rt) == 4
        assert seen == ["busy", "idle", "busy", "busy", "busy"]


class TestRowsThatAreLocked:
    @pytest.mark.parametrize(
        ("kind", "table"),
        [("heads", "submissions"), ("queued workflows", "workflows"), ("jobs", "jobs"), ("news", "outbox")],
    )
    def test_one_that_is_due_is_left_for_later(self, postgres_url, caplog, kind, table):
        """A caller keeps it locked, in an open transaction: waiting for it would take the pass all its time."""
        rows = getattr(tables, table)
        with think_test(database_url=postgres_url) as t:
            clerk(t.rt).queue("get_model")
            start(t.rt, lambda event, step: None)
            submissions.cancel_by_id(t.rt, prompt(t.rt))
            submit("waits")
            change(t.rt, update(rows).where(rows.c.knock_at.is_not(None)).values(knock_at=t.clock.now()))
            due = select(rows.c.knock_at).where(rows.c.knock_at == t.clock.now())

            with t.rt.db.engine.connect() as caller:
                locked = caller.execute(due.with_for_update()).all()
                tick.KINDS[kind](t.rt, 10)
                left = t.rt.db.read(lambda tx: tx.execute(due).all())
            tick.KINDS[kind](t.rt, 10)

            assert locked
            assert left == locked
            assert t.rt.db.read(lambda tx: tx.execute(due).all()) == []
            assert "could not" not in caplog.text


class TestFullQueues:
    """What waits for a queue without worker would fill the broker without an end, and keep the tick busy."""

    @pytest.mark.parametrize("kind", ["heads", "queued workflows", "jobs", "news", "agents to start"])
    def test_what_was_knocked_for_is_put_off(self, t, kind):
        """Of every kind: as if it had been knocked for, and all rows in one statement."""
        rows = OF_KIND[kind]
        for number in range(3):
            one_of_each(t, f"{number}")
        change(
            t.rt,
            update(rows).where(rows.c.knock_at.is_not(None)).values(knock_at=t.clock.now(), knocks=UNASKED),
        )
        t.lose_messages()
        later = t.clock.now() + timedelta(seconds=2 * 2**UNASKED)
        t.rt.waiting = lambda knock: FULL

        with statements(t.rt) as seen:
            tick.KINDS[kind](t.rt, 500)

        assert knocked(t) == []
        assert len([each for each in seen if each.startswith("UPDATE")]) == 1
        found = t.rt.db.read(
            lambda tx: tx.execute(
                select(rows.c.knock_at, rows.c.knocks).where(rows.c.knock_at.is_not(None))
            ).all()
        )
        assert found == [(later, UNASKED + 1)] * 3

    def test_it_is_knocked_for_when_there_is_room_again(self, t):
        """As soon as its time has come; it was not forgotten."""
        submit("one")
        change(t.rt, update(tables.submissions).values(knocks=UNASKED))
        t.lose_messages()
        waiting = [FULL]
        t.rt.waiting = lambda knock: waiting[0]
        pass_on(t, 3)
        before = knocked(t)
        waiting[0] = FULL - 1

        pass_on(t, 2 * 2**UNASKED)

        assert (before, knocked(t)) == ([], ["one"])

    def test_it_is_knocked_for_now_and_then_all_the_same(self, t):
        """Its own messages may be lost, and the queue be full of others': each time that the knocks have doubled."""
        t.rt.waiting = lambda knock: FULL
        submit("one")
        sent = []
        for knocks in range(1, 70):
            change(t.rt, update(tables.submissions).values(knocks=knocks, knock_at=t.clock.now()))
            t.lose_messages()
            tick.knock_missed_heads(t.rt, 500)
            sent += [knocks] * len(knocked(t))

        assert sent == [1, 2, 4, 8, 16, 32, 64]

    @pytest.mark.parametrize(("knocks", "waiting"), [(UNASKED - 1, FULL), (UNASKED, FULL - 1), (1000, None)])
    def test_others_are_knocked_for(self, t, knocks, waiting):
        """After a few knocks only, where the queue has room, and where the broker does not tell."""
        submit("one")
        change(t.rt, update(tables.submissions).values(knocks=knocks))
        t.lose_messages()
        t.rt.waiting = lambda knock: waiting

        pass_on(t, 3)

        assert knocked(t) == ["one"]

    def test_only_its_own_rows_wait_for_a_full_queue(self, t):
        """Another queue's are knocked for in the same pass."""
        fill(t.rt, 600, agent="'a' || n", knock_at=0, queue="'nobodys'")
        fill(t.rt, 1, agent="'x'", knock_at=1, ids="'mine'")
        change(t.rt, update(tables.submissions).values(knocks=UNASKED))
        t.rt.waiting = lambda knock: FULL if knock.queue == "nobodys" else 0

        tick.knock_missed_heads(t.rt, 500)

        assert knocked(t) == ["mine1"]

    def test_a_queue_is_where_a_router_sends_the_message(self, t):
        """Of two rows that name no queue, one may go to a full one, and the other not."""
        for name in ("One", "Two"):
            start(t.rt, lambda event, step: None, id=name, name=name)
        rows = tables.workflows
        change(t.rt, update(rows).values(knock_at=t.clock.now(), knocks=UNASKED))
        t.lose_messages()
        t.rt.waiting = lambda knock: FULL if knock.kwargs["workflow"] == "One" else 0

        tick.KINDS["queued workflows"](t.rt, 500)

        assert [knock.kwargs["workflow"] for knock in t._knocks] == ["Two"]

    @pytest.mark.parametrize("kind", ["heads", "queued workflows", "jobs", "news", "agents to start"])
    def test_a_broker_that_is_slow_to_tell_keeps_no_row_waiting(self, t, kind):
        """Neither the one that it was asked for, nor those behind it; and in one pass it is asked for so long only."""
        rows = OF_KIND[kind]
        for number in range(3):
            one_of_each(t, f"{number}")
        change(
            t.rt,
            update(rows).where(rows.c.knock_at.is_not(None)).values(knock_at=t.clock.now(), knocks=UNASKED),
        )
        t.lose_messages()
        asked = []

        def ask_for_long(knock):
            asked.append(knock)
            t.clock.advance(timedelta(seconds=SECONDS + 0.01))
            return 0

        t.rt.waiting = ask_for_long
        tick.KINDS[kind](t.rt, 500)

        assert len(asked) == 1
        assert len(t._knocks) == 3

    @pytest.mark.parametrize("kind", ["heads", "jobs"])
    def test_it_takes_no_more_of_a_pass_than_knocking_does(self, t, kind):
        """However much waits there: the rest is put off in the next one, and other kinds have their turn."""
        rows = OF_KIND[kind]
        for number in range(6):
            one_of_each(t, f"{number}")
        due = rows.c.knock_at.is_not(None)
        change(t.rt, update(rows).where(due).values(knock_at=t.clock.now(), knocks=UNASKED))

        def ask_for_long(knock):
            t.clock.advance(timedelta(seconds=SECONDS + 0.01))
            return FULL

        t.rt.waiting = ask_for_long
        tick.KINDS[kind](t.rt, 2)

        found = t.rt.db.read(lambda tx: tx.execute(select(rows.c.knocks).where(due)).scalars().all())
        assert sorted(found) == [UNASKED] * 4 + [UNASKED + 1] * 2

    def test_a_database_that_fails_keeps_no_knock_back(self, t, monkeypatch, caplog):
        """What can't be put off is knocked for."""
        caplog.set_level(logging.CRITICAL)
        submit("one")
        change(t.rt, update(tables.submissions).values(knocks=UNASKED))
        t.lose_messages()
        t.rt.waiting = lambda knock: FULL
        monkeypatch.setattr(heads, "put_off_knocked", lambda *_: 1 / 0)

        pass_on(t, 3)

        assert knocked(t) == ["one"]


OF_KIND = {
    "heads": tables.submissions,
    "queued workflows": tables.workflows,
    "jobs": tables.jobs,
    "news": tables.outbox,
    "agents to start": tables.agents,
}


def one_of_each(t, name):
    """A row of each kind that the tick knocks for."""
    agent = Clerk(name)
    agent.queue("get_model")
    start(t.rt, lambda event, step: None, id=f"run of {name}")
    submissions.cancel_by_id(t.rt, prompt(t.rt, name, key=f"think-workflow:{name}"))
    agent.submit_messages("Hello", submission_id=f"of {name}")
    t.rt.db.transact(lambda tx: agents.make(tx, AgentRef("Clerk", name)))
    change(t.rt, update(tables.agents).where(tables.agents.c.name == name).values(knock_at=t.clock.now()))


class TestNewBroker:
    def test_every_free_head_is_knocked_with_the_next_pass(self, t):
        """The broker lost all it had; nobody waits for a distance that had grown to minutes."""
        submit("held", agent="h")
        claims.claim(t.rt, "held")
        submit("behind", agent="h")
        submit("one", "two")
        submit("far", agent="f")
        change(
            t.rt, update(tables.submissions).values(knock_at=t.clock.now() + timedelta(minutes=5), knocks=9)
        )
        later = {"not_before": t.clock.now() + timedelta(minutes=1)}
        change(t.rt, update(tables.submissions).where(tables.submissions.c.id == "far").values(later))
        t.lose_messages()

        tick.knock_now(t.rt)
        tick.work(t.rt)

        assert knocked(t) == ["one"]
        assert row(t.rt, "one").knocks == 1
        assert row(t.rt, "two").knocks == 9

    @pytest.mark.parametrize("table", ["jobs", "workflows", "outbox"])
    def test_what_somebody_has_locked_is_not_waited_for(self, postgres_url, table):
        """A caller's open transaction, or another worker that does the same, in another order, at the same moment."""
        rows = getattr(tables, table)
        with think_test(database_url=postgres_url) as t:
            clerk(t.rt).queue("get_model")
            start(t.rt, lambda event, step: None)
            submissions.cancel_by_id(t.rt, prompt(t.rt))
            change(t.rt, update(rows).values(knock_at=t.clock.now() + timedelta(minutes=5)))

            with t.rt.db.engine.connect() as caller:
                assert caller.execute(select(rows).with_for_update()).first()
                waiting = threading.Thread(target=tick.knock_now, args=(t.rt,), daemon=True)
                waiting.start()
                waiting.join(5)
                waited = waiting.is_alive()
            waiting.join(10)
            tick.knock_now(t.rt)

            asked = select(rows.c.knock_at)
            assert not waited
            assert t.rt.db.read(lambda tx: tx.execute(asked).scalar()) == t.clock.now()

    def test_a_pass_asks_the_sentinel_first(self, t):
        """What waits is knocked for in the pass that finds the broker empty, once for each loss."""
        t.rt.sentinel = watch = Watch()
        submit("one")
        change(
            t.rt, update(tables.submissions).values(knock_at=t.clock.now() + timedelta(minutes=5), knocks=9)
        )
        t.lose_messages()

        pass_on(t)
        before = knocked(t)
        watch.lost = True
        pass_on(t)
        found = knocked(t)
        pass_on(t)

        assert (before, found, knocked(t)) == ([], ["one"], [])

    def test_a_sentinel_that_fails_hides_no_other_work(self, t, caplog):
        """Whatever goes wrong with the broker, the pass is made."""
        caplog.set_level(logging.CRITICAL)
        t.rt.sentinel = watch = Watch()
        watch.look = lambda when_lost: 1 / 0
        submit("one")
        t.lose_messages()

        pass_on(t, 3)

        assert knocked(t) == ["one"]

    def test_a_running_one_without_worker_too(self, t):
        """One that was freed after a crash waits for its knock as any head does."""
        submit("one", "two")
        claims.claim(t.rt, "one")
        change(t.rt, update(tables.lines).values(process_id=None))
        t.lose_messages()

        tick.knock_now(t.rt)
        tick.work(t.rt)

        assert "one" in knocked(t)


# --- much that waits ------------------------------------------------------------------------------

MANY = """
    INSERT INTO think_submissions
        (id, agent_id, agent_class, agent_name, kind, status, epoch, fingerprint, created_at, knock_at, queue)
    SELECT {ids} || n, {agent}, 'Clerk', 'x', 'submit', 'pending', 0, 'f', 0, {knock_at}, {queue}
    FROM (WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
          SELECT n FROM numbers) AS numbers
"""
FAR = 2**60


def fill(rt, count, *, agent, knock_at, ids="'s'", queue="NULL"):
    change(rt, text(MANY.format(count=count, agent=agent, knock_at=knock_at, ids=ids, queue=queue)))
    if rt.db.engine.dialect.name == "postgresql":
        with rt.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("VACUUM ANALYZE think_submissions")


@contextmanager
def statements(rt):
    seen = []

    def note(conn, cursor, statement, *rest):
        seen.append(statement)

    event.listen(rt.db.engine, "before_cursor_execute", note)
    yield seen
    event.remove(rt.db.engine, "before_cursor_execute", note)


def plan(t, statement):
    """How the database would find the rows."""
    compiled = statement.compile(t.rt.db.engine, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN" if t.rt.db.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    found = t.rt.db.read(lambda tx: tx.conn.exec_driver_sql(f"{explain} {compiled}".replace("%", "%%")).all())
    return "\n".join(str(line) for line in found)


def asked(rt, call):
    """The statements that a store function runs, with their parameters."""
    seen = []

    class Spy:
        def __init__(self, tx):
            self._tx = tx

        def execute(self, statement, parameters=None):
            seen.append(statement.params({HOST_TIME: rt.clock.now(), **(parameters or {})}))
            return self._tx.execute(statement, parameters)

    rt.db.read(lambda tx: call(Spy(tx)))
    return seen


@pytest.fixture
def many(database_url):
    """A hundred thousand rows on PostgreSQL; on SQLite fewer, for its plans don't depend on their number."""
    return 100_000 if database_url.startswith("postgresql") else 2_000


def cost_of_a_pass(t, name):
    """How many statements a pass makes that finds a submission of this name to knock for."""
    submit(name)
    t.lose_messages()
    t.clock.advance(timedelta(seconds=3))
    with statements(t.rt) as seen:
        tick.work(t.rt)
    assert knocked(t) == [name]
    return len(seen)


@pytest.mark.parametrize("crowd", ["one agent", "as many agents"])
def test_much_that_waits_costs_a_pass_nothing(t, many, crowd):
    """A pass looks at what is due, by index: its statements and plans are the same as with an empty table."""
    tick.work(t.rt)  # the first of all
    alone = cost_of_a_pass(t, "alone")
    assert Clerk("a").cancel_submission("alone")
    t.lose_messages()
    if crowd == "one agent":  # and its rows are the last of all
        fill(t.rt, many // 2, agent="'a' || n", knock_at=FAR, ids="'a'")
        fill(t.rt, many // 2, agent="'x'", knock_at="NULL")
    else:
        fill(t.rt, many, agent="'a' || n", knock_at=FAR)

    assert cost_of_a_pass(t, "mine") == alone < 60
    for call, index in (
        (lambda tx: heads.missed(tx, 500), "ix_think_submissions_knock"),
        (lambda tx: heads.head(tx, "x"), "ix_think_submissions_agent"),
    ):
        for found in (plan(t, statement) for statement in asked(t.rt, call)):
            assert index in found
            assert "Seq Scan on think_submissions" not in found
            assert "SCAN think_submissions\n" not in found


@pytest.mark.parametrize("crowd", ["'a queue without workers'", "NULL"])
def test_a_crowd_of_one_queue_hides_nothing_of_another(t, many, crowd):
    """All of it is due, and has been for longer; the first in a pass to be knocked for are one of each queue."""
    fill(t.rt, many, agent="'a' || n", knock_at=0, queue=crowd)
    for name, queue in {"default": "NULL", "swift": "'swift'", "last": "'z'"}.items():
        fill(t.rt, 1, agent=f"'of {name}' || n", knock_at=1, ids=f"'{name} '", queue=queue)

    looks = asked(t.rt, lambda tx: heads.missed(tx, 500))
    found = t.rt.db.read(lambda tx: heads.missed(tx, 500))

    one_of_each = {row.id for row in found[:4]}
    assert {"swift 1", "last 1"} < one_of_each
    assert ("default 1" in one_of_each) == (crowd != "NULL")
    assert len(found) == 500
    for plan_of_it in (plan(t, look) for look in looks):
        assert "ix_think_submissions_knock" in plan_of_it
        assert "Seq Scan on think_submissions" not in plan_of_it
        assert "Sort" not in plan_of_it
        assert "TEMP B-TREE" not in plan_of_it


def test_a_queue_in_which_nothing_is_due_costs_no_statement(t):
    """However many queues there are, those are asked in which something is due."""
    for number in range(20):
        fill(t.rt, 1, agent=f"'{number}'", knock_at=FAR, ids=f"'waits {number}'", queue=f"'q{number}'")
    quiet = len(asked(t.rt, lambda tx: heads.missed(tx, 500)))
    fill(t.rt, 1, agent="'x'", knock_at=0, ids="'due'", queue="'q7'")

    looks = asked(t.rt, lambda tx: heads.missed(tx, 500))

    assert (quiet, len(looks)) == (2, 3)
    assert [row.id for row in t.rt.db.read(lambda tx: heads.missed(tx, 500))] == ["due1"]


def test_a_run_is_of_the_queue_of_its_next_step(t):
    """Of a workflow the messages go to the queue of its step, where that has one; else to its own."""
    queues = {
        "a": (None, "gpu"),
        "b": ("slow", "gpu"),
        "c": ("slow", None),
        "d": (None, None),
        "e": ("slow", None),
    }
    for name, (queue, step_queue) in queues.items():
        start(t.rt, lambda event, step: None, id=name)
        where = tables.workflows.c.workflow_id == name
        change(t.rt, update(tables.workflows).where(where).values(queue=queue, step_queue=step_queue))
        t.clock.advance(timedelta(milliseconds=1))  # the older one of a queue comes first
    t.clock.advance(timedelta(seconds=3))

    found = [row.workflow_id for row in t.rt.db.read(lambda tx: wakes.missed(tx, 500))]

    assert (set(found[:3]), set(found[3:])) == ({"a", "c", "d"}, {"b", "e"})


def test_a_crowd_behind_one_head_is_looked_at_once(t, many):
    """Rows behind a head are seen to in batches, a few statements each, and never again."""
    count = min(many, 2_000)
    fill(t.rt, count, agent="'x'", knock_at=0)

    with statements(t.rt) as first:
        tick.knock_missed_heads(t.rt, 500)
    with statements(t.rt) as second:
        tick.knock_missed_heads(t.rt, 500)

    expecting = tables.submissions.c.knock_at.is_not(None)
    left = t.rt.db.read(
        lambda tx: tx.execute(select(tables.submissions.c.id).where(expecting)).scalars().all()
    )
    assert (left, knocked(t)) == (["s1"], ["s1"])
    assert len(first) < 10 * count / 500
    assert len(second) < 5


def test_a_pass_ends_when_its_time_is_over(database_url, monkeypatch):
    """A kind of work takes 200 ms or 500 rows; what is left comes in the next pass."""
    with think_test(echo(), database_url=database_url) as t:
        for number in range(5):
            submit(f"s{number}", agent=f"a{number}")
        t.lose_messages()
        t.clock.advance(timedelta(seconds=3))
        right = t.rt.knock

        def slow(knock):
            right(knock)
            t.clock.advance(timedelta(seconds=0.15))

        t.rt.knock = slow
        tick.knock_missed_heads(t.rt, 500)
        first = len(knocked(t))
        tick.knock_missed_heads(t.rt, 500)

        assert (first, len(knocked(t))) == (2, 2)


def test_everything_runs_in_the_end(t):
    """R1: what the tick finds runs, and each end finds the next; nothing of four agents' turns is left."""
    for number in range(20):
        submit(f"s{number}", agent=f"a{number % 4}")
    t.lose_messages()

    t.skip(3)

    assert [len(said(Clerk(f"a{number}"))) for number in range(4)] == [5] * 4
