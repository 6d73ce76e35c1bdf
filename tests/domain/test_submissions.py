"""Accepting turns: once, stored or refused; and looking at them and deleting them."""

import logging
from datetime import timedelta

import pytest
from sqlalchemy import update

from tests.domain.crowd import Clerk, change, clerk, count, news, prompt, row, said, transaction
from think_celery.domain import outbox
from think_celery.domain.submissions import claims, submissions
from think_celery.errors import (
    EmptySubmission,
    InvalidMessage,
    NotSerializable,
    PayloadTooLarge,
    SubmissionConflict,
)
from think_celery.providers.scripted import say
from think_celery.settings import Settings
from think_celery.store import tables
from think_celery.testing import SimulatedCrash, think_test

HELLO = {"role": "user", "parts": [{"type": "text", "text": "Hello"}]}


class TestAccepting:
    def test_what_is_accepted_is_stored_and_waits(self, t):
        """B1, B4: the row is there, pending; its messages are not in the conversation yet."""
        accepted = Clerk("a").submit_messages("Hello", idempotency_key="k", metadata={"n": [1, None]})

        stored = row(t.rt, accepted.submission_id)
        assert (accepted.status, accepted.accepted, accepted.same_payload) == ("pending", True, True)
        assert (stored.idempotency_key, stored.metadata, stored.attempts) == ("k", {"n": [1, None]}, 0)
        assert stored.messages[0]["parts"][0]["text"] == "Hello"
        assert Clerk("a").messages == []

    def test_a_crash_right_after_the_commit_costs_two_seconds(self, t):
        """The knock is never sent, and the tick knocks from ``knock_at`` on, not before."""
        t.script(Clerk, say("Hi"))
        t.crash_at("submit:committed")
        with pytest.raises(SimulatedCrash):
            Clerk("a").submit_messages("Hello", submission_id="s")

        t.skip(1.9)
        assert row(t.rt, "s").status == "pending"

        t.skip(1)
        assert row(t.rt, "s").status == "completed"

    @pytest.mark.parametrize("when", ["pending", "completed"])
    def test_a_repeat_returns_the_first_one_as_it_stands_now(self, t, when, caplog):
        """B2, FR-40, FR-44: the same key or id gives the first row, its status of now, and its own metadata."""
        model = t.script(Clerk, say("Hi"))
        first = Clerk("a").submit_messages("Hello", idempotency_key="k", metadata={"n": 1})
        if when == "completed":
            t.run_until_idle()
        caplog.set_level(logging.WARNING)

        by_key = Clerk("a").submit_messages("Hello", idempotency_key="k", metadata={"n": 2})
        by_id = Clerk("a").submit_messages("Other", submission_id=first.submission_id)
        t.run_until_idle()

        for again in (by_key, by_id):
            assert (again.submission_id, again.status) == (first.submission_id, when)
            assert (again.accepted, again.metadata) == (False, {"n": 1})
        assert (by_key.same_payload, by_id.same_payload) == (True, False)
        assert "accepted before with other messages" in caplog.text
        assert "Other" not in caplog.text
        assert (count(t.rt), said(Clerk("a")), len(model.requests)) == (1, ["Hello"], 1)

    def test_ids_and_times_of_messages_are_no_difference(self, t):
        """B2: a repeat of a webhook makes its message anew; roles and parts tell whether it is the same."""
        Clerk("a").submit_messages({**HELLO, "id": "m1"}, idempotency_key="k")

        same = Clerk("a").submit_messages({**HELLO, "id": "m2"}, idempotency_key="k")
        other = Clerk("a").submit_messages({**HELLO, "role": "system"}, idempotency_key="k")

        assert (same.same_payload, other.same_payload) == (True, False)

    def test_a_key_is_an_agents_own(self, t):
        """FR-40: the same key names one submission in each agent, and the ids are the same in each process."""
        first = Clerk("a").submit_messages("Hello", idempotency_key="k")
        other = Clerk("b").submit_messages("Hello", idempotency_key="k")

        assert other.accepted
        assert first.submission_id == submissions.submission_id_for(Clerk("a")._ref, "k")
        assert first.submission_id != other.submission_id
        assert Clerk("b").get_submission_by_key("k").submission_id == other.submission_id

    def test_a_key_that_comes_later_is_stored(self, t):
        """A submission without key takes the first key that comes with its id; later ones conflict."""
        Clerk("a").submit_messages("Hello", submission_id="s")

        again = Clerk("a").submit_messages("Hello", submission_id="s", idempotency_key="k")

        assert (again.accepted, again.idempotency_key) == (False, "k")
        assert Clerk("a").submit_messages("Hello", idempotency_key="k").submission_id == "s"
        with pytest.raises(SubmissionConflict):
            Clerk("a").submit_messages("Hello", submission_id="s", idempotency_key="k2")
        assert count(t.rt) == 1

    def test_a_key_that_was_given_up_is_new_again(self, t):
        """After a restart released a key, it makes a new submission, with another id."""
        first = Clerk("a").submit_messages("Hello", idempotency_key="k")
        released = {"idempotency_key": None}
        change(t.rt, update(tables.submissions).values(released))

        second = Clerk("a").submit_messages("Hello", idempotency_key="k")
        third = Clerk("a").submit_messages("Hello", idempotency_key="k")

        assert second.accepted
        assert second.submission_id != first.submission_id
        assert (third.accepted, third.submission_id) == (False, second.submission_id)

    @pytest.mark.parametrize("key", [None, "k"])
    def test_one_whose_answer_got_lost_is_stored_once(self, t, key, monkeypatch):
        """A connection that died after the commit has stored the turn; asking again finds that one."""
        single = t.rt.db.accept_single

        def lost(work):
            single(work)
            return single(work)  # as `Database` does when the connection dies and nobody knows how it went

        monkeypatch.setattr(t.rt.db, "accept_single", lost)
        accepted = Clerk("a").submit_messages("Hello", idempotency_key=key)

        assert count(t.rt, tables.submissions) == 1
        assert row(t.rt, accepted.submission_id).status == "pending"
        assert accepted.accepted is (key is None)  # with a key it may have been another call's


class TestRefusing:
    @pytest.mark.parametrize(
        ("given", "error", "text"),
        [
            (
                {"submission_id": "s9", "idempotency_key": "k1"},
                SubmissionConflict,
                "belongs to submission 's1'",
            ),
            (
                {"submission_id": "s2", "idempotency_key": "k1"},
                SubmissionConflict,
                "belongs to submission 's1'",
            ),
            (
                {"submission_id": "s1", "idempotency_key": "k9"},
                SubmissionConflict,
                "stored with the key 'k1'",
            ),
            ({"submission_id": "s3"}, SubmissionConflict, r"a submission of Clerk\('b'\)"),
            ({"messages": [], "idempotency_key": "k1"}, EmptySubmission, "no message"),
            ({"messages": "  "}, EmptySubmission, "blank"),
            ({"messages": 5}, InvalidMessage, "int is no message"),
            ({"messages": [{"role": "user"}]}, InvalidMessage, "parts"),
            ({"messages": lambda: "Hello"}, TypeError, "function"),
            ({"messages": [print]}, TypeError, "function"),
            ({"messages": "x" * 3000}, PayloadTooLarge, "think_max_payload allows 2,000"),
            ({"metadata": {"x": "y" * 3000}}, PayloadTooLarge, "the metadata takes"),
            ({"metadata": {"when": {1, 2}}}, NotSerializable, "metadata"),
            ({"metadata": {"when": timedelta(1)}}, NotSerializable, "metadata"),
            ({"metadata": {1: "x"}}, NotSerializable, "metadata"),
            ({"metadata": {"x": float("nan")}}, NotSerializable, "metadata"),
            ({"metadata": [1]}, TypeError, "pass a dict"),
            ({"idempotency_key": " "}, ValueError, "blank"),
            ({"idempotency_key": "think-workflow:x"}, ValueError, "reserved"),
            ({"idempotency_key": "a\x00b"}, ValueError, "printable"),
            ({"idempotency_key": "\ud800"}, ValueError, "printable"),
            ({"idempotency_key": "ü" * 501}, ValueError, "500"),
            ({"idempotency_key": 42}, TypeError, "pass a text"),
            ({"submission_id": ""}, ValueError, "1 to 200"),
            ({"submission_id": "s" * 201}, ValueError, "1 to 200"),
            ({"submission_id": "ü"}, ValueError, "ASCII"),
            ({"submission_id": "a\nb"}, ValueError, "printable"),
            ({"submission_id": 42}, TypeError, "pass a text"),
        ],
    )
    def test_what_is_refused_is_not_stored(self, database_url, given, error, text):
        """B3: an error that says why, no row, no message, no knock, and what there was is as it was."""
        with think_test(database_url=database_url, settings=Settings(max_payload=2000)) as t:
            Clerk("a").submit_messages("Hello", submission_id="s1", idempotency_key="k1")
            Clerk("a").submit_messages("Hello", submission_id="s2")
            Clerk("b").submit_messages("Hello", submission_id="s3", idempotency_key="k3")
            t.lose_messages()

            with pytest.raises(error, match=text):
                Clerk("a").submit_messages(**{"messages": "Hi", **given})

            assert count(t.rt) == 3
            assert t.lose_messages() == 0
            assert row(t.rt, "s2").idempotency_key is None

    def test_the_longest_key_fits(self, t):
        """A key of 500 characters of four bytes each is stored: it is within what an index takes."""
        key = "".join(chr(0x1F300 + n % 250) for n in range(500))

        Clerk("a").submit_messages("Hello", idempotency_key=key)

        assert Clerk("a").get_submission_by_key(key) is not None

    def test_a_refusal_leaves_the_callers_transaction_alive(self, t):
        """No error of the database happens in a joined transaction; what else is in it can be committed."""
        Clerk("a").submit_messages("Hello", submission_id="s1", idempotency_key="k1")
        Clerk("a").submit_messages("Hello", submission_id="s2")

        with transaction(t.rt) as session:
            Clerk("a").submit_messages("Hello", idempotency_key="k1")
            for given in ({"submission_id": "s2", "idempotency_key": "k1"}, {"idempotency_key": "a\x00b"}):
                with pytest.raises((SubmissionConflict, ValueError)):
                    Clerk("a").submit_messages("Hello", **given)
            Clerk("a").submit_messages("Hello", submission_id="s3")
            session.commit()

        assert count(t.rt) == 3


class TestLooking:
    def test_lists_are_newest_first(self, t):
        """B5: by status, one or several; the number of rows is limited."""
        for name in ("s1", "s2", "s3"):
            Clerk("a").submit_messages("Hello", submission_id=name)
        Clerk("b").submit_messages("Hello", submission_id="other")
        Clerk("a").cancel_submission("s2")

        def ids(**given):
            return [found.submission_id for found in Clerk("a").list_submissions(**given)]

        assert ids() == ["s3", "s2", "s1"]
        assert ids(limit=1) == ["s3"]
        assert ids(status="aborted") == ["s2"]
        assert ids(status=["aborted", "pending"], limit=2) == ["s3", "s2"]
        assert ids(status=[]) == []

    @pytest.mark.parametrize("given", [{"limit": 0}, {"limit": -5}, {"limit": 1001}, {"status": "done"}])
    def test_a_wrong_filter_is_an_error(self, quick, given):
        """Limits below 1 or above 1000 and unknown statuses say what is allowed."""
        with pytest.raises(ValueError, match=r"between 1 and 1000|pending, running"):
            Clerk("a").list_submissions(**given)

    def test_only_ones_own(self, t):
        """An agent sees, cancels and deletes its own submissions only."""
        Clerk("b").submit_messages("Hello", submission_id="s")

        assert Clerk("a").inspect_submission("s") is None
        assert not Clerk("a").cancel_submission("s")
        assert Clerk("b").cancel_submission("s")
        assert not Clerk("a").delete_submission("s")
        assert row(t.rt, "s") is not None

    @pytest.mark.parametrize("name", ["", "nobody", "a\x00b", "\ud800", "x" * 3000])
    def test_a_name_that_nothing_has_finds_nothing(self, t, name):
        """Ids and keys come from outside: one that no row can have is unknown, and no error of a database."""
        agent = Clerk("a")

        assert agent.inspect_submission(name) is None
        assert agent.get_submission_by_key(name) is None
        assert not agent.cancel_submission(name, "why")
        assert not agent.delete_submission(name)
        assert not submissions.cancel_by_id(t.rt, name)

    def test_inside_a_transaction_one_sees_ones_own(self, t):
        """Looks join, too."""
        with transaction(t.rt):
            made = Clerk("a").submit_messages("Hello")
            seen = Clerk("a").inspect_submission(made.submission_id)

        assert seen is not None
        assert Clerk("a").inspect_submission(made.submission_id) is None


class TestDeleting:
    def ended(self, t, *names, after=0.0):
        for name in names:
            Clerk("a").submit_messages("Hello", submission_id=name)
            Clerk("a").cancel_submission(name)
        t.clock.advance(timedelta(seconds=after))

    def test_only_what_has_ended(self, t):
        """B5: pending ones stay, whatever is asked; a deleted id can be used again; the transcript stays."""
        t.script(Clerk, say("Hi"))
        Clerk("a").submit_messages("Hello", submission_id="s1")
        t.run_until_idle()
        Clerk("a").submit_messages("More", submission_id="s2")

        assert Clerk("a").delete_submission("s1")
        assert not Clerk("a").delete_submission("s1")
        assert not Clerk("a").delete_submission("s2")
        assert Clerk("a").delete_submissions(status=["pending", "running"]) == 0
        assert said(Clerk("a"), "assistant") == ["Hi"]
        assert Clerk("a").submit_messages("Again", submission_id="s1").accepted

    def test_by_status_and_age(self, t):
        """B5: ``completed_before`` is strict; only this agent's own."""
        self.ended(t, "s1", after=60)
        middle = t.clock.now()
        self.ended(t, "s2", after=60)
        self.ended(t, "s3")
        Clerk("b").submit_messages("Hello", submission_id="other")
        Clerk("b").cancel_submission("other")

        assert Clerk("a").delete_submissions(completed_before=middle) == 1
        assert row(t.rt, "s1") is None
        assert Clerk("a").delete_submissions(status="completed") == 0
        assert Clerk("a").delete_submissions(status=["aborted", "skipped"]) == 2
        assert row(t.rt, "other") is not None

    def test_in_batches(self, t, monkeypatch):
        """All that match go, however many; ones that are refused don't stop those behind them."""
        monkeypatch.setattr(submissions, "BATCH", 2)
        waits = prompt(t.rt)
        Clerk("a").cancel_submission(waits)
        self.ended(t, *[f"s{n}" for n in range(5)])

        assert Clerk("a").delete_submissions() == 5
        assert row(t.rt, waits) is not None

    def test_not_while_its_news_is_undelivered(self, t):
        """Refused until the workflow has got its news; then the delivered news goes with it."""
        waits = prompt(t.rt)
        Clerk("a").cancel_submission(waits)
        refused = Clerk("a").delete_submission(waits)

        outbox.deliver(t.rt, news(t.rt)[0].id)

        assert not refused
        assert Clerk("a").delete_submission(waits)
        assert (count(t.rt), news(t.rt)) == (0, [])

    def test_it_joins_the_callers_transaction(self, t):
        """What is rolled back was not deleted and not cancelled."""
        self.ended(t, "s1")
        Clerk("a").submit_messages("Hello", submission_id="s2")

        with transaction(t.rt):
            assert Clerk("a").delete_submission("s1")
            assert Clerk("a").cancel_submission("s2")

        assert (row(t.rt, "s1").status, row(t.rt, "s2").status) == ("aborted", "pending")

    def test_an_id_of_before_is_another_submission(self, t):
        """A turn whose submission was cancelled, deleted and submitted anew can't end the new one."""
        Clerk("a").submit_messages("Hello", submission_id="s")
        old = claims.claim(t.rt, "s").row
        Clerk("a").cancel_submission("s")
        Clerk("a").delete_submission("s")
        Clerk("a").submit_messages("New", submission_id="s")

        moved = t.rt.db.transact(
            lambda tx: submissions.lines.end(t.rt, tx, old, submissions.SubmissionStatus.ERROR)
        )

        assert not moved
        assert row(t.rt, "s").status == "pending"


def test_an_agent_of_a_runtime_uses_that_one(t):
    """Agents that turns make work with their own runtime, whatever the process's is."""
    assert clerk(t.rt).submit_messages("Hello").accepted
