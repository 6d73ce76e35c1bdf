from triage import TriageAgent, TriageWorkflow

from think_celery.providers.scripted import answer, call
from think_celery.testing import think_test

LOOPS = {"title": "Login loops", "labels": ["bug", "login"], "severity": "high"}


def test_approved_on_the_second_day():
    with think_test() as t:
        model = t.script(TriageAgent, call("search_issues", {"words": "login"}), answer(LOOPS))
        agent = TriageAgent("issue-42")
        workflow_id = agent.triage_issue(42, "I log in, and am asked to log in again.")
        t.skip("2 days")
        assert t.workflow(TriageWorkflow, workflow_id).status == "waiting"
        assert agent.state["labels"] == []

        agent.approve(42, by="Ada")
        t.run_until_idle()

        assert t.output(TriageWorkflow, workflow_id) == "Login loops: bug, login"
        assert agent.state["labels"] == ["bug", "login"]
        assert len(model.requests) == 2
        assert agent.triage_issue(42, "The webhook comes again.") == workflow_id


def test_nobody_decides_within_three_days():
    with think_test() as t:
        t.script(TriageAgent, answer(LOOPS))
        workflow_id = TriageAgent("issue-42").triage_issue(42, "I log in again and again.")
        t.skip("4 days")

        assert t.output(TriageWorkflow, workflow_id) == "Login loops: bug, login, unreviewed"


def test_the_worker_dies_when_the_labels_are_set_and_it_is_not_yet_recorded():
    with think_test() as t:
        t.script(TriageAgent, answer({**LOOPS, "severity": "low"}))
        t.crash_at("step:apply-labels:before-commit")
        workflow_id = TriageAgent("issue-42").triage_issue(42, "I log in again and again.")
        t.run_until_idle()

        assert t.crashes == ["step:apply-labels:before-commit"]
        assert TriageAgent("issue-42").state["labels"] == ["bug", "login"]
        assert [step.name for step in t.steps(workflow_id)] == [
            "triage-issue:submit",
            "triage-issue:wait",
            "apply-labels",
        ]
