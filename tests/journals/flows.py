"""Workflows whose runs were recorded: what is replayed must go on being read by the code of today."""

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from think_celery import Retry, Think, ThinkWorkflow
from think_celery.errors import NonRetryableError, StepError, ThinkPromptError, WorkflowTimeoutError


class JournalAgent(Think):
    """The agent of the recorded runs."""


class Verdict(BaseModel):
    good: bool
    because: str


@dataclass
class Bill:
    total: Decimal
    due: date


class JournalParams(BaseModel):
    item: str
    refuse: bool = False


class JournalWorkflow(ThinkWorkflow[JournalAgent, JournalParams]):
    """One step of each kind, and the values that steps may return."""

    def run(self, event: Any, step: Any) -> Any:
        bill = step.do("bill", lambda: Bill(Decimal("9.50"), date(2027, 1, 2)))
        step.transaction("count", lambda conn: {"rows": 1})
        verdict = step.prompt("judge", prompt=f"Is {event.payload.item} good?", output=Verdict)
        step.sleep("rest", timedelta(hours=1))
        sent = step.wait_for_event("hint", type="hint").payload
        granted = step.wait_for_approval(timeout="1 day")
        return {"total": bill.total, "good": verdict.good, "hint": sent, "by": granted.metadata["by"]}


class JournalFailures(ThinkWorkflow[JournalAgent, JournalParams]):
    """Steps that fail, each in its way; the code goes on with what it is told."""

    def run(self, event: Any, step: Any) -> Any:
        told = []
        for name in ("charge", "charge"):
            try:
                step.do(name, self.refuse, retry=Retry(max_attempts=2, delay=1))
            except StepError as error:
                told.append((error.error_type, error.attempts, error.is_a(NonRetryableError)))
        try:
            step.prompt("judge", prompt="Is it good?", output=Verdict)
        except ThinkPromptError as error:
            told.append((type(error).__name__, error.status, False))
        try:
            step.wait_for_event("never", type="never", timeout="1 hour")
        except WorkflowTimeoutError as error:
            told.append((error.step, int(error.seconds), False))
        return [list(each) for each in told]

    def refuse(self) -> None:
        raise NonRetryableError("no money")


class JournalReviewer(Think):
    """Another agent, which is asked beside the first one."""


class JournalChild(ThinkWorkflow[JournalAgent, JournalParams]):
    """A workflow that another one starts."""

    def run(self, event: Any, step: Any) -> Any:
        return step.do("weigh", lambda: len(event.payload.item))


class JournalSeveral(ThinkWorkflow[JournalAgent, JournalParams]):
    """Several things at once, a child, times, the agent's state."""

    def run(self, event: Any, step: Any) -> Any:
        began = step.now()
        first = step.start_prompt("judge", prompt="Is it good?", output=Verdict)
        second = step.start_prompt(
            "review", prompt="Is it good?", output=Verdict, agent=JournalReviewer("b"), key="b"
        )
        verdicts = step.gather(first, second)
        weight = step.run_workflow(
            "weigh", JournalChild, {"item": event.payload.item}, workflow_id="journal-child"
        )
        state = step.update_agent_state({"weight": weight})
        step.sleep_until("tomorrow", began + timedelta(days=1))
        late = step.start_prompt("again", prompt="And now?", output=Verdict)
        sent = step.wait_any("hint", late, name="either", timeout="1 day")
        return [sorted(each.because for each in verdicts), state, sent.name, step.version]


class JournalReports(ThinkWorkflow[JournalAgent, JournalParams]):
    """What a run tells its agent, and a step in another queue."""

    def run(self, event: Any, step: Any) -> Any:
        self.report_progress(10)
        step.send_event("begun", {"item": event.payload.item})
        self.broadcast_to_clients("begun")
        size = step.do("measure", lambda: 3, queue="gpu")
        step.report_error("the scales are broken")
        step.report_complete({"size": size})
        return size
