"""The few seams: what the engine asks of a model, an agent, the live log and the broker."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from think_celery.ids import AgentRef
from think_celery.messages import UIMessage
from think_celery.signals import AbortSignal
from think_celery.tools import Tool

JsonSchema = dict[str, Any]

ProviderMetadata = dict[str, dict[str, Any]]
"""Fields that belong to a provider, by provider: nobody else reads them, and no other provider gets them."""


# --- models ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: JsonSchema


@dataclass(frozen=True, kw_only=True, slots=True)
class ForcedTool:
    """Tool choice: this tool, and no other."""

    name: str


FINAL_ANSWER = "think_final_answer"
"""The name of the tool that carries a structured turn's answer, unless a tool of the agent's has it."""

ToolChoice = Literal["auto", "required", "none"] | ForcedTool


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTimeouts:
    """How long a model may take, in seconds. Keep-alive comments are not tokens."""

    connect: float = 10.0
    first_token: float = 120.0
    token_gap: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """One request to a model.

    ``messages`` are already repaired: every tool part in them has a result. A provider turns each
    model step of an assistant message (they begin with a ``StepStartPart``) into its own wire messages.

    ``temperature`` and ``max_output_tokens`` are left to the provider where they are ``None``. ``headers`` are sent
    with the HTTP request; they win over the provider's own. ``provider_options`` become fields of the request's body
    just as they are; what is under the key of a provider (``{"openai": {...}, "anthropic": {...}}``) is for that one
    alone. An option that would change what the engine relies on (``messages``, ``stream``, ``tools``, …) is refused.
    """

    system: str | None
    messages: Sequence[UIMessage]
    tools: Sequence[ToolSpec] = ()
    tool_choice: ToolChoice = "auto"
    timeouts: ModelTimeouts = field(default_factory=ModelTimeouts)
    temperature: float | None = None
    max_output_tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # they may hold keys
    provider_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some more text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Some more of the model's reasoning. Never part of the visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningEnd:
    """The reasoning so far is a block of its own; what comes later is another.

    ``metadata`` is what its provider wants back with it, by provider: ``{"anthropic": {"signature": "…"}}``. A block
    without a text (the provider keeps it secret) is this event alone.
    """

    metadata: ProviderMetadata | None = None


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """What a provider wants back with the answer as a whole, by provider."""

    metadata: ProviderMetadata


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Some more of the arguments of the call at *index*; the first one carries id and name."""

    index: int
    tool_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallComplete:
    """A whole call. ``arguments`` is the model's JSON text as it came; empty or blank means ``{}``.

    ``metadata`` is what the provider wants back with the call, by provider.
    """

    index: int
    tool_call_id: str
    name: str
    arguments: str
    metadata: ProviderMetadata | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, as far as the provider told.

    ``input_tokens`` counts all that the model read, also what it had in its cache (``cache_read_tokens``) or put
    there (``cache_write_tokens``).
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """The stream's proper end; without it an attempt has failed.

    ``reason`` is one of ours; ``raw_reason`` is the provider's word, ``None`` where it gave none.
    """

    reason: Literal["stop", "length", "tool-calls", "content-filter", "other", "unknown"]
    raw_reason: str | None
    usage: Usage


ModelEvent = (
    TextDelta | ReasoningDelta | ReasoningEnd | StepMetadata | ToolCallDelta | ToolCallComplete | Finish
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave that an agent with a loop of its own has made. No model says this.

    ``output`` is anything that pydantic can dump to JSON; with an ``error`` there is none.
    """

    tool_call_id: str
    output: Any = None
    error: str | None = None


class Model(Protocol):
    """A language model that streams."""

    @property
    def name(self) -> str:
        """What to call it in logs, such as ``openai/gpt-5``."""

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask once, and yield events until a :class:`Finish`.

        Closes its connection when *signal* comes or the iterator is closed; after *signal* it ends
        with :class:`~think_celery.errors.ModelAborted`.

        Raises:
            ModelError: The request failed; ``retryable`` says whether asking again may help. Retrying
                is the turn's business, never the provider's.
        """


@runtime_checkable
class ChecksTools(Protocol):
    """A model that can't be told every schema: it says so when a tool or an output is declared."""

    def check_tool(self, spec: ToolSpec) -> None:
        """Refuse a tool whose schema this model can't be told.

        Raises:
            InvalidTool: It can't; the error names the keyword and where it stands.
        """


Models = str | Model | Sequence[str | Model] | None
"""What an agent names: one model, or several in the order in which they are asked when one fails for good."""


# --- agents and workflows as the domain sees them -------------------------------------------------


class AgentHooks(Protocol):
    """What a turn asks of the user's agent. Our own of these is ``Think``."""

    agent_class: ClassVar[str]
    max_steps: int
    max_chained_turns: int

    def _overrides(self, hook: str) -> bool:
        """Whether there is a hook to call: the agent's class overrides that method of ours."""

    def on_chat_message(self, ctx: Any) -> Any:
        """The answer, of an agent with a loop of its own."""

    def get_model(self) -> Models:
        """The model, or its name such as ``openai/gpt-5``, or several; ``None`` means ``think_model``."""

    def get_system_prompt(self) -> str | None:
        """The system prompt."""

    def on_start(self) -> None:
        """Called when the agent begins, once for each version of its class."""

    def get_tools(self) -> "Sequence[Callable[..., Any] | Tool]":
        """Tools beside the ``@tool`` methods."""


# --- the live log ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One thing that listeners of an agent may see as it happens.

    ``token`` is the writer's fencing token: a reader drops frames of a lower one than it has seen for
    the message. ``n`` counts up within a message and token; a frame that holds several deltas merged into
    one spans ``first`` to ``n``, so a gap in the numbers means lost frames. ``event`` is the JSON that
    listeners get, in the shape of a UI message chunk: ``{"type": "text-delta", "delta": "Hel"}``,
    ``{"type": "reset"}``, ``{"type": "done", "status": "completed"}``.
    """

    agent_id: str
    submission_id: str
    message_id: str
    token: int
    first: int
    n: int
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in an agent's live log. A log that does not know the incarnation answers with a snapshot."""

    incarnation: str
    position: int


@dataclass(frozen=True, slots=True)
class Page:
    """Frames after a cursor. ``lost`` says that the cursor was unknown or below the trimmed edge."""

    frames: Sequence[Frame]
    cursor: Cursor
    lost: bool


class Ears(Protocol):
    """Hears of turns that end, without asking again and again. For one thread."""

    def listen(self, agent_ids: Collection[str], seconds: float) -> set[str]:
        """The agents among these of which a turn has ended since the last call; waits for one, that long at most.

        Raises:
            Exception: The log can't be reached. A later call may hear again.
        """

    def close(self) -> None:
        """Give back what it holds."""


class EventLog(Protocol):
    """The live log. Losing it costs listeners smoothness and nothing else."""

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames, of one or more agents, in order."""

    def head(self, agent_id: str) -> Cursor:
        """The place after the newest frame."""

    def read(self, agent_id: str, after: Cursor, limit: int = 500) -> Page:
        """The frames after a cursor, oldest first; none when there is nothing new."""

    def back(self, agent_id: str, until: Cursor, limit: int = 500) -> Iterator[Frame]:
        """The frames up to a cursor, newest first, as far back as they are kept. They are read *limit* at a time."""

    def ears(self) -> Ears | None:
        """What hears of turns that end; ``None`` where the log would have to be asked, too."""

    def trim(self) -> int:
        """Drop old frames, and say how many."""

    def forget(self, agent_id: str) -> None:
        """Drop every frame of an agent. Its readers are told that frames are missing."""

    def close(self) -> None:
        """Give back what this process holds for it. The next use begins anew."""


# --- the broker -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Knock:
    """A hint that a row has work: the Celery task to send. It carries ids only; losing it is harmless."""

    task: str
    task_id: str
    kwargs: dict[str, str]
    queue: str | None = None
    root_id: str | None = None
    shows: dict[str, str] = field(default_factory=dict)


KnockFunction = Callable[[Knock], None]


class Sentinel(Protocol):
    """Notices that the broker has lost all messages."""

    @property
    def watching(self) -> bool:
        """Whether a loss would be noticed now."""

    def look(self, when_lost: Callable[[], None]) -> None:
        """Call *when_lost* if the messages are gone; again at the next look if that raises."""

    def close(self) -> None:
        """Give back what this process holds for it. The next use begins anew."""


__all__ = [
    "FINAL_ANSWER",
    "AgentHooks",
    "AgentRef",
    "ChecksTools",
    "Cursor",
    "Ears",
    "EventLog",
    "Finish",
    "ForcedTool",
    "Frame",
    "JsonSchema",
    "Knock",
    "KnockFunction",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "ModelTimeouts",
    "Models",
    "Page",
    "ProviderMetadata",
    "ReasoningDelta",
    "ReasoningEnd",
    "Sentinel",
    "StepMetadata",
    "TextDelta",
    "ToolCallComplete",
    "ToolCallDelta",
    "ToolChoice",
    "ToolResult",
    "ToolSpec",
    "Usage",
]
