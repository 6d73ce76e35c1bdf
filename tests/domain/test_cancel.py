"""Cancel: a fact in the database, from any process, in every state, and around the finish line."""

import threading

import pytest
from sqlalchemy import select

from tests.domain.crowd import (
    Clerk,
    at_once,
    clerk,
    die,
    echo,
    in_processes,
    line,
    news,
    prompt,
    row,
    said,
    transaction,
    workers,
)
from think_celery.domain import recovery
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.messages import TextPart, UIMessage
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, say
from think_celery.signals import AbortController
from think_celery.store import messages as message_rows
from think_celery.store import tables

MOMENTS = ("turn:before-model", "turn:streaming", "turn:before-commit", "turn:committed")


def submit(*names, agent="a"):
    for name in names:
        Clerk(agent).submit_messages(name, submission_id=name)


def cancel(name="s", reason=None):
    return Clerk("a").cancel_submission(name, reason)


def story(t, name="s"):
    """Status, reason, and the transcript."""
    stored = row(t.rt, name)
    return str(stored.status), stored.error, [message.text for message in Clerk("a").messages]


def begin_and_say(rt, text, name="s"):
    """Claim the turn, and store that text of its answer."""
    claimed = claims.claim(rt, name)
    message = UIMessage(id=claimed.message_id, role="assistant", parts=[TextPart(text=text)])
    rt.db.transact(
        lambda tx: message_rows.store_unfinished(tx, claimed.lease.key, conversation.as_row(message))
    )


class TestEveryState:
    def test_pending(self, t):
        """B5, FR-08: aborted at once, with no worker running; its messages never join; no model is asked."""
        model = echo()
        t.use_model(model)
        submit("s")

        answers = [cancel(reason="no more"), cancel(reason="again")]
        t.run_until_idle()

        assert answers == [True, False]
        assert story(t) == ("aborted", "no more", [])
        assert row(t.rt, "s").started_at is None
        assert model.requests == []

    def test_claimed_before_the_model_is_asked(self, t):
        """FR-08: the worker looks before each effect; nothing is said, and the line is free."""
        model = echo()
        t.use_model(model)
        submit("s", "next")
        claimed = claims.claim(t.rt, "s")
        with t.rt.monitor.hold(claimed.lease, submission_id="s", seconds=100) as hold:
            cancel()
            t.rt.monitor.beat()
            assert hold.cancelled
        turns.run(t.rt, claimed)

        assert story(t)[0] == "aborted"
        t.run_until_idle()
        assert row(t.rt, "next").status == "completed"

    def test_streaming(self, t):
        """B5, FR-08: the text so far is kept, in its place, before the next turn's; one transaction with the line."""

        def play(request):
            if request.messages[-1].text != "s":
                return iter([TextDelta("and on")])
            return self.stopped(t)

        t.use_model(FunctionModel(play))
        submit("s", "next")

        outcome = claims.run(t.rt, "s")
        t.run_until_idle()

        assert outcome.word == "aborted"
        assert story(t) == ("aborted", "stop", ["s", "some text", "next", "and on"])

    def stopped(self, t):
        yield TextDelta("some text")
        cancel(reason="stop")
        t.rt.monitor.beat()
        yield TextDelta(" that nobody asked for")

    def test_handed_over(self, t):
        """A turn that waits for another worker has none to store its text: it takes its place at once."""

        def play(request):
            yield TextDelta("some text")
            t.rt.stopping.abort("the worker stops")
            yield TextDelta(" and more")

        t.use_model(FunctionModel(play))
        submit("s", "next")
        assert claims.run(t.rt, "s").word == "handed-over"
        t.rt.stopping = AbortController()

        cancel()
        t.use_model(echo())
        t.run_until_idle()

        assert story(t)[0] == "aborted"
        assert [message.text[:9] for message in Clerk("a").messages] == ["s", "some text", "next", "re: next"]

    def test_its_worker_is_dead(self, t):
        """B6: cancelled between a worker's death and the takeover: nobody runs it again; the line goes on."""
        t.use_model(echo())
        submit("s", "next")
        claims.claim(t.rt, "s")
        die(t.rt)

        cancel()
        recovery.sweep(t.rt)
        t.run_until_idle()

        assert story(t) == ("aborted", None, ["s", "next", "re: next"])

    def test_its_line_is_freed_and_nobody_has_it_yet(self, t):
        """Nobody would store the text of a turn that waits for its takeover: it takes its place at once."""
        t.use_model(echo())
        submit("s", "next")
        begin_and_say(t.rt, "half")
        die(t.rt)
        recovery.sweep(t.rt)
        assert row(t.rt, "s").status == "running"

        cancel()
        t.run_until_idle()

        assert story(t) == ("aborted", None, ["s", "half", "next", "re: next"])

    @pytest.mark.parametrize("end", ["completed", "error"])
    def test_ended(self, t, end):
        """Too late, and nothing changes."""
        t.script(Clerk, *([say("Hi")] if end == "completed" else []))
        submit("s")
        t.run_until_idle()
        before = row(t.rt, "s")

        assert not cancel(reason="late")
        assert row(t.rt, "s") == before
        assert before.status == end

    def test_from_another_process(self, database_url, by_hand):
        """B6: the worker of a running one learns of it with its next beat."""
        with workers(database_url) as rt:
            clerk(rt).submit_messages("Hello", submission_id="s")
            claimed = claims.claim(rt, "s")

            def child(number, ready):
                return clerk(rt).cancel_submission("s", "elsewhere")

            with rt.monitor.hold(claimed.lease, submission_id="s", seconds=100) as hold:
                answers = in_processes(1, child)
                rt.monitor.beat()

                assert (answers, hold.cancelled) == ([True], True)
            assert turns.run(rt, claimed).word == "aborted"

    def test_in_a_transaction_that_is_rolled_back(self, t):
        """It never happened; the turn runs."""
        t.use_model(echo())
        submit("s")
        with transaction(t.rt):
            assert cancel()

        t.run_until_idle()

        assert story(t) == ("completed", None, ["s", "re: s"])


class TestFinishLine:
    def test_of_many_who_cancel_one_did(self, t):
        """One of the racing calls says that it did; one piece of news."""
        waits = prompt(t.rt)

        answers = at_once(8, lambda number: cancel(waits, str(number)))

        assert sum(answers) == 1
        assert row(t.rt, waits).error == str(answers.index(True))
        assert len(news(t.rt)) == 1

    @pytest.mark.parametrize("rounds", [pytest.param(200, marks=pytest.mark.services), 20])
    def test_status_transcript_and_news_agree(self, t, rounds):
        """A cancel and a finish at once: one of them ends it, and everything tells the same story."""
        t.use_model(echo())
        seen = set()
        for number in range(rounds):
            waits = prompt(t.rt, name=f"a{number}", text="hi", key=f"think-{number}")
            agent = clerk(t.rt, f"a{number}")
            claimed = claims.claim(t.rt, waits)
            there = threading.Event()
            moment = MOMENTS[number % len(MOMENTS)]
            t.rt.failpoint = lambda point, at=moment, there=there: there.set() if point == at else None

            def act(who, claimed=claimed, waits=waits, agent=agent, there=there):
                if not who:
                    return turns.run(t.rt, claimed)
                there.wait(10)
                return agent.cancel_submission(waits, "stop")

            outcome, cancelled = at_once(2, act)
            status = str(row(t.rt, waits).status)
            seen.add(status)
            assert status == outcome.word == ("aborted" if cancelled else "completed")
            assert row(t.rt, waits).error == ("stop" if cancelled else None)
            assert said(agent, "assistant") in ([["re: hi"]] if not cancelled else [["re: hi"], []])
            assert all(message.parts[-1].state == "done" for message in agent.messages)
            assert line(t.rt, agent).process_id is None
            t.lose_messages()

        payloads = t.rt.db.read(lambda tx: tx.execute(select(tables.outbox.c.payload)).scalars().all())
        assert len(payloads) == rounds
        assert seen == {"aborted", "completed"}
        # What whoever ran the turn has delivered is emptied.
        stories = sum('"status":"aborted"' in payload for payload in payloads if payload is not None)
        found = t.rt.db.read(
            lambda tx: tx.execute(select(tables.submissions.c.status)).scalars().all().count("aborted")
        )
        assert stories == found


def test_a_sweep_that_meets_a_cancel(postgres_url, by_hand):
    """One of the two sees the other: the line of a turn that somebody is cancelling is freed when that is over."""
    with workers(postgres_url) as rt:
        agent = clerk(rt)
        agent.submit_messages("s", submission_id="s")
        begin_and_say(rt, "half")
        die(rt)
        with transaction(rt) as session:
            assert agent.cancel_submission("s")
            recovery.sweep(rt)
            session.commit()
        recovery.sweep(rt)

        assert line(rt, agent).process_id is None
        assert [message.text for message in agent.messages] == ["s", "half"]
        assert not [
            row for row in rt.db.read(lambda tx: message_rows.of(tx, agent._ref.id)) if row.status != "done"
        ]
