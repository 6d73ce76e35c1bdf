"""A turn in hand: what its loop works with, whoever wrote the loop."""

from collections.abc import Sequence
from typing import Any

from think_celery.domain.agents.hooks import Hooks
from think_celery.domain.conversation import conversation, interactions
from think_celery.domain.conversation.live import RESTORED, LiveTurn
from think_celery.domain.leases import Hold
from think_celery.domain.outcomes import NotResumed, PutBack
from think_celery.domain.patience import patiently
from think_celery.domain.recovery import decide
from think_celery.domain.submissions.claimed import Claim
from think_celery.domain.turns import eventchecks, takeover
from think_celery.domain.turns.answers import Answer
from think_celery.domain.turns.drafts import Draft
from think_celery.errors import ModelAborted
from think_celery.hooks.turns import ChunkContext, StepResult
from think_celery.messages import (
    Part,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    UIMessage,
    dump_parts,
)
from think_celery.protocols import Finish, ModelEvent
from think_celery.runtime import Runtime
from think_celery.signals import AbortController
from think_celery.states import TurnKind


class TurnState:
    """A turn that this process works on. Its ends are in ``turns``, its middle in ``loops`` or ``ownloops``."""

    def __init__(self, rt: Runtime, claim: Claim, hold: Hold) -> None:
        self.rt, self.claim, self.hold, self.row = rt, claim, hold, claim.row
        agent_id = claim.agent.id
        self.live = LiveTurn(rt, agent_id, self.row.id, claim.message_id, claim.lease.token)
        self.draft = Draft(rt, hold, agent_id, self.row, claim.message_id)
        self.hooks = Hooks(rt, None, hold, self.row.id)  # until the agent is made
        self.stop = AbortController()  # for the model: also comes when the worker is told to stop
        self.again = claim.resumes  # there may be something of the answer already
        self.step = 0
        """The number of the model step in progress, from 0."""
        self.about: dict[str, Any] = {
            "submission_id": self.row.id,
            "message_id": claim.message_id,
            "kind": TurnKind(self.row.kind),
            "continuation": claim.place.continues is not None,
            "attempt": claim.attempt,
            "metadata": self.row.metadata,
            "signal": hold.signal,
        }
        """What each hook is told: the fields of ``TurnInfo``."""

    @property
    def answer(self) -> Answer:
        """The parts of the message."""
        return self.draft.answer

    @property
    def stopping(self) -> bool:
        """Whether the turn is to be handed over."""
        stop = self.claim.stop
        return self.rt.stopping.signal.aborted or (stop is not None and stop.aborted)

    @property
    def message(self) -> UIMessage:
        """The answer so far."""
        return self.draft.message()

    @property
    def steps(self) -> int:
        """How many model steps this turn has begun; an answer that goes on may have others before them."""
        return self.answer.steps - self.claim.place.steps_before

    def history(self) -> list[UIMessage]:
        """The conversation up to the answer, as the model is told of it."""
        return patiently(self.rt, self.hold, self._history)

    def _history(self) -> list[UIMessage]:
        before = conversation.history(self.rt, self.claim.agent, finished_only=True)
        others = [message for message in before if message.id != self.claim.message_id]
        self.answer.taken = {
            call.tool_call_id for each in others for call in interactions.calls_in(each.parts)
        }
        return interactions.told(self.rt, self.claim.agent, others)

    def safe_point(self) -> None:
        """A place where nothing is half done: the turn ends here if it is to end, or to be handed over.

        Raises:
            LeaseLost, TurnCancelled, ModelAborted, PutBack: It is.
        """
        patiently(self.rt, self.hold, self.hold.check)
        if self.hold.overdue or self.hold.stalled:
            raise ModelAborted("the time is up")
        if self.stopping:
            raise PutBack()

    def ask_about_interruption(self) -> None:
        """Let the agent decide what becomes of what an earlier worker had made of the answer.

        Raises:
            NotResumed: The turn ends with it.
        """
        found = decide(self.answer.parts, lambda name: False)
        whole = found.complete and self.steps > 0 and not self.draft.was_refused
        if whole or not takeover.was_interrupted(self.row):
            return
        kept, ended = takeover.ask(self.rt, self.hooks, self.claim, self.hold, self.about, found)
        if ended is not None or kept is not found:
            self.answer.parts = kept.parts
        if ended is not None:
            self.answer.complete()
            self.show_again()
            raise NotResumed(ended)

    def show_again(self) -> None:
        """What listeners have seen of the message is void: show them what there is."""
        self.live.put({"type": "reset"}, {"type": RESTORED, "parts": dump_parts(self.answer.parts)})

    def rewind(self) -> None:
        """Forget the attempt that failed: an attempt is all or nothing, for listeners too."""
        self.answer.rewind()
        self.show_again()

    def take(self, event: ModelEvent) -> None:
        """Take an event of a model into the answer, and show it."""
        now = self.rt.clock.elapsed()
        self.hold.heard(now=now)
        eventchecks.check(event)
        self.live.put(*self.answer.feed(event))
        self.draft.store_now_and_then(now)
        if self.hooks.has("on_chunk"):
            self.hooks.react("on_chunk", ChunkContext(step=self.step, event=event, **self.about))
        self.rt.failpoint("turn:streaming")


def steps_of(about: dict[str, Any], parts: Sequence[Part]) -> list[StepResult]:
    """The model steps in a message, as far as its parts tell of them."""
    steps: list[list[Part]] = []
    for part in parts:
        if isinstance(part, StepStartPart) or not steps:
            steps.append([])
        steps[-1].append(part)
    return [_result(about, number, step, None) for number, step in enumerate(steps)]


def last_step(about: dict[str, Any], parts: Sequence[Part], finish: Finish | None) -> StepResult:
    """The last model step in a message, which ended with this *finish*."""
    starts = [place for place, part in enumerate(parts) if isinstance(part, StepStartPart)]
    return _result(about, max(0, len(starts) - 1), parts[starts[-1] if starts else 0 :], finish)


def _result(about: dict[str, Any], number: int, parts: Sequence[Part], finish: Finish | None) -> StepResult:
    return StepResult(
        step=number,
        text="".join(part.text for part in parts if isinstance(part, TextPart)),
        reasoning="".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        tool_calls=[part.model_copy(deep=True) for part in parts if isinstance(part, ToolPart)],
        finish_reason=None if finish is None else finish.reason,
        raw_finish_reason=None if finish is None else finish.raw_reason,
        usage=None if finish is None else finish.usage,
        **about,
    )
