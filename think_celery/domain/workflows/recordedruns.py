"""A run with its journal, as it was recorded: looked at in tests, and exported to be replayed elsewhere."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from think_celery import serialization
from think_celery.domain.reading import as_record
from think_celery.domain.workflows.runs import find_row
from think_celery.errors import InvalidJournal
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.runtime import Runtime
from think_celery.states import StepStatus, WorkflowStatus
from think_celery.store import steps, workflows
from think_celery.store.database import Tx

FORMAT = 1
"""The version of the exported form."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One entry of a run's journal, as it stood when it was read.

    ``name`` is what the code called the step, with a number where it did so before (``charge#2``), and with what it
    records where one step has two entries (``triage:submit``, ``triage:wait``). ``kind`` is ``do``, ``transaction``,
    ``event``, ``approval``, ``sleep``, …; ``status`` ``waiting``, ``retrying``, ``done`` or ``failed``. ``error_type``
    and ``error`` tell its last failure. ``attempts`` counts the calls that failed, and the one that returned: 1 for
    one that was done at once, 0 for one that waits; one that died with its worker is not counted. ``deadline_at`` is
    when a wait ends, or when the next attempt is due.
    """

    name: str
    kind: str
    status: StepStatus
    attempts: int
    error_type: str | None
    error: str | None
    created_at: datetime
    completed_at: datetime | None
    deadline_at: datetime | None
    timeout_seconds: float | None = field(repr=False)
    text: str | None = field(repr=False)

    @property
    def output(self) -> Any:
        """What the step gave; ``None`` where it has not given anything, or has failed."""
        if self.status is not StepStatus.DONE or self.text is None:
            return None
        return serialization.loads(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedRun:
    """One run: what it was started with, how it stood, and its journal. Stored values are texts."""

    workflow: str
    workflow_id: str
    run: int
    version: str
    agent_class: str
    agent_name: str
    status: WorkflowStatus
    created_at: datetime
    metadata: dict[str, Any] | None
    params: str
    output: str | None
    error_type: str | None
    error: str | None
    steps: Sequence[StepRecord]

    @property
    def ref(self) -> WorkflowRef:
        """Which workflow."""
        return WorkflowRef(self.workflow, self.workflow_id)

    @property
    def agent(self) -> AgentRef:
        """The agent that started it."""
        return AgentRef(self.agent_class, self.agent_name)


# --- reading --------------------------------------------------------------------------------------


def of_run(rt: Runtime, workflow_id: str, workflow: Any = None) -> RecordedRun:
    """The run of that id with its journal, as of one moment. Raises what ``runs.find_row`` raises."""
    found = find_row(rt, workflow_id, workflow)

    def read(tx: Tx) -> tuple[Any, Sequence[Any]]:
        row: Any = workflows.get(tx, found.key)
        return row, steps.of_run(tx, row.key, row.run)

    row, journal = rt.db.look(read)
    status = WorkflowStatus(row.status)
    return as_record(RecordedRun, row, status=status, steps=[_step(entry) for entry in journal])


def times_ended(row: Any) -> int:
    """How many attempts of a step came to an end: its row counts those that failed."""
    return int(row.attempts) + int(row.status == StepStatus.DONE)


def _step(row: Any) -> StepRecord:
    status, attempts = StepStatus(row.status), times_ended(row)
    return as_record(StepRecord, row, name=row.step, status=status, attempts=attempts, text=row.output)


# --- as a file ------------------------------------------------------------------------------------

_STORED = ("params", "output", "text")
"""Fields that hold stored values: in the file they are JSON, not JSON in a text."""


def to_dict(run: RecordedRun) -> dict[str, Any]:
    """A run as JSON values: ``workflow``, ``steps`` and the other fields of the classes above."""
    exported = {"think_celery_journal": FORMAT, **_out(asdict(run))}
    exported["steps"] = [_out(step) for step in exported.pop("steps")]
    return exported


def _out(values: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, value in values.items():
        if name in _STORED and value is not None:
            value = json.loads(value)
        told[_FILE_NAMES.get(name, name)] = value.isoformat() if isinstance(value, datetime) else value
    return told


_FILE_NAMES = {"text": "output", "name": "step"}


def from_dict(exported: Any, source: str) -> RecordedRun:
    """The run that was exported so; *source* is where it was found.

    Raises:
        InvalidJournal: It is no export of a journal, or one of a later version.
    """
    if not isinstance(exported, dict) or "think_celery_journal" not in exported:
        raise InvalidJournal(source, "it is no exported journal")
    if exported["think_celery_journal"] != FORMAT:
        raise InvalidJournal(source, f"its format {exported['think_celery_journal']!r} is not {FORMAT}")
    try:
        entries = [
            _in(StepRecord, {**step, "text": step["output"], "name": step["step"]})
            for step in exported["steps"]
        ]
        return _in(RecordedRun, {**exported, "steps": entries})
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidJournal(source, f"{type(error).__name__}: {error}") from error


def _in(cls: type[T], values: Mapping[str, Any]) -> T:
    given: dict[str, Any] = {}
    for each in fields(cls):  # type: ignore[arg-type]
        value = values[each.name]
        if each.name in _STORED:
            value = json.dumps(value) if value is not None or _is_there(each.name, values) else None
        elif each.name.endswith("_at") and value is not None:
            value = datetime.fromisoformat(value)
        elif each.name == "status":
            value = (StepStatus if cls is StepRecord else WorkflowStatus)(value)
        given[each.name] = value
    return cls(**given)


def _is_there(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a null in the file is a stored ``None``: else nothing is stored, and the file says null, too."""
    return name == "params" or values["status"] in (StepStatus.DONE, WorkflowStatus.COMPLETE)
