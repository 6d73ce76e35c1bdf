"""What a turn asks of the model next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from think_celery.domain.conversation import conversation
from think_celery.domain.turns import continuations, finals, outputs
from think_celery.domain.turns.answers import Answer
from think_celery.errors import InvalidValue
from think_celery.hooks.turns import StepConfig
from think_celery.messages import UIMessage, user
from think_celery.protocols import ForcedTool, ModelRequest, ModelTimeouts, ToolChoice, ToolSpec
from think_celery.settings import Settings
from think_celery.tools import Tool

T = TypeVar("T")

GO_ON = (
    "Your answer above was cut off by an interruption. Continue it exactly where it stops: "
    "repeat nothing and add no remark about the interruption."
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all requests of one turn share. ``offered`` are the tools that the model is told of.

    ``nudge`` is what the model is told, without being stored, where it is asked just after an answer of its own.
    """

    system: str | None
    transcript: Sequence[UIMessage]
    offered: Sequence[Tool]
    final: finals.Final | None
    max_steps: int
    timeouts: ModelTimeouts
    nudge: str | None = None
    tool_choice: ToolChoice | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, Any] = field(default_factory=dict)


def timeouts(settings: Settings) -> ModelTimeouts:
    """How long a model may take by these settings."""
    return ModelTimeouts(
        connect=settings.connect_timeout_seconds,
        first_token=settings.first_token_timeout_seconds,
        token_gap=settings.token_gap_timeout_seconds,
    )


def so_far(
    transcript: Sequence[UIMessage],
    answer: Answer,
    message_id: str,
    *,
    continues: bool,
    nudge: str | None = None,
    refused: Sequence[outputs.Refused] = (),
    final: str = "",
) -> list[UIMessage]:
    """The conversation with what there is of the *answer*, fit for a model.

    Last comes what the model has to be told, without its being stored: to go on, if the answer *continues* a text
    that was cut, or else the *nudge* after an answer of its own. The answers that were *refused* are shown as calls
    of the tool *final*.
    """
    messages = list(transcript)
    parts = outputs.with_refused(answer.parts, refused, final)
    if conversation.says_something(parts):
        messages.append(UIMessage(id=message_id, role="assistant", parts=parts))
    messages = conversation.repaired(messages)
    if reminder := outputs.reminder(refused, answer.steps, final):
        messages.append(reminder)
    if continues:
        messages.append(user(GO_ON))
    elif nudge is not None and continuations.ends_with_an_answer(messages):
        messages.append(user(nudge))
    return messages


def next_request(
    plan: Plan, answer: Answer, message_id: str, *, continues: bool, refused: Sequence[outputs.Refused] = ()
) -> ModelRequest:
    """The request for the next model step of *answer*, or for the rest of one that was cut: *continues*.

    In a structured turn the model sees its *refused* answers. Where the steps that are left are needed for the answer
    and its retries, only the answer is offered.
    """
    specs = [
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in plan.offered
    ]
    step = answer.steps if continues else answer.steps + 1
    left = 0 if plan.final is None else max(plan.final.retries - len(refused), 0)
    last = step + left >= plan.max_steps
    choice, offered = finals.offer(plan.final, specs, last=last, choice=plan.tool_choice)
    messages = so_far(
        plan.transcript,
        answer,
        message_id,
        continues=continues,
        nudge=plan.nudge,
        refused=refused,
        final="" if plan.final is None else plan.final.name,
    )
    return ModelRequest(
        system=plan.system,
        messages=messages,
        tools=offered,
        tool_choice=choice,
        timeouts=plan.timeouts,
        temperature=plan.temperature,
        max_output_tokens=plan.max_output_tokens,
        headers=plan.headers,
        provider_options=plan.provider_options,
    )


def changed(request: ModelRequest, config: StepConfig, hook: str, final: str | None) -> ModelRequest:
    """The request as ``before_step`` wants it. The tool that carries a structured answer is always offered.

    Raises:
        InvalidValue: A tool that is named is none of those in the request.
    """
    tools = request.tools
    if config.active_tools is not None:
        names = active(config.active_tools, [spec.name for spec in tools], hook)
        tools = [spec for spec in tools if spec.name in names or spec.name == final]
    choice = config.tool_choice or request.tool_choice
    if isinstance(choice, ForcedTool) and choice.name not in {spec.name for spec in tools}:
        if config.tool_choice is not None:
            active([choice.name], [spec.name for spec in tools], hook)
        choice = "auto"
    messages = request.messages if config.messages is None else conversation.repaired(config.messages)
    return replace(
        request,
        system=request.system if config.system is None else config.system,
        messages=messages,
        tools=tools,
        tool_choice=choice if tools else "auto",
        temperature=_or(config.temperature, request.temperature),
        max_output_tokens=_or(config.max_output_tokens, request.max_output_tokens),
        headers={**request.headers, **config.headers},
        provider_options={**request.provider_options, **config.provider_options},
    )


def active(names: Sequence[str], known: Sequence[str], hook: str) -> set[str]:
    """The names of tools that *hook* has chosen among those that are *known*.

    Raises:
        InvalidValue: One of them is no tool's.
    """
    unknown = [name for name in names if name not in known]
    if unknown:
        there = ", ".join(known) or "none"
        raise InvalidValue(f"{hook} named the tool {unknown[0]!r}, and there is none. There are: {there}.")
    return set(names)


def _or(given: T | None, usual: T | None) -> T | None:
    return usual if given is None else given
