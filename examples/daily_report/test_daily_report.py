from datetime import timedelta

from daily_report import ReportAgent, ReportWorkflow

from think_celery.providers.scripted import FunctionModel, answer
from think_celery.testing import think_test


def reports():
    return FunctionModel(lambda request: answer({"headline": "Books again", "text": "Twelve of them."}))


def test_a_report_for_each_working_day():
    with think_test(model=reports()) as t:  # on a Friday at noon
        agent = ReportAgent("shop")
        agent.start()
        t.skip("1 week")

        days = ["2027-01-04", "2027-01-05", "2027-01-06", "2027-01-07", "2027-01-08"]
        assert agent.state["reports"] == dict.fromkeys(days, "Books again")


def test_a_handler_that_is_called_twice_for_a_slot_starts_one_workflow():
    with think_test(model=reports()) as t:
        agent = ReportAgent("shop")
        agent.start()
        t.run_until_idle()
        t.crash_at(
            "workflow:started"
        )  # the worker dies when it has started the workflow, before the slot has ended
        t.skip("3 days")

        (run,) = agent.get_workflows(workflow=ReportWorkflow)
        assert (run.status, run.output) == ("complete", "Books again")


def test_of_the_slots_that_nobody_fired_the_latest_one_runs():
    with think_test(model=reports()) as t:
        agent = ReportAgent("shop")
        agent.start()
        t.run_until_idle()
        t.clock.advance(timedelta(days=10))  # no beat and no worker, until Monday at noon
        t.skip("1 minute")

        assert agent.state["reports"] == {"2027-01-11": "Books again"}
