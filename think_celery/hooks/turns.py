"""What the hooks of a turn are told, and what they may answer. All of it is data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from think_celery.errors import InvalidValue
from think_celery.messages import ToolPart, UIMessage
from think_celery.names import refuse_unknown
from think_celery.protocols import ForcedTool, Model, ModelEvent, ToolChoice, ToolSpec, Usage
from think_celery.signals import AbortSignal
from think_celery.states import SubmissionStatus, TurnKind
from think_celery.tools import Tool
from think_celery.wording import a_type


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnInfo:
    """Which turn it is. What every hook of a turn is told has these fields.

    ``kind`` is how it was asked for (``submit``, ``save``, ``chat`` by a client, ``scheduled``, or ``continue``);
    ``continuation`` says that it goes on in an answer that was there before. ``attempt`` counts from 1. ``metadata`` is
    the submission's. ``signal`` comes when the turn should end.
    """

    submission_id: str
    message_id: str
    kind: TurnKind
    continuation: bool
    attempt: int
    metadata: dict[str, Any] | None = field(repr=False)
    signal: AbortSignal = field(repr=False, compare=False)

    @property
    def request_id(self) -> str:
        """The same as ``submission_id``."""
        return self.submission_id


# --- results of steps -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult(TurnInfo):
    """A model step that is over, with the results of its tool calls: what :meth:`~Think.on_step_finish` is told.

    ``step`` counts from 0. ``finish_reason`` and ``usage`` are not known of steps that another worker made before
    it died: there they are ``None``.
    """

    step: int
    text: str = field(repr=False)
    reasoning: str = field(repr=False)
    tool_calls: Sequence[ToolPart] = field(repr=False)
    finish_reason: str | None
    raw_finish_reason: str | None
    usage: Usage | None


StopCondition = Callable[[Sequence[StepResult]], bool]
"""Told all steps of the turn so far, it says whether the turn ends here, before the model is asked again."""


def step_count_is(number: int) -> StopCondition:
    """A stop condition: that many model steps were made."""
    return lambda steps: len(steps) >= number


def has_tool_call(*names: str) -> StopCondition:
    """A stop condition: the last step called one of these tools."""
    return lambda steps: bool(steps) and any(call.tool_name in names for call in steps[-1].tool_calls)


# --- the turn and its steps -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnContext(TurnInfo):
    """What ``before_turn`` is told: what the turn would do without it.

    ``model`` is ``None`` where the agent has none of its own. ``messages`` is the conversation up to the answer.
    ``tools`` are the agent's. ``final_answer`` is the tool that
    carries the answer of a structured turn (``step.prompt``), and ``None`` in every other turn.
    """

    model: Model | None = field(repr=False)
    system: str | None = field(repr=False)
    messages: Sequence[UIMessage] = field(repr=False)
    tools: Sequence[Tool] = field(repr=False)
    max_steps: int
    final_answer: ToolSpec | None = field(repr=False)


@refuse_unknown
@dataclass(frozen=True, kw_only=True, slots=True)
class StepConfig:
    """What ``before_step`` may decide for one request to the model. What is left out stays as it is.

    ``messages`` replaces everything that is sent, the answer so far too; nothing of it is stored.
    ``active_tools`` are the names of the tools that are offered; a call of another one is answered with an error.
    ``headers`` and ``provider_options`` come on top of what the turn has.
    """

    model: str | Model | None = None
    system: str | None = field(default=None, repr=False)
    messages: Sequence[UIMessage] | None = field(default=None, repr=False)
    active_tools: Sequence[str] | None = None
    tool_choice: ToolChoice | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    provider_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_system(self)
        _check_messages(self)
        _check_names(self, "active_tools")
        _check_choice(self)
        _check_number(self, "temperature", whole=False, least=0)
        _check_number(self, "max_output_tokens", whole=True, least=1)
        _check_mapping(self, "headers")
        _check_mapping(self, "provider_options")


@refuse_unknown
@dataclass(frozen=True, kw_only=True, slots=True)
class TurnConfig(StepConfig):
    """What ``before_turn`` may decide for the whole turn. What is left out stays as it is.

    ``messages`` replaces the conversation that is sent; nothing of it is stored. ``tools`` are offered beside the
    agent's own. ``max_steps`` is how often the model may be asked. The turn ends, complete, after a step for which one
    of the conditions in ``stop_when`` holds. In a structured turn (``step.prompt``) another ``tool_choice`` is
    yours to answer for: if the model then gives no final answer, the turn fails.
    """

    tools: Sequence[Callable[..., Any] | Tool] = ()
    max_steps: int | None = None
    stop_when: StopCondition | Sequence[StopCondition] = ()

    def __post_init__(self) -> None:
        super(TurnConfig, self).__post_init__()  # a class with slots is made twice, so not `super()`
        _check_number(self, "max_steps", whole=True, least=1)
        given: object = self.tools
        if not isinstance(given, Iterable) or isinstance(given, str):
            _refuse(self, "tools", "a list of functions or Tool objects")
        if not all(callable(each) for each in self.conditions):
            raise InvalidValue(
                "TurnConfig.stop_when must be functions of the steps so far that return a bool."
            )

    @property
    def conditions(self) -> Sequence[StopCondition]:
        """The stop conditions, as a list."""
        given: object = self.stop_when
        if callable(given):
            return [given]
        return list(given) if isinstance(given, Iterable) else [given]  # type: ignore[list-item]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStepContext(TurnInfo):
    """What ``before_step`` is told: the request that would be made. ``step`` counts from 0.

    ``steps`` are those before it. ``messages`` is the whole conversation as it would be sent.
    """

    step: int
    steps: Sequence[StepResult] = field(repr=False)
    model: Model = field(repr=False)
    system: str | None = field(repr=False)
    messages: Sequence[UIMessage] = field(repr=False)
    tools: Sequence[ToolSpec] = field(repr=False)
    tool_choice: ToolChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkContext(TurnInfo):
    """What ``on_chunk`` is told: an event of the model, just as it came."""

    step: int
    event: ModelEvent = field(repr=False)


# --- tool calls -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallContext(TurnInfo):
    """What ``before_tool_call`` is told of a call that fits its tool. ``step`` counts from 0.

    ``input`` are the arguments as JSON values. ``idempotency_key`` is the one that the tool gets, too: the same
    whenever this very call is repeated after a crash.
    """

    step: int
    tool_name: str
    tool_call_id: str
    input: dict[str, Any] = field(repr=False)
    idempotency_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallDecision:
    """What ``before_tool_call`` may answer; ``None`` allows the call as it is.

    Raises:
        InvalidValue: Another action is named, or what goes with it is unfit: a call is never allowed by mistake.
    """

    action: Literal["allow", "block", "substitute"]
    input: dict[str, Any] | None = field(default=None, repr=False)
    reason: str | None = field(default=None, repr=False)
    output: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        action, given, reason = self._fields()
        if action not in ("allow", "block", "substitute"):
            raise InvalidValue(
                f"ToolCallDecision(action={action!r}) is no decision: there are allow, block and substitute. Write "
                "ToolCallDecision.allow(), .block(reason) or .substitute(output)."
            )
        if given is not None and not (isinstance(given, dict) and action == "allow"):
            raise InvalidValue(
                f"ToolCallDecision.input is {a_type(given)} beside {action!r}: only a call that is allowed "
                "takes other arguments, as a dict. Write ToolCallDecision.allow({…})."
            )
        if reason is not None and not isinstance(reason, str):
            raise InvalidValue(
                f"ToolCallDecision.reason is {a_type(reason)}: it must be a text, for the model is told it."
            )

    def _fields(self) -> tuple[object, object, object]:
        """What was passed, whatever its type."""
        return self.action, self.input, self.reason

    @classmethod
    def allow(cls, input: dict[str, Any] | None = None) -> Self:
        """Let the tool run; with *input*, on these arguments, which are checked like the model's."""
        return cls(action="allow", input=input)

    @classmethod
    def block(cls, reason: str) -> Self:
        """Don't run the tool. The model is told the reason as the call's error, and goes on."""
        return cls(action="block", reason=reason)

    @classmethod
    def substitute(cls, output: Any) -> Self:
        """Don't run the tool. The model gets *output* (what a tool may return) as the call's result."""
        return cls(action="substitute", output=output)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResultContext(ToolCallContext):
    """What ``after_tool_call`` is told: a call with its result, which is stored.

    ``error`` is the text that the model gets instead of an ``output``. ``seconds`` is how long the tool ran.
    """

    action: Literal["allow", "block", "substitute"]
    output: Any = field(repr=False)
    error: str | None = field(repr=False)
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether there is an output."""
        return self.error is None


# --- ends -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatErrorContext(TurnInfo):
    """What ``on_chat_error`` is told beside the error. ``partial`` is what there is of the answer."""

    partial: UIMessage = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatResponseResult:
    """How a turn has ended: what ``on_chat_response`` is told. All of it is stored.

    ``message`` is the answer, without parts where nothing was said. ``kind`` is how the turn was asked for,
    ``continuation`` says that it went on in an answer that was there before. ``error`` is the reason of one that was
    cancelled, too. ``metadata`` is the submission's; ``output`` the value of a structured turn.
    """

    submission_id: str
    message: UIMessage = field(repr=False)
    kind: str
    continuation: bool
    status: SubmissionStatus
    error_type: str | None
    error: str | None = field(repr=False)
    metadata: dict[str, Any] | None = field(repr=False)
    output: Any = field(default=None, repr=False)

    @property
    def request_id(self) -> str:
        """The same as ``submission_id``."""
        return self.submission_id


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusChange:
    """What a submission has become: what ``on_submission_status`` is told. ``metadata`` is the submission's."""

    submission_id: str
    status: SubmissionStatus
    error_type: str | None = None
    error: str | None = field(default=None, repr=False)
    metadata: dict[str, Any] | None = field(default=None, repr=False)


# --- a loop of one's own --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatContext(TurnInfo):
    """What ``on_chat_message`` is told.

    ``messages`` is the conversation to answer, fit for a model: every tool call in it has a result. After a crash
    that cut the answer, it ends with what there is of it (``partial``) and with the wish, which is not stored, to
    continue exactly there. ``final_answer`` is the tool whose call carries the answer of a structured turn
    (``step.prompt``).
    """

    messages: Sequence[UIMessage] = field(repr=False)
    partial: UIMessage | None = field(repr=False)
    final_answer: ToolSpec | None = field(repr=False)


# --- checks ---------------------------------------------------------------------------------------


def _check_system(config: StepConfig) -> None:
    given: object = config.system
    if not isinstance(given, str | None):
        _refuse(config, "system", "a text")


def _check_messages(config: StepConfig) -> None:
    given: object = config.messages
    if given is None:
        return
    if not isinstance(given, Sequence) or not all(isinstance(each, UIMessage) for each in given):
        _refuse(config, "messages", "a list of UIMessage, such as some of ctx.messages")


def _check_names(config: StepConfig, name: str) -> None:
    given = getattr(config, name)
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    if given is not None and not (is_list and all(isinstance(each, str) for each in given)):
        _refuse(config, name, "a list of names of tools")


def _check_choice(config: StepConfig) -> None:
    given: object = config.tool_choice
    if given is not None and given not in ("auto", "required", "none") and not isinstance(given, ForcedTool):
        _refuse(config, "tool_choice", '"auto", "required", "none" or ForcedTool(name="…")')


def _check_number(config: StepConfig, name: str, *, whole: bool, least: int) -> None:
    given: Any = getattr(config, name)
    if given is None:
        return
    fits = isinstance(given, int if whole else int | float) and not isinstance(given, bool)
    if not fits or not given >= least:
        _refuse(config, name, f"a {'whole ' if whole else ''}number, {least} or more")


def _check_mapping(config: StepConfig, name: str) -> None:
    given = getattr(config, name)
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        _refuse(config, name, "a dict with texts as its keys")


def _refuse(config: StepConfig, name: str, wanted: str) -> None:
    given = type(getattr(config, name)).__name__
    raise InvalidValue(f"{type(config).__name__}.{name} (a {given}) can't be used: it must be {wanted}.")
