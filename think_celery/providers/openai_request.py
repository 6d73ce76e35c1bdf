"""A model request as the body of OpenAI's chat completions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from think_celery.errors import ModelError
from think_celery.ids import short_hash
from think_celery.messages import FilePart, Part, StepStartPart, TextPart, ToolPart, UIMessage, json_value
from think_celery.protocols import ForcedTool, ModelRequest, ToolSpec
from think_celery.providers.toolcalls import UniqueIds

LONGEST_ID = 40  # OpenAI refuses longer ids of tool calls, which other servers give

Wire = dict[str, Any]


def request_body(model: str, request: ModelRequest, extra: Mapping[str, Any]) -> bytes:
    """The body, valid UTF-8 whatever the texts hold."""
    body: Wire = {
        "model": model,
        "messages": wire_messages(request),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
        choice = request.tool_choice
        body["tool_choice"] = (
            {"type": "function", "function": {"name": choice.name}}
            if isinstance(choice, ForcedTool)
            else choice
        )
    body.update(extra)
    return _dumps(body).encode("utf-8")


def wire_messages(request: ModelRequest) -> list[Wire]:
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
                for step in _steps(message.parts):
                    wire.extend(step.wire(ids))
    return wire


def _tool(spec: ToolSpec) -> Wire:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
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
    name = part.filename or "file"
    if part.url.startswith("data:"):
        return {"type": "file", "file": {"filename": name, "file_data": part.url}}
    return {"type": "text", "text": f"[{name} ({part.media_type}): {part.url}]"}


@dataclass
class _Step:
    """What the model wrote in one step, and what its tools answered."""

    text: str = ""
    calls: list[ToolPart] = field(default_factory=list)

    def wire(self, ids: UniqueIds) -> Iterator[Wire]:
        if not self.text and not self.calls:
            return
        answer: Wire = {"role": "assistant", "content": self.text or None}
        results: list[Wire] = []
        for call in self.calls:
            wanted = call.tool_call_id
            call_id = ids.unique(wanted if len(wanted) <= LONGEST_ID else f"call_{short_hash(wanted)}")
            function = {"name": call.tool_name, "arguments": _arguments(call.input)}
            answer.setdefault("tool_calls", []).append(
                {"id": call_id, "type": "function", "function": function}
            )
            results.append({"role": "tool", "tool_call_id": call_id, "content": _result(call)})
        yield answer
        yield from results


def _steps(parts: Sequence[Part]) -> list[_Step]:
    """The steps of an assistant message. Where none are marked, text after a call begins the next one."""
    marked = any(isinstance(part, StepStartPart) for part in parts)
    steps = [_Step()]
    for part in parts:
        if isinstance(part, StepStartPart):
            steps.append(_Step())
        elif isinstance(part, TextPart):
            if not marked and steps[-1].calls:
                steps.append(_Step())
            steps[-1].text += part.text
        elif isinstance(part, ToolPart):
            steps[-1].calls.append(part)
    return steps


def _arguments(given: Any) -> str:
    """The JSON text of an object. Servers that parse it fail on anything else, and then on every later turn."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):  # the latter: nested too deep
            return _dumps({"raw": given})
    if given is None:
        return "{}"
    return _dumps(given if isinstance(given, Mapping) else {"raw": given})


def _result(call: ToolPart) -> str:
    match call.state:
        case "output-available":
            return call.output if isinstance(call.output, str) else _dumps(call.output)
        case "output-error":
            return f"Error: {call.error_text or 'the tool failed'}"
        case _:
            raise ModelError(
                f"tool call {call.tool_call_id!r} of {call.tool_name!r} has no result (state {call.state!r}). Each "
                "call in a request must have one; repair the transcript before asking the model."
            )


def _dumps(value: Any) -> str:
    """JSON that any server can read: no NaN, no lone surrogate."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
        return text
    except (ValueError, TypeError):
        return json.dumps(json_value(value), ensure_ascii=False)
