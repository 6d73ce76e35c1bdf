"""A turn whose loop is the agent's own: what ``on_chat_message`` yields becomes the answer."""

import contextvars
import inspect
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from think_celery.domain import calls, recovery
from think_celery.domain.conversation import conversation
from think_celery.domain.leases import LET_GO_SECONDS
from think_celery.domain.patience import patiently
from think_celery.domain.turns import continuations, eventchecks, finals, requests
from think_celery.domain.turns.answers import input_chunk, settled_chunk
from think_celery.domain.turns.state import TurnState, last_step
from think_celery.errors import (
    AsyncNotSupported,
    InvalidToolArguments,
    InvalidValue,
    ModelAborted,
)
from think_celery.hooks.turns import ChatContext
from think_celery.logs import trace_of
from think_celery.messages import ToolPart
from think_celery.protocols import (
    AgentHooks,
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolResult,
)
from think_celery.serialization import check_size
from think_celery.tools import dump_result, parse_arguments
from think_celery.wording import a_type

logger = logging.getLogger("think_celery.hooks")

OPEN = "The agent ended its turn without a result of this call."

_EVENTS = (TextDelta, ReasoningDelta, ReasoningEnd, StepMetadata, ToolCallDelta, ToolCallComplete)


class OwnLoop:
    """One turn of an agent that answers by itself."""

    def __init__(self, turn: TurnState, agent: AgentHooks) -> None:
        self.turn, self.agent = turn, agent
        self._in_step = False
        self._continues = False
        self._calls: dict[str, ToolPart] = {}
        self._final_call: ToolCallComplete | None = None

    def run(self) -> Any:
        """Take all that the agent yields. Returns a structured turn's output, else ``None``."""
        turn = self.turn
        final = finals.for_turn(turn.row.structure, {})
        turn.answer.hidden = None if final is None else final.name
        found = recovery.decide(turn.answer.parts, lambda name: False)
        turn.answer.parts, self._continues = found.parts, found.continues
        for part in found.to_run:
            _settle(part, None, conversation.INTERRUPTED)
        if turn.again:
            turn.show_again()
        if not (found.complete and turn.steps > 0):
            with closing(self._pieces(final)) as pieces:
                for piece in pieces:
                    self._take(piece)
            self._end()
        if final is None:
            return None
        output, error = final.look_at(self._final_call, turn.hooks.ask)
        if error is not None:
            raise error
        return output

    # --- what comes in ----------------------------------------------------------------------------

    def _pieces(self, final: finals.Final | None) -> Generator[Any, None, None]:
        """What the agent yields, taken in a thread and a context of its own, so that it can be given up."""
        turn = self.turn
        patiently(turn.rt, turn.hold, turn.hold.check)
        transcript = turn.history()
        answer, continues = turn.answer, self._continues
        told = ChatContext(
            messages=requests.so_far(
                transcript,
                answer,
                turn.claim.message_id,
                continues=continues,
                nudge=continuations.nudge(turn.claim.place),
            ),
            partial=turn.draft.message() if turn.draft.says_something else None,
            final_answer=None if final is None else finals.spec_of(final),
            **{**turn.about, "signal": turn.stop.signal},
        )
        turn.rt.failpoint("turn:before-model")
        own = _Own(turn)
        try:
            given = own.ask(lambda: self.agent.on_chat_message(told))
            if given is None:
                return
            if isinstance(given, str):
                yield given
                return
            items = own.ask(lambda: self._iterator(given))
            try:
                while (item := own.ask(lambda: next(items, own))) is not own:
                    yield item
            finally:
                own.finish(getattr(items, "close", None))
        finally:
            own.close()

    def _iterator(self, given: Any) -> Iterator[Any]:
        if inspect.isawaitable(given) or hasattr(given, "__aiter__"):
            close = getattr(given, "close", None)
            if close is not None:
                close()
            raise AsyncNotSupported(f"What {self.agent.agent_class}.on_chat_message returned")
        if isinstance(given, bytes | Mapping) or not hasattr(given, "__iter__"):
            raise self._unfit("returned", given)
        return iter(given)

    def _unfit(self, did: str, given: object) -> InvalidValue:
        return InvalidValue(
            f"{self.agent.agent_class}.on_chat_message {did} {a_type(given)}. It must be a text, or yield "
            "texts and events of a model, such as TextDelta, ToolCallComplete, ToolResult and Finish."
        )

    # --- what becomes of it -----------------------------------------------------------------------

    def _take(self, piece: Any) -> None:
        if self.turn.stop.signal.aborted:
            raise ModelAborted("the agent's answer was given up")
        if isinstance(piece, str):
            piece = TextDelta(piece)
        if isinstance(piece, ToolResult):
            self._settle(piece)
        elif isinstance(piece, Finish):
            eventchecks.check(piece)
            self._end_step(piece)
        elif isinstance(piece, _EVENTS):
            self._begin_step()
            self.turn.take(piece)
            if isinstance(piece, ToolCallComplete) and piece.name != self.turn.answer.hidden:
                self._calls[piece.tool_call_id] = self.turn.answer.call_at(piece.index)
        else:
            raise self._unfit("yielded", piece)

    def _begin_step(self) -> None:
        if self._in_step:
            return
        turn, continues = self.turn, self._continues
        turn.step = max(0, turn.answer.steps - 1) if continues else turn.answer.steps
        turn.live.put(*turn.answer.begin_step(continues=continues))
        self._in_step, self._continues = True, False

    def _end_step(self, finish: Finish | None) -> None:
        self._begin_step()
        turn = self.turn
        self._final_call = self._final_call or turn.answer.final
        if finish is not None:
            turn.draft.note(finish)
        for part in turn.answer.end_step():
            self._make_ready(part)
        self._in_step = False
        turn.live.put({"type": "finish-step", "finishReason": "stop" if finish is None else finish.reason})
        if finish is not None:  # else the end of the turn stores it
            turn.draft.store_step(progress=True)
        turn.hooks.react("on_step_finish", last_step(turn.about, turn.answer.parts, finish))

    def _make_ready(self, part: ToolPart) -> None:
        """A call is whole: read its arguments, and show it."""
        if part.settled:
            return
        part.state = "input-available"
        try:
            part.input = parse_arguments(part.input)
        except InvalidToolArguments as error:
            _settle(part, None, str(error))
        self.turn.live.put(input_chunk(part), *([settled_chunk(part)] if part.settled else []))

    def _settle(self, result: ToolResult) -> None:
        turn, part = self.turn, self._calls.get(result.tool_call_id)
        if part is None:
            raise InvalidValue(
                f"{self.agent.agent_class}.on_chat_message yielded a ToolResult of a call that it did not yield in "
                "this turn. Yield the ToolCallComplete of that tool_call_id before it."
            )
        if part.state == "input-streaming":
            self._make_ready(part)
        output = dump_result(result.output, part.tool_name)
        check_size("The tool's result", output, turn.rt.settings.max_payload)
        _settle(part, output, result.error)
        turn.draft.store_step(progress=True)
        turn.live.put(settled_chunk(part))

    def _end(self) -> None:
        """The agent has no more to say: no call may stay without a result."""
        if self._in_step:
            self._end_step(None)
        for part in self.turn.answer.parts:
            if isinstance(part, ToolPart) and not part.settled:
                _settle(part, None, OPEN)
                self.turn.live.put(settled_chunk(part))


def _settle(part: ToolPart, output: Any, error: str | None) -> None:
    if error is None:
        part.output, part.error_text, part.state = output, None, "output-available"
    else:
        part.output, part.error_text, part.state = None, error, "output-error"


class _Own:
    """The thread and the context in which one answer's code runs, from its first line to its last."""

    def __init__(self, turn: TurnState) -> None:
        self._turn, self._helper = turn, calls.Helper()
        self._context = contextvars.copy_context()
        self._given_up = False

    def ask(self, function: Callable[[], Any]) -> Any:
        """Call *function* there, and return what it returns.

        Raises:
            ModelAborted: It was given up, for the turn is to end.
        """
        result = self._attempt(function)
        if isinstance(result, calls.Failed):
            raise result.error
        if isinstance(result, calls.Abandoned):
            raise ModelAborted("on_chat_message did not go on in time and was given up")
        return result.value

    def finish(self, close: Callable[[], Any] | None) -> None:
        """End the agent's generator. What it does about that changes nothing any more."""
        if close is None or self._given_up:
            return
        result = self._attempt(close)
        if isinstance(result, calls.Failed):
            if calls.passes(result.error):
                raise result.error
            logger.error(
                "on_chat_message of submission %s failed when it was closed, which changes nothing: %s",
                self._turn.row.id,
                trace_of(result.error),
            )

    def _attempt(self, function: Callable[[], Any]) -> calls.Result[Any]:
        turn = self._turn
        result = calls.attempt(
            turn.rt,
            function,
            timeout=max(0.0, turn.hold.deadline - turn.rt.clock.elapsed()) + LET_GO_SECONDS,
            signal=turn.stop.signal,
            helper=self._helper,
            context=self._context,
        )
        self._given_up = self._given_up or isinstance(result, calls.Abandoned)
        return result

    def close(self) -> None:
        """Let the thread go."""
        self._helper.close()
