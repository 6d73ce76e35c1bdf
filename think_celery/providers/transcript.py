"""What the vendors' wire formats share in telling a conversation."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from think_celery.errors import ModelError
from think_celery.messages import FilePart, Part, StepStartPart, TextPart, ToolPart, json_value

Wire = dict[str, Any]

BEGUN_BEFORE = "(The conversation begins with your message.)"
GO_ON = "Continue."
"""What is said for the user where a format demands that the user begins, or has the last word."""


def steps_of(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts of each model step of an assistant message. Where no steps are marked, text after a call begins one."""
    marked = any(isinstance(part, StepStartPart) for part in parts)
    steps: list[list[Part]] = [[]]
    for part in parts:
        if isinstance(part, StepStartPart):
            steps.append([])
            continue
        called = any(isinstance(each, ToolPart) for each in steps[-1])
        if isinstance(part, TextPart) and called and not marked:
            steps.append([])
        steps[-1].append(part)
    return [step for step in steps if step]


def arguments_of(given: Any) -> Mapping[str, Any]:
    """A call's arguments as an object. Servers that parse them fail on anything else, and then on every later turn."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):  # the latter: nested too deep
            return {"raw": given}
    if given is None:
        return {}
    return given if isinstance(given, Mapping) else {"raw": given}


def result_of(call: ToolPart) -> str:
    """A call's result as a text for the model.

    Raises:
        ModelError: It has none.
    """
    match call.state:
        case "output-available":
            return call.output if isinstance(call.output, str) else dumps(call.output)
        case "output-error":
            return f"Error: {call.error_text or 'the tool failed'}"
        case _:
            raise ModelError(
                f"tool call {call.tool_call_id!r} of {call.tool_name!r} has no result (state {call.state!r}). Each "
                "call in a request must have one; repair the transcript before asking the model."
            )


def own_metadata(part: Part, provider: str | None) -> Mapping[str, Any]:
    """What *provider* wanted back with this part; of other providers' wishes nothing. ``None``: of none.

    What a client has put there may be anything; what is no mapping is none of ours.
    """
    if provider is None:
        return {}
    kept = getattr(
        part, "call_provider_metadata" if isinstance(part, ToolPart) else "provider_metadata", None
    )
    own = kept.get(provider) if isinstance(kept, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def described_file(part: FilePart) -> str:
    """A file that can't be sent itself, as a text: nothing is left out silently."""
    where = "its content can't be sent to this model" if part.url.startswith("data:") else part.url
    return f"[{part.filename or 'file'} ({part.media_type}): {where}]"


@dataclass(frozen=True, slots=True)
class Data:
    """What a ``data:`` URL holds."""

    media_type: str
    content: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode("ascii")


def data_of(part: FilePart) -> Data | None:
    """What the part's URL holds, if it is a ``data:`` URL that can be read."""
    head, comma, body = part.url.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    kind, *options = head.removeprefix("data:").split(";")
    try:
        content = unquote_to_bytes(body)
        if "base64" in options:
            content = base64.b64decode(b"".join(content.split()), validate=True)
    except ValueError:
        return None
    return Data(part.media_type or kind, content)


def dumps(value: Any) -> str:
    """JSON that any server can read: no NaN, no lone surrogate."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
        return text
    except (ValueError, TypeError):
        return json.dumps(json_value(value), ensure_ascii=False)
