from own_queue import Clerk

from think_celery.providers.scripted import FunctionModel
from think_celery.testing import think_test


def echo():
    return FunctionModel(lambda request: f"Re: {request.messages[-1].text}")


def test_urgent_letters_come_first():
    with think_test(model=echo()) as t:
        clerk = Clerk("shop")
        clerk.receive("1", "Do you have Moby-Dick?")
        clerk.receive("2", "And Emma?")
        clerk.receive("3", "The shop is on fire.", urgent=True)
        t.run_until_idle()

        assert list(clerk.state["answered"]) == ["3", "1", "2"]
        assert clerk.state["answered"]["3"] == "Re: The shop is on fire."
        assert clerk.state["waiting"] == []


def test_a_worker_dies_with_a_letter_in_its_hand():
    with think_test(model=echo()) as t:
        clerk = Clerk("shop")
        clerk.receive("1", "Do you have Moby-Dick?")
        t.crash_at("turn:committed")  # answered, and not yet put away
        t.run_until_idle()
        t.skip("1 minute")

        assert t.crashes == ["turn:committed"]
        assert clerk.state["answered"] == {"1": "Re: Do you have Moby-Dick?"}
        assert len(clerk.list_submissions()) == 1
