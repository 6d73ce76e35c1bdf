"""Chat messages as plain data, in the shape that browser clients know as ``UIMessage``.

JavaScript spelling is taken and given by alias (``createdAt``, ``toolCallId``); in Python the fields
have Python names. Strings are cleaned where they enter: a surrogate pair becomes its character, a lone
surrogate becomes U+FFFD, for no HTTP body can carry it. What a message holds of a user's own (metadata, a
tool's input and output, parts of unknown kinds) is turned into JSON values there too.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import to_jsonable_python

from think_celery.clock import SystemClock
from think_celery.errors import EmptySubmission, InvalidMessage, InvalidType
from think_celery.ids import new_id
from think_celery.names import name_problem

Role = Literal["user", "assistant", "system"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(value: Any) -> Any:
    """*value* with every string in it made valid Unicode; lists and dicts are copied, the rest is kept."""
    if isinstance(value, str):
        if value.isascii() or not _SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def json_value(value: Any) -> Any:
    """*value* as JSON values with clean strings: anything that pydantic can dump.

    Numbers that JSON doesn't have become the texts "NaN", "Infinity" and "-Infinity"; bytes become base64.

    Raises:
        ValueError: Something in it has no JSON form.
    """
    try:
        dumped = to_jsonable_python(clean(value), bytes_mode="base64")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no JSON form: {error}") from error
    return clean(_finite(dumped))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


Clean = BeforeValidator(clean)
Text = Annotated[str, Clean]
JsonValue = Annotated[Any, BeforeValidator(json_value)]
Instant = Annotated[AwareDatetime, AfterValidator(lambda moment: moment.astimezone(UTC))]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON values in JavaScript spelling; fields that are not set are left out."""
        declared = {field.alias for field in type(self).model_fields.values()}
        dumped = self.model_dump(mode="json", by_alias=True)
        return {key: item for key, item in dumped.items() if item is not None or key not in declared}


class StepStartPart(_Part):
    """Marks where one model step of an assistant message begins."""

    type: Literal["step-start"] = "step-start"


class TextPart(_Part):
    """Visible text. ``state`` is ``streaming`` until the model step that writes it is complete.

    ``provider_metadata`` is what a provider wants back, by provider: nobody else reads it.
    """

    type: Literal["text"] = "text"
    text: Text
    state: Literal["streaming", "done"] = "done"
    provider_metadata: dict[str, JsonValue] | None = None


class ReasoningPart(_Part):
    """The model's reasoning; never part of the visible text. Empty where its provider keeps it secret."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    state: Literal["streaming", "done"] = "done"
    provider_metadata: dict[str, JsonValue] | None = None


class FilePart(_Part):
    """A file or picture by URL (``data:`` URLs included)."""

    type: Literal["file"] = "file"
    media_type: Text
    url: Text
    filename: Text | None = None


class ToolPart(_Part):
    """One call of a tool and, once there is one, its result.

    ``type`` is ``tool-<name>`` as browsers expect it. ``state`` is ``input-streaming`` while the model
    still writes the arguments (such a call never runs), ``input-available`` when they are whole, then
    ``output-available`` with ``output`` or ``output-error`` with ``error_text``. A call that needs somebody's
    approval is ``approval-requested``, then ``approval-responded`` until it runs, or ``output-denied``; ``approval``
    holds ``id`` and, once there is a decision, ``approved`` and ``reason``. ``started`` says that
    the tool was called: with no result beside it, its outcome is unknown. ``call_provider_metadata`` is what
    a provider wants back with the call.
    """

    type: Annotated[Text, Field(pattern=r"^tool-.")]
    tool_call_id: Text
    state: Literal[
        "input-streaming",
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
    ]
    input: JsonValue = None
    output: JsonValue = None
    error_text: Text | None = None
    started: bool = False
    call_provider_metadata: dict[str, JsonValue] | None = None
    approval: dict[str, JsonValue] | None = None

    @property
    def tool_name(self) -> str:
        """The tool's name."""
        return self.type.removeprefix("tool-")

    @property
    def settled(self) -> bool:
        """Whether the call has its result."""
        return self.state in ("output-available", "output-error", "output-denied")


class OtherPart(_Part):
    """A part of a kind that this version doesn't know (``data-…``, ``source-url``): kept as it came."""

    type: Text


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


def _as_id(given: str) -> str:
    problem = name_problem(given, 200)
    if problem is not None:
        raise ValueError(problem)
    return given


class UIMessage(BaseModel):
    """One message of a conversation. All but ``role`` and ``parts`` have defaults.

    ``created_at`` must be aware, for a naive time names no instant; it is kept in UTC. Fields of a client's
    own on the message itself are dropped (``metadata`` is the place for them), those on parts are kept.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    id: Annotated[Text, AfterValidator(_as_id)] = Field(default_factory=new_id)
    role: Role
    parts: list[Part]
    metadata: dict[str, JsonValue] | None = None
    created_at: Instant = Field(default_factory=SystemClock().now)

    @property
    def text(self) -> str:
        """The visible text: all text parts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON values in JavaScript spelling."""
        dumped = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"parts"})
        return {**dumped, "parts": dump_parts(self.parts)}


_PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])


def dump_parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Parts as JSON values, as they are stored."""
    return [part.to_dict() for part in parts]


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
    """What a caller gave as messages, as a list of new ones: each a text, a ``UIMessage`` or a dict.

    A dict may have a text as ``content`` in place of ``parts``.

    Raises:
        EmptySubmission: Nothing was given, or a user's message says nothing.
        InvalidMessage: Something else was given; the error names its path.
        InvalidType: A function was given.
    """
    whole: Any = given
    if callable(whole):
        raise InvalidType(
            f"Messages were given as a function ({whole!r}); only values can be stored and run later. "
            "Call it yourself and pass what it returns."
        )
    if isinstance(whole, str | UIMessage | Mapping):
        return [_as_message(whole, "messages")]
    if not isinstance(whole, Sequence) or isinstance(whole, bytes | bytearray):
        raise InvalidMessage("messages", f"{type(whole).__name__} is no message and no list of messages")
    if not whole:
        raise EmptySubmission()
    return [_as_message(item, f"messages[{index}]") for index, item in enumerate(whole)]


def _as_message(item: Any, path: str) -> UIMessage:
    if callable(item):
        raise InvalidType(f"{path} is a function; pass the message that it would make.")
    if isinstance(item, str):
        item = {"role": "user", "content": item}
    elif isinstance(item, UIMessage):
        # Made anew: its owner may change it later, or has put in anything since.
        item = _dumped(item, path)
    if not isinstance(item, Mapping):
        raise InvalidMessage(path, f"{type(item).__name__} is no message")
    if isinstance(item.get("content"), str) and "parts" not in item:
        item = {**item, "parts": [{"type": "text", "text": item["content"]}]}
    try:
        message = UIMessage.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = first["msg"].removeprefix("Value error, ")
        raise InvalidMessage(path + _path(first["loc"]), problem) from None
    if message.role == "user" and all(
        isinstance(part, TextPart) and not part.text.strip() for part in message.parts
    ):
        raise EmptySubmission()
    return message


def _dumped(message: UIMessage, path: str) -> Any:
    try:
        return message.to_dict()
    except ValueError as error:
        raise InvalidMessage(path, str(error)) from error


def _path(loc: tuple[int | str, ...]) -> str:
    """Where in a message, as one would write it in Python; pydantic puts a part's kind after its index."""
    if loc[:1] == ("parts",) and len(loc) > 2:
        loc = (*loc[:2], *loc[3:])
    return "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in loc)
