"""One turn, from its claim to its end: the only way to the model."""

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from think_celery.domain import conversation, finals, lines, recovery
from think_celery.domain.answers import Answer
from think_celery.domain.leases import Hold
from think_celery.domain.live import Broadcast
from think_celery.domain.outcomes import Outcome
from think_celery.domain.toolcalls import Scene, execute
from think_celery.errors import (
    LeaseLost,
    ModelAborted,
    ModelError,
    NoFinalAnswer,
    TurnCancelled,
    TurnTimeout,
)
from think_celery.ids import AgentRef
from think_celery.messages import ToolPart, UIMessage, dump_parts, load_parts, user
from think_celery.protocols import Finish, Model, ModelRequest, ModelTimeouts, ToolSpec
from think_celery.retries import Retry, jittered
from think_celery.signals import AbortController
from think_celery.states import SubmissionStatus
from think_celery.store import messages as message_rows
from think_celery.store import submissions
from think_celery.store.database import Tx
from think_celery.store.lines import Lease, fence
from think_celery.tools import Tool

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.turns")

STORE_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
"""A longer wait for the model frees the worker."""

MODEL_RETRY = Retry(max_attempts=1, delay=1, backoff="exponential", max_delay=60)
GO_ON = (
    "Your answer above was cut off by an interruption. Continue it exactly where it stops: "
    "repeat nothing and add no remark about the interruption."
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A submission that this process has claimed."""

    row: Any
    lease: Lease
    agent: AgentRef
    message_id: str
    attempt: int


class _PutBack(Exception):
    """The worker is wanted elsewhere: the submission goes on later."""

    def __init__(self, after_seconds: float | None = None, failures: int | None = None) -> None:
        super().__init__(after_seconds, failures)
        self.after_seconds, self.failures = after_seconds, failures


def run(rt: "Runtime", claim: Claim) -> Outcome:
    """Run a claimed turn to its end, and say how it went."""
    seconds = rt.settings.turn_timeout_seconds
    with rt.monitor.hold(claim.lease, submission_id=claim.row.id, seconds=seconds) as hold:
        turn = Turn(rt, claim, hold)
        try:
            return turn.run()
        except LeaseLost:
            logger.warning("submission %s: the lease was lost; another worker goes on", claim.row.id)
            return Outcome("lease-lost")


class Turn:
    """A turn in progress."""

    def __init__(self, rt: "Runtime", claim: Claim, hold: Hold) -> None:
        self.rt, self.claim, self.hold, self.row = rt, claim, hold, claim.row
        agent_id = claim.agent.id
        self.live = Broadcast(rt, agent_id, self.row.id, claim.message_id, claim.lease.token)
        self.answer = Answer()
        self.failures: int = self.row.model_attempts
        self.stop = AbortController()  # for the model: also comes when the worker is told to stop
        self.stored_at = rt.clock.elapsed()
        self.usage: dict[str, int] = {}

    # --- the way through --------------------------------------------------------------------------

    def run(self) -> Outcome:
        """From the claim to the end."""
        forget = [
            self.hold.signal.on_abort(lambda: self.stop.abort(self.hold.signal.reason or "stopped")),
            self.rt.stopping.signal.on_abort(lambda: self.stop.abort("the worker stops")),
        ]
        try:
            return self._run()
        except TurnCancelled:
            return self._give_up()
        except _PutBack as later:
            return self._put_back(later)
        except ModelAborted as error:
            return self._interrupted(error)
        except LeaseLost:
            raise
        except Exception as error:
            if not isinstance(error, ModelError):
                logger.exception("submission %s failed", self.row.id)
            return self._finish(SubmissionStatus.ERROR, error=error)
        finally:
            for remove in forget:
                remove()

    def _run(self) -> Outcome:
        self.agent = self.rt.make_agent(self.claim.agent.agent_class, self.claim.agent.name)
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in self.agent.all_tools()}
        self.final = finals.for_turn(self.row.structure, self.tools)
        self.answer = Answer(hidden=None if self.final is None else self.final.name)
        self.model: Model = self.agent.model_for_turn(self.rt)
        self.max_steps = (self.row.structure or {}).get("max_steps") or self.agent.max_steps
        self.system = self.agent.get_system_prompt()
        self.transcript = conversation.history(self.rt, self.claim.agent, finished_only=True)
        to_run, continues = self._recover()
        self.live.put({"type": "start", "messageId": self.claim.message_id})
        if to_run:
            self._execute(to_run)
        while continues or self.answer.steps < self.max_steps:
            self._safe_point()
            calls = self._step(continues)
            continues = False
            if self.answer.final is not None and self.final is not None:
                return self._answered(self.final, calls)
            if not calls:
                break
            self._execute(calls)
        if self.final is not None:
            raise NoFinalAnswer(self.final.name)
        return self._finish(SubmissionStatus.COMPLETED)

    def _recover(self) -> tuple[list[ToolPart], bool]:
        """Take up what an earlier worker stored of this answer."""
        stored = self.rt.db.read(lambda tx: message_rows.get(tx, self.claim.agent.id, self.claim.message_id))
        if stored is None:
            return [], False

        def repeatable(name: str) -> bool:
            return name in self.tools and self.tools[name].idempotent

        found = recovery.decide(load_parts(stored.parts), repeatable)
        self.answer.parts = found.parts
        self.usage = dict((stored.metadata or {}).get("usage", {}))
        self.live.put({"type": "reset"}, {"type": "restored", "parts": dump_parts(found.parts)})
        return found.to_run, found.continues

    def _safe_point(self) -> None:
        self.hold.check()
        if self.hold.overdue:
            raise ModelAborted("the deadline has passed")
        if self.rt.stopping.signal.aborted:
            raise _PutBack()

    # --- model steps ------------------------------------------------------------------------------

    def _request(self, continues: bool) -> ModelRequest:
        messages = list(self.transcript)
        if conversation.says_something(self.answer.parts):
            messages.append(UIMessage(id=self.claim.message_id, role="assistant", parts=self.answer.parts))
        if continues:
            messages.append(user(GO_ON))
        specs = [
            ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in self.tools.values()
        ]
        steps_left = self.max_steps - self.answer.steps - (0 if continues else 1)
        choice, offered = finals.offer(self.final, specs, last=steps_left <= 0)
        settings = self.rt.settings
        return ModelRequest(
            system=self.system,
            messages=conversation.repaired(messages),
            tools=offered,
            tool_choice=choice,
            timeouts=ModelTimeouts(
                connect=settings.connect_timeout_seconds,
                first_token=settings.first_token_timeout_seconds,
                token_gap=settings.token_gap_timeout_seconds,
            ),
        )

    def _step(self, continues: bool) -> list[ToolPart]:
        """One model step, with as many attempts as the settings allow, and the calls it ends with."""
        request = self._request(continues)
        while True:
            self.live.put(*self.answer.begin_step(continues=continues))
            try:
                self._stream(request)
                break
            except ModelAborted:
                raise
            except ModelError as error:
                self.answer.rewind()
                self.live.put({"type": "reset"}, {"type": "restored", "parts": dump_parts(self.answer.parts)})
                self._wait_after(error)
        calls = self.answer.end_step()
        self.failures = 0
        self.live.put({"type": "finish-step"})
        return calls

    def _stream(self, request: ModelRequest) -> None:
        self.hold.check()
        self.rt.failpoint("turn:before-model")
        finish: Finish | None = None
        for event in self.model.stream(request, self.stop.signal):
            if isinstance(event, Finish):
                finish = event
                break
            self.live.put(*self.answer.feed(event))
            if self.rt.clock.elapsed() - self.stored_at >= STORE_SECONDS:
                self._store()
            self.rt.failpoint("turn:streaming")
        if finish is None:
            raise ModelError(f"{self.model.name} ended its answer without a finish", retryable=True)
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            self.usage[name] = self.usage.get(name, 0) + getattr(finish.usage, name)

    def _wait_after(self, error: ModelError) -> None:
        self.failures += 1
        if not error.retryable or self.failures >= self.rt.settings.model_attempts:
            raise error
        seconds = jittered(MODEL_RETRY.delay_before(self.failures).total_seconds(), random.Random())
        seconds = max(seconds, error.retry_after_seconds or 0.0)
        logger.warning(
            "submission %s: model request %d failed (HTTP %s); trying again in %.1f s",
            self.row.id,
            self.failures,
            error.status_code,
            seconds,
        )
        if seconds > LONGEST_WAIT_SECONDS:
            raise _PutBack(seconds, self.failures)
        self._write(lambda tx: submissions.count_model_attempts(tx, self.row.id, self.failures))
        self.rt.clock.sleep(seconds, self.stop.signal)
        if self.stop.signal.aborted:
            raise ModelAborted("told to stop while waiting for the model")

    def _execute(self, parts: list[ToolPart]) -> None:
        scene = Scene(
            rt=self.rt,
            hold=self.hold,
            tools=self.tools,
            agent_name=self.claim.agent.name,
            submission_id=self.row.id,
            message_id=self.claim.message_id,
            step=self.answer.steps,
            attempt=self.claim.attempt,
            store=lambda: self._store(progress=True),
            show=self.live.put,
        )
        execute(scene, parts)

    def _answered(self, final: finals.Final, calls: list[ToolPart]) -> Outcome:
        """The model gave its final answer: other calls of the same step are not run."""
        assert self.answer.final is not None
        self.answer.parts = [part for part in self.answer.parts if part not in calls]
        return self._finish(SubmissionStatus.COMPLETED, output=final.check(self.answer.final.arguments))

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, change: Any) -> None:
        def work(tx: Tx) -> None:
            fence(tx, self.claim.lease)
            change(tx)

        self.rt.db.transact(work)

    def _message(self) -> dict[str, Any]:
        metadata = {"usage": self.usage} if self.usage else None
        message = UIMessage(
            id=self.claim.message_id, role="assistant", parts=self.answer.so_far(), metadata=metadata
        )
        return conversation.as_row(message)

    def _store(self, *, progress: bool = False) -> None:
        """Store the message so far."""
        self.stored_at = self.rt.clock.elapsed()
        if not conversation.says_something(self.answer.so_far()):
            return

        def change(tx: Tx) -> None:
            message_rows.store_unfinished(tx, self.claim.agent.id, self._message())
            if progress:
                submissions.progress(tx, self.row.id)

        self._write(change)

    def _keep(self, tx: Tx) -> None:
        """Store the message for good, or remove what was stored of it where it says nothing."""
        if conversation.says_something(self.answer.so_far()):
            message_rows.store_finished(tx, self.claim.agent.id, self._message())
        else:
            message_rows.remove(tx, self.claim.agent.id, self.claim.message_id)

    # --- ends -------------------------------------------------------------------------------------

    def _finish(
        self, status: SubmissionStatus, *, error: Exception | None = None, output: Any = None
    ) -> Outcome:
        """Promise 6: the message, the status, the lease and the workflow's news in one transaction."""
        if error is not None:
            self.answer.rewind()  # the cut text of a failed attempt is no answer
        name = None if error is None else type(error).__name__
        ended = False

        def work(tx: Tx) -> None:
            nonlocal ended
            fence(tx, self.claim.lease)
            self._keep(tx)
            ended = lines.end(
                self.rt,
                tx,
                self.row,
                status,
                error_type=name,
                error=None if error is None else str(error),
                output=output,
                holding=True,
            )
            lines.free(self.rt, tx, self.claim.lease)
            self.rt.failpoint("turn:before-commit")

        self.rt.db.transact(work)
        self.rt.failpoint("turn:committed")
        if not ended:  # cancelled at the last moment: the answer stays, the status is the canceller's
            return self._announce(SubmissionStatus.ABORTED)
        return self._announce(status, name)

    def _give_up(self) -> Outcome:
        """The submission was cancelled: keep the partial text, and give the line back."""

        def work(tx: Tx) -> None:
            fence(tx, self.claim.lease)
            self._keep(tx)
            lines.free(self.rt, tx, self.claim.lease)

        self.rt.db.transact(work)
        return self._announce(SubmissionStatus.ABORTED)

    def _interrupted(self, error: ModelAborted) -> Outcome:
        """The model request was given up: find out why."""
        self.hold.monitor.beat()
        try:
            self.hold.check()
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

        def work(tx: Tx) -> None:
            fence(tx, self.claim.lease)
            if conversation.says_something(self.answer.so_far()):
                message_rows.store_unfinished(tx, self.claim.agent.id, self._message())
            wait = None if later.after_seconds is None else timedelta(seconds=later.after_seconds)
            submissions.put_back(tx, self.row.id, not_before=wait, model_attempts=later.failures)
            lines.free(self.rt, tx, self.claim.lease)

        self.rt.db.transact(work)
        return Outcome("handed-over" if later.after_seconds is None else "waiting")

    def _announce(self, status: SubmissionStatus, error_type: str | None = None) -> Outcome:
        self.live.put({"type": "done", "status": str(status)})
        word: Any = str(status)
        return Outcome(word, ended=True, row=self.row.id, error_type=error_type)
