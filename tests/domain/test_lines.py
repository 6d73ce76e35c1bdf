"""The line of an agent: who comes when, who is knocked, and what a knock does."""

import logging
import threading
from datetime import timedelta

import pytest
from sqlalchemy import update

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    die,
    drain,
    echo,
    line,
    prompt,
    row,
    said,
    transaction,
    wait_for_lock,
)
from think_celery.domain import lines, submissions, tick, turns
from think_celery.runtime import agent_classes
from think_celery.store import tables
from think_celery.testing import perform, think_test


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
    return submissions.run(t.rt, name).word


def statuses(t, *names):
    return [str(row(t.rt, name).status) for name in names]


class TestOrder:
    def test_one_after_the_other_as_they_were_accepted(self, t):
        """Promise 4, B4: whatever order the knocks come in; each turn sees the ones before it and no other."""
        submit("one", "two", "three")
        t._knocks.reverse()

        t.run_until_idle()

        assert said(Clerk("a")) == ["one", "two", "three"]
        assert [message.text for message in Clerk("a").messages][1::2] == ["re: one", "re: two", "re: three"]

    def test_a_lower_number_that_commits_later_still_runs(self, pg):
        """P5: the head is the lowest number that is visible now; no cursor passes one that is not yet."""
        with transaction(pg.rt) as early:
            submit("low")
            at_once(1, lambda _: submit("high"))
            assert word(pg, "high") == "completed"
            early.commit()

        pg.run_until_idle()

        assert row(pg.rt, "low").seq < row(pg.rt, "high").seq
        assert statuses(pg, "low", "high") == ["completed", "completed"]

    def test_it_runs_first_where_it_is_visible_in_time(self, pg):
        """P5: of those that are visible, the lower number goes first, though it was committed last."""
        with transaction(pg.rt) as early:
            submit("low")
            at_once(1, lambda _: submit("high"))
            early.commit()

        assert word(pg, "high") == "not-head"
        pg.run_until_idle()

        assert said(Clerk("a")) == ["low", "high"]

    def test_callers_don_t_wait_for_each_other(self, pg):
        """P5: two open transactions that submit to the same two agents crosswise: no wait, no deadlock."""
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
        """Promise 4: while one agent's turn runs, those of others begin and end."""
        submit("mine")
        submit("yours", agent="b")
        held = submissions.claim(t.rt, "mine")

        assert word(t, "yours") == "completed"
        assert turns.run(t.rt, held).word == "completed"


class TestKnocks:
    def test_a_knock_runs_its_submission_and_no_other(self, t):
        """engine §4: one that is not the head does nothing but knock the head."""
        submit("one", "two")
        t.lose_messages()

        assert word(t, "two") == "not-head"
        assert [knock.task_id for knock in t._knocks] == ["one"]
        assert statuses(t, "one", "two") == ["pending", "pending"]

    def test_each_reason_not_to_run_has_its_word(self, t):
        """engine §4: unknown, ended, held by another: nothing is changed and nothing is published."""
        submit("one", "two")
        submissions.claim(t.rt, "one")
        before = row(t.rt, "one")
        t.lose_messages()

        assert word(t, "nobody") == "not-found"
        assert (word(t, "one"), word(t, "two")) == ("busy", "busy")
        Clerk("a").cancel_submission("two")
        assert word(t, "two") == "ended-before"
        assert row(t.rt, "one") == before
        assert t.lose_messages() == 0

    def test_a_hundred_repeats_do_nothing(self, t):
        """FR-05: knocks for a turn that runs end at once, and none publishes another."""
        submit("one", "two")
        held = submissions.claim(t.rt, "one")
        t.lose_messages()

        assert {word(t, name) for name in ["one", "two"] * 50} == {"busy"}
        assert t.lose_messages() == 0
        turns.run(t.rt, held)
        assert [knock.task_id for knock in t._knocks] == ["two"]

    def test_a_class_that_is_not_imported_costs_no_attempt(self, t, caplog):
        """engine §4: the row waits for a worker that has the class; the log says what to add."""
        submit("one")
        change(t.rt, update(tables.submissions).values(agent_class="Absent"))
        caplog.set_level(logging.ERROR)

        assert word(t, "one") == "unknown-class"
        assert (row(t.rt, "one").attempts, row(t.rt, "one").status) == (0, "pending")
        assert "think_imports" in caplog.text
        assert "Absent" not in agent_classes

    def test_before_its_time_it_waits_and_stays_the_head(self, t):
        """engine §4: a head with ``not_before`` stays the head, and the line waits with it."""
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
        """P4: knocks that came while a turn ran were lost on it; its end looks again, after its commit."""
        submit("one")
        held = submissions.claim(t.rt, "one")
        submit("two")
        drain(t.rt, t._knocks)

        turns.run(t.rt, held)

        assert [knock.task_id for knock in t._knocks] == ["two"]

    @pytest.mark.parametrize(
        ("end", "said"),
        [
            ({}, "ended-before"),
            ({"attempts": 5}, "error"),
            ({"messages": [{"role": "nobody"}]}, "error"),
            ({"messages": []}, "error"),
            ({"epoch": -1}, "skipped"),
        ],
    )
    def test_every_end_of_a_head_knocks_the_next(self, t, end, said):
        """engine §4: cancel, poison, nothing to answer, skip: the next is knocked at once, and else by the tick."""
        submit("one", "two")
        forget_knock(t, "two")
        t.lose_messages()
        if end:
            change(t.rt, update(tables.submissions).where(tables.submissions.c.id == "one").values(end))
        else:
            Clerk("a").cancel_submission("one")

        assert word(t, "one") == said

        assert row(t.rt, "two").knock_at == t.clock.now() + timedelta(seconds=2)
        assert [knock.task_id for knock in t._knocks] == ["two"]

    def test_what_can_t_be_read_ends_in_an_error(self, t):
        """Promise 10: messages that this version can't read end their turn, and don't hold up the line."""
        submit("one", "two")
        broken = {"messages": [{"role": "nobody", "parts": []}]}
        change(t.rt, update(tables.submissions).where(tables.submissions.c.id == "one").values(broken))

        t.run_until_idle()

        assert (row(t.rt, "one").status, row(t.rt, "one").error_type) == ("error", "UnreadableValue")
        assert "messages[0]" in row(t.rt, "one").error
        assert row(t.rt, "two").status == "completed"

    def test_nothing_new_to_answer_is_an_error(self, t):
        """truth §0: the same message ids again, after the assistant has answered them, make no second turn."""
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

        assert said(Clerk("a")) == [f"a{number}" for number in names]
        assert said(Clerk("b")) == [f"b{number}" for number in names]


def forget_knock(t, *names):
    """As the tick does with what stands behind a head."""
    change(t.rt, update(tables.submissions).where(tables.submissions.c.id.in_(names)).values(knock_at=None))


class TestEndsThatCross:
    """Two that end submissions of one agent at once must not leave the next one without anybody who knocks."""

    @pytest.fixture
    def queue(self, pg):
        """Three in a line; the tick has seen that the last two stand behind a head."""
        submit("one", "two", "three")
        forget_knock(pg, "two", "three")
        return pg

    def test_a_turn_ends_while_the_next_is_being_cancelled(self, queue):
        """R1: the end of the first finds the second being ended by a caller, waits, and goes on to the third."""
        held = submissions.claim(queue.rt, "one")
        with transaction(queue.rt) as session:
            Clerk("a").cancel_submission("two")
            ending = threading.Thread(target=turns.run, args=(queue.rt, held))
            ending.start()
            wait_for_lock(queue.rt)
            session.commit()
        ending.join(10)

        assert statuses(queue, "one", "two", "three") == ["completed", "aborted", "pending"]
        assert row(queue.rt, "two").knock_at is None
        assert row(queue.rt, "three").knock_at is not None

    def test_the_next_is_cancelled_while_a_turn_ends(self, queue):
        """R1: a cancel of what is behind a head leaves the head to whoever ends that."""
        held = submissions.claim(queue.rt, "one")
        cancelled = []

        def before_commit(point):
            if point == "turn:before-commit":
                cancelled.append(threading.Thread(target=Clerk("a").cancel_submission, args=("two",)))
                cancelled[0].start()
                wait_for_lock(queue.rt)

        queue.rt.failpoint = before_commit
        turns.run(queue.rt, held)
        cancelled[0].join(10)

        assert statuses(queue, "one", "two", "three") == ["completed", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_two_callers_cancel_neighbours(self, queue):
        """P5: no deadlock between two open transactions that cancel one each; the third is looked after."""
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("two")
            crossing = threading.Thread(target=Clerk("a").cancel_submission, args=("one",))
            crossing.start()
            wait_for_lock(queue.rt)
            first.commit()
        crossing.join(10)

        assert statuses(queue, "one", "two", "three") == ["aborted", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_the_first_of_two_that_cross(self, queue):
        """P5: the same with the head cancelled first, by a transaction that is still open."""
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("one")
            crossing = threading.Thread(target=Clerk("a").cancel_submission, args=("two",))
            crossing.start()
            wait_for_lock(queue.rt)
            first.commit()
        crossing.join(10)

        assert statuses(queue, "one", "two", "three") == ["aborted", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_a_caller_s_open_cancel_does_not_stop_the_tick(self, queue):
        """engine §5: a pass takes rows that somebody has locked in the next one, and goes on with the others."""
        submit("other", agent="b")
        queue.lose_messages()
        with transaction(queue.rt):
            Clerk("a").cancel_submission("one")
            queue.clock.advance(timedelta(seconds=3))

            tick.run(queue.rt)

            assert [knock.task_id for knock in queue._knocks] == ["other"]


class TestEnds:
    def test_news_is_stored_once_with_the_end(self, t):
        """engine §6: whoever ends it, the news for the waiting workflow is in the same transaction, once."""
        waits = prompt(t.rt)
        ended = [
            t.rt.db.transact(lambda tx: submissions.cancel(t.rt, tx, waits, "no more")),
            t.rt.db.transact(lambda tx: submissions.cancel(t.rt, tx, waits, "again")),
        ]

        (stored,) = t.rt.db.read(lambda tx: tx.execute(tables.outbox.select()).all())

        assert ended == [True, False]
        assert (stored.workflow_key, stored.run, stored.submission_id) == ("w", 1, waits)
        assert row(t.rt, waits).error == "no more"

    def test_any_text_can_be_a_reason(self, t):
        """What a user, a provider or a tool says ends up in a column: no NUL, no half character, not endless."""
        submit("one")

        Clerk("a").cancel_submission("one", "\x00\ud83d" + "x" * 50_000)

        assert row(t.rt, "one").status == "aborted"
        assert len(row(t.rt, "one").error) == 20_000

    def test_a_late_end_changes_nothing(self, t):
        """Promise 5: a turn that finishes after a cancel leaves the status and stores what it has said."""
        submit("one")
        held = submissions.claim(t.rt, "one")
        Clerk("a").cancel_submission("one", "stop")

        outcome = turns.run(t.rt, held)

        assert outcome.word == "aborted"
        assert (row(t.rt, "one").status, row(t.rt, "one").error) == ("aborted", "stop")
        assert line(t.rt, Clerk("a")).process_id is None

    def test_a_line_is_given_back_once(self, t):
        """engine §2: whoever lost the line gives nothing back, and knocks nobody."""
        submit("one", "two")
        held = submissions.claim(t.rt, "one")
        die(t.rt)
        tick.run(t.rt)
        other = submissions.claim(t.rt, "one")
        t.lose_messages()

        assert not t.rt.db.transact(lambda tx: lines.free(t.rt, tx, held.lease))
        assert t.lose_messages() == 0
        assert line(t.rt, Clerk("a")).token == other.lease.token
