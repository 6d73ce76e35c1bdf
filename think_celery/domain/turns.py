"""One turn, from its claim to its end: the only way to the model."""

import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from think_celery.described import describe
from think_celery.domain import calls, continuations, conversation, finals, hooks, interactions, recovery
from think_celery.domain.answers import Answer
from think_celery.domain.claimed import Claim
from think_celery.domain.drafts import Draft
from think_celery.domain.inhand import doing
from think_celery.domain.leases import Hold
from think_celery.domain.live import Broadcast
from think_celery.domain.outcomes import Outcome
from think_celery.domain.patience import patiently
from think_celery.domain.requests import Plan, next_request, timeouts
from think_celery.domain.toolcalls import Scene, execute
from think_celery.errors import (
    ConfigurationError,
    LeaseLost,
    ModelAborted,
    ModelError,
    NoFinalAnswer,
    ThinkError,
    TurnCancelled,
    TurnTimeout,
)
from think_celery.logs import trace_of
from think_celery.messages import ToolPart, UIMessage, dump_parts
from think_celery.protocols import AgentHooks, Finish, Model, ModelRequest
from think_celery.retries import Retry, jittered
from think_celery.runtime import Runtime
from think_celery.signals import AbortController
from think_celery.states import SubmissionStatus
from think_celery.store import submissions
from think_celery.store.database import Tx
from think_celery.tools import Tool

logger = logging.getLogger("think_celery.turns")

LONGEST_WAIT_SECONDS = 30.0
"""A longer wait for the model frees the worker."""

LONGEST_PARK_SECONDS = 86_400.0
"""No wish of a provider is granted beyond this."""

MODEL_RETRY = Retry(delay=1, backoff="exponential", max_delay=60)


class _PutBack(Exception):
    """The worker is wanted elsewhere: the submission goes on later."""

    def __init__(self, after_seconds: float | None = None, failures: int | None = None) -> None:
        super().__init__(after_seconds, failures)
        self.after_seconds, self.failures = after_seconds, failures


def run(rt: Runtime, claim: Claim) -> Outcome:
    """Run a claimed turn to its end, and say how it went."""
    seconds = rt.settings.turn_timeout_seconds
    held = rt.monitor.hold(claim.lease, submission_id=claim.row.id, seconds=seconds)
    with held as hold, doing(hold, claim.agent):
        try:
            return Turn(rt, claim, hold).run()
        except LeaseLost:
            logger.warning("submission %s: the lease was lost; another worker goes on", claim.row.id)
            return Outcome("lease-lost")


class Turn:
    """A turn in progress."""

    def __init__(self, rt: Runtime, claim: Claim, hold: Hold) -> None:
        self.rt, self.claim, self.hold, self.row = rt, claim, hold, claim.row
        agent_id = claim.agent.id
        self.live = Broadcast(rt, agent_id, self.row.id, claim.message_id, claim.lease.token)
        self.draft = Draft(rt, hold, agent_id, self.row.id, claim.message_id)
        self.failures: int = self.row.model_attempts
        self.about: dict[str, Any] = {
            "submission_id": self.row.id,
            "message_id": claim.message_id,
            "kind": self.row.kind,
            "continuation": claim.place.continues is not None,
            "attempt": claim.attempt,
            "metadata": None,
            "signal": hold.signal,
        }
        self.stop = AbortController()  # for the model: also comes when the worker is told to stop

    @property
    def answer(self) -> Answer:
        """The parts of the message."""
        return self.draft.answer

    # --- the way through --------------------------------------------------------------------------

    def run(self) -> Outcome:
        """From the claim to the end."""
        forget = [
            self.hold.signal.on_abort(lambda: self.stop.abort(self.hold.signal.reason or "stopped")),
            self.rt.stopping.signal.on_abort(lambda: self.stop.abort("the worker stops")),
        ]
        try:
            return self._run()
        except BaseException as error:
            return self._end_after(error)
        finally:
            for remove in forget:
                remove()

    def _end_after(self, error: BaseException) -> Outcome:
        if calls.interrupts(error):
            outcome = Outcome("lease-lost")
            with suppress(LeaseLost):
                outcome = self._put_back(_PutBack())
            if isinstance(error, Exception):  # Celery's soft time limit
                return outcome
            raise error
        match error:
            case TurnCancelled():
                return self._give_up()
            case _PutBack():
                return self._put_back(error)
            case ModelAborted():
                return self._interrupted(error)
            case LeaseLost():
                raise error
            case _ if not calls.passes(error):
                if isinstance(error, ConfigurationError):  # its text names settings and classes only
                    logger.error("submission %s can't be answered: %s", self.row.id, error)
                elif not isinstance(error, ThinkError):
                    logger.error("submission %s failed: %s", self.row.id, trace_of(error))
                return self._finish(SubmissionStatus.ERROR, error=error)
            case _:
                raise error

    def _run(self) -> Outcome:
        again = self.claim.resumes
        self.live.put({"type": "start", "messageId": self.claim.message_id})
        if again:  # before anything of the user's own can fail: what is stored must not be lost
            self.draft.load()
        self.agent: AgentHooks = self.rt.make_agent(self.claim.agent.agent_class, self.claim.agent.name)
        self.hooks = hooks.Hooks(self.rt, self.agent, self.hold, self.row.id)
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in hooks.all_tools(self.agent)}
        self.final = finals.for_turn(self.row.structure, self.tools)
        self.answer.hidden = None if self.final is None else self.final.name
        place = self.claim.place
        self.approved = patiently(self.rt, self.hold, self._approved)
        if place.continues == place.message_id:
            self.answer.parts = continuations.resumed(self.answer.parts, self.approved, place.steps_before)
        elif place.continues is not None:
            self._finish_calls_of(place.continues)
        self.model: Model = hooks.model_of(self.rt, self.agent)
        self.plan = Plan(
            system=self.agent.get_system_prompt(),
            transcript=patiently(self.rt, self.hold, self._history),
            tools=list(self.tools.values()),
            final=self.final,
            max_steps=(self.row.structure or {}).get("max_steps") or self.agent.max_steps,
            timeouts=timeouts(self.rt.settings),
            nudge=continuations.nudge(place),
        )
        found = recovery.decide(self.answer.parts, self._may_repeat)
        self.answer.parts = found.parts
        if again:
            self._show_again()
        waiting = self._execute(found.to_run) if found.to_run else []
        continues, complete = found.continues, found.complete and self._steps > 0
        while not (complete or waiting) and (continues or self._steps < self.plan.max_steps):
            self._safe_point()
            asked = self._step(continues)
            continues = False
            if self.answer.final is not None and self.final is not None:
                return self._answered(self.final, asked)
            if not asked:
                break
            waiting = self._execute(asked)
        if waiting:
            return self._finish(SubmissionStatus.COMPLETED, waiting=waiting)
        if self.final is not None:
            raise NoFinalAnswer(self.final.name)
        return self._finish(SubmissionStatus.COMPLETED)

    @property
    def _steps(self) -> int:
        """How many model steps this turn has begun."""
        return self.answer.steps - self.claim.place.steps_before

    def _history(self) -> list[UIMessage]:
        """The conversation up to the answer, as the model is told of it."""
        before = conversation.history(self.rt, self.claim.agent, finished_only=True)
        others = [message for message in before if message.id != self.claim.message_id]
        self.answer.taken = {
            call.tool_call_id for each in others for call in interactions.calls_in(each.parts)
        }
        return interactions.told(self.rt, self.claim.agent, others)

    def _approved(self) -> dict[str, str]:
        message_id = self.claim.place.continues
        if message_id is None:
            return {}
        agent_id, submission_id = self.claim.agent.id, self.row.id
        return self.rt.db.read(lambda tx: continuations.approved(tx, agent_id, message_id, submission_id))

    def _finish_calls_of(self, message_id: str) -> None:
        """Make the approved calls of an earlier answer that is not the last message any more, where it stands."""
        agent_id = self.claim.agent.id
        live = Broadcast(self.rt, agent_id, self.row.id, message_id, self.claim.lease.token)
        draft = Draft(self.rt, self.hold, agent_id, self.row.id, message_id, in_place=True)
        draft.load()
        draft.answer.parts = continuations.resumed(draft.answer.parts, self.approved)
        found = recovery.decide(draft.answer.parts, self._may_repeat)
        draft.answer.parts = found.parts
        live.put({"type": "reset"}, {"type": "restored", "parts": dump_parts(found.parts)})
        execute(self._scene(draft, live), found.to_run)

    def _may_repeat(self, name: str) -> bool:
        return name in self.tools and self.tools[name].idempotent

    def _show_again(self) -> None:
        """What listeners have seen of the message is void: show them what there is."""
        self.live.put({"type": "reset"}, {"type": "restored", "parts": dump_parts(self.answer.parts)})

    def _safe_point(self) -> None:
        patiently(self.rt, self.hold, self.hold.check)
        if self.hold.overdue:
            raise ModelAborted("the deadline has passed")
        if self.rt.stopping.signal.aborted:
            raise _PutBack()

    # --- model steps ------------------------------------------------------------------------------

    def _step(self, continues: bool) -> list[ToolPart]:
        """One model step, with as many attempts as the settings allow, and the calls it ends with."""
        request = next_request(self.plan, self.answer, self.claim.message_id, continues=continues)
        while True:
            self.live.put(*self.answer.begin_step(continues=continues))
            try:
                finish = self._stream(request)
                break
            except ModelAborted:
                raise
            except ModelError as error:
                self._rewind()
                self._wait_after(error)
        self.draft.note(finish)
        asked = self.answer.end_step()
        self.failures = 0
        self.live.put({"type": "finish-step", "finishReason": finish.reason})
        return asked

    def _stream(self, request: ModelRequest) -> Finish:
        patiently(self.rt, self.hold, self.hold.check)
        self.rt.failpoint("turn:before-model")
        events = self.model.stream(request, self.stop.signal)
        try:
            for event in events:
                if isinstance(event, Finish):
                    return event
                if self.stop.signal.aborted:
                    raise ModelAborted(f"{self.model.name}: the request was given up")
                self.live.put(*self.answer.feed(event))
                self.draft.store_now_and_then()
                self.rt.failpoint("turn:streaming")
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        raise ModelError(f"{self.model.name} ended its answer without a finish", retryable=True)

    def _rewind(self) -> None:
        """Forget the attempt that failed: an attempt is all or nothing, for listeners too."""
        self.answer.rewind()
        self._show_again()

    def _wait_after(self, error: ModelError) -> None:
        self.failures += 1
        if not error.retryable or self.failures >= self.rt.settings.model_attempts:
            raise error
        seconds = jittered(MODEL_RETRY.delay_before(self.failures + 1).total_seconds(), random.Random())
        seconds = min(max(seconds, error.retry_after_seconds or 0.0), LONGEST_PARK_SECONDS)
        logger.warning(
            "submission %s: model request %d failed (HTTP %s); trying again in %.1f s",
            self.row.id,
            self.failures,
            error.status_code,
            seconds,
        )
        if seconds > LONGEST_WAIT_SECONDS:
            raise _PutBack(seconds, self.failures)

        def change(tx: Tx) -> None:
            self.draft.unfinished(tx)
            submissions.count_model_attempts(tx, self.row.id, self.failures)

        self.draft.write(change)
        self.rt.clock.sleep(seconds, self.stop.signal)
        if self.stop.signal.aborted:
            raise ModelAborted("told to stop while waiting for the model")

    def _execute(self, parts: list[ToolPart]) -> list[ToolPart]:
        """Make these calls; returns those that wait for somebody."""
        return execute(self._scene(self.draft, self.live), parts)

    def _scene(self, draft: Draft, live: Broadcast) -> Scene:
        return Scene(
            rt=self.rt,
            hold=self.hold,
            draft=draft,
            hooks=self.hooks,
            tools=self.tools,
            agent_id=self.claim.agent.id,
            agent_name=self.claim.agent.name,
            about=self.about,
            show=live.put,
            approved=self.approved,
            structured=self.final is not None,
        )

    def _answered(self, final: finals.Final, asked: list[ToolPart]) -> Outcome:
        """The model gave its final answer: other calls of the same step are not run."""
        assert self.answer.final is not None
        output = final.check(self.answer.final.arguments)
        if asked:
            self.answer.drop(asked)
            self._show_again()
        return self._finish(SubmissionStatus.COMPLETED, output=output)

    # --- ends -------------------------------------------------------------------------------------

    def _finish(
        self,
        status: SubmissionStatus,
        *,
        error: BaseException | None = None,
        output: Any = None,
        waiting: Sequence[ToolPart] = (),
    ) -> Outcome:
        """The message, the status, the lease and the workflow's news in one transaction."""
        error_type, text = (None, None) if error is None else describe(error)
        if error is not None and self.answer.step_parts:
            self._rewind()  # the cut text of a failed attempt is no answer
        ended = self.draft.end(
            self.row, status, waiting=waiting, error_type=error_type, error=text, output=output
        )
        self.rt.failpoint("turn:committed")
        if not ended:  # cancelled at the last moment: the answer stays, the status is the canceller's
            return self._announce(SubmissionStatus.ABORTED)
        return self._announce(status, error_type)

    def _give_up(self) -> Outcome:
        """The submission was cancelled: keep the partial text, and give the line back."""
        self.draft.write_last(self.draft.finished)
        return self._announce(SubmissionStatus.ABORTED)

    def _interrupted(self, error: ModelAborted) -> Outcome:
        """The model request was given up: find out why."""

        def look() -> None:
            self.hold.monitor.beat()
            self.hold.check()

        try:
            patiently(self.rt, self.hold, look)
        except TurnCancelled:
            return self._give_up()
        if self.hold.overdue:
            return self._finish(
                SubmissionStatus.ERROR, error=TurnTimeout(self.rt.settings.turn_timeout_seconds)
            )
        if self.rt.stopping.signal.aborted:
            return self._put_back(_PutBack())
        return self._finish(SubmissionStatus.ERROR, error=error)

    def _put_back(self, later: _PutBack) -> Outcome:
        """Hand the turn over in order: what there is of it is stored, and its attempts are forgotten."""
        wait = None if later.after_seconds is None else timedelta(seconds=later.after_seconds)

        def change(tx: Tx) -> bool:
            waits = submissions.put_back(tx, self.row.id, not_before=wait, model_attempts=later.failures)
            if waits:
                self.draft.unfinished(tx)
            else:  # cancelled meanwhile: nobody will go on with it
                self.draft.finished(tx)
            return waits

        if not self.draft.write_last(change):
            return self._announce(SubmissionStatus.ABORTED)
        return Outcome("handed-over" if wait is None else "waiting")

    def _announce(self, status: SubmissionStatus, error_type: str | None = None) -> Outcome:
        done = {"type": "done", "status": str(status)}
        self.live.put(done if error_type is None else {**done, "errorType": error_type})
        word: Any = str(status)
        return Outcome(word, ended=True, row=self.row.id, error_type=error_type)
