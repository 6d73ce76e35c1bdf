"""What can be asked for by id alone, through `current()` and the `ThinkCelery` object."""

import pytest

import think_celery
from think_celery import Think, ThinkWorkflow, current
from think_celery.errors import (
    AmbiguousWorkflow,
    NotConfigured,
    NotSerializable,
    SubmissionNotFound,
    TurnStillRunning,
    WorkflowNotFound,
)
from think_celery.providers.scripted import FunctionModel, say
from think_celery.runtime import set_current
from think_celery.testing import think_test


class Keeper(Think):
    """The agent of these tests."""


class Permit(ThinkWorkflow[Keeper, dict[str, str]]):
    """Waits for a decision."""

    def run(self, event, step):
        approval = step.wait_for_approval(timeout="1 day")
        return [approval.reason, approval.metadata]


class Notice(ThinkWorkflow[Keeper, dict[str, str]]):
    """Waits for an event."""

    def run(self, event, step):
        return step.wait_for_event("go", type="go").payload


@pytest.fixture
def t(database_url):
    with think_test(FunctionModel(lambda request: say("ok")), database_url=database_url) as t:
        yield t


class TestSubmissions:
    def test_are_inspected_waited_for_and_cancelled(self, t):
        """Whoever has an id needs neither the agent's class nor its name."""
        first = Keeper("a").submit_messages("Hi")
        second = Keeper("a").submit_messages("Hi again")

        assert current().cancel_submission(second.submission_id, "enough") is True
        assert current().cancel_submission(second.submission_id) is False
        with pytest.raises(TurnStillRunning):
            current().wait_for_submission(first.submission_id, timeout=0)
        assert current().wait_for_submission(first.submission_id, timeout="1 minute").message().text == "ok"
        assert current().inspect_submission(second.submission_id).error == "enough"
        assert current().inspect_submission(first.submission_id).agent.name == "a"

    def test_an_intent_to_cancel_is_stored(self, t):
        """B17: the same as through the agent; the turn goes on until it is interrupted."""
        asked = Keeper("a").submit_messages("Hi")
        t.crash_at("turn:before-model")

        stored = current().cancel_submission(asked.submission_id, "the user left", if_interrupted=True)
        before = current().inspect_submission(asked.submission_id).status
        ended = current().wait_for_submission(asked.submission_id)

        assert (stored, before) == (True, "pending")
        assert (ended.status, ended.error) == ("aborted", "the user left")
        assert not current().cancel_submission(asked.submission_id, if_interrupted=True)

    def test_that_nobody_knows(self, t):
        """Looking finds nothing; waiting would never end."""
        assert current().inspect_submission("never") is None
        assert current().cancel_submission("never") is False
        with pytest.raises(SubmissionNotFound):
            current().wait_for_submission("never")


class TestWorkflows:
    def test_are_approved_and_rejected_by_id(self, t):
        """A24: the same decisions as through the agent that started them, before their wait or after it."""
        for workflow_id in ("w1", "w2", "w3", "w4"):
            Keeper("a").run_workflow(Permit, {}, workflow_id=workflow_id)
        current().approve_workflow("w1", reason="fine", metadata={"by": "me"})
        t.run_until_idle()
        current().reject_workflow("w2", reason="too dear")
        Keeper("a").approve_workflow("w3")
        Keeper("a").reject_workflow("w4", workflow=Permit)
        t.run_until_idle()

        assert current().get_workflow("w1").output == ["fine", {"by": "me"}]
        assert current().get_workflow("w2").error_type == "WorkflowRejectedError"
        assert "too dear" in current().get_workflow("w2").error
        assert current().get_workflow("w3").output == [None, None]
        assert current().get_workflow("w4").status == "errored"

    def test_get_events_by_id(self, t):
        """A7: without knowing the class, where only one has a run of that id."""
        Keeper("a").run_workflow(Notice, {}, workflow_id="w1")
        current().send_workflow_event("w1", type="go", payload=1, idempotency_key="k")
        current().send_workflow_event("w1", type="go", payload=2, idempotency_key="k")
        t.run_until_idle()

        assert current().get_workflow("w1").output == 1

    def test_an_event_is_kept_for_a_run_to_come_only_with_its_class(self, t):
        """A7: an id alone may be a slip of the pen; nobody would ever miss the event."""
        with pytest.raises(WorkflowNotFound):
            current().send_workflow_event("later", type="go", payload=1)
        current().send_workflow_event("later", workflow=Notice, type="go", payload=2)
        Keeper("a").run_workflow(Notice, {}, workflow_id="later")
        t.run_until_idle()

        assert current().get_workflow("later").output == 2

    def test_of_one_id_in_two_classes_must_be_told_apart(self, t):
        """The error names the classes; with one of them it is clear."""
        for workflow in (Notice, Permit):
            Keeper("a").run_workflow(workflow, {}, workflow_id="w1")

        calls = [
            lambda: current().get_workflow("w1"),
            lambda: current().approve_workflow("w1"),
            lambda: current().reject_workflow("w1"),
            lambda: current().resume_workflow("w1"),
            lambda: current().send_workflow_event("w1", type="go"),
        ]
        for ask in calls:
            with pytest.raises(AmbiguousWorkflow, match=r"Notice.*Permit"):
                ask()
        current().approve_workflow("w1", workflow="Permit")
        t.run_until_idle()
        assert current().get_workflow("w1", workflow=Permit).status == "complete"

    def test_that_nobody_knows_and_decisions_that_can_t_be_stored(self, t):
        """Neither is stored anywhere."""
        Keeper("a").run_workflow(Permit, {}, workflow_id="w1")

        by_id = (current().approve_workflow, current().reject_workflow, current().resume_workflow)
        for decide in (*by_id, Keeper("a").approve_workflow):
            with pytest.raises(WorkflowNotFound):
                decide("never")
        with pytest.raises(TypeError, match="reason"):
            current().reject_workflow("w1", reason=7)
        with pytest.raises(NotSerializable):
            current().approve_workflow("w1", metadata={"at": object()})
        t.run_until_idle()
        assert current().get_workflow("w1").status == "waiting"


def test_a_process_that_is_not_set_up_says_so():
    """`current()` raises at once, with the two lines to write."""
    before = set_current(None)
    try:
        with pytest.raises(NotConfigured, match="ThinkCelery"):
            think_celery.current()
    finally:
        set_current(before)
