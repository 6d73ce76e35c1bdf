"""What becomes of a client's message that comes while the agent is busy: each `message_concurrency`."""

import pytest

from tests.domain.crowd import at_once, transaction, workers
from tests.domain.talk import talker
from think_celery import Debounce, RecoveryLimits, Think
from think_celery.domain.submissions import claims, submissions
from think_celery.errors import InsideTransaction, InvalidValue
from think_celery.providers.scripted import FunctionModel, say

ECHO = FunctionModel(lambda request: say(f"re: {request.messages[-1].text}"))


@pytest.fixture
def chat(t):
    """An agent of that strategy, in the middle of a turn for `first`; what ends the turn."""
    t.use_model(ECHO)

    def make(how):
        agent = talker(message_concurrency=how)("a")
        first = agent.receive_messages("first")
        claimed = claims.claim(t.rt, first.submission_id)
        return agent, lambda: _finish(t, claimed)

    return make


def _finish(t, claimed):
    from think_celery.domain.turns import turns

    turns.run(t.rt, claimed)
    t.run_until_idle()


def users(agent):
    """What users have said, as it stands in the conversation."""
    return [message.text for message in agent.messages if message.role == "user"]


def statuses(agent):
    """How the submissions stand, oldest first."""
    return [str(each.status) for each in reversed(agent.list_submissions())]


class TestEachStrategy:
    def test_queue(self, t, chat):
        """B18: each message has its turn, one after the other; that is the default."""
        assert Think.message_concurrency == "queue"
        agent, finish = chat("queue")
        agent.receive_messages("second")
        agent.receive_messages("third")
        finish()

        assert users(agent) == ["first", "second", "third"]
        assert statuses(agent) == ["completed"] * 3
        assert {submissions.get(t.rt, s.submission_id).kind for s in agent.list_submissions()} == {"chat"}

    def test_drop(self, t, chat):
        """B18: what comes meanwhile is skipped, and says so; the conversation never has it."""
        agent, finish = chat("drop")
        dropped = agent.receive_messages("second")
        finish()
        agent.receive_messages("third")
        t.run_until_idle()

        assert (dropped.status, dropped.accepted) == ("skipped", True)
        assert "drop" in dropped.error
        assert users(agent) == ["first", "third"]

    def test_latest(self, t, chat):
        """B18: of those that wait the newest has a turn; the others stand in the conversation before it."""
        agent, finish = chat("latest")
        second = agent.receive_messages("second")
        agent.receive_messages("third")
        agent.receive_messages("fourth")
        finish()

        assert statuses(agent) == ["completed", "skipped", "skipped", "completed"]
        assert [m.text for m in agent.messages] == [
            "first",
            "re: first",
            "second",
            "third",
            "fourth",
            "re: fourth",
        ]
        assert "place" in agent.inspect_submission(second.submission_id).error

    def test_merge(self, t, chat):
        """B18: those that wait become one message, with the parts of all and the newest one's id."""
        agent, finish = chat("merge")
        agent.receive_messages("second")
        agent.receive_messages({"id": "m3", "role": "user", "content": "third"})
        finish()

        assert statuses(agent) == ["completed", "skipped", "completed"]
        merged = agent.messages[2]
        assert (merged.id, [part.text for part in merged.parts]) == ("m3", ["second", "third"])
        assert len(agent.messages) == 4

    def test_debounce(self, t, chat):
        """B18: like latest, but it begins only when no further message has come for so long."""
        agent, finish = chat(Debounce(seconds=10))
        agent.receive_messages("second")
        finish()
        t.skip(6)
        agent.receive_messages("third")
        t.skip(6)
        waiting = statuses(agent)
        t.skip(6)

        assert waiting == ["completed", "skipped", "pending"]
        assert statuses(agent) == ["completed", "skipped", "completed"]
        assert users(agent) == ["first", "second", "third"]

    def test_a_debounced_turn_has_no_attempt_more(self, t):
        """B18: beginning later is no wait for a provider, so its first attempt counts like any other."""
        t.use_model(ECHO)
        agent = talker(message_concurrency=Debounce(5), chat_recovery=RecoveryLimits(max_attempts=1))("a")
        claimed = claims.claim(t.rt, agent.receive_messages("first").submission_id)
        second = agent.receive_messages("second")
        _finish(t, claimed)
        t.crash_at("turn:before-model")
        t.skip(30)

        assert t.crashes == ["turn:before-model"]
        assert agent.inspect_submission(second.submission_id).error_type == "TooManyAttempts"

    @pytest.mark.parametrize("how", ["latest", "merge", "drop", Debounce(60)])
    def test_an_idle_agent_answers_at_once(self, t, how):
        """B18: a strategy is for what overlaps; alone, a message has its turn without delay."""
        t.use_model(ECHO)
        agent = talker(message_concurrency=how)("a")

        for text in ("one", "two"):
            agent.receive_messages(text)
            t.run_until_idle()

        assert [m.text for m in agent.messages] == ["one", "re: one", "two", "re: two"]


class TestWhatIsLeftAlone:
    @pytest.mark.parametrize("how", ["latest", "merge", "drop", Debounce(1)])
    def test_submitted_and_saved_turns(self, t, chat, how):
        """B18: a server's own turns are neither dropped nor replaced, whatever the class says."""
        agent, finish = chat(how)
        agent.submit_messages("submitted")
        agent.receive_messages("chat")
        agent.submit_messages("again")
        finish()
        t.skip(5)

        assert [text for text in users(agent) if text in ("submitted", "again")] == ["submitted", "again"]

    def test_the_one_whose_turn_it_is(self, t):
        """B18: what could have begun already is no message that waits; only timing decides whether it has."""
        t.use_model(ECHO)
        agent = talker(message_concurrency="latest")("a")
        agent.receive_messages("first")
        agent.receive_messages("second")
        agent.receive_messages("third")
        t.run_until_idle()

        assert statuses(agent) == ["completed", "skipped", "completed"]
        assert users(agent) == ["first", "second", "third"]

    def test_one_that_was_handed_over(self, t, chat):
        """B18: its turn has begun, and has an answer in the making."""
        agent, _ = chat("latest")
        t.rt.stopping.abort("the worker stops")
        t._restart()
        t.rt.stopping = type(t.rt.stopping)()
        agent.receive_messages("second")
        t.run_until_idle()

        assert statuses(agent) == ["completed", "completed"]

    def test_what_would_be_too_much_for_one_turn(self, t, chat):
        """Nothing is lost: then each has its own."""
        agent, finish = chat("merge")
        half = "x" * (t.rt.settings.max_payload * 2 // 3)
        agent.receive_messages(half)
        agent.receive_messages(half)
        finish()

        assert statuses(agent) == ["completed"] * 3

    def test_a_repeat(self, t, chat):
        """The same key again is the same message: it neither replaces itself nor is it dropped."""
        agent, finish = chat("latest")
        first = agent.receive_messages("second", idempotency_key="k")
        again = agent.receive_messages("second", idempotency_key="k")
        other = agent.receive_messages("another", idempotency_key="k")
        finish()

        assert first.submission_id == again.submission_id == other.submission_id
        assert [each.accepted for each in (first, again, other)] == [True, False, False]
        assert [each.same_payload for each in (first, again, other)] == [True, True, False]
        assert users(agent) == ["first", "second"]


class TestRestarts:
    @pytest.mark.parametrize("how", ["latest", "merge", Debounce(5)])
    def test_what_waits_survives_the_loss_of_everything(self, t, chat, how):
        """B18: it is all in rows: the worker dies, every message of the broker is lost, and each word is answered."""
        agent, _ = chat(how)
        agent.receive_messages("second")
        agent.receive_messages("third")
        t._restart()
        t.lose_messages()
        t.skip(60)

        assert statuses(agent) == ["completed", "skipped", "completed"]
        assert " ".join(users(agent)).split() in (["first", "second", "third"], ["first", "secondthird"])


class TestRaces:
    @pytest.mark.parametrize("how", ["drop", "latest", "merge"])
    def test_of_many_at_once_none_is_lost_or_answered_twice(self, database_url, how):
        """B18: eight clients speak at once to an idle agent; exactly one has the first turn."""
        with workers(database_url) as rt:
            agent_class = talker(message_concurrency=how)

            at_once(8, lambda number: agent_class._bound_to(rt, "a").receive_messages(f"m{number}"))
            agent = agent_class._bound_to(rt, "a")
            while pending := agent.list_submissions(status="pending"):
                claims.run(rt, pending[-1].submission_id)

            found = statuses(agent)
            words = [
                "".join(part.text for part in each.parts) for each in agent.messages if each.role == "user"
            ]
            if how == "drop":
                assert (found.count("completed"), found.count("skipped"), len(words)) == (1, 7, 1)
            else:
                assert (found.count("completed"), found.count("skipped")) == (2, 6)
                assert sorted("".join(words)) == sorted("".join(f"m{number}" for number in range(8)))

    def test_a_turn_that_begins_just_then(self, database_url):
        """B18: what is replaced while it is claimed has a turn or is part of the newer one, never both or neither."""
        with workers(database_url) as rt:
            for number in range(20):
                agent = talker(message_concurrency="latest")._bound_to(rt, f"a{number}")
                ids = [agent.receive_messages(text).submission_id for text in ("first", "second")]

                def work(each, agent=agent, ids=ids):
                    return agent.receive_messages("third") if each == 2 else claims.run(rt, ids[each])

                at_once(3, work)
                while pending := agent.list_submissions(status="pending"):
                    claims.run(rt, pending[-1].submission_id)

                assert users(agent) == ["first", "second", "third"]


class TestRefusals:
    @pytest.mark.parametrize("wrong", ["newest", "", None, 0.75, Debounce])
    def test_of_an_unknown_strategy(self, wrong):
        """B18: when the class is made, with the words that there are."""
        with pytest.raises(InvalidValue, match="queue, latest, merge, drop"):
            talker_of(wrong)

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", True, 3601])
    def test_of_an_unfit_debounce(self, seconds):
        """B18: a window is a number of seconds."""
        with pytest.raises(InvalidValue, match="seconds"):
            Debounce(seconds)

    def test_in_a_transaction(self, t):
        """It locks what another client's message may wait for; `queue` does not, and joins."""
        with transaction(t.rt) as session:
            with pytest.raises(
                InsideTransaction, match=r"message_concurrency .* needs a transaction of its own"
            ):
                talker(message_concurrency="latest")("a").receive_messages("Hi")
            talker(message_concurrency="queue")("a").receive_messages("Hi")
            session.rollback()
        assert talker()("a").list_submissions() == []


def talker_of(how):
    """A class with that strategy."""

    class Strategist(Think, name="Strategist"):
        message_concurrency = how

    return Strategist
