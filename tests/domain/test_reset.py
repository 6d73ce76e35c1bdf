"""Reset: one transaction that ends every turn, empties the conversation and takes the line away."""

import threading
from datetime import timedelta

import pytest

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    echo,
    everything,
    line,
    news,
    prompt,
    row,
    said,
    transaction,
    wait_for_lock,
)
from think_celery.domain import tick
from think_celery.domain.conversation import conversation
from think_celery.domain.conversation.conversation import SKIPPED_BY_RESET
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.errors import InsideTransaction
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel
from think_celery.store import tables
from think_celery.testing import think_test


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").use_model(echo())


def submit(*names, agent="a"):
    for name in names:
        Clerk(agent).submit_messages(name, submission_id=name)


def reset(t, agent="a"):
    return conversation.reset(t.rt, Clerk(agent)._ref)


class TestReset:
    def test_it_ends_what_has_not_ended(self, t):
        """A19: running becomes aborted, pending skipped; the transcript is empty; ended ones stay."""
        submit("done")
        t.run_until_idle()
        submit("running", "waiting", "last")
        submit("other", agent="b")
        claims.claim(t.rt, "running")

        ended = reset(t)

        kept = {name: (str(row(t.rt, name).status), row(t.rt, name).error) for name in ("done", "running")}
        assert ended == 3
        assert kept == {"done": ("completed", None), "running": ("aborted", None)}
        for name in ("waiting", "last"):
            assert (row(t.rt, name).status, row(t.rt, name).error) == ("skipped", SKIPPED_BY_RESET)
            assert row(t.rt, name).completed_at == t.clock.now()
        assert Clerk("a").messages == []
        assert line(t.rt, Clerk("a")).process_id is None
        t.run_until_idle()
        assert said(Clerk("b")) == ["other"]

    def test_each_end_is_news(self, t):
        """A19: the workflow behind a skipped or aborted prompt hears of it, in the same transaction."""
        running, waiting = prompt(t.rt, key="think-1"), prompt(t.rt, key="think-2")
        claims.claim(t.rt, running)

        reset(t)

        assert {told.submission_id for told in news(t.rt)} == {running, waiting}
        assert all(told.knock_at is not None for told in news(t.rt))

    def test_the_worker_in_it_writes_nothing_more(self, t):
        """A turn that was running when the conversation was reset leaves no trace of itself."""
        seen = []

        def play(request):
            yield TextDelta("some text")
            reset(t)
            seen.append(everything(t.rt))
            t.clock.advance(timedelta(seconds=2))
            yield TextDelta("more")

        t.use_model(FunctionModel(play))
        submit("one")

        outcome = claims.run(t.rt, "one")

        assert outcome.word == "lease-lost"
        assert [everything(t.rt)] == seen

    def test_what_follows_runs_as_ever(self, t):
        """The next submission runs normally, at once, in an empty conversation."""
        submit("one", "two")
        claims.claim(t.rt, "one")
        reset(t)

        submit("three")
        t.run_until_idle()

        assert [message.text for message in Clerk("a").messages] == ["three", "re: three"]

    def test_a_submit_that_commits_after_it_is_skipped(self, postgres_url):
        """It was accepted before the reset, so its turn does not come; its workflow would hear of it."""
        with think_test(echo(), database_url=postgres_url) as t:
            submit("first")
            t.run_until_idle()
            with transaction(t.rt) as session:
                submit("open")
                at_once(1, lambda _: reset(t))
                session.commit()
            t.run_until_idle()

            assert (row(t.rt, "open").status, row(t.rt, "open").error) == ("skipped", SKIPPED_BY_RESET)
            assert Clerk("a").messages == []

    def test_of_a_new_agent(self, t):
        """An agent that has no row yet has a conversation that can be reset, again and again."""
        assert [reset(t), reset(t)] == [0, 0]
        submit("one")
        t.run_until_idle()

        assert row(t.rt, "one").status == "completed"
        assert row(t.rt, "one").epoch == 2

    def test_not_inside_a_caller_s_transaction(self, t):
        """It locks the line, which no caller's transaction may hold; the error says when to call it."""
        with transaction(t.rt), pytest.raises(InsideTransaction, match="after the transaction"):
            reset(t)

    def test_a_message_of_a_turn_that_waits_goes_too(self, t):
        """Partial text of a turn that was handed over is part of the conversation that is forgotten."""
        submit("one")

        def play(request):
            yield TextDelta("some text")
            t.rt.stopping.abort("the worker stops")
            yield TextDelta("more")

        t.use_model(FunctionModel(play))
        assert claims.run(t.rt, "one").word == "handed-over"
        assert len(Clerk("a").messages) == 2

        reset(t)

        assert Clerk("a").messages == []


class TestRaces:
    def test_no_turn_is_lost_between_two_looks(self, postgres_url):
        """A claim that waits for the reset finds its submission ended, and starts nothing."""
        with think_test(echo(), database_url=postgres_url) as t:
            submit("before")
            t.run_until_idle()
            submit("one")
            outcomes = []
            blocker = t.rt.db.engine.connect()
            with blocker.begin():
                blocker.execute(tables.messages.select().with_for_update())
                resetting = threading.Thread(target=reset, args=(t,))
                resetting.start()
                wait_for_lock(t.rt)
                claiming = threading.Thread(target=lambda: outcomes.append(claims.run(t.rt, "one")))
                claiming.start()
            resetting.join(10)
            claiming.join(10)
            blocker.close()

            assert [outcome.word for outcome in outcomes] == ["ended-before"]
            assert row(t.rt, "one").status == "skipped"
            assert Clerk("a").messages == []

    def test_a_caller_who_has_a_turn_is_waited_for_with_no_lock(self, postgres_url):
        """Its worker goes on meanwhile, and the caller may want another turn: neither waits for the reset."""
        with think_test(echo(), database_url=postgres_url) as t:
            submit("one", "two", "three", "four")
            ended, outcomes = [], []
            resetting = threading.Thread(target=lambda: ended.append(reset(t)))
            working = threading.Thread(target=lambda: outcomes.append(claims.run(t.rt, "one")), daemon=True)
            with transaction(t.rt) as session:
                Clerk("a").cancel_submission("three")
                resetting.start()
                wait_for_lock(t.rt)
                working.start()
                working.join(10)
                cancelled = Clerk("a").cancel_submission("two")
                session.commit()
            resetting.join(10)

            assert [outcome.word for outcome in outcomes] == ["completed"]
            assert (cancelled, ended) == (True, [1])
            statuses = [str(row(t.rt, name).status) for name in ("one", "two", "three", "four")]
            assert statuses == ["completed", "aborted", "aborted", "skipped"]
            assert Clerk("a").messages == []

    def test_all_at_once(self, t):
        """Claims, ends, accepts and a reset at once: what was accepted before has ended, nothing half-done."""
        for number in range(10):
            names = [f"{number}-{place}" for place in range(3)]
            submit(*names)

            def act(who, names=names, late=f"{number}-late"):
                if who == 0:
                    reset(t)
                elif who == 1:
                    submit(late)
                else:
                    claims.run(t.rt, names[who - 2])

            at_once(5, act)
            t.lose_messages()
            assert {str(row(t.rt, name).status) for name in names} <= {"completed", "skipped", "aborted"}
            reset(t)
            assert line(t.rt, Clerk("a")).process_id is None
            change(t.rt, tables.submissions.delete())

        assert Clerk("a").messages == []


def test_a_reset_and_a_turn_s_end_agree(t):
    """Whichever comes first, status, transcript and line tell the same story."""
    stories = set()
    for number in range(10):
        name = f"s{number}"
        submit(name)
        claimed = claims.claim(t.rt, name)
        at_once(2, lambda who, claimed=claimed: reset(t) if who else turns.run(t.rt, claimed))
        status, messages = str(row(t.rt, name).status), len(Clerk("a").messages)
        stories.add((status, messages))
        assert line(t.rt, Clerk("a")).process_id is None
        t.lose_messages()
        tick.run(t.rt)

    assert stories <= {("completed", 0), ("aborted", 0)}
