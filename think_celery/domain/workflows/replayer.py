"""Replay a recorded run against the code of today, without an effect: no step's function runs, nothing is stored."""

import math
from dataclasses import dataclass, field
from typing import Any, NoReturn

from think_celery import serialization
from think_celery.domain.leases import Hold
from think_celery.domain.steps.steps import ThinkWorkflowStep
from think_celery.domain.workflows.events import WorkflowEvent
from think_celery.domain.workflows.journal import Asked, Journal
from think_celery.domain.workflows.recordedruns import RecordedRun
from think_celery.domain.workflows.replay import Replay, Stop
from think_celery.errors import InvalidJournal, ReplayMismatch, Suspend, SuspendSwallowed
from think_celery.runtime import Runtime, workflow_classes
from think_celery.states import StepStatus, WorkflowStatus
from think_celery.store.leases import Lease

ENDED = (StepStatus.DONE, StepStatus.FAILED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """How far a journal led the code of today.

    ``at`` is the step that has no recorded end: there the run waits, or would go on; ``None`` where ``run`` came to its
    end. Then ``output`` is what it returned, or ``error`` what it raised, as the recorded run did. ``steps`` are the
    keys of those that were replayed.
    """

    at: str | None
    output: Any
    error: Exception | None
    steps: list[str]


@dataclass(kw_only=True)
class Replayer(Replay):
    """A pass that stops at the first step which is not recorded to its end."""

    complete: bool
    """Whether the recorded run is complete: then there is no further step."""
    replayed: list[str] = field(default_factory=list)
    """The keys of the steps that were replayed."""

    def ask(self, name: str, kind: str) -> Asked:
        """The recorded entry. What has none stops the pass; what has no end yet does, when its end is asked for."""
        asked = super().ask(name, kind)
        if asked.row is None and self.complete:
            told = f"{kind} {asked.ref.step!r}"
            error = ReplayMismatch(self.workflow.workflow_id, asked.ref.position, "nothing more", told)
            self.halt("unfit", asked.ref.step, error=error)
        if asked.row is None:
            self.halt("waiting", asked.ref.step)
        if asked.status in ENDED:
            self.replayed.append(asked.ref.step)
        return asked

    def before_effect(self, asked: Asked) -> NoReturn:
        """There is none."""
        self.halt("waiting", asked.ref.step)

    def write(self, asked: Asked, work: Any) -> NoReturn:
        """Nothing is written."""
        self.halt("waiting", asked.ref.step)

    def at_once(self, asked: Asked, work: Any) -> NoReturn:
        """Nothing is written."""
        self.halt("waiting", asked.ref.step)

    def read(self, asked: Asked, work: Any) -> NoReturn:
        """Nothing is read but the journal."""
        self.halt("waiting", asked.ref.step)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A recorded step in the form in which the journal takes it: as a row."""

    step: str
    position: int
    kind: str
    status: StepStatus
    output: str | None
    error_type: str | None
    error: str | None
    attempts: int
    timeout_seconds: float | None
    deadline_at: Any


def replay_run(rt: Runtime, recorded: RecordedRun, source: str) -> Replayed:
    """Run the workflow's code of today over that journal, which was found at *source*, and say how far it came.

    Raises:
        ReplayMismatch: The code asks for another step than is recorded, or for one more or one less.
        InvalidJournal: Its class is of a version that does not run it.
        UnreadableValue: A recorded value can't be read by today's code.
        SuspendSwallowed: The code went on where it had to stop.
        Exception: What ``run`` raised, and the recorded run did not.
    """
    try:
        return _replayed(rt, recorded, source)
    except (ReplayMismatch, SuspendSwallowed) as error:
        error.rehearsed = True
        error.add_note(f"Replayed in a test: {source}. No run was touched.")
        raise


def _replayed(rt: Runtime, recorded: RecordedRun, source: str) -> Replayed:
    cls = workflow_classes.get(recorded.workflow)
    if recorded.version not in (cls.version, *cls.also_runs):
        raise InvalidJournal(
            source,
            f"it was recorded by version {recorded.version!r} of {recorded.workflow}, and the class of today is "
            f"{cls.version!r}: workers leave such a run alone",
        )
    replay = _replayer(rt, recorded)
    event = WorkflowEvent(
        payload=serialization.loads(recorded.params),
        workflow_id=recorded.workflow_id,
        workflow_name=recorded.workflow,
        created_at=recorded.created_at,
        metadata=recorded.metadata or {},
    )
    output, raised = None, None
    try:
        output = cls._bound_to(rt, recorded.agent).run(event, ThinkWorkflowStep(replay))
    except Suspend as suspended:
        if replay.stop is None:
            raise
        del suspended
        return _stopped(replay, replay.stop)
    except Exception as error:
        raised = error
    finally:
        replay.helper.close()
    if replay.stop is not None:
        raise SuspendSwallowed(recorded.workflow_id, replay.stop.step)
    return _ended(recorded, replay, output, raised)


def _replayer(rt: Runtime, recorded: RecordedRun) -> Replayer:
    key = recorded.ref.key
    lease = Lease(kind="workflow", key=key, process_id="", token=0)
    rows = [
        _Entry(
            step=step.name,
            position=position,
            kind=step.kind,
            status=step.status,
            output=step.text,
            error_type=step.error_type,
            error=step.error,
            attempts=step.attempts,
            timeout_seconds=step.timeout_seconds,
            deadline_at=step.deadline_at,
        )
        for position, step in enumerate(recorded.steps)
    ]
    return Replayer(
        rt=rt,
        workflow=recorded.ref,
        run=recorded.run,
        agent=recorded.agent,
        hold=Hold(lease=lease, monitor=rt.monitor, submission_id=None, deadline=math.inf),
        journal=Journal(key, recorded.workflow_id, recorded.run, rows),
        attempts=0,
        version=recorded.version,
        complete=recorded.status is WorkflowStatus.COMPLETE,
    )


def _stopped(replay: Replayer, stop: Stop) -> Replayed:
    if stop.error is not None:
        raise stop.error
    return Replayed(at=stop.step, output=None, error=None, steps=replay.replayed)


def _ended(recorded: RecordedRun, replay: Replayer, output: Any, raised: Exception | None) -> Replayed:
    try:
        replay.journal.end("returned" if raised is None else f"raised {type(raised).__name__}")
    except ReplayMismatch as mismatch:
        raise mismatch from raised
    if raised is not None and type(raised).__name__ != recorded.error_type:
        raise raised
    text = serialization.dumps(output, what="the result of run()", limit=replay.rt.settings.max_payload)
    return Replayed(at=None, output=serialization.loads(text), error=raised, steps=replay.replayed)
