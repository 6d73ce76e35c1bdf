"""The documented promises, each as a user would try it: through the two classes and nothing below them."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field

import think_celery
import think_celery.workflows
from tests.domain.talk import events
from think_celery import Think, ThinkWorkflow, ThinkWorkflowStep, UIMessage, WorkflowEvent, tool
from think_celery.domain.submissions import claims
from think_celery.errors import InvalidValue, WorkflowExists, WorkflowNotFound
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.ids import AgentRef
from think_celery.messages import ToolPart
from think_celery.providers.scripted import answer, call, say
from think_celery.runtime import Runtime
from think_celery.store.database import Database
from think_celery.testing import SimulatedCrash, ThinkTest

APPLIED: list[list[str]] = []


class TriageParams(BaseModel):
    """What a triage is started with."""

    issue: int = Field(ge=1)


class Draft(BaseModel):
    """What the model fills in."""

    title: str
    labels: list[str]


class Triager(Think):
    """The agent of these tests."""

    system_prompt = "You triage issue reports."

    @tool(idempotent=True)
    def search_issues(self, words: str) -> list[str]:
        """Titles of issues with these words."""
        return [f"an issue about {words}"]

    def apply_labels(self, labels: list[str]) -> list[str]:
        """A plain method of the agent, for steps to call."""
        APPLIED.append([self.name, *labels])
        return labels

    def triage(self, issue: int, **options: Any) -> str:
        """Start the workflow."""
        return self.run_workflow(TriageWorkflow, {"issue": issue}, **options)


class TriageWorkflow(ThinkWorkflow[Triager, TriageParams]):
    """Prompt, wait for approval, apply."""

    def run(self, event: WorkflowEvent[TriageParams], step: ThinkWorkflowStep) -> Any:
        draft = step.prompt("triage-issue", prompt=f"Triage issue {event.payload.issue}", output=Draft)
        step.wait_for_approval()
        return step.do("apply-labels", lambda: self.agent.apply_labels(draft.labels))


DRAFT = answer({"title": "Crash at start", "labels": ["bug", "crash"]})


@pytest.fixture(autouse=True)
def nothing_applied() -> None:
    """Each test counts its own effects."""
    APPLIED.clear()


def approve(t: ThinkTest, workflow_id: str) -> None:
    """Approve, as a view would, and let the work be done."""
    Triager("office").send_workflow_event(
        TriageWorkflow, workflow_id, type="approval", payload={"approved": True}
    )
    t.run_until_idle()


def called(messages: Sequence[UIMessage]) -> list[str]:
    """The tools that were called in these messages."""
    return [part.tool_name for m in messages for part in m.parts if isinstance(part, ToolPart)]


def runtime(database_url: str, t: ThinkTest) -> Runtime:
    """Another process's runtime on the same database, at the same time."""
    db = Database(database_url, t.clock, durable=False)
    log = SqlEventLog(db)
    live = LiveWriter(log, synchronous=True)
    return Runtime(
        settings=t.rt.settings,
        clock=t.clock,
        db=db,
        events=log,
        live=live,
        knock=lambda _: None,
        threads=False,
    )


def workflow_of(run: Any) -> type[ThinkWorkflow[Any, Any]]:
    """A bare workflow class with that body."""

    class Untyped(ThinkWorkflow):  # type: ignore[type-arg]
        def run(self, event: Any, step: Any) -> Any:
            return run(self, event, step)

    return Untyped


def run_of(t: ThinkTest, run: Any) -> Any:
    """What a bare workflow with that body has returned, once nothing is left to do."""
    bare = workflow_of(run)
    workflow_id = Triager("issue-42").run_workflow(bare)
    t.run_until_idle()
    return t.output(bare, workflow_id)


class TestWorkflows:
    def test_a1_typed_bare_and_by_forward_reference(self, t: ThinkTest):
        """A1: params are validated at start and typed in `run`; bare, they are a dict; the agent may be a text."""

        class Late(ThinkWorkflow["Triager", TriageParams]):
            def run(self, event: Any, step: Any) -> Any:
                return [type(event.payload).__name__, event.payload.issue, event.workflow_name]

        bare = workflow_of(
            lambda self, event, step: [event.payload, event.metadata, event.workflow_id, event.created_at]
        )
        stored = t.clock.now()
        agent = Triager("issue-42")
        late_id = agent.run_workflow(Late, TriageParams(issue=7))
        bare_id = agent.run_workflow(bare, {"any": [1]}, workflow_id="b-1", metadata={"by": "ada"})
        with pytest.raises(InvalidValue, match="issue"):
            agent.run_workflow(TriageWorkflow, {"issue": 0}, workflow_id="unfit")
        t.run_until_idle()

        assert t.output(Late, late_id) == ["TriageParams", 7, "Late"]
        assert t.output(bare, bare_id) == [{"any": [1]}, {"by": "ada"}, "b-1", stored]
        with pytest.raises(WorkflowNotFound):
            t.workflow(TriageWorkflow, "unfit")
        for name in ("ThinkWorkflow", "ThinkWorkflowStep", "WorkflowEvent"):
            assert getattr(think_celery.workflows, name) is getattr(think_celery, name)

    def test_a4_the_agent_that_started_it_is_in_run(self, t: ThinkTest):
        """A4: `self.agent` is the starting agent; its methods and `submit_messages` can be called from steps."""
        model = t.script(Triager, say("Noted."))

        def run(self: Any, event: Any, step: ThinkWorkflowStep) -> Any:
            def report(context: Any) -> str:
                key = context.idempotency_key
                return str(self.agent.submit_messages("It is triaged.", idempotency_key=key).submission_id)

            step.do("label", lambda: self.agent.apply_labels(["bug"]))
            submission_id = step.do("report", report)
            step.sleep("replay it", "1 minute")
            return [type(self.agent).__name__, self.agent.name, submission_id]

        bare = workflow_of(run)
        workflow_id = Triager("issue-42").run_workflow(bare)
        t.crash_at("step:report:before-commit")
        t.skip("2 minutes")

        kind, name, submission_id = t.output(bare, workflow_id)
        assert (kind, name) == ("Triager", "issue-42")
        assert APPLIED == [["issue-42", "bug"]]
        assert t.crashes == ["step:report:before-commit"]
        assert [s.submission_id for s in Triager("issue-42").list_submissions()] == [submission_id]
        assert len(model.requests) == 1

    def test_a5_run_workflow_returns_an_id_and_is_idempotent_by_it(self, t: ThinkTest):
        """A5: class or name, an id of one's own or a made one; the same id is the same run, or an error on request."""
        agent = Triager("issue-42")

        made = agent.run_workflow("TriageWorkflow", {"issue": 1})
        own = agent.triage(2, workflow_id="triage-2", metadata={"by": "ada"})
        again = agent.triage(3, workflow_id="triage-2")
        with pytest.raises(WorkflowExists, match="triage-2"):
            agent.triage(2, workflow_id="triage-2", on_conflict="raise")
        with pytest.raises(WorkflowExists, match="issue-42"):
            Triager("issue-43").triage(2, workflow_id="triage-2")

        started = t.workflow(TriageWorkflow, "triage-2")
        assert made.startswith("wf_")
        assert own == again == "triage-2"
        assert (started.agent, started.metadata) == (AgentRef("Triager", "issue-42"), {"by": "ada"})

    def test_a7_an_event_wakes_a_waiting_workflow(self, t: ThinkTest):
        """A7: `send_workflow_event(class, id, type=, payload=)` wakes the run that waits for it, and no other."""
        t.script(Triager, DRAFT, DRAFT)
        agent = Triager("issue-42")
        first, second = agent.triage(1, workflow_id="w1"), agent.triage(2, workflow_id="w2")
        t.run_until_idle()
        statuses = [t.workflow(TriageWorkflow, each).status for each in (first, second)]

        approve(t, first)

        assert statuses == ["waiting", "waiting"]
        assert t.output(TriageWorkflow, first) == ["bug", "crash"]
        assert t.workflow(TriageWorkflow, second).status == "waiting"
        assert APPLIED == [["issue-42", "bug", "crash"]]


class TestStructuredTurns:
    def test_a9_a_full_agentic_turn_ends_with_the_final_answer_tool(self, t: ThinkTest):
        """A9: tools over several steps first, then the internal final-answer tool; the answer is its arguments."""
        searching = [call("search_issues", {"words": w}) for w in ("crash", "start")]
        model = t.script(Triager, *searching, DRAFT)
        workflow_id = Triager("issue-42").triage(42)
        t.run_until_idle()
        approve(t, workflow_id)

        offered = [[spec.name for spec in request.tools] for request in model.requests]
        assert offered == [["search_issues", "think_final_answer"]] * 3
        assert {request.tool_choice for request in model.requests} == {"required"}
        assert t.output(TriageWorkflow, workflow_id) == ["bug", "crash"]

    def test_a16_the_final_answer_is_not_in_the_conversation(self, t: ThinkTest):
        """A16: the reserved name is stripped from transcript, live stream and later requests; a tool of that name
        keeps it, and ours gets a suffix."""

        class Stubborn(Think):
            @tool
            def think_final_answer(self, text: str) -> str:
                """The user's own tool of that name."""
                return text.upper()

        bare = workflow_of(
            lambda self, event, step: step.prompt("triage", prompt="Triage.", output=Draft).title
        )
        model = t.script(
            Stubborn,
            [say("Let me think."), call("think_final_answer", {"text": "own"})],
            answer({"title": "x", "labels": []}),
            say("Later."),
        )
        agent = Stubborn("s")
        workflow_id = agent.run_workflow(bare)
        t.run_until_idle()
        agent.submit_messages("And now?")
        t.run_until_idle()

        shown = {event["toolName"] for _, event in events(t, agent) if "toolName" in event}
        assert t.output(bare, workflow_id) == "x"
        assert [spec.name for spec in model.requests[0].tools] == [
            "think_final_answer",
            "think_final_answer_1",
        ]
        assert [spec.name for spec in model.requests[2].tools] == ["think_final_answer"]
        assert called(agent.messages) == called(model.requests[2].messages) == ["think_final_answer"]
        assert shown == {"think_final_answer"}


class TestTurns:
    def test_b4_cancelled_before_its_turn_it_is_never_in_the_conversation(self, t: ThinkTest):
        """B4: messages join the conversation only when their submission starts, in the order of acceptance."""
        model = t.script(Triager, say("One."), say("Three."))
        agent = Triager("issue-42")
        _, second, _ = [agent.submit_messages(text) for text in ("1", "2", "3")]
        before = agent.messages

        agent.cancel_submission(second.submission_id)
        t.run_until_idle()

        assert before == []
        assert [m.text for m in agent.messages] == ["1", "One.", "3", "Three."]
        assert [m.text for m in model.requests[1].messages] == ["1", "One.", "3"]

    @pytest.mark.parametrize("who", ["another process", "after a restart"])
    def test_b6_a_cancel_works_across_processes_and_restarts(self, t: ThinkTest, database_url: str, who: str):
        """B6: a cancel by a process that has never seen the turn is final, whatever the worker that had it does."""
        model = t.script(Triager, say("Never said."))
        asked = Triager("issue-42").submit_messages("Hello?")
        if who == "after a restart":
            t.crash_at("turn:claimed")
            with pytest.raises(SimulatedCrash):
                claims.run(t.rt, asked.submission_id)
            t.rt.monitor.forget_process()
            assert [s.status for s in Triager("issue-42").list_submissions()] == ["running"]
        elsewhere = runtime(database_url, t)

        cancelled = Triager._bound_to(elsewhere, "issue-42").cancel_submission(asked.submission_id, "no need")
        again = Triager("issue-42").cancel_submission(asked.submission_id, "too late")
        t.skip("5 minutes")

        ended = Triager("issue-42").inspect_submission(asked.submission_id)
        assert (cancelled, again) == (True, False)
        assert ended is not None
        assert (ended.status, ended.error) == ("aborted", "no need")
        assert model.requests == []

    def test_b12_messages_are_read_afresh(self, t: ThinkTest, database_url: str):
        """B12: `agent.messages` is the conversation as it is now, for any object of that name in any process."""
        t.script(Triager, say("One."), say("Two."))
        agent, elsewhere = Triager("issue-42"), Triager._bound_to(runtime(database_url, t), "issue-42")
        seen = [list(agent.messages)]

        for text in ("1", "2"):
            agent.submit_messages(text)
            t.run_until_idle()
            seen.append(agent.messages)

        assert [[m.text for m in each] for each in seen] == [[], ["1", "One."], ["1", "One.", "2", "Two."]]
        assert elsewhere.messages == agent.messages
        assert [m.role for m in agent.messages] == ["user", "assistant"] * 2
        assert Triager("issue-43").messages == []
