"""Final answers that were refused: kept with the turn's message, and shown to the model, which answers again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from think_celery.errors import InvalidFinalAnswer, NoFinalAnswer
from think_celery.messages import Part, StepStartPart, ToolPart, UIMessage, clean, user
from think_celery.protocols import ProviderMetadata, ToolCallComplete

NOT_CALLED = "(the whole): the turn ended without an answer"

KEPT = "output_retries"
"""Where in the message's metadata the refused answers are."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A final answer that was none. ``arguments`` is ``None`` where the model did not give one at all."""

    step: int
    problems: list[str]
    arguments: str | None = None
    metadata: ProviderMetadata | None = None

    @property
    def told(self) -> str:
        """What the model is told of it."""
        return f"It does not fit: {'; '.join(self.problems)}. Call the tool again with the complete, corrected answer."


def refused_in(metadata: dict[str, Any]) -> list[Refused]:
    """The answers that have been refused so far, oldest first."""
    return [
        Refused(each["step"], each["problems"], each.get("answer"), each.get("provider_metadata"))
        for each in metadata.get(KEPT, ())
    ]


def was_refused(refused: Sequence[Refused], step: int) -> bool:
    """Whether the answer of that step was."""
    return bool(refused) and refused[-1].step == step


def with_steps(parts: list[Part], refused: Sequence[Refused]) -> list[Part]:
    """The parts with the mark of the last step whose answer was refused, where nothing else of it is left."""
    last = refused[-1].step if refused else 0
    missing = last - sum(isinstance(part, StepStartPart) for part in parts)
    return [*parts, *(StepStartPart() for _ in range(missing))]


def keep(
    metadata: dict[str, Any],
    step: int,
    error: NoFinalAnswer | InvalidFinalAnswer,
    given: ToolCallComplete | None,
) -> None:
    """Note in a message's metadata that the answer which that step gave was refused."""
    problems = list(error.problems) if isinstance(error, InvalidFinalAnswer) else [NOT_CALLED]
    entry: dict[str, Any] = {"step": step, "problems": clean(problems)}
    if given is not None:
        entry["answer"] = clean(given.arguments)
        if given.metadata:
            entry["provider_metadata"] = clean(given.metadata)
    metadata[KEPT] = [*metadata.get(KEPT, ()), entry]


def with_refused(parts: Sequence[Part], refused: Sequence[Refused], name: str) -> list[Part]:
    """The parts of a turn's message with its refused answers, each as a call of the tool *name* that failed."""
    calls = {each.step: _call(each, name) for each in refused if each.arguments is not None}
    whole: list[Part] = []
    step = 0
    for part in parts:
        if isinstance(part, StepStartPart):
            whole += [calls[step]] if step in calls else []
            step += 1
        whole.append(part)
    return [*whole, *([calls[step]] if step in calls else [])]


def reminder(refused: Sequence[Refused], step: int, name: str) -> UIMessage | None:
    """What a model is told that has just ended its turn, in that step, without giving an answer at all."""
    if not was_refused(refused, step) or refused[-1].arguments is not None:
        return None
    return user(
        f"You ended your turn without calling the tool {name}. Only its arguments count as your answer: call it now, "
        "with the complete answer."
    )


def _call(refused: Refused, name: str) -> ToolPart:
    return ToolPart(
        type=f"tool-{name}",
        tool_call_id=f"answer_{refused.step}",
        state="output-error",
        input=refused.arguments,
        error_text=refused.told,
        call_provider_metadata=refused.metadata,
    )
