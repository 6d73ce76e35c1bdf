"""One turn, from its claim to its end."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from think_celery.described import describe, kept_reason
from think_celery.domain import calls, outbox
from think_celery.domain.agents import starts
from think_celery.domain.agents.hooks import Hooks
from think_celery.domain.inhand import depth, doing
from think_celery.domain.leases import Hold
from think_celery.domain.outcomes import Ended, NotResumed, Outcome, PutBack
from think_celery.domain.patience import patiently
from think_celery.domain.submissions import statuses
from think_celery.domain.submissions.claimed import Claim
from think_celery.domain.submissions.lines import free
from think_celery.domain.turns import takeover
from think_celery.domain.turns.loops import Loop
from think_celery.domain.turns.ownloops import OwnLoop
from think_celery.domain.turns.state import TurnState
from think_celery.errors import (
    ConfigurationError,
    LeaseLost,
    ModelAborted,
    ThinkError,
    TurnCancelled,
    TurnTimeout,
)
from think_celery.hooks.turns import ChatErrorContext, StatusChange
from think_celery.logs import trace_of
from think_celery.messages import ToolPart
from think_celery.protocols import AgentHooks
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, TurnKind, is_terminal
from think_celery.store import submissions
from think_celery.store.database import Tx

__all__ = ["Claim", "Turn", "run"]

from think_celery.wording import a_type

logger = logging.getLogger("think_celery.turns")


def run(rt: Runtime, claim: Claim) -> Outcome:
    """Run a claimed turn to its end, and say how it went.

    Where the agent wants to be told of the end, the line is still held then: see ``Outcome.after``.
    """
    seconds = rt.settings.turn_timeout_seconds
    stall = takeover.limits_of(claim.agent.agent_class).stall_seconds
    held = rt.monitor.hold(claim.lease, submission_id=claim.row.id, seconds=seconds, stall=stall)
    with held as hold:
        with doing(hold, claim.agent):
            turn = Turn(rt, claim, hold)
            try:
                outcome = turn.run()
            except LeaseLost:
                logger.warning("submission %s: the lease was lost; another worker goes on", claim.row.id)
                outcome = Outcome("lease-lost")
        # This may wait for whoever has the workflow's row; the hooks' lease is watched over.
        try:
            for outbox_id in turn.news:
                outbox.deliver_now(rt, outbox_id)
        except BaseException as error:
            if claim.inner or not calls.interrupts(error):
                raise
            return _cut(rt, outcome, error)
    return outcome


def _cut(rt: Runtime, outcome: Outcome, error: BaseException) -> Outcome:
    """Interrupted from outside when the turn had ended: its line is given back, no hook is called, its news waits.

    Raises:
        BaseException: The error, unless it is Celery's soft time limit, which ends no worker.
    """
    logger.error("what follows submission %s was cut: %s", outcome.row, trace_of(error))
    if outcome.after is not None:
        lease = outcome.after.lease
        rt.db.transact(lambda tx: free(rt, tx, lease))
    if not isinstance(error, Exception):
        raise error
    return replace(outcome, after=None)


class Turn(TurnState):
    """A turn in progress."""

    def __init__(self, rt: Runtime, claim: Claim, hold: Hold) -> None:
        super().__init__(rt, claim, hold)
        self.agent: AgentHooks | None = None
        self.news: list[str] = []
        """The news of the end for the workflow that waits for it, once that is stored."""
        self.keeps = claim.inner or statuses.follows(claim.agent.agent_class)
        """Whether the line stays held after the end, for the hooks that are told of it."""

    def run(self) -> Outcome:
        """From the claim to the end."""
        forget = [
            self.hold.signal.on_abort(lambda: self.stop.abort(self.hold.signal.reason or "stopped")),
            self.rt.stopping.signal.on_abort(lambda: self.stop.abort("the worker stops")),
        ]
        if self.claim.stop is not None:
            forget.append(self.claim.stop.on_abort(lambda: self.stop.abort("the worker stops")))
        try:
            return self._run()
        except BaseException as error:
            return self._end_after(error)
        finally:
            for remove in forget:
                remove()
            self.hooks.close()

    def _run(self) -> Outcome:
        self.live.put({"type": "start", "messageId": self.claim.message_id})
        if self.again:  # before anything of the user's own can fail: what is stored must not be lost
            self.draft.load()
        agent: AgentHooks = self.rt.make_agent(self.claim.agent.agent_class, self.claim.agent.name)
        self.agent = agent
        self.hooks = Hooks(self.rt, agent, self.hold, self.row.id)
        starts.ensure(self.rt, self.hold, agent, self.claim.agent, self.row.started_version)
        if self.row.status != SubmissionStatus.RUNNING:
            change = StatusChange(
                submission_id=self.row.id, status=SubmissionStatus.RUNNING, metadata=self.row.metadata
            )
            self.hooks.react(statuses.HOOK, change)
        self.ask_about_interruption()
        if self.hooks.has("on_chat_message"):
            return self._finish(SubmissionStatus.COMPLETED, output=OwnLoop(self, agent).run())
        output, waiting = Loop(self, agent).run()
        return self._finish(SubmissionStatus.COMPLETED, output=output, waiting=waiting)

    def _end_after(self, error: BaseException) -> Outcome:
        if calls.interrupts(error):
            outcome = Outcome("lease-lost")
            with suppress(LeaseLost):
                outcome = self._put_back(PutBack())
            if isinstance(error, Exception) and not depth():  # Celery's soft time limit, for this very turn
                return outcome
            raise error
        match error:
            case TurnCancelled():
                return self._give_up()
            case PutBack():
                return self._put_back(error)
            case NotResumed():
                return self._finish(SubmissionStatus.ABORTED, reason=error.reason)
            case ModelAborted():
                return self._interrupted(error)
            case LeaseLost():
                raise error
            case _ if not calls.passes(error):
                if isinstance(error, ConfigurationError):  # its text names settings and classes only
                    logger.error("submission %s can't be answered: %s", self.row.id, error)
                elif not isinstance(error, ThinkError):
                    logger.error("submission %s failed: %s", self.row.id, trace_of(error))
                return self._fail(error)
            case _:
                raise error

    # --- ends -------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> Outcome:
        """End in this error, or in the one that ``on_chat_error`` puts in its place."""
        if self.answer.step_parts:
            self.rewind()  # the cut text of a failed attempt is no answer
        if self.hooks.has("on_chat_error"):
            told = ChatErrorContext(partial=self.draft.message(), **self.about)
            other = self.hooks.react("on_chat_error", error, told)
            if isinstance(other, BaseException):
                error = other
            elif other is not None:
                logger.error(
                    "on_chat_error of submission %s returned %s, which is no exception; the error that it was told "
                    "of stands",
                    self.row.id,
                    a_type(other),
                )
        return self._finish(SubmissionStatus.ERROR, error=error)

    def _finish(
        self,
        status: SubmissionStatus,
        *,
        error: BaseException | None = None,
        reason: str | None = None,
        output: Any = None,
        waiting: Sequence[ToolPart] = (),
    ) -> Outcome:
        """The message, the status, the lease and the workflow's news in one transaction."""
        error_type, text = (None, kept_reason(reason)) if error is None else describe(error)
        ended = self.draft.end(
            self.row,
            status,
            deliver=self.news.append,
            keep=self.keeps,
            waiting=waiting,
            error_type=error_type,
            error=text,
            output=output,
        )
        self.rt.failpoint("turn:committed")
        if not ended:  # cancelled at the last moment: the answer stays, the status is the canceller's
            return self._announce(*self._as_it_ended())
        return self._announce(status, error_type, output)

    def _as_it_ended(self) -> tuple[SubmissionStatus, str | None]:
        """Status and error of the row, which had ended before: by a cancel, or by us, and we did not hear of it."""

        def look() -> Any:
            return self.rt.db.read(lambda tx: submissions.get(tx, self.row.id))

        row = patiently(self.rt, self.hold, look) if self.keeps else None
        if row is None or not is_terminal(SubmissionStatus(row.status)):
            return SubmissionStatus.ABORTED, None
        return SubmissionStatus(row.status), row.error_type

    def _give_up(self) -> Outcome:
        """The submission was cancelled: keep the partial text, and give the line back."""
        write = self.draft.write if self.keeps else self.draft.write_last
        write(self.draft.finished)
        return self._announce(SubmissionStatus.ABORTED)

    def _interrupted(self, error: ModelAborted) -> Outcome:
        """The turn was told to end: find out why."""

        def look() -> None:
            self.hold.monitor.beat()
            self.hold.check()

        try:
            patiently(self.rt, self.hold, look)
        except TurnCancelled:
            return self._give_up()
        if self.hold.overdue:
            return self._fail(TurnTimeout(self.rt.settings.turn_timeout_seconds))
        if self.stopping:
            return self._put_back(PutBack())
        if self.hold.stalled:
            logger.error("submission %s got nowhere for too long; it is taken up again", self.row.id)
            return self._put_back(PutBack(counts=True))
        return self._fail(error)

    def _put_back(self, later: PutBack) -> Outcome:
        """Hand the turn over in order: what there is of it is stored, and its attempts are forgotten.

        One that was cancelled meanwhile ends here. An inner turn leaves the line to the hook that has asked for it.
        """
        wait = None if later.after_seconds is None else timedelta(seconds=later.after_seconds)

        def change(tx: Tx) -> bool:
            waits = submissions.put_back(
                tx, self.row.id, not_before=wait, model_attempts=later.failures, counts=later.counts
            )
            if not waits and self.keeps:  # put back before, and we did not hear of it
                row = submissions.get(tx, self.row.id)
                waits = row is not None and row.status == SubmissionStatus.PENDING
            if waits:
                self.draft.unfinished(tx)
                self.draft.count(tx)
            else:  # cancelled meanwhile: nobody will go on with it
                self.draft.finished(tx)
            if waits and self.keeps and not self.claim.inner:
                free(self.rt, tx, self.claim.lease)
            return waits

        write = self.draft.write if self.keeps else self.draft.write_last
        if not write(change):
            return self._announce(SubmissionStatus.ABORTED)
        return Outcome("handed-over" if wait is None else "waiting")

    def _announce(
        self, status: SubmissionStatus, error_type: str | None = None, output: Any = None
    ) -> Outcome:
        done = {"type": "done", "status": str(status)}
        self.live.put(done if error_type is None else {**done, "errorType": error_type})
        word: Any = str(status)
        after = None
        if self.keeps:
            after = Ended(
                lease=self.claim.lease,
                ref=self.claim.agent,
                agent=self.agent,
                submission_id=self.row.id,
                kind=TurnKind(self.row.kind),
                continuation=self.claim.place.continues is not None,
                metadata=self.row.metadata,
                message=self.draft.message(),
                status=status,
                error_type=error_type,
                output=output,
            )
        return Outcome(word, ended=True, row=self.row.id, error_type=error_type, after=after)
