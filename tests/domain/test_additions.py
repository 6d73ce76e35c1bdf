"""`persist_messages`: what is added to a conversation without a turn."""

import itertools

import pytest

from tests.domain.crowd import transaction
from tests.domain.talk import talker
from think_celery.domain.submissions import claims
from think_celery.errors import EmptySubmission, InvalidMessage, InvalidValue, PayloadTooLarge
from think_celery.providers.scripted import FunctionModel, say


def message(message_id, text, role="user"):
    """A message of that id."""
    return {"id": message_id, "role": role, "content": text}


def texts(agent):
    """What stands in the conversation."""
    return [(each.role, each.text) for each in agent.messages]


class TestStoring:
    def test_no_model_is_asked(self, t):
        """B8: messages of any role stand at the end, in their order, and no turn runs."""
        agent = talker()("a")

        added = agent.persist_messages(
            [message("s", "Be kind.", "system"), "Hi", message("a", "Hello.", "assistant")]
        )
        t.run_until_idle()

        assert texts(agent) == [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello.")]
        assert added == [each.id for each in agent.messages]
        assert agent.list_submissions() == []

    def test_upsert_changes_one_where_it_stands(self, t):
        """B8: text, role and metadata are the new ones, its place the old one."""
        agent = talker()("a")
        agent.persist_messages([message("m1", "one"), message("m2", "two")])

        changed = agent.persist_messages({**message("m1", "eins", "assistant"), "metadata": {"edited": True}})

        assert changed == ["m1"]
        assert texts(agent) == [("assistant", "eins"), ("user", "two")]
        assert agent.get_message("m1").metadata == {"edited": True}

    def test_append_leaves_one_that_is_there_as_it_is(self, t):
        """B8: and says which were added."""
        agent = talker()("a")
        agent.persist_messages(message("m1", "one"))

        assert agent.persist_messages([message("m1", "changed"), message("m2", "two")], mode="append") == [
            "m2"
        ]
        assert [text for _, text in texts(agent)] == ["one", "two"]

    def test_the_message_of_an_unfinished_turn_is_the_turn_s_own(self, t):
        """B8: neither before its first word nor in its midst can a client's copy take its place; afterwards it can."""
        agent = talker()("a")
        attempts = []

        def answer(request):
            ours = agent.list_submissions()[0].message_id
            attempts.append(agent.persist_messages(message(ours, "a stale copy", "assistant")))
            return say("the answer")

        t.use_model(FunctionModel(answer))
        done = agent.save_messages("Hi").message

        assert (attempts, done.text) == ([[]], "the answer")
        assert agent.get_message(done.id).text == "the answer"
        assert agent.persist_messages(message(done.id, "edited", "assistant")) == [done.id]
        assert agent.get_message(done.id).text == "edited"

    def test_what_is_added_meanwhile_stands_before_the_answer(self, t):
        """B8: the answer takes its place when its turn ends."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: (agent.persist_messages("a note"), say("the answer"))[1]))

        agent.save_messages("Hi")

        assert [text for _, text in texts(agent)] == ["Hi", "a note", "the answer"]

    def test_in_a_transaction_it_is_part_of_that(self, t):
        """B8: it is there once the caller commits, and never if not; the caller itself sees it at once."""
        agent = talker()("a")
        with transaction(t.rt) as session:
            agent.persist_messages("gone")
            session.rollback()
            agent.persist_messages("kept")
            assert [text for _, text in texts(agent)] == ["kept"]
            session.commit()

        assert [text for _, text in texts(agent)] == ["kept"]


class TestListeners:
    def test_are_told_without_a_turn(self, t):
        """B8: whoever follows the agent sees the message as it is stored; whoever follows a turn is left alone."""
        agent = talker()("a")
        events = agent.listen()
        agent.persist_messages(message("m1", "one"))
        agent.persist_messages(message("m1", "uno"))

        found = list(itertools.islice(events, 2))

        assert [(e.type, e.submission_id, e.message_id, e.text) for e in found] == [
            ("message", "", "m1", "uno")
        ] * 2
        assert found[0].data["parts"][0]["text"] == "uno"

    def test_of_a_turn_s_answer_that_is_edited(self, t):
        """B8: the end of a turn does not make later changes of its message old news."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: say("the answer")))
        events = agent.listen()
        done = agent.save_messages("Hi").message
        agent.persist_messages(message(done.id, "edited", "assistant"))

        seen = []
        for event in events:
            seen.append(event)
            if event.type == "message":
                break

        assert (seen[-1].text, seen[-2].type) == ("edited", "done")

    def test_of_one_submission_hear_nothing_of_it(self, t):
        """Their stream ends with their turn."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: (agent.persist_messages("a note"), say("ok"))[1]))
        submission = agent.submit_messages("Hi")
        events = agent.listen(submission.submission_id)
        t.run_until_idle()

        assert "message" not in [event.type for event in events]

    def test_are_told_after_the_commit(self, t):
        """What is rolled back was never there to be seen."""
        agent = talker()("a")
        events = agent.listen()
        with transaction(t.rt) as session:
            agent.persist_messages("gone")
            session.rollback()
            agent.persist_messages("kept")
            session.commit()

        assert next(events).text == "kept"


class TestRefusals:
    def test_of_what_can_t_be_stored(self, t):
        """Nothing of it is stored, and the error says what was wrong."""
        agent = talker()("a")
        wrong = [
            ([], EmptySubmission),
            (lambda: None, TypeError),
            (["ok", {"role": "user"}], InvalidMessage),
            ("x" * (t.rt.settings.max_payload + 1), PayloadTooLarge),
        ]

        for given, error in wrong:
            with pytest.raises(error):
                agent.persist_messages(given)
        for mode in ("replace", ["append"], None):
            with pytest.raises(InvalidValue, match="'upsert' or 'append'"):
                agent.persist_messages("Hi", mode=mode)
        assert agent.messages == []


def test_a_claimed_turn_s_message_can_t_be_made_before_it_is(t):
    """B8: its id is known from the claim on, and its row may not be there yet."""
    agent = talker()("a")
    agent.submit_messages("Hi", submission_id="s")
    claim = claims.claim(t.rt, "s")

    assert agent.persist_messages(message(claim.message_id, "mine", "assistant")) == []
