"""What follows a turn: the hooks that are told of its end, under the lease that its line still has.

The turn's row has ended and readers see its answer; but the line is not free yet, so the next turn waits until the
agent has heard of this one. A hook may ask for turns and wait for them: those run here and now, under the same lease,
and the hooks for them are called after this one has returned. Dying here loses the hooks and nothing else: the sweep
frees the line as it frees every other.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from think_celery.domain import calls
from think_celery.domain.agents.hooks import Hooks
from think_celery.domain.inhand import doing
from think_celery.domain.leases import Hold
from think_celery.domain.outcomes import Ended, Outcome
from think_celery.domain.patience import patiently
from think_celery.domain.submissions import lines, statuses
from think_celery.domain.submissions.claimed import Claim
from think_celery.domain.turns import turns
from think_celery.errors import ChainTooLong, LeaseLost
from think_celery.hooks.turns import ChatResponseResult, StatusChange
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.runtime import Runtime, agent_classes
from think_celery.signals import AbortController, AbortSignal
from think_celery.states import SubmissionStatus
from think_celery.store import submissions
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.hooks")

ClaimNext = Callable[[Runtime, Lease, AbortSignal], Claim | Outcome | None]

HAND_OVER_SECONDS = 5.0
"""How long a turn that runs in a hook has to hand over when the hook is interrupted."""

_in_progress: ContextVar["Afterwards | None"] = ContextVar("think_afterwards", default=None)


def current() -> "Afterwards | None":
    """The hook that is in progress in this thread, as long as its line is held for it."""
    found = _in_progress.get()
    return found if found is not None and found.open else None


def call_hooks(rt: Runtime, ended: Ended, claim_next: ClaimNext) -> None:
    """Call the hooks for a turn that has ended, and for those that they ask for; then give the line back.

    Raises:
        BaseException: What ends this worker from outside. (Celery's soft time limit ends the hooks alone.)
    """
    with rt.monitor.hold(ended.lease, seconds=math.inf, outlives=True) as hold:
        after = Afterwards(rt, ended, hold, claim_next)
        try:
            after.call_all()
        except BaseException as error:
            if calls.interrupts(error):
                after.interrupt()
                if not isinstance(error, Exception):
                    after.close()
                    raise
            elif calls.passes(error):  # in a test: the worker died
                raise
            logger.error("the hooks after submission %s were cut: %s", ended.submission_id, trace_of(error))
        after.close()


class Afterwards:
    """The time between the end of a turn and the moment in which its line is given back."""

    def __init__(self, rt: Runtime, ended: Ended, hold: Hold, claim_next: ClaimNext) -> None:
        self.rt, self.agent, self._line = rt, ended.ref, hold
        self.hold = hold  # that of the hook in progress, which has a deadline
        self.open = True
        self._claim_next = claim_next
        self._waiting = deque([ended])
        self._asked = 0
        self._running = threading.Lock()
        self._stop = AbortController()

    def __repr__(self) -> str:
        return f"Afterwards({self.agent})"

    # --- the hooks --------------------------------------------------------------------------------

    def call_all(self) -> None:
        """Call the hooks of each turn, in the order of their ends; none begins before another has returned."""
        while self._waiting:
            self._call(self._waiting.popleft())

    def _call(self, ended: Ended) -> None:
        rt, seconds = self.rt, self.rt.settings.turn_timeout_seconds
        rt.failpoint("hook:begin")
        result, agent = self._result(ended), ended.agent or _made(rt, ended.ref)
        change = StatusChange(
            submission_id=result.submission_id,
            status=result.status,
            error_type=result.error_type,
            error=result.error,
            metadata=result.metadata,
        )
        with rt.monitor.hold(ended.lease, seconds=seconds, outlives=True) as self.hold:
            hooks = Hooks(rt, agent, self.hold, ended.submission_id)
            token = _in_progress.set(self)
            try:
                with doing(self.hold, self.agent):
                    hooks.react("on_chat_response", result)
                    hooks.react(statuses.HOOK, change)
            finally:
                _in_progress.reset(token)
                hooks.close()
        rt.failpoint("hook:returned")

    def _result(self, ended: Ended) -> ChatResponseResult:
        """The end as it is stored. (One that was deleted meanwhile is told of as it was.)"""

        def look() -> Any:
            return self.rt.db.read(lambda tx: submissions.get(tx, ended.submission_id))

        row = patiently(self.rt, self._line, look)
        return ChatResponseResult(
            submission_id=ended.submission_id,
            message=ended.message,
            kind=ended.kind,
            continuation=ended.continuation,
            status=ended.status if row is None else SubmissionStatus(row.status),
            error_type=ended.error_type if row is None else row.error_type,
            error=None if row is None else row.error,
            metadata=ended.metadata,
            output=ended.output,
        )

    # --- turns that a hook asks for ---------------------------------------------------------------

    def admit(self) -> None:
        """A hook is about to ask for one more turn, and to wait for it.

        Raises:
            ChainTooLong: The hooks have asked for as many as the agent's class allows.
        """
        limit = agent_classes.get(self.agent.agent_class).max_chained_turns
        if self._asked >= limit:
            error = ChainTooLong(str(self.agent), limit)
            logger.error("%s", error, extra={"think_event": "chain.too_long"})
            raise error
        self._asked += 1

    def run_next(self) -> Outcome | None:
        """Run the line's next turn here, under the lease that the line has; ``None`` if there is none.

        Any outcome that did not end a row means that nothing can be run just now. The hooks for the turn are called
        after the one that is in progress.

        Raises:
            LeaseLost: The line is another's now, or is given up: the worker stops, or the hook's time is over.
        """
        with self._running:
            if (
                not self.open
                or self.hold.lost
                or self._stop.signal.aborted
                or self.rt.stopping.signal.aborted
            ):
                raise LeaseLost(str(self._line.lease))
            hook = self.hold
            hook.deadline = math.inf  # the turn has a deadline of its own
            try:
                return self._run_next()
            finally:
                hook.extend(self.rt.settings.turn_timeout_seconds)

    def _run_next(self) -> Outcome | None:
        lease = self._line.lease
        claimed = patiently(self.rt, self._line, lambda: self._claim_next(self.rt, lease, self._stop.signal))
        if not isinstance(claimed, Claim):
            outcome = claimed
        else:
            with outside():
                outcome = turns.run(self.rt, claimed)
        if outcome is not None and outcome.after is not None:
            self._waiting.append(outcome.after)
        if outcome is not None and outcome.word == "lease-lost":
            self._line.lose()
        return outcome

    # --- its end ----------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Let the turn that runs in the hook hand over, if one does."""
        self._stop.abort("interrupted")
        if self._running.acquire(timeout=HAND_OVER_SECONDS):
            self._running.release()

    def close(self) -> None:
        """Give the line back, and knock for its next turn."""
        self.open = False
        lease = self._line.lease
        try:
            patiently(
                self.rt, self._line, lambda: self.rt.db.transact(lambda tx: lines.free(self.rt, tx, lease))
            )
        except Exception as error:  # the turn has ended; whoever looks after leases frees the line, too
            logger.error("could not give the line of %s back yet: %s", self.agent, trace_of(error))


@contextmanager
def outside() -> Iterator[None]:
    """The block is a turn's, of this agent or of another: it is not the hook that asks."""
    token = _in_progress.set(None)
    try:
        yield
    finally:
        _in_progress.reset(token)


def _made(rt: Runtime, ref: AgentRef) -> Any:
    """The agent of a turn that ended before there was one; ``None`` if it can't be made."""
    try:
        return rt.make_agent(ref.agent_class, ref.name)
    except Exception as error:
        logger.error("%s can't be told how its turn has ended: %s", ref, trace_of(error))
        return None
