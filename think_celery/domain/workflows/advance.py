"""Take a workflow run as far as it goes now: claim it, replay its code, park or end it.

Only one worker does this at a time: the claim takes the lease that is in the workflow's row, and every write
of the pass is fenced by its token.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from think_celery import serialization
from think_celery.described import describe
from think_celery.domain import calls, inhand, lacking
from think_celery.domain.outcomes import Outcome, Word
from think_celery.domain.patience import patiently
from think_celery.domain.steps.steps import ThinkWorkflowStep
from think_celery.domain.workflows import inbox, runends
from think_celery.domain.workflows.events import WorkflowEvent
from think_celery.domain.workflows.journal import Journal
from think_celery.domain.workflows.replay import MARGIN_SECONDS, STEP_TIMEOUT_SECONDS, Replay, Stop
from think_celery.errors import (
    LeaseLost,
    ReplayMismatch,
    Suspend,
    SuspendSwallowed,
    TooManyAttempts,
    UnreadableValue,
)
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.logs import trace_of
from think_celery.retries import MISSED_AFTER, knock_again_after
from think_celery.runtime import Runtime
from think_celery.states import WorkflowStatus
from think_celery.store import control, leases, steps, workflows
from think_celery.store.database import Tx
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.workflows")

T = TypeVar("T")

POINTS = {
    "park": ("workflow:before-park", "workflow:parked"),
    "end": ("workflow:before-end", "workflow:ended"),
    "move": ("workflow:before-move", "workflow:moved"),
    "hand-over": ("workflow:before-hand-over", "workflow:handed-over"),
}
"""The failpoints around each way in which a claim ends."""

MAX_TAKEOVERS = 1000
"""Claims since the last park; a run that comes there goes round in circles."""

PASS_SECONDS = STEP_TIMEOUT_SECONDS + MARGIN_SECONDS

_NOT_NOW: dict[WorkflowStatus, Word] = {
    WorkflowStatus.RUNNING: "busy",
    WorkflowStatus.QUEUED: "busy",
    WorkflowStatus.WAITING: "waiting",
    WorkflowStatus.PAUSED: "paused",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A run in hand: its row at the claim, its class, its lease, and the journal so far."""

    row: Any
    cls: Any
    lease: Lease
    journal: Sequence[Any]

    @property
    def ref(self) -> WorkflowRef:
        """Which workflow."""
        return WorkflowRef(self.row.workflow, self.row.workflow_id)


def advance(rt: Runtime, workflow: str, workflow_id: str, queue: str | None = None) -> Outcome:
    """Take that workflow further if it waits for a worker, and say how it went.

    *queue* is that of the message, where it came for a step with a queue of its own.
    """
    claim = claim_run(rt, WorkflowRef(workflow, workflow_id), queue)
    if isinstance(claim, Outcome):
        return claim
    rt.failpoint("workflow:claimed")
    attempts, journal = claim.row.attempts, claim.journal
    with rt.monitor.hold(claim.lease, seconds=PASS_SECONDS) as hold, inhand.doing(hold):
        while True:
            replay = Replay(
                rt=rt,
                workflow=claim.ref,
                run=claim.row.run,
                agent=AgentRef(claim.row.agent_class, claim.row.agent_name),
                hold=hold,
                journal=Journal(claim.row.key, workflow_id, claim.row.run, journal),
                attempts=attempts,
                version=claim.row.version,
                queue=claim.row.queue,
                step_queue=claim.row.step_queue,
            )
            outcome = _Pass(claim, replay).run()
            if isinstance(outcome, Outcome):
                return outcome
            attempts, journal = replay.attempts, outcome  # an event came while it parked: look again


def claim_run(rt: Runtime, ref: WorkflowRef, queue: str | None = None) -> Claim | Outcome:
    """Take a run that waits for a worker, with one more attempt counted; else say why not."""
    process_id = rt.monitor.process_id()
    journal = rt.db.read(lambda tx: steps.of_workflow(tx, ref.key))
    if not journal:
        return Outcome("not-found")
    seen = journal[0]
    if seen.workflow_status in workflows.TERMINAL:
        return Outcome("ended-before")
    if seen.workflow_status == WorkflowStatus.RUNNING and seen.workflow_process is not None:
        return Outcome("busy")  # its holder may write more than was read here, and then let it go
    if seen.workflow_step_queue != queue:
        return Outcome("other-queue")
    cls = lacking.workflow_class(rt, ref, seen.agent_class, seen.workflow_version)
    if cls is None:
        return Outcome("unknown-class")
    # Not repeated when the connection dies: if it was committed, the repeat would call the run busy, and nobody would
    # be told that it waits. It waits for the monitor, which gives back what nobody works under.
    row = rt.db.single(lambda tx: workflows.claim(tx, ref.key, process_id, seen.workflow_token))
    if row is None:
        return Outcome(_NOT_NOW.get(WorkflowStatus(seen.workflow_status), "busy"))
    lease = Lease(kind="workflow", key=row.key, process_id=process_id, token=row.token)
    if row.attempts > rt.settings.max_attempts or row.takeovers > MAX_TAKEOVERS:
        deaths = row.attempts - 1 if row.attempts > rt.settings.max_attempts else row.takeovers - 1
        error = TooManyAttempts(f"Workflow {ref}", deaths)
        try:
            return _failed(rt, row, lease, error, given_up=True)
        except LeaseLost:
            return Outcome("lease-lost")
    # Whoever had written an entry since then would have had a lease, and the token would be another.
    return Claim(row=row, cls=cls, lease=lease, journal=journal if seen.step is not None else [])


def _failed(rt: Runtime, row: Any, lease: Lease, error: BaseException, *, given_up: bool = False) -> Outcome:
    ref = WorkflowRef.of(row)
    error_type, text = describe(error)
    if not runends.fail(rt, row, lease, error_type, text, given_up=given_up):
        raise LeaseLost(str(lease))
    logger.warning(
        "%s ended in error (%s)",
        ref,
        error_type,
        extra={"think_event": "workflow.errored", "think_workflow": ref.workflow_id},
    )
    return Outcome("error", ended=True, row=str(ref), error_type=error_type)


def _is_suspended(ended: "calls.Result[Any]") -> bool:
    return isinstance(ended, calls.Failed) and isinstance(ended.error, Suspend)


class _Pass:
    """One run of the user's code over the journal, and what becomes of the workflow then."""

    def __init__(self, claim: Claim, replay: Replay) -> None:
        self.rt, self.claim, self.replay = replay.rt, claim, replay
        self.ref, self.lease, self.hold = claim.ref, claim.lease, replay.hold

    def run(self) -> "Outcome | Sequence[Any]":
        """How the run has ended or parked; or its journal, when it must look again."""
        try:
            return self._run()
        finally:
            self.replay.helper.close()

    def _run(self) -> "Outcome | Sequence[Any]":
        try:
            event = self._event()
        except UnreadableValue as error:
            return self._paused(error)
        self.hold.extend(PASS_SECONDS)
        ended: calls.Result[Any]
        try:
            workflow = self.claim.cls._bound_to(self.rt, self.replay.agent)
            workflow._replay = self.replay
            ended = calls.Done(workflow.run(event, ThinkWorkflowStep(self.replay)))
        except BaseException as error:
            if calls.passes(error) and not isinstance(error, Exception):
                raise  # the end of this worker: nothing of the run is touched on its way out
            ended = calls.Failed(error)
        self.hold.extend(PASS_SECONDS)
        if self.replay.stop is not None:
            return self._stopped(self.replay.stop, ended)
        return self._returned(ended) if isinstance(ended, calls.Done) else self._raised(ended)

    def _event(self) -> WorkflowEvent[Any]:
        row = self.claim.row
        return WorkflowEvent(
            payload=serialization.loads(row.params),
            workflow_id=row.workflow_id,
            workflow_name=row.workflow,
            created_at=row.created_at,
            metadata=row.metadata or {},
        )

    # --- how it can go ----------------------------------------------------------------------------

    def _stopped(self, stop: Stop, ended: "calls.Result[Any]") -> "Outcome | Sequence[Any]":
        match stop.why:
            case "lost":
                logger.warning("%s: the lease was lost; another worker goes on", self.ref)
                return Outcome("lease-lost")
            case "unfit":
                assert stop.error is not None
                return self._paused(stop.error)
            case "handed-over" | "interrupted":
                return self._handed_over(orderly=stop.why == "handed-over")
            case "paused" if _is_suspended(ended):
                return self._write("hand-over", lambda: self.rt.db.transact(self._pause_or_hand_over))
        if not _is_suspended(ended):
            return self._paused(SuspendSwallowed(self.ref.workflow_id, stop.step))
        return self._moved(stop) if stop.why == "moved" else self._parked(stop)

    def _returned(self, ended: "calls.Done[Any]") -> Outcome:
        try:
            self.replay.journal.end("returned")
        except ReplayMismatch as error:
            return self._paused(error)
        limit = self.rt.settings.max_payload
        try:
            output = serialization.dumps(ended.value, what="the result of run()", limit=limit)
        except ValueError as error:
            return self._ended_in_error(error)

        def end() -> Outcome:
            self._must(runends.complete(self.rt, self.claim.row, self.lease, output))
            logger.info(
                "%s is complete",
                self.ref,
                extra={"think_event": "workflow.complete", "think_workflow": self.ref.workflow_id},
            )
            return Outcome("complete", ended=True, row=str(self.ref))

        return self._write("end", end)

    def _raised(self, ended: "calls.Result[Any]") -> Outcome:
        assert isinstance(ended, calls.Failed)
        error = ended.error
        if calls.interrupts(error):
            return self._handed_over(orderly=True)
        try:
            self.replay.journal.end(f"raised {type(error).__name__}")
        except ReplayMismatch as mismatch:
            mismatch.__cause__ = error
            logger.warning("%s stopped where its journal goes on: %s", self.ref, trace_of(error))
            return self._paused(mismatch)
        logger.error("%s raised %s", self.ref, trace_of(error))
        return self._ended_in_error(error)

    def _ended_in_error(self, error: BaseException) -> Outcome:
        return self._write("end", lambda: _failed(self.rt, self.claim.row, self.lease, error))

    def _paused(self, error: BaseException) -> Outcome:
        """Stop resumably."""
        error_type, text = describe(error)

        def work(tx: Tx) -> Outcome:
            self._must(workflows.stop_resumably(tx, self.lease, error_type, text))
            logger.error(
                "%s is paused until it is resumed (%s); its row says more",
                self.ref,
                error_type,
                extra={"think_event": "workflow.paused", "think_workflow": self.ref.workflow_id},
            )
            return Outcome("paused", ended=True, row=str(self.ref), error_type=error_type)

        return self._write("end", lambda: self.rt.db.single(work))

    def _parked(self, stop: Stop) -> "Outcome | Sequence[Any]":
        """Give the worker back, unless an event has come since the last look at the inbox."""

        def look_again(tx: Tx) -> "Outcome | Sequence[Any]":
            leases.fence(tx, self.lease)
            if control.pause_mine(tx, self.lease):
                return self._is_paused()
            return steps.of_run(tx, self.claim.row.key, self.claim.row.run)

        def park() -> "Outcome | Sequence[Any]":
            if self.rt.db.single(
                lambda tx: workflows.park(tx, self.lease, stop.inbox, stop.wake_at, stop.queue)
            ):
                return Outcome("parked")
            return self.rt.db.transact(look_again)

        return self._write("park", park)

    def _moved(self, stop: Stop) -> Outcome:
        """Let a worker of the next step's queue go on."""

        def work(tx: Tx) -> bool:
            row = workflows.go_to(tx, self.lease, stop.queue)
            if row is not None:
                inbox.knock(self.rt, tx, row)
            return row is not None

        def move() -> Outcome:
            moved = self.rt.db.single(work)
            return Outcome("moved") if moved else self.rt.db.transact(self._pause_or_hand_over)

        return self._write("move", move)

    def _handed_over(self, *, orderly: bool) -> Outcome:
        """Let another worker go on: at once after an orderly end, else when the tick knocks."""
        after = MISSED_AFTER if orderly else knock_again_after(self.replay.attempts)

        def work(tx: Tx) -> bool:
            row = workflows.hand_over(tx, self.lease, orderly=orderly, after=after)
            if row is not None and orderly:
                inbox.knock(self.rt, tx, row)
            return row is not None

        def hand_over() -> Outcome:
            if self.rt.db.single(work):
                return Outcome("handed-over")
            return self.rt.db.transact(self._pause_or_hand_over)

        return self._write("hand-over", hand_over)

    def _pause_or_hand_over(self, tx: Tx) -> Outcome:
        """Pause as somebody wanted; where that was taken back meanwhile, another worker goes on."""
        leases.fence(tx, self.lease)
        if control.pause_mine(tx, self.lease):
            return self._is_paused()
        row = workflows.hand_over(tx, self.lease, orderly=True)
        self._must(row)
        inbox.knock(self.rt, tx, row)
        return Outcome("handed-over")

    def _is_paused(self) -> Outcome:
        logger.info(
            "%s is paused until it is resumed",
            self.ref,
            extra={"think_event": "workflow.paused", "think_workflow": self.ref.workflow_id},
        )
        return Outcome("paused")

    # --- writing ----------------------------------------------------------------------------------

    def _must(self, done: object) -> None:
        if not done:
            raise LeaseLost(str(self.lease))

    def _write(self, what: str, act: Callable[[], T]) -> T | Outcome:
        """Give the lease back by one statement that asks for it; again and again while the database is away.

        Nobody else would give this lease back as long as this process is alive. So where storing the end
        fails for good, the run is put back into the queue, as a claim that died.
        """

        before, after = POINTS[what]
        self.rt.failpoint(before)
        try:
            result = patiently(self.rt, self.hold, act)
        except LeaseLost:
            logger.warning("%s: the lease was lost; another worker goes on", self.ref)
            return Outcome("lease-lost")
        except Exception as error:
            if what == "hand-over":
                raise
            logger.error("%s: could not store how its run went: %s", self.ref, trace_of(error))
            return self._handed_over(orderly=False)
        self.rt.failpoint(after)
        return result
