"""The extra tool whose call carries the answer of a structured turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from think_celery.errors import InvalidFinalAnswer
from think_celery.protocols import FINAL_ANSWER, ForcedTool, JsonSchema, ToolChoice, ToolSpec
from think_celery.schemas import check_answer

DESCRIPTION = (
    "Give your final answer. Call it once, when the work is done, with the complete answer as its arguments. "
    "It ends your turn."
)


@dataclass(frozen=True, slots=True)
class Final:
    """The final-answer tool of one turn: its name there, and the schema of the answer."""

    name: str
    schema: JsonSchema

    def check(self, arguments: str) -> Any:
        """The answer in these arguments.

        Raises:
            InvalidFinalAnswer: It does not fit the schema. It is never repaired.
        """
        answer, problems = check_answer(self.schema, arguments)
        if problems:
            raise InvalidFinalAnswer(problems)
        return answer


def for_turn(structure: Mapping[str, Any] | None, tools: Mapping[str, object]) -> Final | None:
    """The final-answer tool of a turn with that stored structure; a tool of the same name keeps its name."""
    if structure is None:
        return None
    name, number = FINAL_ANSWER, 0
    while name in tools:
        number += 1
        name = f"{FINAL_ANSWER}_{number}"
    return Final(name, structure["schema"])


def offer(
    final: Final | None, specs: Sequence[ToolSpec], *, last: bool
) -> tuple[ToolChoice, Sequence[ToolSpec]]:
    """Tool choice and tools of one request: on the *last* permitted step only the answer is offered."""
    if final is None:
        return "auto", specs
    own = ToolSpec(name=final.name, description=DESCRIPTION, parameters=final.schema)
    if last or not specs:
        return ForcedTool(name=final.name), [own]
    return "required", [*specs, own]
