"""What listeners are told beside turns: broadcasts, states, and that a conversation was cleared."""

from itertools import islice

import pytest

from tests.domain.crowd import transaction
from tests.domain.talk import ask
from think_celery import Think, tool
from think_celery.errors import NotSerializable, PayloadTooLarge
from think_celery.providers.scripted import call, say
from think_celery.settings import Settings
from think_celery.testing import think_test


class Crier(Think):
    """An agent that others listen to."""

    @tool
    def cry(self, what: str) -> str:
        """Tell everybody."""
        self.broadcast(what)
        return "told"


def heard(listener, number):
    """The next events of a listener, in short."""
    return [
        (event.type, event.text or event.data.get("data") or event.data.get("state"))
        for event in islice(listener, number)
    ]


class TestBroadcast:
    def test_b15_a_text_and_a_dict_come_to_whoever_listens(self, t):
        """B15: in the order in which they were sent, with empty ids."""
        listener = Crier("a").listen()
        Crier("a").broadcast("closing soon")
        Crier("a").broadcast({"minutes": 5})
        Crier("b").broadcast("not for you")

        first = next(listener)
        assert (first.type, first.text, first.submission_id, first.message_id) == (
            "broadcast",
            "closing soon",
            "",
            "",
        )
        assert heard(listener, 1) == [("broadcast", {"minutes": 5})]

    def test_nothing_is_stored(self, t):
        """Who begins to listen afterwards has missed it."""
        Crier("a").broadcast("gone")
        listener = Crier("a").listen()
        Crier("a").broadcast("here")

        assert heard(listener, 1) == [("broadcast", "here")]

    def test_from_a_tool_to_whoever_follows_the_turn(self, t):
        """The listener of one turn hears it between the turn's own events."""
        t.script(Crier, call("cry", {"what": "half done"}), say("Done"))
        accepted = Crier("a").submit_messages("Go")
        listener = Crier("a").listen(accepted.submission_id)
        t.run_until_idle()
        kinds = [event.type for event in listener]

        assert kinds.count("broadcast") == 1
        assert kinds.index("broadcast") < kinds.index("done")

    @pytest.mark.parametrize("message", [7, None, ["a"], b"x"])
    def test_what_is_neither_text_nor_dict(self, quick, message):
        """Is refused."""
        with pytest.raises(TypeError, match="a text or a dict"):
            Crier("a").broadcast(message)

    def test_what_is_no_json_or_too_much(self, sqlite_url):
        """Is refused, too."""
        with think_test(database_url=sqlite_url, settings=Settings(max_payload=100)):
            with pytest.raises(NotSerializable):
                Crier("a").broadcast({"x": {1, 2}})
            with pytest.raises(PayloadTooLarge):
                Crier("a").broadcast("x" * 200)

    def test_in_a_caller_s_transaction_it_comes_after_the_commit(self, t):
        """And never where that is rolled back."""
        listener = Crier("a").listen()
        with transaction(t.rt) as session:
            Crier("a").broadcast("rolled back")
            session.rollback()
        with transaction(t.rt) as session:
            Crier("a").broadcast("committed")
            session.commit()

        assert heard(listener, 1) == [("broadcast", "committed")]


class TestState:
    def test_listeners_get_the_state_and_each_new_one(self, t):
        """B24: at once what is stored, then every change, as JSON values."""
        Crier("a").set_state({"x": 1})
        listener = Crier("a").listen()
        Crier("a").update_state(lambda state: {**state, "y": 2})

        assert heard(listener, 2) == [("state", {"x": 1}), ("state", {"x": 1, "y": 2})]

    def test_an_older_one_that_comes_late_is_not_shown(self, t):
        """Two processes may show their states in another order than that in which they stored them."""
        from think_celery.domain.conversation import live

        listener = Crier("a").listen()
        for version, text in ((2, '{"x":2}'), (1, '{"x":1}'), (3, '{"x":3}')):
            live.show_state(t.rt, Crier("a")._ref.id, text, version)

        assert heard(listener, 2) == [("state", {"x": 2}), ("state", {"x": 3})]

    def test_listeners_hear_that_a_conversation_was_cleared(self, t):
        """B28: by clear_messages, and by destroy."""
        t.script(Crier, say("Hello"))
        ask(t, Crier("a"))
        listener = Crier("a").listen()
        Crier("a").clear_messages()

        assert [kind for kind, _ in heard(listener, 1)] == ["cleared"]
