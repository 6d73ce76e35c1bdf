"""Models without a network, for tests and examples.

>>> model = ScriptedModel(call("add", {"a": 1, "b": 2}), say("It is 3."))

plays one answer per request, in this order. A list is one answer of several pieces:
``[say("Let me see."), call("weather", {"city": "Rome"}), call("weather", {"city": "Oslo"})]``.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from think_celery.errors import ModelAborted, ModelError
from think_celery.messages import ToolPart
from think_celery.protocols import (
    FINAL_ANSWER,
    Finish,
    ForcedTool,
    ModelEvent,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    Usage,
)
from think_celery.providers.toolcalls import UniqueIds
from think_celery.signals import AbortSignal

_LONGEST_LISTING = 20


@dataclass(frozen=True, slots=True)
class Say:
    """Some text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Some reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. ``arguments`` may be a text, to play a model that writes invalid JSON."""

    tool: str
    arguments: Mapping[str, Any] | str
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """A call of the tool that carries a structured turn's answer."""

    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Fail:
    """The request fails, here."""

    error: ModelError


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing more comes, until the request is told to stop or its time is up."""


Piece = Say | Reason | Call | FinalAnswer | Fail | Silence
Scripted = str | Piece | Sequence[str | Piece]


def say(text: str) -> Say:
    """An answer, or a piece of one: this text."""
    return Say(text)


def reason(text: str) -> Reason:
    """A piece of an answer: this reasoning."""
    return Reason(text)


def call(tool: str, arguments: Mapping[str, Any] | str | None = None, *, tool_call_id: str = "") -> Call:
    """An answer, or a piece of one: a call of *tool*. An id that the conversation knows already is changed."""
    return Call(tool, arguments if arguments is not None else {}, tool_call_id)


def answer(arguments: Mapping[str, Any] | str) -> FinalAnswer:
    """The answer of a structured turn (``step.prompt(output=…)``): a call of its final-answer tool."""
    return FinalAnswer(arguments)


def fail(error: ModelError | str, *, retryable: bool = False) -> Fail:
    """An answer, or the end of one: the request fails with this error."""
    return Fail(error if isinstance(error, ModelError) else ModelError(error, retryable=retryable))


def silence() -> Silence:
    """An answer, or the end of one: nothing more, until the turn is cancelled or a limit of time is reached."""
    return Silence()


class ScriptedModel:
    """Plays scripted answers, one a request, in order. Thread-safe.

    ``requests`` holds a copy of each request so far. A request past the end of the script fails with a
    ``ModelError`` that lists what was asked.
    """

    def __init__(self, *answers: Scripted, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._answers = [_pieces(item) for item in answers]
        self._lock = threading.Lock()

    def add(self, *answers: Scripted) -> None:
        """Append answers to the script."""
        with self._lock:
            self._answers += [_pieces(item) for item in answers]

    @property
    def remaining(self) -> int:
        """How many answers have not been asked for yet."""
        with self._lock:
            return max(len(self._answers) - len(self.requests), 0)

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Play the next answer."""
        with self._lock:
            self.requests.append(_copy(request))
            number = len(self.requests)
            if number > len(self._answers):
                raise ModelError(self._over(number))
            pieces = self._answers[number - 1]
        return _play(self.name, pieces, request, signal)

    def _over(self, number: int) -> str:
        first = max(number - _LONGEST_LISTING, 0)
        asked = "\n".join(
            f"  {at}. {_summary(request)}"
            for at, request in enumerate(self.requests[first:], start=first + 1)
        )
        return (
            f"{self.name}: the script has {len(self._answers)} answers, and this is request {number}. "
            f"Give ScriptedModel an answer for each model step (a tool call is a step of its own). "
            f"Asked so far:\n{asked}"
        )


Answering = Callable[[ModelRequest], Scripted | Iterator[ModelEvent]]


class FunctionModel:
    """Answers each request with what *function* makes of it. Thread-safe if *function* is.

    *function* returns what :class:`ScriptedModel` takes as an answer, or yields model events (a ``Finish`` is
    added where it yields none). ``requests`` holds a copy of each request so far.
    """

    def __init__(self, function: Answering, *, name: str = "function") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._function = function
        self._lock = threading.Lock()

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask the function."""
        with self._lock:
            self.requests.append(_copy(request))
        given = self._function(request)
        if isinstance(given, Iterator):
            return _pass_on(self.name, given, request, signal)
        return _play(self.name, _pieces(given), request, signal)


def _pieces(given: Any) -> tuple[Piece, ...]:
    items = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    pieces = tuple(Say(item) if isinstance(item, str) else item for item in items)
    for piece in pieces:
        if not isinstance(piece, Piece):
            raise TypeError(
                f"{piece!r} is no answer of a scripted model. An answer is a text, say(), reason(), call(), answer(), "
                "fail(), silence(), or a list of these."
            )
    return pieces


def _play(
    name: str, pieces: Iterable[Piece], request: ModelRequest, signal: AbortSignal
) -> Iterator[ModelEvent]:
    ids = UniqueIds(_known_ids(request))
    calls: list[ToolCallComplete] = []
    written = 0
    for piece in pieces:
        for event in _events(name, piece, len(calls), ids, request, signal):
            _check(name, signal)
            if isinstance(event, ToolCallComplete):
                calls.append(event)  # like any provider's, whole calls come last
                continue
            written += 1
            yield event
    for complete in calls:
        _check(name, signal)
        yield complete
    _check(name, signal)
    yield _finish(request, calls=bool(calls), written=written)


def _events(
    name: str, piece: Piece, index: int, ids: UniqueIds, request: ModelRequest, signal: AbortSignal
) -> Iterator[ModelEvent]:
    match piece:
        case Say(text):
            yield from map(TextDelta, _cut(text))
        case Reason(text):
            yield from map(ReasoningDelta, _cut(text))
        case Call(tool, arguments, wanted):
            yield from _call(index, ids.unique(wanted or f"call_{index}"), tool, arguments)
        case FinalAnswer(arguments):
            yield from _call(index, ids.unique("call_answer"), _final_tool(name, request), arguments)
        case Fail(error):
            raise error
        case Silence():
            if not signal.wait(request.timeouts.first_token):
                raise ModelError(
                    f"{name}: no token came within {request.timeouts.first_token:g} s", retryable=True
                )


def _call(index: int, call_id: str, tool: str, arguments: Mapping[str, Any] | str) -> Iterator[ModelEvent]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    yield ToolCallDelta(index, call_id, tool, "")
    for part in _cut(text):
        yield ToolCallDelta(index, call_id, tool, part)
    yield ToolCallComplete(index, call_id, tool, text if text.strip() else "{}")


def _final_tool(name: str, request: ModelRequest) -> str:
    if isinstance(request.tool_choice, ForcedTool):
        return request.tool_choice.name
    offered = [tool.name for tool in request.tools]
    for tool in reversed(offered):
        if tool.startswith(FINAL_ANSWER):
            return tool
    raise ModelError(
        f"{name}: answer() needs a request with a final-answer tool, as a structured turn makes it "
        f"(step.prompt(output=…)); this one offers {', '.join(offered) or 'no tools'}. Use say() or call()."
    )


def _pass_on(
    name: str, events: Iterator[ModelEvent], request: ModelRequest, signal: AbortSignal
) -> Iterator[ModelEvent]:
    calls, written, finished = False, 0, False
    for event in events:
        _check(name, signal)
        calls = calls or isinstance(event, ToolCallComplete)
        finished = isinstance(event, Finish)
        written += 1
        yield event
        if finished:
            return
    _check(name, signal)
    yield _finish(request, calls=calls, written=written)


def _finish(request: ModelRequest, *, calls: bool, written: int) -> Finish:
    read = sum(len(message.parts) for message in request.messages) + bool(request.system)
    usage = Usage(read, written, read + written)
    return Finish("tool-calls", "tool_calls", usage) if calls else Finish("stop", "stop", usage)


def _check(name: str, signal: AbortSignal) -> None:
    if signal.aborted:
        raise ModelAborted(f"{name}: the request was given up: {signal.reason or 'aborted'}")


def _cut(text: str) -> list[str]:
    """*text* in up to four pieces, as a stream would bring it."""
    size = max(-(-len(text) // 4), 1)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _known_ids(request: ModelRequest) -> Iterator[str]:
    for message in request.messages:
        yield from (part.tool_call_id for part in message.parts if isinstance(part, ToolPart))


def _copy(request: ModelRequest) -> ModelRequest:
    """The request as it is now: what the engine does to its messages later must not change the record."""
    return replace(request, messages=[message.model_copy(deep=True) for message in request.messages])


def _summary(request: ModelRequest) -> str:
    last = request.messages[-1] if request.messages else None
    said = f"{last.role}: {last.text[:80]!r}" if last is not None else "no messages"
    tools = ", ".join(tool.name for tool in request.tools) or "none"
    return f"{said} ({len(request.messages)} messages, tools: {tools})"
