"""What a turn asks of the model next."""

from collections.abc import Sequence
from dataclasses import dataclass

from think_celery.domain import continuations, conversation, finals
from think_celery.domain.answers import Answer
from think_celery.messages import UIMessage, user
from think_celery.protocols import ModelRequest, ModelTimeouts, ToolSpec
from think_celery.settings import Settings
from think_celery.tools import Tool

GO_ON = (
    "Your answer above was cut off by an interruption. Continue it exactly where it stops: "
    "repeat nothing and add no remark about the interruption."
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all requests of one turn share.

    ``nudge`` is what the model is told, without being stored, where it is asked just after an answer of its own.
    """

    system: str | None
    transcript: Sequence[UIMessage]
    tools: Sequence[Tool]
    final: finals.Final | None
    max_steps: int
    timeouts: ModelTimeouts
    nudge: str | None = None


def timeouts(settings: Settings) -> ModelTimeouts:
    """How long a model may take by these settings."""
    return ModelTimeouts(
        connect=settings.connect_timeout_seconds,
        first_token=settings.first_token_timeout_seconds,
        token_gap=settings.token_gap_timeout_seconds,
    )


def next_request(plan: Plan, answer: Answer, message_id: str, *, continues: bool) -> ModelRequest:
    """The request for the next model step of *answer*, or for the rest of one that was cut: *continues*.

    On the last permitted step of a structured turn only its answer is offered.
    """
    messages = list(plan.transcript)
    if conversation.says_something(answer.parts):
        messages.append(UIMessage(id=message_id, role="assistant", parts=answer.parts))
    messages = conversation.repaired(messages)
    if continues:
        messages.append(user(GO_ON))
    elif plan.nudge is not None and continuations.ends_with_an_answer(messages):
        messages.append(user(plan.nudge))
    specs = [
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in plan.tools
    ]
    step = answer.steps if continues else answer.steps + 1
    choice, offered = finals.offer(plan.final, specs, last=step >= plan.max_steps)
    return ModelRequest(
        system=plan.system,
        messages=messages,
        tools=offered,
        tool_choice=choice,
        timeouts=plan.timeouts,
    )
