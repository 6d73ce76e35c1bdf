"""A model request as the body of OpenAI's chat completions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from think_celery.ids import short_hash
from think_celery.messages import FilePart, Part, ReasoningPart, TextPart, ToolPart, UIMessage
from think_celery.protocols import ForcedTool, ModelRequest, ToolSpec
from think_celery.providers.options import body_options
from think_celery.providers.profiles import Profile, fitted
from think_celery.providers.toolcalls import UniqueIds
from think_celery.providers.transcript import (
    Wire,
    arguments_of,
    described_file,
    dumps,
    own_metadata,
    result_of,
    steps_of,
)

LONGEST_ID = 40  # OpenAI refuses longer ids of tool calls, which other servers give

_TOOLS = "Offer tools through the agent."
RESERVED = {
    "model": "Name the model in `model` or get_model().",
    "messages": "Messages come from the conversation and the system prompt.",
    "stream": "Answers are always streamed.",
    "n": "A turn has one answer.",
    "tools": _TOOLS,
    "functions": _TOOLS,
    "tool_choice": "Set the tool choice of the turn or step.",
    "function_call": "Set the tool choice of the turn or step.",
}
"""The fields of the body that are the engine's own, and what to do instead of setting them."""

_OWN_FIELDS = frozenset({"role", "content", "tool_calls", "refusal", "function_call", "name"})
_OWN_CALL_FIELDS = frozenset({"index", "id", "type", "function"})


def request_body(
    model: str,
    request: ModelRequest,
    extra: Mapping[str, Any],
    *,
    provider: str | None = None,
    max_tokens_field: str = "max_completion_tokens",
    schemas: Profile = "standard",
) -> bytes:
    """The body, valid UTF-8 whatever the texts hold.

    *extra* are the model's own fields; the request's win over them. *provider* is whose metadata is sent back.

    Raises:
        ModelError: A provider option is one of the engine's own fields, or the transcript is not whole.
        InvalidTool: A tool's schema can't be told as *schemas* says.
    """
    body: Wire = {"model": model, "messages": wire_messages(request, provider), "stream": True}
    if request.tools:
        body["tools"] = [_tool(spec, schemas) for spec in request.tools]
        choice = request.tool_choice
        body["tool_choice"] = (
            {"type": "function", "function": {"name": choice.name}}
            if isinstance(choice, ForcedTool)
            else choice
        )
    options = dict(extra)
    if request.temperature is not None:
        options["temperature"] = request.temperature
    if request.max_output_tokens is not None:
        options[max_tokens_field] = request.max_output_tokens
    options |= body_options("openai", request.provider_options, RESERVED)
    streaming = options.pop("stream_options", {})
    if streaming is not None:  # `None` is for servers that don't know the field
        body["stream_options"] = {"include_usage": True, **streaming}
    return dumps(body | options).encode("utf-8")


def wire_messages(request: ModelRequest, provider: str | None = None) -> list[Wire]:
    """The conversation as chat messages: each assistant message with tool calls is followed by their results."""
    wire: list[Wire] = []
    if request.system:
        wire.append({"role": "system", "content": request.system})
    ids = UniqueIds()
    for message in request.messages:
        match message.role:
            case "system":
                if message.text:
                    wire.append({"role": "system", "content": message.text})
            case "user":
                if content := _user_content(message):
                    wire.append({"role": "user", "content": content})
            case "assistant":
                for step in steps_of(message.parts):
                    wire.extend(_step(step, ids, provider))
    return wire


def _tool(spec: ToolSpec, schemas: Profile) -> Wire:
    function: Wire = {"name": spec.name, "description": spec.description, "parameters": fitted(schemas, spec)}
    if schemas == "strict":
        function["strict"] = True
    return {"type": "function", "function": function}


def _user_content(message: UIMessage) -> str | list[Wire]:
    texts = [part.text for part in message.parts if isinstance(part, TextPart) and part.text]
    if not any(isinstance(part, FilePart) for part in message.parts):
        return "\n".join(texts)  # a plain text is what every server takes
    content: list[Wire] = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.text:
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, FilePart):
            content.append(_file(part))
    return content


def _file(part: FilePart) -> Wire:
    if part.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url}}
    if part.url.startswith("data:"):
        return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.url}}
    return {"type": "text", "text": described_file(part)}


def _step(parts: Sequence[Part], ids: UniqueIds, provider: str | None) -> Iterator[Wire]:
    """What the model wrote in one step, and what its tools answered."""
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    calls = [part for part in parts if isinstance(part, ToolPart)]
    if not text and not calls:
        return
    answer: Wire = {"role": "assistant", "content": text or None}
    results: list[Wire] = []
    for call in calls:
        wanted = call.tool_call_id
        call_id = ids.unique(wanted if len(wanted) <= LONGEST_ID else f"call_{short_hash(wanted)}")
        answer.setdefault("tool_calls", []).append(_call(call, call_id, provider))
        results.append({"role": "tool", "tool_call_id": call_id, "content": result_of(call)})
    _echo(answer, parts, provider)
    yield answer
    yield from results


def _call(call: ToolPart, call_id: str, provider: str | None) -> Wire:
    own = own_metadata(call, provider)
    function: Wire = {"name": call.tool_name, "arguments": dumps(arguments_of(call.input))}
    function = {**_mapping(own.get("function")), **function}
    kept = {key: value for key, value in _mapping(own.get("call")).items() if key not in _OWN_CALL_FIELDS}
    return {"id": call_id, "type": "function", "function": function, **kept}


def _echo(answer: Wire, parts: Sequence[Part], provider: str | None) -> None:
    """Give back what the provider sent beside text and calls, in the fields in which it came."""
    thoughts: list[Wire] = []
    for part in parts:
        own = own_metadata(part, provider)
        for key, value in _mapping(own.get("message")).items():
            if key not in _OWN_FIELDS:
                answer[key] = value
        field = own.get("as")
        if not isinstance(part, ReasoningPart) or not isinstance(field, str) or not part.text:
            continue
        if field == "content":  # typed parts, among which those of the text
            thoughts.append({"type": "thinking", "thinking": [{"type": "text", "text": part.text}]})
        elif field not in _OWN_FIELDS:
            answer[field] = str(answer.get(field) or "") + part.text
    if thoughts:
        said = answer["content"]
        answer["content"] = [*thoughts, *([{"type": "text", "text": said}] if said else [])]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
