"""What an agent does with fibers: start them, keep snapshots, decide on interrupted ones."""

from collections.abc import Sequence
from typing import Any, ClassVar

from think_celery.agents.arguments import Method
from think_celery.agents.handle import AgentHandle
from think_celery.domain.jobs import control, fiberruns, fibers
from think_celery.domain.jobs.records import FiberRun
from think_celery.domain.pages import Before, Page
from think_celery.durations import Duration
from think_celery.hooks.fibers import FiberRecovery, FiberRecoveryContext


class AgentFibers(AgentHandle, abstract=True):
    """An agent's fibers."""

    _hooks: ClassVar[tuple[str, ...]] = ("on_fiber_recovered",)

    def start_fiber(
        self,
        method: Method,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
        wait_for_completion: bool = False,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
    ) -> FiberRun:
        """Accept work that a worker does in the background, and return at once, or when it has ended.

        When this returns, the fiber is stored (inside a joined transaction: once that commits). A worker calls
        ``method(fiber, payload)``, or ``method(fiber)`` without a payload: once. The method keeps how far it has come
        with ``fiber.stash(data)``. If its worker dies, :meth:`on_fiber_recovered` decides what becomes of it.
        Fibers run beside each other and beside the agent's turns, in no order. What the method raises ends the
        fiber in error; nothing tries it again.

        Args:
            method: A method of this agent, ``self.reply``, or its name. Its first argument is the ``Fiber``.
            payload: One JSON value, or what the method's parameter is annotated with.
            idempotency_key: Your own name for this work, such as a webhook's event id: the same one again gives the
                first fiber back, as it stands, with ``accepted=False``.
            metadata: JSON of yours, kept with the fiber.
            wait_for_completion: Return when it has ended (see ``status``), or is interrupted and nobody has decided.
                A worker that waits does the work itself if nobody has begun with it.
            timeout: How long to wait; ``None``: as long as it takes.
            time_limit: How long the method may take; ``think_turn_timeout`` if not said.

        Raises:
            InvalidMethod: It is no method of this agent, or can't be called in this way.
            InvalidValue: The payload does not fit the method's annotation; or there is a *timeout*, and nothing waits.
            JobStillRunning: The *timeout* is up. The fiber goes on.
            InsideTransaction: *wait_for_completion* inside a joined transaction. Nothing was stored.
            NotSerializable, PayloadTooLarge: The payload or the metadata can't be stored.
        """
        return fibers.start(
            self._rt,
            self._ref,
            self,
            method,
            payload,
            idempotency_key=idempotency_key,
            metadata=metadata,
            waits=wait_for_completion,
            timeout=timeout,
            time_limit=time_limit,
        )

    def run_fiber(
        self,
        method: Method,
        payload: Any = None,
        *,
        metadata: dict[str, Any] | None = None,
        time_limit: Duration | None = None,
    ) -> Any:
        """Do work right here that keeps snapshots, and return what the method returns; what it raises is raised.

        If this process dies meanwhile, a worker asks :meth:`on_fiber_recovered`. The result of what goes on then
        comes back to nobody, but can be looked up with :meth:`list_fibers`.

        Args:
            method: As for :meth:`start_fiber`.
            payload: What it is called with.
            metadata: JSON of yours, kept with the fiber.
            time_limit: When ``fiber.signal`` comes; ``think_turn_timeout`` if not said.

        Raises:
            JobTimeout: It took longer than *time_limit*. What it returned is dropped.
            TurnCancelled: It was cancelled. (No ``Exception``.)
            InsideTransaction: Called inside a joined transaction.
            InvalidMethod, InvalidValue, NotSerializable, PayloadTooLarge: As for :meth:`start_fiber`.
        """
        return fibers.run(
            self._rt, self._ref, self, method, payload, metadata=metadata, time_limit=time_limit
        )

    def stash(self, data: Any) -> None:
        """Store what the fiber that this code runs in goes on from, as ``fiber.stash(data)`` does.

        Raises:
            NotInFiber: Called where no fiber runs.
            And what ``fiber.stash`` raises.
        """
        fiberruns.stash(data)

    def inspect_fiber(self, fiber_id: str) -> FiberRun | None:
        """A fiber of this agent as it stands now; ``None`` if it has none of that id."""
        return fibers.inspect(self._rt, fiber_id, self._ref.id)

    def inspect_fiber_by_key(self, idempotency_key: str) -> FiberRun | None:
        """The fiber that was started with that key, as it stands now; ``None`` if there is none."""
        return fibers.inspect_by_key(self._rt, self._ref, idempotency_key)

    def list_fibers(
        self,
        *,
        status: str | Sequence[str] | None = None,
        method: Method | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[FiberRun]:
        """This agent's fibers, newest first; those of one or several statuses, or of a method. A page, as of jobs.

        Raises:
            ValueError: A status is unknown, *limit* is not between 1 and 1000, or *cursor* can't be read.
        """
        return fibers.find(
            self._rt, agent_id=self._ref.id, status=status, method=method, limit=limit, cursor=cursor
        )

    def cancel_fiber(self, fiber_id: str, reason: str | None = None) -> bool:
        """End a fiber as aborted, and say whether this call did; an ended or unknown one stays as it is.

        One that runs is told through ``fiber.signal`` within a second, and can store nothing more.
        """
        return fibers.cancel(self._rt, fiber_id, reason, self._ref.id)

    def cancel_fiber_by_key(self, idempotency_key: str, reason: str | None = None) -> bool:
        """The same for the fiber that was started with that key."""
        return fibers.cancel_by_key(self._rt, self._ref, idempotency_key, reason)

    def resolve_fiber(self, fiber_id: str, recovery: FiberRecovery) -> bool:
        """Decide on an interrupted fiber, and say whether this call did; any other stays as it is.

        Raises:
            InvalidType: *recovery* is no ``FiberRecovery``.
            InvalidValue: It says ``"interrupted"``.
            NotSerializable, PayloadTooLarge: Its output or snapshot can't be stored.
        """
        return fibers.resolve(self._rt, fiber_id, recovery, self._ref.id)

    def delete_fibers(
        self,
        *,
        status: str | Sequence[str] | None = None,
        completed_before: Before | None = None,
        limit: int | None = None,
    ) -> int:
        """Delete fibers that have ended, with their keys, and say how many.

        Args:
            status: Only those of this status, or of one of these. Interrupted ones are deleted only if it says so.
            completed_before: Only those that ended before that: an aware datetime, or how long ago ("90 days").
            limit: How many at most, up to 1000; without it all.

        Raises:
            ValueError: A status is unknown or not of an end, or another argument is unfit.
        """
        return control.delete_ended(
            self._rt,
            agent_id=self._ref.id,
            kind="fiber",
            status=status,
            completed_before=completed_before,
            limit=limit,
            end_it_with="cancel_fiber()",
        )

    def on_fiber_recovered(self, ctx: FiberRecoveryContext) -> FiberRecovery | None:
        """Decide what becomes of a fiber that was interrupted; called in the worker that has it now.

        ``FiberRecovery(status="retry")`` calls its method again, with the snapshot. Others end it. ``None``, or a
        class without this hook, leaves it ``interrupted``: look for those with ``list_fibers(status="interrupted")``,
        and decide with :meth:`resolve_fiber`. What the hook raises is logged and kept with the fiber, which stays
        interrupted. Like every hook it may be called again, when its worker dies in it.
        """
        return None
