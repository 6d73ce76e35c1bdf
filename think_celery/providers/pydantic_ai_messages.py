"""A model request in Pydantic AI's messages, tools and settings."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai import messages as wire
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from think_celery.errors import ModelError
from think_celery.messages import FilePart, Part, ReasoningPart, TextPart, ToolPart, UIMessage, clean
from think_celery.protocols import ForcedTool, ModelRequest
from think_celery.providers.options import body_options, checked_headers
from think_celery.providers.toolcalls import UniqueIds
from think_celery.providers.transcript import (
    BEGUN_BEFORE,
    GO_ON,
    arguments_of,
    data_of,
    described_file,
    dumps,
    own_metadata,
    result_of,
    steps_of,
)

RESERVED = {
    "tool_choice": "Set the tool choice of the turn or step.",
    "max_retries": "The turn owns all retries.",
}
"""The model settings that are the engine's own, and what to do instead of setting them."""

_OWN = ("id", "provider_name", "provider_details")


def settings_of(request: ModelRequest) -> ModelSettings:
    """The request's options as model settings; provider options are further ones.

    Raises:
        ModelError: An option is one of the engine's own.
    """
    settings: dict[str, Any] = {"max_retries": 0}  # retries have one owner: the turn
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    if request.headers:
        settings["extra_headers"] = checked_headers(request.headers)
    if request.tools:
        choice = request.tool_choice
        settings["tool_choice"] = [choice.name] if isinstance(choice, ForcedTool) else choice
    settings |= body_options("pydantic_ai", request.provider_options, RESERVED)
    return settings  # type: ignore[return-value]


def parameters_of(request: ModelRequest) -> ModelRequestParameters:
    """The request's tools."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=spec.name,
                description=spec.description,
                parameters_json_schema=dict(spec.parameters),
                strict=False,  # the vendor's strict mode changes the schema; it is not turned on unasked
            )
            for spec in request.tools
        ],
        allow_text_output=True,
    )


def messages_of(request: ModelRequest, provider: str | None) -> list[wire.ModelMessage]:
    """The conversation: requests and responses by turns, each response with calls followed by their results.

    Raises:
        ModelError: There is nothing to answer, or a call has no result.
    """
    told = _Conversation()
    if request.system:
        told.ask(wire.SystemPromptPart(content=clean(request.system)))
    ids = UniqueIds()
    for message in request.messages:
        match message.role:
            case "system":
                if message.text:
                    told.ask(wire.SystemPromptPart(content=clean(message.text)))
            case "user":
                if content := _user_content(message):
                    told.ask(wire.UserPromptPart(content=content))
            case "assistant":
                for step in steps_of(message.parts):
                    _step(told, step, ids, provider)
    if not told.says_something:
        raise ModelError("the request holds no message that says anything; there is nothing to answer")
    if told.messages[-1].kind == "response":
        told.ask(wire.UserPromptPart(content=GO_ON))
    return told.messages


class _Conversation:
    def __init__(self) -> None:
        self.messages: list[wire.ModelMessage] = []
        self.says_something = False

    def ask(self, *parts: wire.ModelRequestPart) -> None:
        self.says_something |= any(not isinstance(part, wire.SystemPromptPart) for part in parts)
        last = self.messages[-1] if self.messages else None
        if isinstance(last, wire.ModelRequest):
            last.parts = [*last.parts, *parts]
        else:
            self.messages.append(wire.ModelRequest(parts=list(parts)))

    def answer(self, parts: list[wire.ModelResponsePart]) -> None:
        if not self.says_something:
            self.ask(wire.UserPromptPart(content=BEGUN_BEFORE))
        last = self.messages[-1]
        if isinstance(last, wire.ModelResponse):
            last.parts = [*last.parts, *parts]
        else:
            self.messages.append(wire.ModelResponse(parts=parts))


def _user_content(message: UIMessage) -> Any:
    content: list[Any] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.text:
            content.append(clean(part.text))
        elif isinstance(part, FilePart):
            content.append(_file(part))
    return content[0] if len(content) == 1 and isinstance(content[0], str) else content


def _file(part: FilePart) -> Any:
    if (data := data_of(part)) is not None:
        return wire.BinaryContent(data=data.content, media_type=part.media_type)
    if not part.url.startswith(("http://", "https://")):
        return described_file(part)
    kind = part.media_type.partition("/")[0]
    kinds: dict[str, Any] = {"image": wire.ImageUrl, "audio": wire.AudioUrl, "video": wire.VideoUrl}
    return kinds.get(kind, wire.DocumentUrl)(url=part.url, media_type=part.media_type)


def _step(told: _Conversation, parts: Sequence[Part], ids: UniqueIds, provider: str | None) -> None:
    answer: list[wire.ModelResponsePart] = []
    results: list[wire.ModelRequestPart] = []
    says_something = False
    for part in parts:
        own = {key: value for key, value in own_metadata(part, provider).items() if value is not None}
        kept = {key: own[key] for key in _OWN if key in own}
        if isinstance(part, ReasoningPart) and own:
            answer.append(wire.ThinkingPart(content=clean(part.text), signature=own.get("signature"), **kept))
        elif isinstance(part, TextPart) and part.text:
            answer.append(wire.TextPart(content=clean(part.text), **kept))
            says_something = True
        elif isinstance(part, ToolPart):
            says_something = True
            call_id = ids.unique(part.tool_call_id)
            given = dumps(arguments_of(part.input))
            answer.append(
                wire.ToolCallPart(tool_name=part.tool_name, args=given, tool_call_id=call_id, **kept)
            )
            results.append(
                wire.ToolReturnPart(
                    tool_name=part.tool_name, content=clean(result_of(part)), tool_call_id=call_id
                )
            )
    if says_something:
        told.answer(answer)
        if results:
            told.ask(*results)
