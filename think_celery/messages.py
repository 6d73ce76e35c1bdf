"""Chat messages as plain data, in the shape that browser clients know as ``UIMessage``.

JavaScript spelling is taken and given by alias (``createdAt``, ``toolCallId``); in Python the fields
have Python names. Strings are cleaned where they enter: a surrogate pair becomes its character, a lone
surrogate becomes U+FFFD, for neither a database nor an HTTP body can carry it.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter
from pydantic import ValidationError as PydanticValidationError
from pydantic.alias_generators import to_camel

from think_celery.clock import SystemClock
from think_celery.errors import EmptySubmission, InvalidMessage
from think_celery.ids import new_id

Role = Literal["user", "assistant", "system"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(value: Any) -> Any:
    """*value* with every string in it made valid Unicode; lists and dicts are copied, the rest is kept."""
    if isinstance(value, str):
        if not _SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


Clean = BeforeValidator(clean)
Text = Annotated[str, Clean]
JsonValue = Annotated[Any, Clean]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class StepStartPart(_Part):
    """Marks where one model step of an assistant message begins."""

    type: Literal["step-start"] = "step-start"


class TextPart(_Part):
    """Visible text. ``state`` is ``streaming`` until the model step that writes it is complete."""

    type: Literal["text"] = "text"
    text: Text
    state: Literal["streaming", "done"] = "done"


class ReasoningPart(_Part):
    """The model's reasoning; never part of the visible text."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    state: Literal["streaming", "done"] = "done"


class FilePart(_Part):
    """A file or picture by URL (``data:`` URLs included)."""

    type: Literal["file"] = "file"
    media_type: str
    url: str
    filename: str | None = None


class ToolPart(_Part):
    """One call of a tool and, once there is one, its result.

    ``type`` is ``tool-<name>`` as browsers expect it. ``state`` is ``input-streaming`` while the model
    still writes the arguments (such a call never runs), ``input-available`` when they are whole, then
    ``output-available`` with ``output`` or ``output-error`` with ``error_text``. ``started`` says that
    the tool was called: with no result beside it, its outcome is unknown.
    """

    type: str
    tool_call_id: str
    state: Literal["input-streaming", "input-available", "output-available", "output-error"]
    input: JsonValue = None
    output: JsonValue = None
    error_text: Text | None = None
    started: bool = False

    @property
    def tool_name(self) -> str:
        """The tool's name."""
        return self.type.removeprefix("tool-")

    @property
    def settled(self) -> bool:
        """Whether the call has its result."""
        return self.state in ("output-available", "output-error")


class OtherPart(_Part):
    """A part of a kind that this version doesn't know (``data-…``, ``source-url``): kept as it came."""

    type: str


_KNOWN = {
    "step-start": StepStartPart,
    "text": TextPart,
    "reasoning": ReasoningPart,
    "file": FilePart,
}


def _kind(value: Any) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if name in _KNOWN:
        return str(name)
    return "tool" if isinstance(name, str) and name.startswith("tool-") else "other"


Part = Annotated[
    Annotated[StepStartPart, Tag("step-start")]
    | Annotated[TextPart, Tag("text")]
    | Annotated[ReasoningPart, Tag("reasoning")]
    | Annotated[FilePart, Tag("file")]
    | Annotated[ToolPart, Tag("tool")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(_kind),
]


class UIMessage(BaseModel):
    """One message of a conversation. All but ``role`` and ``parts`` have defaults."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    id: Text = Field(default_factory=new_id, min_length=1, max_length=200)
    role: Role
    parts: list[Part]
    metadata: dict[str, JsonValue] | None = None
    created_at: datetime = Field(default_factory=SystemClock().now)

    @property
    def text(self) -> str:
        """The visible text: all text parts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON values in JavaScript spelling."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


_PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])


def dump_parts(parts: Sequence[Any]) -> list[dict[str, Any]]:
    """Parts as JSON values, as they are stored."""
    return [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in parts]


def load_parts(stored: Any) -> list[Part]:
    """Stored parts as objects again."""
    return _PARTS.validate_python(stored)


def user(text: str) -> UIMessage:
    """A user's message with this text."""
    return UIMessage(role="user", parts=[TextPart(text=text)])


def system(text: str) -> UIMessage:
    """A system message with this text."""
    return UIMessage(role="system", parts=[TextPart(text=text)])


OneMessage = str | UIMessage | Mapping[str, Any]
Messages = OneMessage | Sequence[OneMessage]


def as_messages(given: Messages) -> list[UIMessage]:
    """What a caller gave as messages, as a list of them: each a text, a ``UIMessage`` or a dict.

    Raises:
        EmptySubmission: Nothing was given, or a text is empty or blank.
        InvalidMessage: Something else was given; the error names its path.
        TypeError: A function was given.
    """
    if callable(given) and not isinstance(given, UIMessage):
        raise TypeError(
            f"Messages were given as a function ({given!r}); only values can be stored and run later. "
            "Call it yourself and pass what it returns."
        )
    items: list[Any] = [given] if isinstance(given, str | UIMessage | Mapping) else _listed(given)
    if not items:
        raise EmptySubmission()
    return [_as_message(item, f"messages[{index}]") for index, item in enumerate(items)]


def _listed(given: Any) -> list[Any]:
    if isinstance(given, Sequence) and not isinstance(given, bytes | bytearray):
        return list(given)
    raise InvalidMessage("messages", f"{type(given).__name__} is no message and no list of messages")


def _as_message(item: Any, path: str) -> UIMessage:
    if isinstance(item, UIMessage):
        return item
    if isinstance(item, str):
        if not item.strip():
            raise EmptySubmission()
        return user(item)
    if callable(item):
        raise TypeError(f"{path} is a function; pass the message that it would make.")
    if not isinstance(item, Mapping):
        raise InvalidMessage(path, f"{type(item).__name__} is no message")
    if isinstance(item.get("content"), str) and "parts" not in item:
        item = {**{k: v for k, v in item.items() if k != "content"}, "parts": [{"type": "text", "text": item["content"]}]}
    try:
        return UIMessage.model_validate(item)
    except PydanticValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
        raise InvalidMessage(path + where, first["msg"]) from None
