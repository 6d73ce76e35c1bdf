"""An assistant's message while it comes into being: parts made from a model's events, and their live form."""

from collections.abc import Mapping, Sequence
from typing import Any

from think_celery.messages import (
    Part,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    clean,
    json_value,
)
from think_celery.protocols import (
    ModelEvent,
    ProviderMetadata,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
)
from think_celery.providers.toolcalls import UniqueIds

Chunk = dict[str, Any]


class Answer:
    """The parts of one assistant message. An attempt at a model step is all or nothing: see :meth:`rewind`.

    ``hidden`` is the name of the tool that carries a structured answer: its call is kept in ``final`` and
    appears neither among the parts nor in what listeners see.
    """

    def __init__(self, parts: Sequence[Part] = (), hidden: str | None = None) -> None:
        self.parts: list[Part] = list(parts)
        self.hidden = hidden
        self.final: ToolCallComplete | None = None
        self.taken: set[str] = set()  # the ids of the calls in the conversation before
        self.step_parts: list[Part] = []
        self._calls: dict[int, ToolPart] = {}
        # The last part's text while it grows: joined when somebody looks, for joining each piece copies all of it.
        self._growing: type[Part] | None = None
        self._growing_id = self._delta = ""
        self._pieces: list[str] = []

    @property
    def steps(self) -> int:
        """How many model steps have begun."""
        return sum(isinstance(part, StepStartPart) for part in self.parts)

    def begin_step(self, *, continues: bool = False) -> list[Chunk]:
        """Begin a model step; one that *continues* an interrupted one belongs to the same step."""
        self.rewind()
        if continues:
            return []
        self.step_parts.append(StepStartPart())
        return [{"type": "start-step"}]

    def rewind(self) -> None:
        """Forget what the present attempt has brought."""
        self.step_parts, self._calls, self.final = [], {}, None
        self._growing, self._pieces = None, []

    def end_step(self) -> list[ToolPart]:
        """Make the step's parts the message's own, and return the calls to run."""
        self._settle()
        self.complete()
        calls = []
        for part in self.step_parts:
            if isinstance(part, TextPart | ReasoningPart):
                part.state = "done"
            if isinstance(part, ToolPart) and not part.settled:
                part.state = "input-available"
                calls.append(part)
            self.parts.append(part)
        self.step_parts, self._calls = [], {}
        return calls

    def complete(self) -> None:
        """What was cut and has gone on since is whole."""
        for part in self.parts:
            if isinstance(part, TextPart | ReasoningPart):
                part.state = "done"

    def call_at(self, index: int) -> ToolPart:
        """The call at that index of the model step in progress."""
        return self._calls[index]

    def place_of(self, call: ToolPart) -> tuple[int, int]:
        """Where a call of a complete step stands: its step, from 1, and its position there, from 0.

        The same after a crash, whatever ids the model gives.
        """
        step = position = 0
        for part in self.parts:
            if part is call:
                break
            if isinstance(part, StepStartPart):
                step, position = step + 1, 0
            elif isinstance(part, ToolPart):
                position += 1
        return step, position

    def drop(self, calls: Sequence[ToolPart]) -> None:
        """Remove these calls."""
        dropped = {id(call) for call in calls}
        self.parts = [part for part in self.parts if id(part) not in dropped]

    def so_far(self) -> list[Part]:
        """The parts as they are stored while the step still streams: none of its calls is whole yet."""
        self._join()
        return [*self.parts, *self.step_parts]

    def feed(self, event: ModelEvent) -> list[Chunk]:
        """Take one model event in, and return what listeners see of it."""
        if type(event) is TextDelta and self._growing is TextPart:  # nearly always
            text = clean(event.text)
            self._pieces.append(text)
            return [{"type": "text-delta", "id": self._growing_id, "delta": text}]
        match event:
            case TextDelta(text=text):
                return self._grow(TextPart, "text", text)
            case ReasoningDelta(text=text):
                return self._grow(ReasoningPart, "reasoning", text)
            case ToolCallDelta() | ToolCallComplete():
                return self._call(event)
            case ReasoningEnd(metadata=metadata):
                return self._close_reasoning(metadata)
            case StepMetadata(metadata=metadata):
                return self._keep(metadata)
            case _:
                return []

    def _grow(self, kind: type[TextPart] | type[ReasoningPart], name: str, text: str) -> list[Chunk]:
        text = clean(text)
        if self._growing is kind:
            self._pieces.append(text)
            return [{"type": self._delta, "id": self._growing_id, "delta": text}]
        self._settle()
        self._growing, self._delta = kind, f"{name}-delta"
        self._growing_id = f"{name}-{len(self.parts) + len(self.step_parts)}"
        self.step_parts.append(kind(text="", state="streaming"))
        self._pieces.append(text)
        return [
            {"type": f"{name}-start", "id": self._growing_id},
            {"type": f"{name}-delta", "id": self._growing_id, "delta": text},
        ]

    def _settle(self) -> None:
        """Give the last part the pieces of its text that have come since; nothing grows from now on."""
        self._join()
        self._growing = None

    def _join(self) -> None:
        if self._pieces:
            last = self.step_parts[-1]
            assert isinstance(last, TextPart | ReasoningPart)
            last.text += "".join(self._pieces)
            self._pieces = []

    def _close_reasoning(self, metadata: ProviderMetadata | None) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self._growing is not ReasoningPart:
            if not metadata:
                return []
            chunks = self._grow(ReasoningPart, "reasoning", "")[:1]  # its start
        self._settle()
        last = self.step_parts[-1]
        assert isinstance(last, ReasoningPart)
        end: Chunk = {"type": "reasoning-end", "id": self._growing_id}
        if metadata:
            last.provider_metadata = end["providerMetadata"] = merged(last.provider_metadata, metadata)
        return [*chunks, end]

    def _keep(self, metadata: ProviderMetadata) -> list[Chunk]:
        """Keep what belongs to the whole answer with its last part; of an answer without one nothing is kept."""
        last = self.step_parts[-1] if self.step_parts else None
        if isinstance(last, TextPart | ReasoningPart):
            last.provider_metadata = merged(last.provider_metadata, metadata)
        elif isinstance(last, ToolPart):
            last.call_provider_metadata = merged(last.call_provider_metadata, metadata)
        return []

    def _call(self, event: ToolCallDelta | ToolCallComplete) -> list[Chunk]:
        if event.name == self.hidden:
            if isinstance(event, ToolCallComplete):
                self.final = self.final or event
            return []
        part, chunks = self._calls.get(event.index), []
        if part is None:
            taken = {
                *self.taken,
                *(each.tool_call_id for each in self.so_far() if isinstance(each, ToolPart)),
            }
            part = ToolPart(
                type=f"tool-{event.name}",
                tool_call_id=UniqueIds(taken).unique(event.tool_call_id),
                state="input-streaming",
            )
            self._settle()
            self._calls[event.index] = part
            self.step_parts.append(part)
            chunks.append(
                {"type": "tool-input-start", "toolCallId": part.tool_call_id, "toolName": event.name}
            )
        if isinstance(event, ToolCallComplete):
            part.input = clean(event.arguments)
            if event.metadata:
                part.call_provider_metadata = merged(part.call_provider_metadata, event.metadata)
        elif event.arguments:
            delta = {"inputTextDelta": clean(event.arguments)}
            chunks.append({"type": "tool-input-delta", "toolCallId": part.tool_call_id, **delta})
        return chunks


def merged(kept: Mapping[str, Any] | None, more: ProviderMetadata) -> dict[str, Any]:
    """What providers want back, with *more* of it."""
    whole = {provider: dict(fields) for provider, fields in (kept or {}).items()}
    for provider, fields in more.items():
        whole.setdefault(provider, {}).update(json_value(fields))
    return whole


def settled_chunk(part: ToolPart) -> Chunk:
    """What listeners see of a tool's result."""
    if part.state == "output-denied":
        return {"type": "tool-output-denied", "toolCallId": part.tool_call_id}
    if part.state == "output-available":
        return {"type": "tool-output-available", "toolCallId": part.tool_call_id, "output": part.output}
    return {"type": "tool-output-error", "toolCallId": part.tool_call_id, "errorText": part.error_text}


def input_chunk(part: ToolPart) -> Chunk:
    """What listeners see of a call whose arguments are whole."""
    return {
        "type": "tool-input-available",
        "toolCallId": part.tool_call_id,
        "toolName": part.tool_name,
        "input": part.input,
    }


def request_chunk(part: ToolPart) -> Chunk:
    """What listeners see of a call that needs somebody's approval."""
    approval_id = (part.approval or {}).get("id")
    return {"type": "tool-approval-request", "approvalId": approval_id, "toolCallId": part.tool_call_id}
