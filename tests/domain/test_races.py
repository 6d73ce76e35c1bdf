"""Many callers and many workers at one moment: one wins, nothing is lost, nobody meets a database error."""

import random
import threading

import pytest

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    clerk,
    count,
    drain,
    echo,
    in_processes,
    line,
    row,
    said,
    transaction,
    wait_for_lock,
    workers,
)
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.domain.work import perform
from think_celery.errors import SubmissionConflict
from think_celery.store import submissions as rows
from think_celery.store import tables
from think_celery.store.database import Refused
from think_celery.testing import think_test


@pytest.fixture
def pg(postgres_url):
    """On PostgreSQL alone: two open transactions that write are more than SQLite has."""
    with think_test(echo(), database_url=postgres_url) as test:
        yield test


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" not in request.fixturenames:
        return None
    model = echo()
    request.getfixturevalue("t").use_model(model)
    return model


class TestOneKey:
    def test_of_eighty_calls_in_four_processes(self, database_url):
        """B2, FR-44: 80 returns, 1 accepted, one id, one message, one request; again when it is done."""

        def child(number, ready):
            with workers(database_url) as rt:
                ready()

                def call(_):
                    made = clerk(rt).submit_messages("Hello", idempotency_key="k")
                    return made.submission_id, made.accepted, made.same_payload

                return at_once(20, call)

        def everybody():
            return [answer for answers in in_processes(4, child) for answer in answers]

        first = everybody()
        with think_test(model := echo(), database_url=database_url) as t:
            for _ in range(3):
                claims.run(t.rt, first[0][0])
        later = everybody()
        with think_test(database_url=database_url) as t:
            stored, messages = count(t.rt), said(Clerk("a"))

        assert len(first) == len(later) == 80
        assert len({submission_id for submission_id, _, _ in first + later}) == 1
        assert (sum(new for _, new, _ in first), sum(new for _, new, _ in later)) == (1, 0)
        assert all(same for _, _, same in first + later)
        assert (stored, messages, len(model.requests)) == (1, ["Hello"], 1)

    @pytest.mark.parametrize("ending", ["rolled back", "committed"])
    def test_the_first_one_s_transaction(self, pg, ending):
        """FR-38: others wait for a joined call of that key; rolled back, one of them is the first."""
        with transaction(pg.rt) as session:
            winner = Clerk("a").submit_messages("first", idempotency_key="k")
            others = []
            threads = [
                threading.Thread(
                    target=lambda: others.append(Clerk("a").submit_messages("other", idempotency_key="k"))
                )
                for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            wait_for_lock(pg.rt)
            early = len(others)
            session.commit() if ending == "committed" else session.rollback()
        for thread in threads:
            thread.join(10)
        pg.run_until_idle()

        assert (winner.accepted, early) == (True, 0)
        assert len({other.submission_id for other in others} | {winner.submission_id}) == 1
        assert sum(other.accepted for other in others) == (ending == "rolled back")
        assert said(Clerk("a")) == (["other"] if ending == "rolled back" else ["first"])

    def test_rolled_back_leaves_nothing(self, t):
        """FR-38, FR-44: no row, no knock, no request; the id is known at once, the same when it is tried again."""
        with transaction(t.rt):
            lost = Clerk("a").submit_messages("Hello", idempotency_key="k")
        nothing = count(t.rt), t.lose_messages()

        with transaction(t.rt) as session:
            again = Clerk("a").submit_messages("Hello", idempotency_key="k")
            before = t.lose_messages()
            session.commit()
        t.run_until_idle()

        assert (nothing, before) == ((0, 0), 0)
        assert (again.accepted, again.submission_id) == (True, lost.submission_id)
        assert row(t.rt, again.submission_id).status == "completed"

    def test_a_key_given_later_meets_another_s(self, pg):
        """A caller gives a key to a row while another stores that key: no database error in either."""
        Clerk("a").submit_messages("Hello", submission_id="s")
        failures = []

        def give():
            with transaction(pg.rt) as caller:
                try:
                    Clerk("a").submit_messages("Hello", submission_id="s", idempotency_key="k")
                except SubmissionConflict as error:
                    failures.append(error)
                Clerk("a").submit_messages("More", submission_id="more")
                caller.commit()

        with transaction(pg.rt) as session:
            made = Clerk("a").submit_messages("Hello", idempotency_key="k")
            giving = threading.Thread(target=give)
            giving.start()
            wait_for_lock(pg.rt)
            session.commit()
        giving.join(10)

        assert f"the key belongs to submission {made.submission_id!r}" in str(failures[0])
        assert row(pg.rt, "s").idempotency_key is None
        assert row(pg.rt, "more") is not None

    def test_a_key_is_taken_without_an_error(self, pg):
        """Whoever was faster, with that key or for that row, is waited for; it is False then, and no error."""
        Clerk("a").submit_messages("Hello", submission_id="s")
        seen, answers = row(pg.rt, "s"), []

        def give(key):
            answers.append(pg.rt.db.transact(lambda tx: rows.give_key(tx, seen, key)))

        for stored, given in (("k1", "k1"), (None, "k2")):
            with transaction(pg.rt) as session:
                if stored:
                    Clerk("a").submit_messages("Other", idempotency_key=stored)
                else:
                    Clerk("a").submit_messages("Hello", submission_id="s", idempotency_key="k3")
                giving = threading.Thread(target=give, args=(given,))
                giving.start()
                wait_for_lock(pg.rt)
                session.commit()
            giving.join(10)

        assert answers == [False, False]
        assert row(pg.rt, "s").idempotency_key == "k3"
        assert count(pg.rt) == 2

    def test_two_keys_given_to_one_row(self, pg):
        """One of the two is stored, the other conflicts, and the caller's transaction lives."""
        Clerk("a").submit_messages("Hello", submission_id="s")
        failures = []

        def give(key):
            try:
                Clerk("a").submit_messages("Hello", submission_id="s", idempotency_key=key)
            except SubmissionConflict as error:
                failures.append(error)

        with transaction(pg.rt) as session:
            give("k1")
            giving = threading.Thread(target=give, args=("k2",))
            giving.start()
            wait_for_lock(pg.rt)
            session.commit()
        giving.join(10)

        assert "stored with the key 'k1'" in str(failures[0])
        assert row(pg.rt, "s").idempotency_key == "k1"
        assert count(pg.rt) == 1

    def test_a_crowd_of_keys_and_ids(self, t):
        """B3: whatever is given together by many at once: a row each, or a conflict; never anything else."""
        for number in range(5):
            agent = f"a{number}"

            def act(who, agent=agent):
                given = [
                    {"submission_id": f"{agent}-s"},
                    {"idempotency_key": "k"},
                    {"submission_id": f"{agent}-s", "idempotency_key": "k"},
                    {"submission_id": f"{agent}-s", "idempotency_key": "k2"},
                ][who % 4]
                try:
                    return Clerk(agent).submit_messages("Hello", **given).submission_id
                except SubmissionConflict:
                    return "conflict"

            answers = at_once(12, act)

            mine = [found.submission_id for found in Clerk(agent).list_submissions()]
            assert set(answers) <= {"conflict", *mine}
            assert 1 <= len(mine) <= 2


class TestOneWriter:
    def test_of_many_threads_one_claims(self, t):
        """12 knocks at one moment, for one head: one turn, one attempt, one lease."""
        for number in range(5):
            name = f"s{number}"
            Clerk("a").submit_messages("Hello", submission_id=name)

            outcomes = at_once(12, lambda _, name=name: claims.claim(t.rt, name))

            claimed = [outcome for outcome in outcomes if isinstance(outcome, turns.Claim)]
            assert len(claimed) == 1
            assert {outcome.word for outcome in outcomes if outcome not in claimed} == {"busy"}
            assert row(t.rt, name).attempts == 1
            turns.run(t.rt, claimed[0])

    def test_of_many_processes_one_claims(self, database_url, by_hand):
        """Four workers, three threads each, and two submissions of an agent that has no row yet."""
        with workers(database_url) as rt:
            for name in ("one", "two"):
                clerk(rt).submit_messages("Hello", submission_id=name)

        def child(number, ready):
            with workers(database_url) as rt:
                rt.monitor.process_id()
                ready()
                outcomes = at_once(3, lambda who: claims.claim(rt, ("one", "two")[who % 2]))
                words = [getattr(outcome, "word", "claimed") for outcome in outcomes]
                ready()  # a worker that has gone is dead, and its work anybody's
                return words

        words = [word for answers in in_processes(4, child) for word in answers]

        assert words.count("claimed") == 1
        assert set(words) <= {"claimed", "busy", "not-head"}

    def test_no_knock_is_lost_between_an_end_and_an_accept(self, t):
        """Callers and workers at once and no tick: everything that was accepted has run, in order."""
        for number in range(2):
            agent = f"a{number}"
            over = threading.Event()

            def act(who, agent=agent, over=over):
                if who < 4:
                    for turn in range(4):
                        Clerk(agent).submit_messages(f"{who}.{turn}")
                    return
                while not over.is_set() or t._knocks:
                    drain(t.rt, t._knocks)
                    over.wait(0.01)
                    if who == 4 and len(said(Clerk(agent), "assistant")) == 16:
                        over.set()

            watchdog = threading.Timer(30, over.set)
            watchdog.start()
            at_once(8, act)
            watchdog.cancel()

            texts = said(Clerk(agent))
            assert len(texts) == 16
            assert [f"re: {text}" for text in texts] == said(Clerk(agent), "assistant")
            for who in range(4):
                assert [text for text in texts if text.startswith(f"{who}.")] == [
                    f"{who}.{n}" for n in range(4)
                ]

    def test_many_agents_at_once(self, t):
        """Eight workers, eight agents: each line in its own order, none waits for another."""
        for turn in range(3):
            for agent in range(8):
                Clerk(f"a{agent}").submit_messages(str(turn))
        knocks = list(t._knocks)
        t.lose_messages()
        random.Random(4).shuffle(knocks)

        at_once(8, lambda who: [perform(t.rt, knock) for knock in knocks[who::8]])
        t.run_until_idle()

        for agent in range(8):
            assert said(Clerk(f"a{agent}")) == ["0", "1", "2"]
            assert line(t.rt, Clerk(f"a{agent}")).process_id is None

    def test_the_index_has_the_last_word(self, t):
        """Were the line's lock not there, the database would still refuse a second running turn."""
        for name in ("one", "two"):
            Clerk("a").submit_messages("Hello", submission_id=name)
        change(
            t.rt, tables.submissions.update().where(tables.submissions.c.id == "one").values(status="running")
        )

        second = tables.submissions.update().where(tables.submissions.c.id == "two").values(status="running")
        with pytest.raises(Refused, match=r"(?i)unique"):
            change(t.rt, second)
