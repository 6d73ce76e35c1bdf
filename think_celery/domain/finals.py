"""The extra tool whose call carries the answer of a structured turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from think_celery.errors import InvalidFinalAnswer, NoFinalAnswer
from think_celery.protocols import (
    FINAL_ANSWER,
    ForcedTool,
    JsonSchema,
    ToolCallComplete,
    ToolChoice,
    ToolSpec,
)
from think_celery.schemas import check_answer

DESCRIPTION = (
    "Give your final answer. Call it once, when the work is done, with the complete answer as its arguments. "
    "It ends your turn."
)


@dataclass(frozen=True, slots=True)
class Final:
    """The final-answer tool of one turn: its name there, the schema of the answer, and how often it may be refused."""

    name: str
    schema: JsonSchema
    retries: int = 0

    def look_at(
        self, given: ToolCallComplete | None
    ) -> tuple[Any, NoFinalAnswer | InvalidFinalAnswer | None]:
        """The answer in this call, or what is wrong with it. It is never repaired."""
        if given is None:
            return None, NoFinalAnswer(self.name)
        answer, problems = check_answer(self.schema, given.arguments)
        return (None, InvalidFinalAnswer(problems)) if problems else (answer, None)


def for_turn(structure: Mapping[str, Any] | None, tools: Mapping[str, object]) -> Final | None:
    """The final-answer tool of a turn with that stored structure; a tool of the same name keeps its name."""
    if structure is None:
        return None
    name, number = FINAL_ANSWER, 0
    while name in tools:
        number += 1
        name = f"{FINAL_ANSWER}_{number}"
    return Final(name, structure["schema"], structure.get("output_retries") or 0)


def offer(
    final: Final | None, specs: Sequence[ToolSpec], *, last: bool, choice: ToolChoice | None = None
) -> tuple[ToolChoice, Sequence[ToolSpec]]:
    """Tool choice and tools of one request: on the *last* permitted step only the answer is offered.

    A *choice* of the user's own stands wherever it is possible: it may name no tool that is not offered.
    """
    usual: ToolChoice = "auto"
    offered = specs
    if final is not None:
        only, usual = last or not specs, "required"
        own = spec_of(final)
        offered = [own] if only else [*specs, own]
        if only:
            usual = ForcedTool(name=final.name)
    names = {spec.name for spec in offered}
    if choice is None or not names or (isinstance(choice, ForcedTool) and choice.name not in names):
        return usual, offered
    return choice, offered


def spec_of(final: Final) -> ToolSpec:
    """The final-answer tool as a model is told of it."""
    return ToolSpec(name=final.name, description=DESCRIPTION, parameters=final.schema)
