"""What can be asked for by id alone, through `current()` and the `ThinkCelery` object."""

import pytest

import think_celery
from tests.domain.till import Till
from think_celery import Think, ThinkWorkflow, current
from think_celery.errors import (
    AmbiguousWorkflow,
    InteractionMismatch,
    InteractionNotFound,
    NotConfigured,
    NotSerializable,
    SubmissionNotFound,
    TurnStillRunning,
    WorkflowNotFound,
)
from think_celery.providers.scripted import FunctionModel, call, say
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


class TestCallsThatWait:
    """An inbox over all agents: what waits, whose it is, and deciding on it by its id alone."""

    @pytest.fixture
    def inbox(self, t):
        till = Till()
        agents = [till.agent("a"), till.agent("b")]
        t.script(
            "Talker",
            *[call("pay", {"euros": 5}, tool_call_id="same"), call("pay", {"euros": 6}, tool_call_id="same")],
            say("A."),
        )
        for agent in agents:
            agent.submit_messages("Pay")
            t.run_until_idle()
            t.skip("1 minute")
        return till

    def test_all_of_them_with_their_agents(self, t, inbox):
        """Oldest first, or newest first; so many, and of one class, if that is asked for."""
        oldest = current().pending_interactions()

        assert [(each.agent.agent_class, each.agent.name, each.input) for each in oldest] == [
            ("Talker", "a", {"euros": 5}),
            ("Talker", "b", {"euros": 6}),
        ]
        assert current().pending_interactions(newest_first=True, limit=1) == oldest[1:]
        assert current().pending_interactions(agent_class="Talker") == oldest
        assert current().pending_interactions(agent_class=Keeper) == []
        assert (oldest[0].to_dict()["agentClass"], oldest[0].to_dict()["agentName"]) == ("Talker", "a")
        with pytest.raises(ValueError, match="limit"):
            current().pending_interactions(limit=0)

    def test_are_decided_on_by_their_id(self, t, inbox):
        """The id of an interaction is unique, whatever ids models gave their calls; each is decided once."""
        first, second = current().pending_interactions()

        assert first.tool_call_id == second.tool_call_id
        assert current().approve_tool_call(second.interaction_id, "fine").taken is True
        assert current().reject_tool_call(second.interaction_id, "too late").status == "approved"
        t.run_until_idle()
        assert inbox.paid == [6]
        assert current().pending_interactions() == [first]
        with pytest.raises(InteractionMismatch):
            current().provide_tool_result(first.interaction_id, "no")
        with pytest.raises(InteractionNotFound, match="interaction_id says which"):
            current().approve_tool_call(first.tool_call_id)

    def test_agents_take_that_id_too(self, t, inbox):
        """An agent takes the call's id or the interaction's, but of none of another agent's."""
        first, second = current().pending_interactions()

        with pytest.raises(InteractionNotFound, match="Talker"):
            inbox.agent("a").approve_tool_call(second.interaction_id)
        assert inbox.agent("a").approve_tool_call(first.interaction_id).taken is True

    def test_a_clients_tool_is_answered(self, t):
        """The same for a call that a client answers."""
        agent = Till().agent()
        t.script(agent, call("locate"), say("There."))
        agent.save_messages("Where?")
        (waits,) = current().pending_interactions()

        assert current().provide_tool_result(waits.interaction_id, {"city": "Rome"}).taken is True
        t.run_until_idle()
        assert agent.messages[-1].text.endswith("There.")


class TestEndedRuns:
    def test_who_decides_or_sends_too_late_is_told(self, t):
        """A run that has ended takes nothing: no error, but false; one that waits says true."""
        agent = Keeper("a")
        run = agent.run_workflow(Permit, {}, workflow_id="p1")
        t.run_until_idle()

        assert agent.approve_workflow(run, "ok") is True
        t.run_until_idle()
        assert current().get_workflow(run).output == ["ok", None]
        assert agent.approve_workflow(run) is False
        assert agent.reject_workflow(run, "no") is False
        assert current().approve_workflow(run) is False
        assert current().reject_workflow(run) is False
        assert agent.send_workflow_event(Permit, run, type="go") is False
        assert current().send_workflow_event(run, type="go") is False
        assert agent.send_workflow_event(Permit, "to-come", type="go") is True
