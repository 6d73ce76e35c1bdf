"""A model request as the body of Anthropic's Messages."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from think_celery.errors import ModelError
from think_celery.ids import short_hash
from think_celery.messages import FilePart, Part, ReasoningPart, TextPart, ToolPart, UIMessage
from think_celery.protocols import ForcedTool, ModelRequest, ToolChoice, ToolSpec
from think_celery.providers.options import body_options
from think_celery.providers.profiles import Profile, fitted
from think_celery.providers.toolcalls import UniqueIds
from think_celery.providers.transcript import (
    BEGUN_BEFORE,
    GO_ON,
    Wire,
    arguments_of,
    data_of,
    described_file,
    dumps,
    own_metadata,
    result_of,
    steps_of,
)

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PICTURES = {"image/jpeg", "image/png", "image/gif", "image/webp"}

RESERVED = {
    "model": "Name the model in `model` or get_model().",
    "messages": "Messages come from the conversation.",
    "system": "Set the agent's system_prompt.",
    "stream": "Answers are always streamed.",
    "tools": "Offer tools through the agent.",
    "tool_choice": "Set the tool choice of the turn or step.",
}
"""The fields of the body that are the engine's own, and what to do instead of setting them."""


def request_body(
    model: str,
    request: ModelRequest,
    extra: Mapping[str, Any],
    *,
    max_tokens: int,
    provider: str | None = None,
    schemas: Profile = "standard",
) -> bytes:
    """The body, valid UTF-8 whatever the texts hold.

    *extra* are the model's own fields; the request's win over them. *max_tokens* is for requests that say nothing
    of it. *provider* is whose metadata is sent back.

    Raises:
        ModelError: A provider option is one of the engine's own fields, or the transcript is empty or not whole.
        InvalidTool: A tool's schema can't be told as *schemas* says.
    """
    options = dict(extra)
    if request.temperature is not None:
        options["temperature"] = request.temperature
    if request.max_output_tokens is not None:
        options["max_tokens"] = request.max_output_tokens
    options |= body_options("anthropic", request.provider_options, RESERVED)
    body: Wire = {"model": model, "max_tokens": max_tokens + _thinking_budget(options), "stream": True}
    if system := _system(request):
        body["system"] = system
    body["messages"] = wire_messages(request, provider)
    tools, choice = list(request.tools), request.tool_choice
    if not tools and (used := _tools_used(request)):
        tools, choice = used, "none"  # a conversation with calls in it is refused without tools
    if tools:
        body["tools"] = [_tool(spec, schemas) for spec in tools]
        body["tool_choice"] = _choice(choice)
        if choice == "required" or isinstance(choice, ForcedTool):
            options.pop("thinking", None)  # thinking and a forced call exclude each other
    return dumps(body | options).encode("utf-8")


def wire_messages(request: ModelRequest, provider: str | None = None) -> list[Wire]:
    """The conversation to Anthropic's rules.

    The user begins, roles alternate, results stand first in the user's message right after their calls, and
    no block of text is blank.

    Raises:
        ModelError: There is nothing to answer, or a call has no result.
    """
    wire = _Conversation()
    ids = UniqueIds()
    for message in request.messages:
        if message.role == "user":
            wire.add("user", _user_blocks(message))
        elif message.role == "assistant":
            for step in steps_of(message.parts):
                _step(wire, step, ids, provider)
    if not wire.messages:
        raise ModelError("the request holds no message that says anything; there is nothing to answer")
    if wire.messages[-1]["role"] == "assistant":  # else the model would go on inside its own message
        wire.add("user", [_text(GO_ON)])
    return wire.messages


class _Conversation:
    """Messages whose roles alternate, beginning with the user's."""

    def __init__(self) -> None:
        self.messages: list[Wire] = []

    def add(self, role: str, blocks: Sequence[Wire]) -> None:
        if not blocks:
            return
        if not self.messages and role != "user":
            self.add("user", [_text(BEGUN_BEFORE)])
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        self.messages[-1]["content"] += blocks


def _system(request: ModelRequest) -> str:
    """The system prompt and the system messages: the format has one place for them."""
    texts = [request.system or "", *(each.text for each in request.messages if each.role == "system")]
    return "\n\n".join(text for text in texts if text.strip())


def _thinking_budget(options: Mapping[str, Any]) -> int:
    """The tokens to think with: they count as output, so the answer gets as many as without thinking."""
    thinking = options.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) else 0


def _tool(spec: ToolSpec, schemas: Profile) -> Wire:
    return {"name": spec.name, "description": spec.description, "input_schema": fitted(schemas, spec)}


def _tools_used(request: ModelRequest) -> list[ToolSpec]:
    """The tools that the conversation has called, of which no more is known than their names."""
    called = {
        part.tool_name: None
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolPart)
    }
    gone = "No longer offered."
    return [ToolSpec(name=name, description=gone, parameters={"type": "object"}) for name in called]


def _choice(choice: ToolChoice) -> Wire:
    if isinstance(choice, ForcedTool):
        return {"type": "tool", "name": choice.name}
    return {"type": "any" if choice == "required" else choice}


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _user_blocks(message: UIMessage) -> list[Wire]:
    blocks = []
    for part in message.parts:
        if isinstance(part, TextPart) and part.text.strip():
            blocks.append(_text(part.text))
        elif isinstance(part, FilePart):
            blocks.append(_file(part))
    return blocks


def _file(part: FilePart) -> Wire:
    is_data, data = part.url.startswith("data:"), data_of(part)
    link = None if is_data else {"type": "url", "url": part.url}
    if part.media_type in _PICTURES and (data or link):
        return {"type": "image", "source": link or _encoded(part, data)}
    title = {"title": part.filename} if part.filename else {}
    if part.media_type == "application/pdf" and (data or link):
        return {"type": "document", "source": link or _encoded(part, data), **title}
    if part.media_type.startswith("text/") and data and data.content.strip():
        plain = data.content.decode("utf-8", "replace")
        return {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": plain},
            **title,
        }
    return _text(described_file(part))


def _encoded(part: FilePart, data: Any) -> Wire:
    return {"type": "base64", "media_type": part.media_type, "data": data.base64}


def _step(wire: _Conversation, parts: Sequence[Part], ids: UniqueIds, provider: str | None) -> None:
    """What the model wrote in one step, and, in the user's next message, what its tools answered."""
    blocks: list[Wire] = []
    results: list[Wire] = []
    says_something = False
    for part in parts:
        if isinstance(part, ReasoningPart):
            blocks += _thought(part, own_metadata(part, provider))
        elif isinstance(part, TextPart) and part.text.strip():
            blocks.append(_text(part.text))
            says_something = True
        elif isinstance(part, ToolPart):
            says_something = True
            call_id = ids.unique(_fit_id(part.tool_call_id))
            blocks.append(_call(part, call_id, own_metadata(part, provider)))
            results.append(_result(part, call_id))
    if says_something:  # thoughts alone are no message
        wire.add("assistant", blocks)
        wire.add("user", results)


def _call(call: ToolPart, call_id: str, own: Mapping[str, Any]) -> Wire:
    kept = own.get("call")
    given = dict(arguments_of(call.input))
    return {
        **(kept if isinstance(kept, Mapping) else {}),
        "type": "tool_use",
        "id": call_id,
        "name": call.tool_name,
        "input": given,
    }


def _fit_id(given: str) -> str:
    """The call's id, or, where it is another provider's and not of the form that is taken, always the same other."""
    return given if _ID.fullmatch(given) else f"toolu_{short_hash(given)}"


def _thought(part: ReasoningPart, own: Mapping[str, Any]) -> list[Wire]:
    """Thinking is taken only as it was given, with its signature; other reasoning is left out."""
    if isinstance(block := own.get("block"), Mapping):
        return [dict(block)]
    if isinstance(signature := own.get("signature"), str) and part.text:
        return [{"type": "thinking", "thinking": part.text, "signature": signature}]
    return []


def _result(call: ToolPart, call_id: str) -> Wire:
    result: Wire = {"type": "tool_result", "tool_use_id": call_id}
    text = result_of(call)
    if text.strip():
        result["content"] = text
    if call.state == "output-error":
        result["is_error"] = True
    return result
