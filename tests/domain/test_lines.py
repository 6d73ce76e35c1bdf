"""The line of an agent: who comes when, who is knocked, and what a knock does."""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    drain,
    echo,
    forget_knock,
    row,
    said,
    transaction,
)
from think_celery.domain import tick
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.domain.work import perform
from think_celery.runtime import agent_classes
from think_celery.store import tables
from think_celery.testing import think_test

PAST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def pg(postgres_url):
    """On PostgreSQL alone: two open transactions that write are more than SQLite has."""
    with think_test(echo(), database_url=postgres_url) as test:
        yield test


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").use_model(echo())


def submit(*names, agent="a"):
    """Submissions of these ids and texts, in this order."""
    for name in names:
        Clerk(agent).submit_messages(name, submission_id=name)


def word(t, name):
    """What the task of a knock says."""
    return claims.run(t.rt, name).word


def statuses(t, *names):
    return [str(row(t.rt, name).status) for name in names]


class TestOrder:
    def test_one_after_the_other_as_they_were_accepted(self, t):
        """B4: whatever order the knocks come in; each turn sees the ones before it and no other."""
        submit("one", "two", "three")
        t._knocks.reverse()

        t.run_until_idle()

        assert said(Clerk("a")) == ["one", "two", "three"]
        assert [message.text for message in Clerk("a").messages][1::2] == ["re: one", "re: two", "re: three"]

    def test_a_lower_number_that_commits_later_still_runs(self, pg):
        """The head is the lowest number that is visible now; no cursor passes one that is not yet."""
        with transaction(pg.rt) as early:
            submit("low")
            at_once(1, lambda _: submit("high"))
            assert word(pg, "high") == "completed"
            early.commit()

        pg.run_until_idle()

        assert row(pg.rt, "low").seq < row(pg.rt, "high").seq
        assert statuses(pg, "low", "high") == ["completed", "completed"]

    def test_it_runs_first_where_it_is_visible_in_time(self, pg):
        """Of those that are visible, the lower number goes first, though it was committed last."""
        with transaction(pg.rt) as early:
            submit("low")
            at_once(1, lambda _: submit("high"))
            early.commit()

        assert word(pg, "high") == "not-head"
        pg.run_until_idle()

        assert said(Clerk("a")) == ["low", "high"]

    def test_callers_don_t_wait_for_each_other(self, pg):
        """Two open transactions that submit to the same two agents crosswise: no wait, no deadlock."""
        half, whole = threading.Barrier(2), threading.Barrier(2)

        def caller(number):
            with transaction(pg.rt) as session:
                for agent in ("a", "b") if number else ("b", "a"):
                    submit(f"{number}-{agent}", agent=agent)
                    half.wait(10)
                whole.wait(10)
                session.commit()

        at_once(2, caller)
        pg.run_until_idle()

        assert len(said(Clerk("a"))) == len(said(Clerk("b"))) == 2

    def test_agents_don_t_wait_for_each_other(self, t):
        """While one agent's turn runs, those of others begin and end."""
        submit("mine")
        submit("yours", agent="b")
        held = claims.claim(t.rt, "mine")

        assert word(t, "yours") == "completed"
        assert turns.run(t.rt, held).word == "completed"


class TestKnocks:
    def test_a_knock_runs_its_submission_and_no_other(self, t):
        """One that is not the head does nothing but knock the head."""
        submit("one", "two")
        t.lose_messages()

        assert word(t, "two") == "not-head"
        assert [knock.task_id for knock in t._knocks] == ["one"]
        assert statuses(t, "one", "two") == ["pending", "pending"]

    def test_each_reason_not_to_run_has_its_word(self, t):
        """Unknown, ended, held by another: nothing is changed and nothing is published."""
        submit("one", "two")
        claims.claim(t.rt, "one")
        before = row(t.rt, "one")
        t.lose_messages()

        assert word(t, "nobody") == "not-found"
        assert (word(t, "one"), word(t, "two")) == ("busy", "busy")
        Clerk("a").cancel_submission("two")
        assert word(t, "two") == "ended-before"
        assert row(t.rt, "one") == before
        assert t.lose_messages() == 0

    def test_a_hundred_repeats_do_nothing(self, t):
        """FR-05: knocks for a turn that runs end at once, and none publishes another.

        At once is a tenth of a second for nearly all, of this thread's own time: others may keep the processor
        busy, and a collection of a large process's garbage may fall into one or two.
        """
        submit("one", "two")
        held = claims.claim(t.rt, "one")
        t.lose_messages()
        took: list[float] = []

        def ended(name: str) -> str:
            began = time.thread_time()
            said = word(t, name)
            took.append(time.thread_time() - began)
            return said

        assert {ended(name) for name in ["one", "two"] * 50} == {"busy"}
        assert sorted(took)[95] < 0.1
        assert t.lose_messages() == 0
        turns.run(t.rt, held)
        assert [knock.task_id for knock in t._knocks] == ["two"]

    def test_a_class_that_is_not_imported_costs_no_attempt(self, t, caplog):
        """The row waits for a worker that has the class; the log says what to add."""
        submit("one")
        change(t.rt, update(tables.submissions).values(agent_class="Absent"))
        caplog.set_level(logging.ERROR)

        assert word(t, "one") == "unknown-class"
        assert (row(t.rt, "one").attempts, row(t.rt, "one").status) == (0, "pending")
        assert "think_imports" in caplog.text
        assert "Absent" not in agent_classes

    def test_before_its_time_it_waits_and_stays_the_head(self, t):
        """A head with ``not_before`` stays the head, and the line waits with it."""
        submit("one", "two")
        soon = t.clock.now() + timedelta(seconds=40)
        change(
            t.rt, update(tables.submissions).where(tables.submissions.c.id == "one").values(not_before=soon)
        )

        t.run_until_idle()
        t.skip(39)
        assert (word(t, "one"), word(t, "two")) == ("waiting", "not-head")

        t.skip(3)
        assert said(Clerk("a")) == ["one", "two"]

    def test_who_ends_a_turn_knocks_the_next(self, t):
        """Knocks that came while a turn ran were lost on it; its end looks again, after its commit."""
        submit("one")
        held = claims.claim(t.rt, "one")
        submit("two")
        drain(t.rt, t._knocks)

        turns.run(t.rt, held)

        assert [knock.task_id for knock in t._knocks] == ["two"]

    @pytest.mark.parametrize(
        ("end", "said"),
        [
            ({}, "ended-before"),
            ({"attempts": 5, "applied_at": PAST}, "error"),
            ({"messages": [{"role": "nobody"}]}, "error"),
            ({"messages": []}, "error"),
            ({"epoch": -1}, "skipped"),
        ],
    )
    def test_every_end_of_a_head_knocks_the_next(self, t, end, said):
        """Cancel, poison, nothing to answer, skip: the next is knocked at once, and else by the tick."""
        submit("one", "two")
        forget_knock(t.rt, "two")
        t.lose_messages()
        if end:
            change(t.rt, update(tables.submissions).where(tables.submissions.c.id == "one").values(end))
        else:
            Clerk("a").cancel_submission("one")

        assert word(t, "one") == said

        assert row(t.rt, "two").knock_at == t.clock.now() + timedelta(seconds=2)
        assert [knock.task_id for knock in t._knocks] == ["two"]

    def test_what_can_t_be_read_ends_in_an_error(self, t):
        """Messages that this version can't read end their turn, and don't hold up the line."""
        submit("one", "two")
        broken = {"messages": [{"role": "nobody", "parts": []}]}
        change(t.rt, update(tables.submissions).where(tables.submissions.c.id == "one").values(broken))

        t.run_until_idle()

        assert (row(t.rt, "one").status, row(t.rt, "one").error_type) == ("error", "UnreadableValue")
        assert "messages[0]" in row(t.rt, "one").error
        assert row(t.rt, "two").status == "completed"

    def test_nothing_new_to_answer_is_an_error(self, t):
        """The same message ids again, after the assistant has answered them, make no second turn."""
        message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
        Clerk("a").submit_messages(message)
        t.run_until_idle()

        again = Clerk("a").submit_messages(message)
        t.run_until_idle()

        assert row(t.rt, again.submission_id).error_type == "NothingToAnswer"
        assert said(Clerk("a")) == ["Hello"]

    def test_all_direct_knocks_lost(self, t):
        """R1: with every knock but the tick's thrown away all turns run, in order, only later."""
        names = [f"{number:02}" for number in range(6)]
        for number in names:
            submit(f"a{number}")
            submit(f"b{number}", agent="b")
        t.lose_messages()

        for _ in range(120):
            t.clock.advance(tick.EVERY)
            tick.run(t.rt)
            for knock in list(t._knocks):
                perform(t.rt, knock)
            t.lose_messages()
            if len(said(Clerk("a"))) == len(said(Clerk("b"))) == len(names):
                break

        assert said(Clerk("a")) == [f"a{number}" for number in names]
        assert said(Clerk("b")) == [f"b{number}" for number in names]
