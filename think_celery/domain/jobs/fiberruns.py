"""Run a fiber: its method gets the fiber, and one that was interrupted is decided on before anything else."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from think_celery import serialization
from think_celery.described import MAX_ERROR, describe, storable
from think_celery.domain import calls
from think_celery.domain.agents import methods
from think_celery.domain.jobs import jobs
from think_celery.domain.jobs.attempts import Claim, JobRun
from think_celery.domain.leases import Hold
from think_celery.domain.outcomes import Outcome
from think_celery.domain.patience import patiently
from think_celery.errors import InsideTransaction, InvalidValue, LeaseLost, NotInFiber, TurnCancelled
from think_celery.hooks.fibers import KEPT, FiberRecovery, FiberRecoveryContext
from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.signals import AbortController, AbortSignal
from think_celery.states import JobStatus
from think_celery.store import jobs as rows
from think_celery.wording import a_type

logger = logging.getLogger("think_celery.jobs")

HOOK = "on_fiber_recovered"


class Fiber:
    """What a method that a fiber runs gets as its first argument.

    ``snapshot`` is what was stashed last, also by the worker before this one; ``None`` if nothing was. ``signal`` comes
    when the fiber should end: it was cancelled, its time is up, or its worker stops. ``attempt`` is 1 unless it was
    begun before.
    """

    def __init__(
        self,
        rt: Runtime,
        hold: Hold,
        row: Any,
        *,
        snapshot_text: str | None,
        controller: AbortController,
        attempt: int,
    ) -> None:
        self._rt, self._hold, self._controller = rt, hold, controller
        self.fiber_id: str = row.id
        self.idempotency_key: str | None = row.idempotency_key
        self.metadata: dict[str, Any] | None = row.metadata
        self.attempt = attempt
        self.snapshot: Any = None if snapshot_text is None else serialization.loads(snapshot_text)

    @property
    def signal(self) -> AbortSignal:
        """Comes when the fiber should end."""
        return self._controller.signal

    def stash(self, data: Any) -> None:
        """Store what the fiber goes on from if it is interrupted. When this returns, it is stored.

        It takes the place of what was stashed before.

        Raises:
            NotSerializable, PayloadTooLarge: *data* can't be stored.
            InsideTransaction: Called inside a joined transaction, which may be rolled back.
            LeaseLost: Another worker has the fiber. Nothing was stored.
            TurnCancelled: It was cancelled. (No ``Exception``: let it pass.)
        """
        if self._rt.db.inside_joined:
            raise InsideTransaction("stash()", "is stored at once, and this transaction may be rolled back")
        text = serialization.dumps(data, what="data", limit=self._rt.settings.max_payload)
        lease = self._hold.lease
        stored = patiently(
            self._rt, self._hold, lambda: self._rt.db.single(lambda tx: rows.stash(tx, lease, text))
        )
        if not stored:
            self._rt.monitor.beat()
            self.check()
            raise LeaseLost(str(lease))
        self._rt.failpoint("fiber:stashed")
        self.snapshot = serialization.loads(text)

    def check(self) -> None:
        """Stop here if the fiber should end; a good place is before each costly thing.

        Where the worker stops, another one calls the method again, with the snapshot.

        Raises:
            LeaseLost: Another worker has the fiber.
            TurnCancelled: It was cancelled, its time is up, or its worker stops. (No ``Exception``: let it pass.)
        """
        self._hold.check()
        if self.signal.aborted:
            raise TurnCancelled(self.signal.reason or "stopped")


_current: ContextVar[Fiber | None] = ContextVar("think_fiber", default=None)


@contextmanager
def _running(fiber: Fiber) -> Iterator[None]:
    """The block is what this fiber runs."""
    token = _current.set(fiber)
    try:
        yield
    finally:
        _current.reset(token)


def stash(data: Any) -> None:
    """What :meth:`Fiber.stash` does, of the fiber that this code runs in.

    Raises:
        NotInFiber: It runs in none.
    """
    fiber = _current.get()
    if fiber is None:
        raise NotInFiber("stash()")
    fiber.stash(data)


class FiberAttempt(JobRun):
    """A fiber in hand."""

    def __init__(self, rt: Runtime, claim: Claim, hold: Hold) -> None:
        super().__init__(rt, claim, hold)
        self._stop = AbortController()
        self._deciding = False
        self._snapshot: str | None = claim.row.snapshot

    def run(self) -> Outcome:
        """How it went."""
        forget = [
            self.hold.signal.on_abort(lambda: self._stop.abort(self.hold.signal.reason or "stopped")),
            self.rt.stopping.signal.on_abort(lambda: self._stop.abort("the worker stops")),
        ]
        try:
            return super().run()
        finally:
            for each in forget:
                each()

    def _function(self, agent: Any) -> Callable[[], Any]:
        fiber = Fiber(
            self.rt,
            self.hold,
            self.row,
            snapshot_text=self._snapshot,
            controller=self._stop,
            attempt=self.claim.takeovers,
        )
        function = methods.call_of(agent, self.row.method, self.row.payload, fiber)
        return partial(_run_in, fiber, function)

    # --- interrupted ------------------------------------------------------------------------------

    def _decided(self, agent: Any) -> Outcome | None:
        if not self.claim.again:
            return None
        self._deciding = True
        if not agent._overrides(HOOK):
            logger.warning(
                "%s was interrupted, and stays so: %s has no %s. Decide with resolve_fiber() or retry_job()",
                self._name,
                self.claim.agent,
                HOOK,
            )
            return self._left_interrupted(FiberRecovery(status="interrupted"))
        decision = self._asked(agent)
        self.rt.failpoint("fiber:recovery-decided")
        if isinstance(decision, Outcome):
            return decision
        return self._follow(decision)

    def _asked(self, agent: Any) -> FiberRecovery | Outcome:
        """What the agent decides; where its hook fails, the fiber stays interrupted and says why."""
        context = FiberRecoveryContext(
            fiber_id=self.row.id,
            method=self.row.method,
            payload=self._read(self.row.payload),
            snapshot=self._read(self._snapshot),
            idempotency_key=self.row.idempotency_key,
            metadata=self.row.metadata,
            attempt=self.claim.takeovers,
            created_at=self.row.created_at,
            started_at=self.row.started_at,
        )
        match self._called(lambda: agent.on_fiber_recovered(context)):
            case calls.Done(FiberRecovery() as decision):
                return decision
            case calls.Done(None):
                return FiberRecovery(status="interrupted")
            case calls.Done(other):
                problem = f"{HOOK} returned {a_type(other)}; it must return a FiberRecovery, or None"
                return self._hook_failed(InvalidValue(problem))
            case calls.Failed(error):
                if calls.passes(error) or self.hold.lost or self.hold.cancelled:
                    raise error
                return self._hook_failed(error)
            case _:
                return self._hook_failed(TimeoutError(f"{HOOK} did not return in time and was given up"))

    def _hook_failed(self, error: BaseException) -> Outcome:
        logger.error("%s of %s failed; it stays interrupted: %s", HOOK, self._name, trace_of(error))
        error_type, text = describe(error)
        return self._left_interrupted(FiberRecovery(status="interrupted"), error_type=error_type, error=text)

    def _read(self, text: str | None) -> Any:
        return None if text is None else serialization.loads(text)

    def _follow(self, decision: FiberRecovery) -> Outcome | None:
        try:
            changes = changes_of(self.rt, decision)
        except ValueError as error:
            return self._hook_failed(error)
        match decision.status:
            case "retry":
                if "snapshot" in changes:
                    self._stash(changes["snapshot"])
                self._deciding = False
                return None
            case "interrupted":
                return self._left_interrupted(decision, **changes)
            case status:
                return self._end_as(JobStatus(status), changes)

    def _stash(self, text: str) -> None:
        if not self._write(lambda: self.rt.db.single(lambda tx: rows.stash(tx, self.lease, text))):
            raise LeaseLost(str(self.lease))
        self._snapshot = text

    def _left_interrupted(self, decision: FiberRecovery, **changes: Any) -> Outcome:
        def act() -> None:
            if not self.rt.db.single(lambda tx: rows.interrupt(tx, self.lease, **changes)):
                raise LeaseLost(str(self.lease))

        self._write(act)
        self._log("interrupted")
        return Outcome("interrupted")

    def _end_as(self, status: JobStatus, changes: dict[str, Any]) -> Outcome:
        self._write(lambda: jobs.end(self.rt, self.lease, self.row, status, **changes))
        self._log(str(status))
        if status is JobStatus.ERROR:
            return self._error(changes["error_type"])
        return Outcome(
            "completed" if status is JobStatus.COMPLETED else "aborted", ended=True, row=self.row.id
        )

    # --- the worker ends at once ------------------------------------------------------------------

    def _interrupted(self) -> Outcome:
        """What it was at is cut: the next worker decides on it, or goes on deciding."""
        self._write(lambda: self.rt.db.transact(lambda tx: jobs.free(self.rt, tx, self.lease)))
        self._log("handed over")
        return Outcome("handed-over")

    def _handed_over(self) -> Outcome:
        return self._interrupted() if self._deciding else super()._handed_over()


def _run_in(fiber: Fiber, function: Callable[[], Any]) -> Any:
    with _running(fiber):
        return function()


class InlineRun(FiberAttempt):
    """A fiber that its caller runs and waits for."""

    def __init__(self, rt: Runtime, claim: Claim, hold: Hold, agent: Any) -> None:
        super().__init__(rt, claim, hold)
        self._own = agent
        self.result: calls.Result[Any] | None = None

    def _agent(self) -> Any:
        return self._own

    def _called(self, function: Any) -> calls.Result[Any]:
        self.rt.failpoint("job:before-call")
        self.result = calls.run(function)
        self.rt.failpoint("job:called")
        return self.result


def changes_of(rt: Runtime, decision: FiberRecovery) -> dict[str, Any]:
    """The columns that a decision on a fiber sets.

    Raises:
        NotSerializable, PayloadTooLarge: Its output or snapshot can't be stored.
    """
    limit, changes = rt.settings.max_payload, dict[str, Any]()
    if decision.snapshot is not KEPT:
        changes["snapshot"] = serialization.dumps(decision.snapshot, what="snapshot", limit=limit)
    if decision.status == "completed":
        changes["output"] = serialization.dumps(decision.output, what="output", limit=limit)
    failed = decision.status == "error"
    told = None if decision.error is None else storable(decision.error, MAX_ERROR)
    return changes | {"error": told, "error_type": "FiberError" if failed else None}
