"""The demo's agent and workflow, written as you would write yours."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from think_celery.agents.think import Think
from think_celery.demo import desk
from think_celery.demo.reports import Report, as_prompt
from think_celery.demo.search import Match, search
from think_celery.errors import WorkflowRejectedError
from think_celery.tools import tool
from think_celery.workflow import ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent
from think_celery.workflows import StepContext


class Draft(BaseModel):
    """What the model makes of a report."""

    title: str = Field(description="One line, at most 80 characters, in the language of the report.")
    summary: str = Field(description="One to three sentences; name reports that seem to be the same.")
    labels: list[str] = Field(description="From the list that you were given.")
    severity: Literal["low", "medium", "high"]


class TriageParams(BaseModel):
    """The report that a run is about."""

    report_id: str
    title: str
    text: str


class TriageAgent(Think, name="DemoTriageAgent"):
    """Triages one issue report; its own name is the report's id."""

    system_prompt = (
        "You triage issue reports. First search the other reports for the same problem; then give title, summary, "
        "labels and severity. Labels are of: bug, crash, data-loss, security, performance, installation, interface, "
        "documentation, feature-request, question, needs-information, possible-duplicate. Severity is high where "
        "data is lost or exposed, or nobody can work; low for wishes and questions; else medium."
    )

    @tool(idempotent=True)
    def search_reports(self, words: str) -> list[Match]:
        """Search the other reports for words, and get those that share most of them, best first.

        Args:
            words: Two to six telling words of the report, separated by blanks.
        """
        return search([each for each in desk.current().reports() if each.report_id != self.name], words)

    def triage(self, report: Report) -> str:
        """Start to triage a report, and return the workflow's id; a second call finds the first one's run."""
        params = TriageParams(report_id=report.report_id, title=report.title, text=report.text)
        return self.run_workflow(TriageWorkflow, params, workflow_id=report.report_id)

    def apply_labels(self, draft: Draft, context: StepContext) -> str:
        """Write the result with its labels; a repeat with the same key changes nothing."""
        result: dict[str, Any] = {"outcome": "applied", **draft.model_dump()}
        return desk.current().put_result(self.name, result, context.idempotency_key)

    def note_refusal(self, draft: Draft, reason: str | None, context: StepContext) -> str:
        """Write a result that says why no label was applied."""
        refused = draft.model_dump() | {"labels": [], "proposed_labels": draft.labels}
        result: dict[str, Any] = {"outcome": "rejected", "reason": reason or "no reason given", **refused}
        return desk.current().put_result(self.name, result, context.idempotency_key)


class TriageWorkflow(ThinkWorkflow[TriageAgent, TriageParams], name="DemoTriageWorkflow"):
    """Draft, approval where it matters, labels."""

    def run(self, event: WorkflowEvent[TriageParams], step: ThinkWorkflowStep) -> str:
        """Returns the path of the result."""
        params = event.payload
        report = Report(report_id=params.report_id, title=params.title, text=params.text)
        draft = step.prompt("triage", prompt=as_prompt(report), output=Draft, timeout="3 days")
        if draft.severity == "high":
            try:
                step.wait_for_approval("approval", timeout="1 week")
            except WorkflowRejectedError as refused:
                reason = refused.reason
                return step.do(
                    "note-refusal", lambda context: self.agent.note_refusal(draft, reason, context)
                )
        return step.do("apply-labels", lambda context: self.agent.apply_labels(draft, context))
