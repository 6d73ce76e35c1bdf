"""The frames of OpenAI's chat completions, and of the many servers that speak almost the same, as model events."""

from collections.abc import Iterator, Mapping
from typing import Any

from think_celery.errors import ModelError
from think_celery.protocols import Finish, ModelEvent, ReasoningDelta, TextDelta, Usage
from think_celery.providers import failures
from think_celery.providers.toolcalls import Joiner, ToolCalls, UniqueIds

Json = Mapping[str, Any]

_REASONS: dict[str, Any] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content-filter",
}


class Answer:
    """One answer as it comes in: feed it frames, or a whole body, and take the events."""

    def __init__(self, ids: UniqueIds) -> None:
        self._calls = ToolCalls(ids)
        self._text, self._reasoning = Joiner(), Joiner()
        self._usage = Usage()
        self._raw_reason: str | None = None
        self._begun = False

    @property
    def finished(self) -> bool:
        """Whether the provider named a reason for the end: the answer is whole."""
        return self._raw_reason is not None

    def frame(self, frame: Any) -> list[ModelEvent]:
        """The events of one frame: often none, for frames also keep books.

        Raises:
            ModelError: The frame carries an error, whatever else it carries.
        """
        if not isinstance(frame, Mapping):
            raise ModelError(f"the provider sent a frame that is no JSON object: {frame!r}", retryable=True)
        if (error := failures.in_answer(frame)) is not None:
            raise error
        self._take_usage(frame.get("usage"))
        events: list[ModelEvent] = []
        for choice in frame.get("choices") or ():
            if isinstance(choice, Mapping) and choice.get("index") in (0, None):
                events += self._choice(choice)
        return events

    def body(self, body: Any) -> list[ModelEvent]:
        """The events of an answer that came as one JSON body, without its :class:`Finish`.

        Raises:
            ModelError: It carries an error, or is no completion.
        """
        events = self.frame(body)
        if not body.get("choices"):
            raise ModelError(
                "the server answered with JSON that is no chat completion (it has no choices); is the base_url right?"
            )
        return events

    def end(self, *, done: bool) -> list[ModelEvent]:
        """The last events, with :class:`Finish`. *done* says that the provider marked the end of the stream.

        Raises:
            ModelError: Nothing says that the answer is whole.
        """
        if not self.finished and not done:
            what = "in the middle of the answer" if self._begun else "before the answer began"
            raise ModelError(f"the stream ended {what}, without a finish reason", retryable=True)
        cut_short = _REASONS.get(self._raw_reason or "") in ("length", "content-filter")
        events: list[ModelEvent] = []
        events += _deltas(TextDelta, self._text.end())
        events += _deltas(ReasoningDelta, self._reasoning.end())
        calls = self._calls.complete(cut_short=cut_short)
        events += calls
        if self._raw_reason is None:
            reason: Any = "unknown"
        elif calls and not cut_short:
            reason = "tool-calls"  # many servers say `stop` here
        else:
            reason = _REASONS.get(self._raw_reason, "other")
        events.append(Finish(reason, self._raw_reason, self._usage))
        return events

    def _choice(self, choice: Json) -> Iterator[ModelEvent]:
        delta = choice.get("delta")
        if not delta and not self._begun:
            delta = _numbered(choice.get("message"))  # a whole answer; after pieces it would only repeat them
        if isinstance(delta, Mapping):
            for event in self._delta(delta):
                self._begun = True
                yield event
        if reason := choice.get("finish_reason"):
            self._raw_reason = str(reason)

    def _delta(self, delta: Json) -> Iterator[ModelEvent]:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            yield from _deltas(ReasoningDelta, self._reasoning.feed(reasoning))
        for kind, text in _content(delta.get("content")):
            joiner = self._text if kind is TextDelta else self._reasoning
            yield from _deltas(kind, joiner.feed(text))
        if isinstance(refusal := delta.get("refusal"), str):
            yield from _deltas(TextDelta, self._text.feed(refusal))
        fragments = delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, Mapping) and (event := self._calls.add(fragment)) is not None:
                yield event

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, Mapping):
            given = _count(usage, "prompt_tokens")
            written = _count(usage, "completion_tokens")
            self._usage = Usage(given, written, _count(usage, "total_tokens") or given + written)


def _deltas(kind: type[TextDelta] | type[ReasoningDelta], text: str) -> list[ModelEvent]:
    return [kind(text)] if text else []


def _numbered(message: Any) -> Any:
    """A whole message, its calls numbered as those of a stream are."""
    if isinstance(message, Mapping) and isinstance(calls := message.get("tool_calls"), list):
        numbered = [{**call, "index": at} for at, call in enumerate(calls) if isinstance(call, Mapping)]
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
            elif isinstance(part, Mapping):
                kind = part.get("type")
                if kind in ("text", "output_text"):
                    yield TextDelta, _plain(part.get("text"))
                elif kind in ("thinking", "reasoning"):
                    yield ReasoningDelta, _plain(part.get("thinking") or part.get("text"))


def _plain(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join(_plain(item.get("text")) for item in value if isinstance(item, Mapping))
    return value if isinstance(value, str) else ""


def _count(usage: Json, key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) else 0
