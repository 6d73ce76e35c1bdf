"""How far each report is, read from the rows and the live log."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from think_celery import serialization
from think_celery.demo.agents import TriageAgent, TriageWorkflow
from think_celery.demo.desk import Desk
from think_celery.demo.reports import Report
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import workflows
from think_celery.ids import AgentRef
from think_celery.protocols import Cursor
from think_celery.runtime import Runtime
from think_celery.states import StepStatus, WorkflowStatus
from think_celery.store import steps

AT_ONCE = 40
"""How many unfinished reports one look takes in; the others have hardly begun."""


class Phase(StrEnum):
    """Where a report stands."""

    QUEUED = "queued"
    WORKING = "working"
    WAITING = "needs approval"
    APPLIED = "applied"
    REJECTED = "rejected"
    FAILED = "failed"


ENDED = {Phase.APPLIED, Phase.REJECTED, Phase.FAILED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a report stands, and what is going on or went wrong there."""

    phase: Phase
    detail: str = ""


class Watch:
    """Follows a set of reports until each has ended."""

    def __init__(self, rt: Runtime, desk: Desk, reports: Sequence[Report]) -> None:
        self._rt, self._desk = rt, desk
        self.standing = {report.report_id: Standing(phase=Phase.QUEUED) for report in reports}
        self.drafts: dict[str, dict[str, Any]] = {}
        """The model's draft of each report that waits for approval."""
        self._cursors: dict[str, Cursor] = {}
        self._said: dict[str, str] = {}

    @property
    def unfinished(self) -> list[str]:
        """The reports that have not ended."""
        return [name for name, standing in self.standing.items() if standing.phase not in ENDED]

    def look(self, *, everything: bool = False) -> list[str]:
        """Look again, and return the reports whose standing has changed."""
        changed = []
        unfinished = self.unfinished
        for report_id in unfinished if everything else unfinished[:AT_ONCE]:
            found = self._find(report_id)
            if found != self.standing[report_id]:
                self.standing[report_id] = found
                changed.append(report_id)
        return changed

    def _find(self, report_id: str) -> Standing:
        row = workflows.get(self._rt, workflows.reference(TriageWorkflow, report_id))
        if row is None:
            return Standing(phase=Phase.QUEUED)
        match row.status:
            case WorkflowStatus.COMPLETE:
                return self._outcome(report_id)
            case WorkflowStatus.ERRORED:
                return Standing(phase=Phase.FAILED, detail=self._why(row))
            case WorkflowStatus.PAUSED:
                return Standing(phase=Phase.FAILED, detail=f"paused: {row.error}" if row.error else "paused")
        return self._on_its_way(report_id, row)

    def _why(self, row: Any) -> str:
        """Why a run has failed: the model's own error, where it was that."""
        journal = self._rt.db.read(lambda tx: steps.of_run(tx, row.key, row.run))
        for step in journal:
            if step.step == "triage:submit" and step.output is not None:
                turn = submissions.get(self._rt, serialization.loads(step.output)["submission_id"])
                if turn is not None and turn.error is not None:
                    return str(turn.error)
        return str(row.error or row.status)

    def _outcome(self, report_id: str) -> Standing:
        result = self._desk.result(report_id)
        if result is None:
            path = self._desk.result_file(report_id)
            return Standing(phase=Phase.FAILED, detail=f"its result {path} was removed")
        if result.get("outcome") == "rejected":
            return Standing(phase=Phase.REJECTED, detail=str(result.get("reason", "")))
        return Standing(phase=Phase.APPLIED)

    def _on_its_way(self, report_id: str, row: Any) -> Standing:
        journal = {
            step.step: step for step in self._rt.db.read(lambda tx: steps.of_run(tx, row.key, row.run))
        }
        approval, answer = journal.get("approval"), journal.get("triage:wait")
        if approval is not None and approval.status == StepStatus.WAITING:
            if answer is not None and report_id not in self.drafts:
                self.drafts[report_id] = serialization.loads(answer.output)
            return Standing(phase=Phase.WAITING, detail=str(self.drafts.get(report_id, {}).get("title", "")))
        if answer is not None and answer.status == StepStatus.DONE:
            return Standing(phase=Phase.WORKING, detail="writes the result")
        if "triage:submit" not in journal:
            return Standing(phase=Phase.QUEUED)
        said = self._listen(report_id)
        return Standing(phase=Phase.WORKING if said else Phase.QUEUED, detail=said)

    def _listen(self, report_id: str) -> str:
        """What the model is doing, by the live log. One reader for all: a thread for each would wait for little."""
        agent_id = AgentRef(TriageAgent.agent_class, report_id).id
        cursor = self._cursors.get(agent_id)
        if cursor is None:
            self._cursors[agent_id] = self._rt.events.head(agent_id)
            return self._said.setdefault(report_id, "")
        page = self._rt.events.read(agent_id, cursor)
        self._cursors[agent_id] = page.cursor
        said = self._said[report_id]
        for frame in page.frames:
            said = said_after(said, frame.event)
        self._said[report_id] = said
        return said


def said_after(said: str, event: dict[str, Any]) -> str:
    """What is shown of a turn after one more event of it."""
    match event.get("type"):
        case "start" | "reset":
            return "reads the report"
        case "text-delta":
            before = "" if said.startswith(("reads", "searches", "drafts")) else said
            return before + str(event.get("delta", ""))
        case "tool-input-available":
            return f"searches the other reports: {dict(event.get('input') or {}).get('words', '')}"
        case "tool-output-available":
            found = [match.get("report_id") for match in event.get("output") or () if isinstance(match, dict)]
            return f"drafts; similar reports: {', '.join(map(str, found)) or 'none'}"
        case "tool-output-error":
            return "drafts; the search failed"
    return said
