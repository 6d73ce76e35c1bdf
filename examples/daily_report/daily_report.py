"""A report each working day: a declared task starts one workflow for each slot."""

import os

from celery import Celery
from pydantic import BaseModel

from think_celery import (
    Retry,
    ScheduledTask,
    ScheduledTaskContext,
    Think,
    ThinkCelery,
    ThinkWorkflow,
    ThinkWorkflowStep,
    WorkflowEvent,
)

app = Celery("daily_report", broker="redis://localhost:6379/0")
app.conf.beat_scheduler = "think_celery.beat:ThinkScheduler"
think = ThinkCelery(app)

SALES = [("book", 12), ("lamp", 3)]


class Report(BaseModel):
    headline: str
    text: str


class ReportAgent(Think):
    model = "openai/gpt-5-mini"
    system_prompt = "You write short reports for the owner of a shop."
    autostart = ("shop",)
    initial_state = {"reports": {}}

    def get_scheduled_tasks(self) -> dict[str, ScheduledTask]:
        """What this agent does by the clock; a worker reads it when the agent starts."""
        return {
            "daily-report": ScheduledTask(
                schedule=os.environ.get("REPORT_SCHEDULE", "every weekday at 08:00"),
                timezone="Europe/Berlin",
                handler=self.begin_report,
                retry=Retry(max_attempts=3),
            )
        }

    def begin_report(self, ctx: ScheduledTaskContext) -> None:
        """Begin the report of this slot. The slot's key makes it one workflow, however often this is called."""
        day = {"day": ctx.scheduled_for.date().isoformat()}
        self.run_workflow(ReportWorkflow, day, workflow_id=ctx.idempotency_key)

    def publish(self, day: str, report: Report) -> None:
        """Publish it; here it is kept in the agent's state."""
        self.update_state(lambda state: {"reports": {**state["reports"], day: report.headline}})


class ReportWorkflow(ThinkWorkflow[ReportAgent, dict[str, str]]):
    def run(self, event: WorkflowEvent[dict[str, str]], step: ThinkWorkflowStep) -> str:
        day = event.payload["day"]
        sold = step.do("collect", lambda: dict(SALES))
        report = step.prompt("write", prompt=f"Sold on {day}: {sold}", output=Report, timeout="6 hours")
        step.do("publish", lambda: self.agent.publish(day, report))
        return report.headline
