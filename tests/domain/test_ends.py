"""How turns end: once, with their news, and never leaving the next one without anybody who knocks."""

import itertools
import threading
from datetime import timedelta

import pytest

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    die,
    echo,
    forget_knock,
    line,
    prompt,
    row,
    transaction,
    wait_for_lock,
)
from think_celery.domain import tick
from think_celery.domain.submissions import claims, lines, submissions
from think_celery.domain.turns import turns
from think_celery.store import tables
from think_celery.testing import think_test


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


def statuses(t, *names):
    return [str(row(t.rt, name).status) for name in names]


def cancel_elsewhere(t, name):
    """Cancel it in another thread, and say whether that waits for somebody."""
    cancelling = threading.Thread(target=Clerk("a").cancel_submission, args=(name,), daemon=True)
    cancelling.start()
    cancelling.join(5)
    return cancelling.is_alive()


class TestEndsThatCross:
    """Two that end submissions of one agent at once must not leave the next one without anybody who knocks."""

    @pytest.fixture
    def queue(self, pg):
        """Three in a line; the tick has seen that the last two stand behind a head."""
        submit("one", "two", "three")
        forget_knock(pg.rt, "two", "three")
        return pg

    def test_a_turn_ends_while_the_next_is_being_cancelled(self, queue):
        """R1: the end of the first finds the second locked by a caller; the tick looks again, and finds the third."""
        held = claims.claim(queue.rt, "one")
        with transaction(queue.rt) as session:
            Clerk("a").cancel_submission("two")
            ending = threading.Thread(target=turns.run, args=(queue.rt, held))
            ending.start()
            ending.join(10)
            waited = ending.is_alive()
            session.commit()
        ending.join(10)
        queue.clock.advance(timedelta(seconds=3))
        looked_at = tick.look_at_lines(queue.rt, 10)

        assert not waited
        assert looked_at == 1
        assert statuses(queue, "one", "two", "three") == ["completed", "aborted", "pending"]
        assert row(queue.rt, "two").knock_at is None
        assert row(queue.rt, "three").knock_at is not None

    def test_the_next_is_cancelled_while_a_turn_ends(self, queue):
        """R1: a cancel of what is behind a head leaves the head to whoever ends that."""
        held = claims.claim(queue.rt, "one")
        cancelled, ways = [], itertools.count()

        def before_commit(point):
            # First comes the end in one statement, which changes nothing where somebody waits; then the transaction.
            if point == "turn:before-commit" and next(ways) == 1:
                cancelled.append(threading.Thread(target=Clerk("a").cancel_submission, args=("two",)))
                cancelled[0].start()
                wait_for_lock(queue.rt)

        queue.rt.failpoint = before_commit
        turns.run(queue.rt, held)
        cancelled[0].join(10)

        assert statuses(queue, "one", "two", "three") == ["completed", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_two_callers_cancel_neighbours(self, queue):
        """Whoever ends the head does not wait for a caller who has the next one, and may want the head as well."""
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("two")
            waited = cancel_elsewhere(queue, "one")
            again = Clerk("a").cancel_submission("one")
            first.commit()
        queue.clock.advance(timedelta(seconds=3))
        tick.run(queue.rt)

        assert (waited, again) == (False, False)
        assert statuses(queue, "one", "two", "three") == ["aborted", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_the_next_one_s_caller_thinks_better_of_it(self, queue):
        """The end of the head is remembered, pass by pass, until the caller who has the next one is done."""
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("two")
            cancel_elsewhere(queue, "one")
            # What is remembered by it would be lost.
            (deleted_at_once,) = at_once(1, lambda _: Clerk("a").delete_submission("one"))
            for _ in range(3):
                queue.clock.advance(timedelta(seconds=3))
                tick.run(queue.rt)
            (deleted_later,) = at_once(1, lambda _: Clerk("a").delete_submission("one"))
            first.rollback()
        queue.lose_messages()
        queue.clock.advance(timedelta(seconds=3))

        tick.run(queue.rt)

        assert (deleted_at_once, deleted_later) == (False, True)
        assert [knock.task_id for knock in queue._knocks] == ["two"]
        assert row(queue.rt, "two").knock_at is not None

    @pytest.mark.parametrize("expected", ["two", "three", "four"])
    def test_what_is_expected_of_others_ends_with_them(self, queue, expected):
        """R1: the next one, or one behind it, is expected and then cancelled: what follows is found all the same."""
        submit("four", "five")
        forget_knock(queue.rt, "four", "five")
        later = queue.clock.now() + timedelta(seconds=2.5)
        mine = tables.submissions.c.id == expected
        change(queue.rt, tables.submissions.update().where(mine).values(knock_at=later))
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("two")
            cancel_elsewhere(queue, "one")
            for _ in range(2):
                queue.clock.advance(timedelta(seconds=3))
                tick.run(queue.rt)
            waited = [cancel_elsewhere(queue, name) for name in ("three", "four")]
            first.commit()
        queue.lose_messages()
        for _ in range(2):
            queue.clock.advance(timedelta(seconds=3))
            tick.run(queue.rt)

        assert waited == [False, False]
        assert {knock.task_id for knock in queue._knocks} == {"five"}
        assert row(queue.rt, "five").knock_at is not None

    def test_a_head_that_can_be_expected_keeps_nobody_from_deleting(self, queue):
        """Who deletes the end by which the next one is to be found sees to that one instead."""
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("two")
            cancel_elsewhere(queue, "one")
            first.rollback()

        assert Clerk("a").delete_submission("one")
        assert row(queue.rt, "two").knock_at is not None

    def test_the_first_of_two_that_cross(self, queue):
        """The same with the head cancelled first, by a transaction that is still open."""
        with transaction(queue.rt) as first:
            Clerk("a").cancel_submission("one")
            crossing = threading.Thread(target=Clerk("a").cancel_submission, args=("two",))
            crossing.start()
            wait_for_lock(queue.rt)
            first.commit()
        crossing.join(10)

        assert statuses(queue, "one", "two", "three") == ["aborted", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_a_cancel_behind_the_head_does_not_touch_it(self, queue):
        """A caller that has the second row already, and one that ends the first: no circle of waits."""
        mine = tables.submissions.c.id == "two"

        def cross():
            with transaction(queue.rt) as other:
                Clerk("a").cancel_submission("one")
                other.commit()

        with transaction(queue.rt) as first:
            first.execute(tables.submissions.select().where(mine).with_for_update())
            crossing = threading.Thread(target=cross)
            crossing.start()
            crossing.join(10)
            waited = crossing.is_alive()
            Clerk("a").cancel_submission("two")
            first.commit()
        crossing.join(10)
        queue.clock.advance(timedelta(seconds=3))
        tick.run(queue.rt)

        assert not waited
        assert statuses(queue, "one", "two", "three") == ["aborted", "aborted", "pending"]
        assert row(queue.rt, "three").knock_at is not None

    def test_a_caller_s_open_cancel_does_not_stop_the_tick(self, queue):
        """A pass takes rows that somebody has locked in the next one, and goes on with the others."""
        submit("other", agent="b")
        queue.lose_messages()
        with transaction(queue.rt):
            Clerk("a").cancel_submission("one")
            queue.clock.advance(timedelta(seconds=3))

            tick.run(queue.rt)

            assert [knock.task_id for knock in queue._knocks] == ["other"]


class TestEnds:
    def test_news_is_stored_once_with_the_end(self, t):
        """Whoever ends it, the news for the waiting workflow is in the same transaction, once."""
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
        """A turn that finishes after a cancel leaves the status and stores what it has said."""
        submit("one")
        held = claims.claim(t.rt, "one")
        Clerk("a").cancel_submission("one", "stop")

        outcome = turns.run(t.rt, held)

        assert outcome.word == "aborted"
        assert (row(t.rt, "one").status, row(t.rt, "one").error) == ("aborted", "stop")
        assert line(t.rt, Clerk("a")).process_id is None

    def test_a_line_is_given_back_once(self, t):
        """Whoever lost the line gives nothing back, and knocks nobody."""
        submit("one", "two")
        held = claims.claim(t.rt, "one")
        die(t.rt)
        tick.run(t.rt)
        other = claims.claim(t.rt, "one")
        t.lose_messages()

        assert not t.rt.db.transact(lambda tx: lines.free(t.rt, tx, held.lease))
        assert t.lose_messages() == 0
        assert line(t.rt, Clerk("a")).token == other.lease.token
