"""One attempt of a job that is in hand: call the method, store how that went. Nothing is held while the method runs."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from think_celery import serialization
from think_celery.described import describe
from think_celery.domain import calls, inhand
from think_celery.domain.agents import methods
from think_celery.domain.jobs import jobs
from think_celery.domain.leases import LET_GO_SECONDS, Hold
from think_celery.domain.outcomes import Outcome
from think_celery.domain.patience import patiently
from think_celery.domain.schedules import declarations
from think_celery.errors import (
    JobStillRunning,
    JobTimeout,
    LeaseLost,
    NotSerializable,
    PayloadTooLarge,
    TooManyAttempts,
    TurnCancelled,
    TurnStillRunning,
    Unwind,
)
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.retries import MISSED_AFTER, knock_again_after
from think_celery.runtime import Runtime
from think_celery.states import JobStatus
from think_celery.store import jobs as rows
from think_celery.store.database import Tx
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.jobs")

MAX_TAKEOVERS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A job in hand: its row before the claim, its lease, and how often it was claimed.

    ``attempts`` are the claims that died, this one included; ``again`` says that the one before it did.
    """

    row: Any
    lease: Lease
    attempts: int
    takeovers: int

    @property
    def agent(self) -> AgentRef:
        """Whose method it is."""
        return AgentRef(self.row.agent_class, self.row.agent_name)

    @property
    def again(self) -> bool:
        """Whether a worker died in it, or lost it."""
        return bool(self.row.status == JobStatus.RUNNING)


class _Cancelled(Exception):
    """The job was cancelled in the very moment in which its end was stored: that is how it has ended."""


class JobRun:
    """A job in hand, from its claim to the end of the attempt."""

    def __init__(self, rt: Runtime, claim: Claim, hold: Hold) -> None:
        self.rt, self.claim, self.hold = rt, claim, hold
        self.row, self.lease = claim.row, claim.lease
        self._name = f"job {self.row.id}"

    def run(self) -> Outcome:
        """How the attempt went."""
        try:
            return self._run()
        except _Cancelled:
            return self._aborted()

    def _run(self) -> Outcome:
        begun = self.claim.takeovers - self.row.failures  # those that failed are for Retry to count
        deaths = max(self.claim.attempts - self.rt.settings.max_attempts, begun - MAX_TAKEOVERS)
        if deaths > 0:
            return self._end_in_error(TooManyAttempts(f"Job {self.row.id!r}", self._died()))
        try:
            agent = self._agent()
            decided = self._decided(agent)
            if decided is not None:
                return decided
            result = self._called(self._function(agent))
        except BaseException as error:
            return self._after(error)
        match result:
            case calls.Done(value):
                return self._returned(value)
            case calls.Failed(raised):
                return self._after(raised)
            case _:
                return self._after(TurnCancelled(self.hold.signal.reason or "it did not return"))

    def _died(self) -> int:
        within = self.claim.attempts <= self.rt.settings.max_attempts
        return self.claim.takeovers - 1 if within else self.claim.attempts - 1

    def _agent(self) -> Any:
        return self.rt.make_agent(self.claim.agent.agent_class, self.claim.agent.name)

    def _decided(self, agent: Any) -> Outcome | None:
        """How it ends without a call of its method; ``None`` where it is called."""
        return None

    def _function(self, agent: Any) -> Callable[[], Any]:
        row = self.row
        if row.task_id is not None:
            return declarations.handler_call(self.rt, agent, row)
        if row.kind == jobs.HOOK:
            return methods.call_with_all(agent, row.method, row.payload)
        return methods.call_of(agent, row.method, row.payload)

    def _called(self, function: Callable[[], Any]) -> calls.Result[Any]:
        left = max(0.0, self.hold.deadline - self.rt.clock.elapsed()) + LET_GO_SECONDS
        self.rt.failpoint("job:before-call")
        result = calls.attempt(self.rt, function, timeout=left, signal=self.hold.signal)
        self.rt.failpoint("job:called")
        return result

    # --- how it can go ----------------------------------------------------------------------------

    def _returned(self, value: Any) -> Outcome:
        output = None
        try:
            output = serialization.dumps(value, what="result", limit=self.rt.settings.max_payload)
        except (NotSerializable, PayloadTooLarge) as error:
            # It has done its work: to do it again would not make the value any better.
            logger.warning(
                "%s is completed, but what it returned is not kept (%s)", self._name, type(error).__name__
            )
        return self._complete(output)

    def _complete(self, output: str | None) -> Outcome:
        self._write(lambda: jobs.end(self.rt, self.lease, self.row, JobStatus.COMPLETED, output=output))
        self._log("completed")
        return Outcome("completed", ended=True, row=self.row.id)

    def _after(self, error: BaseException) -> Outcome:
        """What becomes of the job after this, which its method has raised, or the worker itself."""
        if calls.interrupts(error):
            outcome = Outcome("lease-lost")
            with suppress(LeaseLost):
                outcome = self._interrupted()
            # Celery's soft time limit, for this very job.
            if isinstance(error, Exception) and not inhand.depth():
                return outcome
            raise error
        if isinstance(error, Unwind) and calls.passes(error):
            raise error
        if self.hold.lost or isinstance(error, LeaseLost):
            raise LeaseLost(str(self.lease))
        if self.hold.cancelled:
            return self._stopped()
        if self.hold.overdue:
            return self._failed(JobTimeout(jobs.seconds_of(self.rt, self.row)))
        waited = isinstance(error, TurnStillRunning | JobStillRunning | TurnCancelled)
        if waited and self.rt.stopping.signal.aborted:
            return self._handed_over()
        logger.error("%s failed: %s", self._name, trace_of(error))
        return self._failed(error)

    def _failed(self, error: BaseException) -> Outcome:
        if self.row.kind == jobs.HOOK:  # a reaction: what it raises changes nothing
            return self._complete(None)
        ended = self._write(
            lambda: self.rt.db.transact(lambda tx: jobs.failed(self.rt, tx, self.lease, self.row, error))
        )
        if not ended:
            self._log("to be tried again")
            return Outcome("retrying")
        return self._error(describe(error)[0])

    def _end_in_error(self, error: BaseException) -> Outcome:
        error_type, text = describe(error)
        self._write(
            lambda: jobs.end(
                self.rt, self.lease, self.row, JobStatus.ERROR, error_type=error_type, error=text
            )
        )
        return self._error(error_type)

    def _error(self, error_type: str) -> Outcome:
        self._log(f"ended in error ({error_type})", level=logging.WARNING)
        return Outcome("error", ended=True, row=self.row.id, error_type=error_type)

    def _stopped(self) -> Outcome:
        """It was cancelled, and has stopped: its lane goes on."""
        self._write(lambda: self.rt.db.transact(lambda tx: jobs.released(self.rt, tx, self.lease)))
        return self._aborted()

    def _aborted(self) -> Outcome:
        self._log("stopped, for it was cancelled")
        return Outcome("aborted", ended=True, row=self.row.id)

    def _interrupted(self) -> Outcome:
        """The worker is told to end at once."""
        return self._handed_over()

    def _handed_over(self) -> Outcome:
        """Let another worker begin with it at once."""

        def work(tx: Tx) -> None:
            row = rows.hand_over(tx, self.lease, orderly=True, after=MISSED_AFTER)
            if row is None:
                raise LeaseLost(str(self.lease))
            tx.after_commit(lambda: jobs.knock(self.rt, row))

        self._write(lambda: self.rt.db.transact(work))
        self._log("handed over")
        return Outcome("handed-over")

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, act: Callable[[], Any]) -> Any:
        """Give the lease back; again and again while the database is away.

        Nobody else would give this lease back as long as this process is alive. So where storing the end fails for
        good, the job is put back, as a claim that died.
        """
        self.rt.failpoint("job:before-end")
        try:
            result = patiently(self.rt, self.hold, act)
        except LeaseLost:
            if not self.rt.db.transact(lambda tx: jobs.released(self.rt, tx, self.lease)):
                raise
            raise _Cancelled from None
        except Exception as error:
            logger.error("%s: could not store how it went: %s", self._name, trace_of(error))
            after = knock_again_after(self.claim.attempts)
            self.rt.db.transact(lambda tx: rows.hand_over(tx, self.lease, orderly=False, after=after))
            raise LeaseLost(str(self.lease)) from None
        self.rt.failpoint("job:ended")
        return result

    def _log(self, what: str, *, level: int = logging.INFO) -> None:
        extra = {"think_event": f"job.{what.split()[0]}", "think_job": self.row.id}
        logger.log(level, "%s of %s %s", self._name, self.claim.agent, what, extra=extra)
