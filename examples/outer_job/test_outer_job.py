import pytest
from outer_job import POSTED, ChatBot

from think_celery.providers.scripted import say
from think_celery.testing import think_test

EVENT = {"id": "evt-1", "channel": "#help", "text": "Where is the coffee?"}


@pytest.fixture(autouse=True)
def an_empty_chat():
    POSTED.clear()


def test_an_event_that_comes_twice_is_answered_once():
    with think_test() as t:
        model = t.script(ChatBot, say("In the kitchen."))
        bot = ChatBot("team-7")
        first, again = bot.receive(EVENT), bot.receive(EVENT)
        t.run_until_idle()

        assert (first.accepted, again.accepted) == (True, False)
        assert POSTED == {
            "#help/evt-1:notice": "I am looking into it.",
            "#help/evt-1:answer": "In the kitchen.",
        }
        assert len(model.requests) == 1


@pytest.mark.parametrize("point", ["fiber:stashed", "turn:committed", "turn:claimed"])
def test_a_worker_dies_and_the_visible_reply_comes_all_the_same(point):
    with think_test() as t:
        model = t.script(ChatBot, say("In the kitchen."))
        t.crash_at(point)
        bot = ChatBot("team-7")
        fiber = bot.receive(EVENT)
        t.run_until_idle()
        t.skip("1 minute")

        assert t.crashes == [point]
        assert bot.inspect_fiber(fiber.fiber_id).status == "completed"
        assert POSTED["#help/evt-1:answer"] == "In the kitchen."
        assert len(POSTED) == 2
        assert len(model.requests) == 1


def test_after_three_deaths_somebody_is_told():
    with think_test() as t:
        t.script(ChatBot, say("In the kitchen."))
        t.crash_at("job:claimed", times=3)
        bot = ChatBot("team-7")
        fiber = bot.receive(EVENT)
        t.run_until_idle()
        t.skip("5 minutes")

        ended = bot.inspect_fiber(fiber.fiber_id)
        assert (ended.status, ended.error) == ("error", "three workers died in it")
        assert POSTED["#help/evt-1:sorry"] == "Something is wrong with me."
