"""The events of Pydantic AI's streamed responses as model events."""

from collections.abc import Iterator
from typing import Any

from pydantic_ai import messages as wire

from think_celery.errors import ModelError
from think_celery.protocols import (
    Finish,
    ModelEvent,
    ProviderMetadata,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    Usage,
)
from think_celery.providers.toolcalls import UniqueIds, arguments_text, is_object

_REASONS: dict[str, Any] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_call": "tool-calls",
    "error": "other",
}


class Answer:
    """One answer as it comes in."""

    def __init__(self, ids: UniqueIds, provider: str) -> None:
        self._ids, self._provider = ids, provider
        # Of each part that is a call: its number among them, its id and its name.
        self._calls: dict[int, tuple[int, str, str]] = {}

    def take(self, event: Any) -> Iterator[ModelEvent]:
        """The model's events in one of Pydantic AI's."""
        match event:
            case wire.PartStartEvent(index=index, part=part):
                yield from self._begin(index, part)
            case wire.PartDeltaEvent(index=index, delta=delta):
                yield from self._go_on(index, delta)
            case wire.PartEndEvent(part=wire.ThinkingPart() as part):
                yield ReasoningEnd(self._metadata(part, {"signature": part.signature}))
            case wire.PartEndEvent(part=wire.TextPart() as part):
                if metadata := self._metadata(part, {}):
                    yield StepMetadata(metadata)

    def end(self, response: wire.ModelResponse, *, needs_reason: bool) -> Iterator[ModelEvent]:
        """The last events, with ``Finish``.

        Raises:
            ModelError: Nothing says that the answer is whole.
        """
        said = (response.provider_details or {}).get("finish_reason")
        raw = said or response.finish_reason
        if response.state not in ("complete", "suspended"):
            raise ModelError(f"the answer ended before it was whole ({response.state})", retryable=True)
        # Pydantic AI takes a stream that was cut for one that stopped: only the provider's own word counts.
        if needs_reason and not said and response.finish_reason in (None, "stop"):
            raise ModelError("the stream ended without a finish reason", retryable=True)
        if response.finish_reason == "error":
            raise ModelError(f"the provider ended the answer with an error ({raw})", retryable=True)
        known = None if response.finish_reason is None else _REASONS.get(response.finish_reason)
        reason: Any = known or ("unknown" if raw is None else "other")
        called = False
        for index, part in enumerate(response.parts):
            if not isinstance(part, wire.ToolCallPart):
                continue
            arguments = arguments_text(part.args)
            if reason in ("length", "content-filter") and not is_object(arguments):
                continue
            number, call_id, _ = self._known(index, part)
            called = True
            metadata = self._metadata(part, {})
            yield ToolCallComplete(number, call_id, part.tool_name, arguments or "{}", metadata)
        if called and reason not in ("length", "content-filter"):
            reason = "tool-calls"
        used = response.usage
        yield Finish(
            reason,
            None if raw is None else str(raw),
            Usage(
                used.input_tokens,
                used.output_tokens,
                used.input_tokens + used.output_tokens,
                cache_read_tokens=used.cache_read_tokens,
                cache_write_tokens=used.cache_write_tokens,
            ),
        )

    def _begin(self, index: int, part: Any) -> Iterator[ModelEvent]:
        match part:
            case wire.TextPart(content=text) if text:
                yield TextDelta(text)
            case wire.ThinkingPart(content=text) if text:
                yield ReasoningDelta(text)
            case wire.ToolCallPart():
                yield ToolCallDelta(*self._known(index, part), arguments_text(part.args))

    def _go_on(self, index: int, delta: Any) -> Iterator[ModelEvent]:
        match delta:
            case wire.TextPartDelta(content_delta=text) if text:
                yield TextDelta(text)
            case wire.ThinkingPartDelta(content_delta=text) if text:
                yield ReasoningDelta(text)
            case wire.ToolCallPartDelta(args_delta=more) if more and index in self._calls:
                yield ToolCallDelta(*self._calls[index], arguments_text(more))

    def _known(self, index: int, part: wire.ToolCallPart) -> tuple[int, str, str]:
        if index not in self._calls:
            self._calls[index] = (len(self._calls), self._ids.unique(part.tool_call_id), part.tool_name)
        return self._calls[index]

    def _metadata(self, part: Any, more: dict[str, Any]) -> ProviderMetadata | None:
        """What Pydantic AI wants back with the part."""
        named = {
            "id": part.id,
            "provider_name": part.provider_name,
            "provider_details": part.provider_details,
        }
        kept = {key: value for key, value in (named | more).items() if value is not None}
        return {self._provider: kept} if kept else None
