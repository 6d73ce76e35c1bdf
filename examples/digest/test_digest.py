from datetime import datetime
from zoneinfo import ZoneInfo

import digest
from digest import DigestAgent

from think_celery.providers.scripted import FunctionModel
from think_celery.testing import think_test

BERLIN = ZoneInfo("Europe/Berlin")


def digests(agent):
    return [message.text for message in agent.messages if message.role == "assistant"]


def test_one_digest_each_working_day():
    calm = FunctionModel(lambda request: "All is calm.")
    with think_test(model=calm, timezone=digest.app.conf.timezone) as t:  # on a Friday at noon
        agent = DigestAgent("newsroom")
        agent.start()
        t.run_until_idle()
        (schedule,) = agent.list_schedules()
        assert schedule.next_run_at.astimezone(BERLIN) == datetime(2027, 1, 4, 8, tzinfo=BERLIN)

        t.skip("1 week")  # to Friday at noon: Monday to Friday have been

        assert digests(agent) == ["All is calm."] * 5


def test_a_deploy_starts_the_agent_again_and_makes_no_second_schedule(monkeypatch):
    with think_test() as t:
        agent = DigestAgent("newsroom")
        for version in ("1", "2", "3"):
            monkeypatch.setattr(DigestAgent, "version", version)
            agent.start()
            t.run_until_idle()

        assert [each.method for each in agent.list_schedules()] == ["write_digest"]
