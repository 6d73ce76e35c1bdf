"""The frames of OpenAI's chat completions, and of the many servers that speak almost the same, as model events."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from think_celery.errors import ModelError
from think_celery.protocols import (
    Finish,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    Usage,
)
from think_celery.providers import failures
from think_celery.providers.reading import frame_of
from think_celery.providers.sse import ServerSentEvent
from think_celery.providers.toolcalls import Joiner, ToolCalls, UniqueIds

Json = Mapping[str, Any]

_REASONING = ("reasoning_content", "reasoning")
_KNOWN = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "name", *_REASONING})
_GROWING = frozenset({"text", "summary", "data"})

_PROBE = "another text"

_REASONS: dict[str, Any] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content-filter",
}


class Answer:
    """One answer as it comes in; see :class:`think_celery.providers.reading.Answer`.

    What the provider sends beside text and calls (reasoning, signatures, fields that nobody here knows) is kept as
    metadata of *provider*, for it may want it back.
    """

    def __init__(self, ids: UniqueIds, provider: str = "openai") -> None:
        self._provider = provider
        self._calls = ToolCalls(ids, provider)
        self._text, self._reasoning = Joiner(), Joiner()
        self._alike = _Alike()
        self._reasons_in: str | None = None  # the field in which reasoning comes, while it does
        self._fields: dict[str, Any] = {}
        self._usage = Usage()
        self._raw_reason: str | None = None
        self._begun = False
        self.done = False

    @property
    def usage(self) -> Usage:
        """What it has cost so far, as far as the provider has told."""
        return self._usage

    @property
    def finished(self) -> bool:
        """Whether the provider named a reason for the end: the answer is whole."""
        return self._raw_reason is not None

    def take(self, event: ServerSentEvent) -> list[ModelEvent]:
        """The model's events in one event of the stream."""
        if event.data[:1] != "{" and event.data.strip() == "[DONE]":
            self.done = True
            return []
        if self._reasons_in is not None:
            return self._frame(frame_of(event))
        text = self._alike.text_in(event)
        if text is None:
            frame = frame_of(event)
            text = _only_text(frame)
            if text is None:
                return self._frame(frame)
            self._alike.learn(event, text)
        self._begun = True
        return _deltas(TextDelta, self._text.feed(text))

    def body(self, body: Any) -> list[ModelEvent]:
        """The events of an answer that came as one JSON body, without its :class:`Finish`.

        Raises:
            ModelError: It carries an error, or is no completion.
        """
        events = self._frame(body)
        if not body.get("choices"):
            raise ModelError(
                "the server answered with JSON that is no chat completion (it has no choices); is the base_url right?"
            )
        self.done = True
        return events

    def end(self) -> list[ModelEvent]:
        """The last events, with :class:`Finish`.

        Raises:
            ModelError: Nothing says that the answer is whole.
        """
        if not self.finished and not self.done:
            what = "in the middle of the answer" if self._begun else "before the answer began"
            raise ModelError(f"the stream ended {what}, without a finish reason", retryable=True)
        cut_short = _REASONS.get(self._raw_reason or "") in ("length", "content-filter")
        events: list[ModelEvent] = []
        events += self._end_reasoning()
        events += _deltas(TextDelta, self._text.end())
        calls = self._calls.complete(cut_short=cut_short)
        events += calls
        if self._fields:
            events.append(StepMetadata({self._provider: {"message": self._fields}}))
        if self._raw_reason is None:
            reason: Any = "unknown"
        elif calls and not cut_short:
            reason = "tool-calls"  # many servers say `stop` here
        else:
            reason = _REASONS.get(self._raw_reason, "other")
        events.append(Finish(reason, self._raw_reason, self._usage))
        return events

    def _frame(self, frame: Mapping[str, Any]) -> list[ModelEvent]:
        if (error := failures.in_answer(frame)) is not None:
            raise error
        if (usage := frame.get("usage")) is not None:
            self._take_usage(usage)
        events: list[ModelEvent] = []
        for choice in frame.get("choices") or ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._choice(choice, events)
        return events

    def _choice(self, choice: Json, events: list[ModelEvent]) -> None:
        delta = choice.get("delta")
        if not delta and not self._begun:
            delta = _numbered(choice.get("message"))  # a whole answer; after pieces it would only repeat them
        if isinstance(delta, dict):
            before = len(events)
            self._delta(delta, events)
            self._begun = self._begun or len(events) > before
        if reason := choice.get("finish_reason"):
            self._raw_reason = str(reason)

    def _delta(self, delta: Json, events: list[ModelEvent]) -> None:
        content = delta.get("content")
        for field in _REASONING:
            if (reasoning := delta.get(field)) and isinstance(reasoning, str):
                self._reason(field, reasoning, events)
                break
        for kind, text in _content(content):
            if kind is ReasoningDelta:
                self._reason("content", text, events)
            elif text:
                self._write(text, events)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._write(refusal, events)
        fragments = delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, dict) and (event := self._calls.add(fragment)) is not None:
                events += self._end_reasoning()
                events.append(event)
        for name, value in delta.items():
            if name not in _KNOWN and value is not None:
                self._fields[name] = _joined(self._fields.get(name), value)

    def _write(self, text: str, events: list[ModelEvent]) -> None:
        events += self._end_reasoning()
        events += _deltas(TextDelta, self._text.feed(text))

    def _reason(self, field: str, text: str, events: list[ModelEvent]) -> None:
        if text:
            self._reasons_in = field
            events += _deltas(ReasoningDelta, self._reasoning.feed(text))

    def _end_reasoning(self) -> list[ModelEvent]:
        """The reasoning so far is a block: it is to be sent back in the field in which it came."""
        if self._reasons_in is None:
            return []
        metadata = {self._provider: {"as": self._reasons_in}}
        self._reasons_in = None
        return [*_deltas(ReasoningDelta, self._reasoning.end()), ReasoningEnd(metadata)]

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            read = _count(usage, "prompt_tokens")
            written = _count(usage, "completion_tokens")
            details = usage.get("prompt_tokens_details")
            cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
            total = _count(usage, "total_tokens") or read + written
            self._usage = Usage(read, written, total, cache_read_tokens=cached)


def _only_text(frame: Json) -> str | None:
    """The text of a frame that carries nothing else that counts, as nearly all do."""
    choices = frame.get("choices")
    if frame.get("usage") is not None or type(choices) is not list or len(choices) != 1:
        return None
    choice = choices[0]
    if type(choice) is not dict or choice.get("finish_reason") or choice.get("index") not in (0, None):
        return None
    delta = choice.get("delta")
    if type(delta) is not dict or len(delta) != 1 or failures.in_answer(frame) is not None:
        return None
    text = delta.get("content")
    return text if type(text) is str and text else None


class _Alike:
    """The frames of a stream that differ in their text alone, as nearly all do: parsing each takes three times as long.

    What stands before and behind the text in one of them is kept. A frame with the same around a text without quotes,
    escapes and control characters is the same JSON with that text in it.
    """

    def __init__(self) -> None:
        self._before = self._behind = ""
        self._tries = 8  # of a stream whose frames differ in more, each would be parsed twice

    def text_in(self, event: ServerSentEvent) -> str | None:
        """The text of a frame that is like the one that was learnt; ``None`` if it is to be parsed."""
        before, behind, data = self._before, self._behind, event.data
        if not before or not data.startswith(before) or not data.endswith(behind) or event.kind != "message":
            return None
        text = data[len(before) : -len(behind)]
        return text if text and text.isprintable() and '"' not in text and "\\" not in text else None

    def learn(self, event: ServerSentEvent, text: str) -> None:
        """Keep what is around the *text* of this frame, which carries nothing else that counts."""
        before, found, behind = event.data.partition(f'"{text}"')
        if not found or text == _PROBE or event.kind != "message" or not self._tries:
            return
        self._tries -= 1
        # The same text may stand elsewhere, such as in the model's name: so it is tried with another one.
        try:
            if _only_text(from_json(f'{before}"{_PROBE}"{behind}')) == _PROBE:
                self._before, self._behind = f'{before}"', f'"{behind}'
        except ValueError:
            pass


def _joined(kept: Any, more: Any) -> Any:
    """A field that came in pieces: texts and lists go on, pieces of one numbered item are that item."""
    if isinstance(kept, str) and isinstance(more, str):
        return kept + more
    if isinstance(kept, dict) and isinstance(more, dict):
        return {**kept, **more}
    if not isinstance(more, list):
        return more
    items = list(kept) if isinstance(kept, list) else []
    for item in more:
        last = items[-1] if items else None
        if isinstance(item, dict) and isinstance(last, dict) and _same_item(last, item):
            items[-1] = _grown(last, item)
        else:
            items.append(item)
    return items


def _same_item(last: Json, item: Json) -> bool:
    index = item.get("index")
    return index is not None and last.get("index") == index and last.get("type") == item.get("type")


def _grown(last: Json, item: Json) -> Json:
    grown = dict(last)
    for key, value in item.items():
        old = grown.get(key)
        if key in _GROWING and isinstance(old, str) and isinstance(value, str):
            grown[key] = old + value
        elif value is not None:
            grown[key] = value
    return grown


def _deltas(kind: type[TextDelta] | type[ReasoningDelta], text: str) -> list[ModelEvent]:
    return [kind(text)] if text else []


def _numbered(message: Any) -> Any:
    """A whole message, its calls numbered as those of a stream are."""
    if isinstance(message, dict) and isinstance(calls := message.get("tool_calls"), list):
        numbered = [{**call, "index": at} for at, call in enumerate(calls) if isinstance(call, dict)]
        return {**message, "tool_calls": numbered}
    return message


def _content(content: Any) -> Iterator[tuple[type[TextDelta] | type[ReasoningDelta], str]]:
    """Content is a text, nothing, or a list of typed parts."""
    if isinstance(content, str):
        yield TextDelta, content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, str):
                yield TextDelta, part
            elif isinstance(part, dict):
                kind = part.get("type")
                if kind in ("text", "output_text"):
                    yield TextDelta, _plain(part.get("text"))
                elif kind in ("thinking", "reasoning"):
                    yield ReasoningDelta, _plain(part.get("thinking") or part.get("text"))


def _plain(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join(_plain(item.get("text")) for item in value if isinstance(item, dict))
    return value if isinstance(value, str) else ""


def _count(usage: Json, key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) else 0
