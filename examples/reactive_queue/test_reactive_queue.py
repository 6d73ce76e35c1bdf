from reactive_queue import Researcher

from think_celery.providers.scripted import fail, say
from think_celery.testing import think_test


def answers(agent):
    return [message.text for message in agent.messages if message.role == "assistant" and message.text]


def test_one_answer_takes_the_next_topic():
    with think_test() as t:
        t.script(Researcher, say("Whales sing."), say("Bees dance."), say("Ants march."))
        agent = Researcher("nature")
        for topic in ("whales", "bees", "ants", "whales"):
            agent.add_topic(topic, topic)
        t.run_until_idle()

        assert answers(agent) == ["Whales sing.", "Bees dance.", "Ants march."]
        assert agent.state == {"topics": [], "done": ["whales", "bees", "ants"]}


def test_a_topic_that_fails_does_not_hold_up_the_others():
    with think_test() as t:
        t.script(Researcher, fail("refused"), say("Bees dance."))
        agent = Researcher("nature")
        agent.add_topic("whales", "whales")
        agent.add_topic("bees", "bees")
        t.run_until_idle()

        assert agent.state["done"] == ["whales", "bees"]
        assert [each.status for each in agent.list_submissions()] == ["completed", "error"]


def test_a_worker_dies_between_an_answer_and_the_next_topic():
    with think_test() as t:
        t.script(Researcher, say("Whales sing."), say("Bees dance."))
        agent = Researcher("nature")
        agent.add_topic("whales", "whales")
        agent.add_topic("bees", "bees")
        t.crash_at("hook:begin")
        t.run_until_idle()
        assert answers(agent) == ["Whales sing."]  # the hook was lost, the list was not

        agent.go_on()
        t.run_until_idle()

        assert answers(agent) == ["Whales sing.", "Bees dance."]
