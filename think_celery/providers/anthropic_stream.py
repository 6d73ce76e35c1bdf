"""The events of Anthropic's Messages as model events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from think_celery.errors import ModelError
from think_celery.protocols import (
    Finish,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    Usage,
)
from think_celery.providers import failures
from think_celery.providers.reading import frame_of
from think_celery.providers.sse import ServerSentEvent
from think_celery.providers.toolcalls import Joiner, ToolCalls, UniqueIds

Json = Mapping[str, Any]

_REASONS: dict[str, Any] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}
_CACHE = {"read": "cache_read_input_tokens", "write": "cache_creation_input_tokens"}


@dataclass(slots=True)
class _Block:
    """One block of the answer's content, while it comes in."""

    kind: str
    start: dict[str, Any]
    joiner: Joiner = field(default_factory=Joiner)
    signature: str = ""
    json: str = ""


class Answer:
    """One answer as it comes in; see :class:`think_celery.providers.reading.Answer`.

    A block of thinking ends with its signature; a block of a kind that is not known here (secret thinking, what
    the vendor's own tools did) is kept as it is. Both are metadata of *provider*, for it wants them back.
    """

    finished = False  # only with the last event: a stop reason may come before an error

    def __init__(self, ids: UniqueIds, provider: str = "anthropic") -> None:
        self._provider = provider
        self._calls = ToolCalls(ids, provider)
        self._blocks: dict[Any, _Block] = {}
        self._usage: dict[str, int] = {}
        self._raw_reason: str | None = None
        self._begun = False
        self.done = False

    @property
    def usage(self) -> Usage:
        """What it has cost so far, as far as the provider has told."""
        return self._counted()

    def take(self, event: ServerSentEvent) -> list[ModelEvent]:
        """The model's events in one event of the stream."""
        frame = frame_of(event)
        if (error := failures.in_answer(frame)) is not None:
            raise error
        match frame.get("type", event.kind):
            case "content_block_delta":
                return self._delta(frame.get("index"), frame.get("delta"))
            case "content_block_start":
                return self._start(frame)
            case "content_block_stop":
                return self._stop(self._blocks.pop(frame.get("index"), None))
            case "message_start":
                message = frame.get("message")
                self._take_usage(message.get("usage") if isinstance(message, Mapping) else None)
            case "message_delta":
                self._take_usage(frame.get("usage"))
                delta = frame.get("delta")
                if isinstance(delta, Mapping) and (reason := delta.get("stop_reason")):
                    self._raw_reason = str(reason)
            case "message_stop":
                self.finished = self.done = True
        return []  # `ping`, and what a later version may send

    def body(self, body: Any) -> list[ModelEvent]:
        """The events of an answer that came as one JSON body, without its :class:`Finish`.

        Raises:
            ModelError: It carries an error, or is no message.
        """
        if (error := failures.in_answer(body)) is not None:
            raise error
        content = body.get("content")
        if not isinstance(content, list):
            raise ModelError(
                "the server answered with JSON that is no message (it has no content); is the base_url right?"
            )
        events: list[ModelEvent] = []
        for index, block in enumerate(content):
            if isinstance(block, Mapping):
                events += self._start({"index": index, "content_block": block})
                events += self._stop(self._blocks.pop(index))
        self._take_usage(body.get("usage"))
        self._raw_reason = str(body["stop_reason"]) if body.get("stop_reason") else None
        self.finished = self.done = True
        return events

    def end(self) -> list[ModelEvent]:
        """The last events, with :class:`Finish`.

        Raises:
            ModelError: Nothing says that the answer is whole.
        """
        if not self.done:
            what = "in the middle of the answer" if self._begun else "before the answer began"
            raise ModelError(f"the stream ended {what}, without message_stop", retryable=True)
        events: list[ModelEvent] = []
        for block in self._blocks.values():  # that the provider forgot to close
            events += self._stop(block)
        cut_short = _REASONS.get(self._raw_reason or "") in ("length", "content-filter")
        calls = self._calls.complete(cut_short=cut_short)
        reason: Any = "unknown" if self._raw_reason is None else _REASONS.get(self._raw_reason, "other")
        if calls and not cut_short:
            reason = "tool-calls"
        elif reason == "tool-calls":
            reason = "other"
        return [*events, *calls, Finish(reason, self._raw_reason, self._counted())]

    # --- blocks -----------------------------------------------------------------------------------

    def _start(self, frame: Json) -> list[ModelEvent]:
        start = frame.get("content_block")
        start = dict(start) if isinstance(start, Mapping) else {}
        block = self._blocks[frame.get("index")] = _Block(str(start.get("type")), start)
        self._begun = True
        match block.kind:
            case "text":
                return self._write(block, start.get("text"))
            case "thinking":
                block.signature = _plain(start.get("signature"))
                return self._think(block, start.get("thinking"))
            case "tool_use":
                function = {key: start[key] for key in ("name",) if key in start}
                if given := start.get("input"):  # whole at once, as some servers send it
                    function["arguments"] = given
                more = {key: value for key, value in start.items() if key not in ("type", "name", "input")}
                return self._call({**more, "index": frame.get("index"), "function": function})
        return []

    def _delta(self, index: Any, delta: Any) -> list[ModelEvent]:
        block = self._blocks.get(index)
        if block is None:
            raise ModelError(
                f"the provider sent a piece of a block that it had not begun (index {index})", retryable=True
            )
        if not isinstance(delta, Mapping):
            return []
        match delta.get("type"):
            case "text_delta":
                return self._write(block, delta.get("text"))
            case "input_json_delta":
                piece = _plain(delta.get("partial_json"))
                if block.kind != "tool_use":
                    block.json += piece
                    return []
                return self._call({"index": index, "function": {"arguments": piece}})
            case "thinking_delta":
                return self._think(block, delta.get("thinking"))
            case "signature_delta":
                block.signature += _plain(delta.get("signature"))
        return []

    def _stop(self, block: _Block | None) -> list[ModelEvent]:
        if block is None:
            return []
        match block.kind:
            case "text":
                return _deltas(TextDelta, block.joiner.end())
            case "thinking":
                signed = {self._provider: {"signature": block.signature}}
                return [*_deltas(ReasoningDelta, block.joiner.end()), ReasoningEnd(signed)]
            case "tool_use":
                return []
        if block.json:
            block.start["input"] = _json_or_text(block.json)
        return [ReasoningEnd({self._provider: {"block": block.start}})]

    def _write(self, block: _Block, text: Any) -> list[ModelEvent]:
        return _deltas(TextDelta, block.joiner.feed(_plain(text)))

    def _think(self, block: _Block, text: Any) -> list[ModelEvent]:
        return _deltas(ReasoningDelta, block.joiner.feed(_plain(text)))

    def _call(self, fragment: Json) -> list[ModelEvent]:
        event = self._calls.add(fragment)
        return [] if event is None else [event]

    # --- usage ------------------------------------------------------------------------------------

    def _take_usage(self, usage: Any) -> None:
        """Counts are of the whole answer so far; a later one replaces an earlier one."""
        if isinstance(usage, Mapping):
            names = ("input_tokens", "output_tokens", *_CACHE.values())
            self._usage.update({name: usage[name] for name in names if isinstance(usage.get(name), int)})

    def _counted(self) -> Usage:
        read, write = (self._usage.get(_CACHE[kind], 0) for kind in ("read", "write"))
        given = self._usage.get("input_tokens", 0) + read + write
        written = self._usage.get("output_tokens", 0)
        return Usage(given, written, given + written, cache_read_tokens=read, cache_write_tokens=write)


def _deltas(kind: type[TextDelta] | type[ReasoningDelta], text: str) -> list[ModelEvent]:
    return [kind(text)] if text else []


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
