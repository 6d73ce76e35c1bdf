"""Wait for the end of a turn, or until a conversation is at rest."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from think_celery.domain.conversation import conversation, interactions
from think_celery.domain.conversation.interactions import PendingInteraction
from think_celery.domain.inhand import in_hand
from think_celery.domain.poller import Watch, distance
from think_celery.domain.submissions import submissions
from think_celery.domain.turns import helping
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import (
    InsideTransaction,
    InvalidType,
    LeaseLost,
    SubmissionNotFound,
    TurnCancelled,
    TurnStillRunning,
)
from think_celery.ids import AgentRef
from think_celery.messages import UIMessage
from think_celery.runtime import Runtime
from think_celery.signals import AbortSignal
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import heads, waiting
from think_celery.store.database import is_away
from think_celery.wording import a_type

logger = logging.getLogger("think_celery.waiting")

T = TypeVar("T")

SETTLING_SECONDS = 6.0
"""How long the partial text of a cancelled turn may take to be stored."""

WARN_SECONDS = 10.0
"""Who has waited for so long for a turn that no worker has begun is told where to look."""

LOOK_SECONDS = 5.0
"""Whoever waits looks by itself that often, should nobody tell it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveMessagesResult:
    """How a turn that was waited for has ended.

    ``message`` is the answer: partial where the turn was cut, ``None`` where nothing of it was stored. ``error`` is the
    text of what ended the turn, or the reason for which it was cancelled. ``pending_interactions`` are the tool calls
    of the answer that wait for an approval or for a client: once they are decided on, another turn goes on with it.
    """

    request_id: str
    submission_id: str
    status: SubmissionStatus
    message: UIMessage | None
    error_type: str | None
    error: str | None
    pending_interactions: list[PendingInteraction]

    @property
    def text(self) -> str:
        """The answer's text; empty where there is none."""
        return "" if self.message is None else self.message.text

    def to_dict(self) -> dict[str, Any]:
        """The same in JSON values and JavaScript spelling; what is not set is left out."""
        told = {
            "submissionId": self.submission_id,
            "requestId": self.request_id,
            "status": str(self.status),
            "message": None if self.message is None else self.message.to_dict(),
            "errorType": self.error_type,
            "error": self.error,
            "pendingInteractions": [each.to_dict() for each in self.pending_interactions] or None,
        }
        return {name: value for name, value in told.items() if value is not None}


class Wait:
    """One call that waits for an agent's turns: how long it may take, and which wishes to stop it heeds."""

    def __init__(
        self,
        rt: Runtime,
        agent: AgentRef,
        call: str,
        *,
        timeout: Duration | None = None,
        signal: AbortSignal | None = None,
    ) -> None:
        """*call* is what errors call it.

        Raises:
            InsideTransaction: The caller's transaction is joined: what is waited for can't begin before its commit.
            InvalidDuration: *timeout* is no span of time.
        """
        if rt.db.inside_joined:
            raise InsideTransaction(call)
        if signal is not None and not isinstance(signal, AbortSignal):
            raise InvalidType(f"signal is {a_type(signal)}; pass the signal of an AbortController().")
        self.rt, self.agent, self.call, self.signal = rt, agent, call, signal
        self.seconds = None if timeout is None else as_timedelta(timeout, "timeout").total_seconds()
        self._began = rt.clock.elapsed()
        self._declared = False

    @property
    def left(self) -> float | None:
        """Seconds that are left of the timeout, ``None`` without one."""
        if self.seconds is None:
            return None
        return max(0.0, self._began + self.seconds - self.rt.clock.elapsed())

    @contextmanager
    def declared(self) -> Iterator[None]:
        """Everybody can see in the block that the turn in hand waits; for calls that store something before they wait.

        Raises:
            NestedTurn: The turn in hand would wait for itself.
        """
        helping.refuse_nested(self.agent, self.call)
        with helping.waits_for(self.rt, self.agent, self.call):
            self._declared = True
            try:
                yield
            finally:
                self._declared = False

    # --- the end of a turn ------------------------------------------------------------------------

    def result(self, submission_id: str) -> SaveMessagesResult:
        """How that turn has ended. Raises what :meth:`end_of` raises."""
        row = self.end_of(submission_id)
        message = None
        if row.message_id is not None:
            message = conversation.get_message(self.rt, self.agent, row.message_id)
        return SaveMessagesResult(
            request_id=row.id,
            submission_id=row.id,
            status=SubmissionStatus(row.status),
            message=message,
            error_type=row.error_type,
            error=row.error,
            pending_interactions=interactions.waiting_in(self.rt, self.agent, message),
        )

    def end_of(self, submission_id: str) -> Any:
        """The row of that submission of the agent's once it has ended and all that its turn stores is stored.

        Raises:
            TurnStillRunning: The time is up, or the worker that waits stops; the turn goes on.
            SubmissionNotFound: There is no such submission, or not any more.
            NestedTurn: The turn in hand would wait for itself.
        """
        found = self._until(lambda: self._ended(submission_id), submission_id)
        if found is None:
            raise TurnStillRunning(submission_id, self.rt.clock.elapsed() - self._began)
        return self._settled(found)

    def _ended(self, submission_id: str) -> Any:
        row = submissions.get(self.rt, submission_id)
        if row is None or row.agent_id != self.agent.id:
            raise SubmissionNotFound(submission_id)
        if is_terminal(SubmissionStatus(row.status)):
            return row
        if self.signal is not None and self.signal.aborted:
            self._cancel(submission_id)
            return self._ended(submission_id)
        return None

    def _cancel(self, submission_id: str) -> None:
        assert self.signal is not None
        reason = self.signal.reason
        self.rt.db.transact(lambda tx: submissions.cancel(self.rt, tx, submission_id, reason))

    @contextmanager
    def cancelling(self, submission_ids: Sequence[str]) -> Iterator[None]:
        """The signal cancels these in the block: turns that this very call may run, so it does not look meanwhile.

        There may be none yet when the block begins.
        """
        if self.signal is None:
            yield
            return
        forget = self.signal.on_abort(lambda: self._cancel_here(submission_ids))
        try:
            yield
        finally:
            forget()

    def _cancel_here(self, submission_ids: Sequence[str]) -> None:
        for submission_id in submission_ids:
            try:
                self._cancel(submission_id)
                self.rt.monitor.beat()
            except Exception as error:
                logger.warning("could not cancel submission %s yet: %s", submission_id, type(error).__name__)

    def _settled(self, row: Any) -> Any:
        """A cancelled turn is ended at once, and its worker stores the partial text soon."""
        if row.status != SubmissionStatus.ABORTED or row.message_id is None:
            return row
        clock = self.rt.clock
        began = clock.elapsed()
        while (age := clock.elapsed() - began) < SETTLING_SECONDS and self._is_settling(row):
            clock.sleep(distance(age))
        return row

    def _is_settling(self, row: Any) -> bool:
        return self.rt.db.read(lambda tx: waiting.is_settling(tx, row.agent_id, row.message_id))

    # --- a conversation at rest -------------------------------------------------------------------

    def stable(self) -> bool:
        """Whether nothing of the agent runs or waits, before the time is up: no turn, no message in the making, no call
        that waits for somebody, and no hook after a turn, unless it is the one that asks.

        Raises:
            NestedTurn: It is asked for in a turn of this agent, and without a timeout: it would wait for ever.
        """
        if helping.own_turn(self.agent) and self.seconds is not None:
            return self._until(self._at_rest, None, nested=True) is not None
        return self._until(self._at_rest, None) is not None

    def _at_rest(self) -> bool | None:
        mine = [self.agent.id]
        # In a hook the line is held for that hook, which asks.
        line = [] if helping.own_hook(self.agent.id) is not None else mine
        found = self.rt.db.read(lambda tx: waiting.standing(tx, [], mine, line))
        return None if self.agent.id in found.busy | found.held else True

    # --- waiting ----------------------------------------------------------------------------------

    def _until(
        self, look: Callable[[], T | None], submission_id: str | None, *, nested: bool = False
    ) -> T | None:
        """What *look* finds, as soon as it finds something; ``None`` when the time is up."""
        found = look()
        if found is not None or self.left == 0:
            return found
        helps = not nested and helping.may_help(self.rt, self.agent)
        with ExitStack() as stack:
            if not (nested or self._declared):
                stack.enter_context(self.declared())
            watch = stack.enter_context(self._watching(submission_id, helps=helps))
            return self._loop(look, watch, submission_id, helps=helps)

    @contextmanager
    def _watching(self, submission_id: str | None, *, helps: bool) -> Iterator[Watch]:
        """A watch that also rings when somebody wants this call to end."""
        with ExitStack() as stack:
            mine = helping.own_hook(self.agent.id) is not None
            watch = stack.enter_context(
                self.rt.poller.watching(self.agent.id, submission_id, for_line=helps, holds_line=mine)
            )
            work = in_hand()
            stopping = self.rt.stopping.signal
            for signal in (self.signal, stopping, None if work is None else work.hold.signal):
                if signal is not None:
                    stack.callback(signal.on_abort(watch.ring))
            runs_here = helps or self.rt.meanwhile is not None
            if submission_id is not None and runs_here:
                stack.enter_context(self.cancelling([submission_id]))
            yield watch

    def _loop(
        self, look: Callable[[], T | None], watch: Watch, submission_id: str | None, *, helps: bool
    ) -> T | None:
        told = submission_id is None
        while True:
            heed_the_work_in_hand()
            found = self._patient(look)
            if found is not None:
                return found
            if self.left == 0 or self._worker_stops():
                return None
            if not told and self.rt.clock.elapsed() - self._began >= WARN_SECONDS:
                told = True
                self._patient(lambda: self._warn(submission_id))
            if not (helps and self._patient(lambda: helping.help_line(self.rt, self.agent.id))):
                self._rest(watch)

    def _warn(self, submission_id: str | None) -> None:
        """Say once that nobody has begun what is waited for, though nothing of the agent's is before it."""
        if submission_id is None:
            return
        head = self.rt.db.read(lambda tx: heads.head(tx, self.agent.id))
        if head is None or head.held or not head.due or head.status != SubmissionStatus.PENDING:
            return
        logger.warning(
            "%s has waited for %.0f s for submission %s of %s, which no worker has taken. Is a worker running that has "
            "imported %s and takes its queue? See: think-celery doctor",
            self.call,
            self.rt.clock.elapsed() - self._began,
            submission_id,
            self.agent,
            self.agent.agent_class,
            extra={"think_event": "waiting.no_worker", "think_submission": submission_id},
        )

    def _worker_stops(self) -> bool:
        """Whether whoever waits is a worker's work, and the worker stops: the turn may need another one to run it."""
        return self.rt.stopping.signal.aborted and (in_hand() is not None or self.rt.in_task())

    def _patient(self, look: Callable[[], T | None]) -> T | None:
        """What *look* returns; nothing while the database is away for a moment."""
        try:
            return look()
        except Exception as error:
            if not is_away(error):
                raise
            self.rt.clock.sleep(distance(self.rt.clock.elapsed() - self._began))
            return None

    def _rest(self, watch: Watch) -> None:
        left = self.left
        if self.rt.meanwhile is not None:
            self.rt.meanwhile(left)
        else:
            watch.rest(LOOK_SECONDS if left is None else min(left, LOOK_SECONDS))


def heed_the_work_in_hand() -> None:
    """Give up waiting when the turn, step or job that waits is no longer wanted.

    Raises:
        LeaseLost, TurnCancelled: It is another worker's, or it was cancelled, or its time is up.
    """
    work = in_hand()
    if work is None:
        return
    if work.hold.lost:
        raise LeaseLost(str(work.hold.lease))
    if work.hold.signal.aborted:
        raise TurnCancelled(work.hold.signal.reason or "stopped")
