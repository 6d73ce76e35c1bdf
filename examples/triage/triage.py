"""Triage of issues: an agent drafts, a person approves, and the labels are set once."""

from typing import Literal

from celery import Celery
from pydantic import BaseModel

from think_celery import Think, ThinkCelery, ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent, tool
from think_celery.errors import WorkflowRejectedError, WorkflowTimeoutError

app = Celery("triage", broker="redis://localhost:6379/0")
think = ThinkCelery(app)

KNOWN = {"APP-7": "Login loops on Safari", "APP-9": "CSV export is empty"}


class Issue(BaseModel):
    number: int
    text: str


class Draft(BaseModel):
    title: str
    labels: list[str]
    severity: Literal["low", "high"]


class TriageAgent(Think):
    model = "openai/gpt-5-mini"
    system_prompt = "You triage issue reports. Search for related issues before you answer."
    initial_state = {"labels": []}

    @tool
    def search_issues(self, words: str) -> list[str]:
        """Issues whose titles mention these words, with their keys."""
        return [f"{key}: {title}" for key, title in KNOWN.items() if words.lower() in title.lower()]

    def triage_issue(self, number: int, text: str) -> str:
        """Begin; the same number again is the same run."""
        issue = Issue(number=number, text=text)
        return self.run_workflow(TriageWorkflow, issue, workflow_id=f"triage-{number}")

    def approve(self, number: int, by: str) -> None:
        """Somebody has said yes, in whatever process that was."""
        decision = {"approved": True, "metadata": {"by": by}}
        self.send_workflow_event(TriageWorkflow, f"triage-{number}", type="approval", payload=decision)

    def apply_labels(self, labels: list[str]) -> list[str]:
        """Set the labels; here they are kept in the agent's state."""
        self.update_state(lambda state: {**state, "labels": labels})
        return labels


class TriageWorkflow(ThinkWorkflow[TriageAgent, Issue]):
    def run(self, event: WorkflowEvent[Issue], step: ThinkWorkflowStep) -> str:
        issue = event.payload
        draft = step.prompt(
            "triage-issue",
            prompt=f"Triage issue {issue.number}:\n{issue.text}",
            output=Draft,
            timeout="3 days",
        )
        if draft.severity == "high":
            try:
                step.wait_for_approval(timeout="3 days")
            except WorkflowTimeoutError:
                draft.labels.append("unreviewed")
            except WorkflowRejectedError as refused:
                return f"{draft.title}: refused ({refused.reason})"
        labels = step.do("apply-labels", lambda: self.agent.apply_labels(draft.labels))
        return f"{draft.title}: {', '.join(labels)}"
