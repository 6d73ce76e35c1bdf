"""The extra tool whose call carries the answer of a structured turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from think_celery.schemas import check_answer, loaded_output

DESCRIPTION = (
    "Give your final answer. Call it once, when the work is done, with the complete answer as its arguments. "
    "It ends your turn."
)

CHECK = "the output type's validation"

Ask = Callable[[str, Callable[[], Any]], Any]


def _here(_: str, function: Callable[[], Any]) -> Any:
    return function()


@dataclass(frozen=True, slots=True)
class Final:
    """The final-answer tool of one turn: its name there, the schema of the answer, and how often it may be refused.

    ``output`` is the type that was asked for, where this process has it: turns import nothing for it, since a
    worker has imported what its workflows' modules do. Where it is ``None`` the schema alone decides.
    """

    name: str
    schema: JsonSchema
    retries: int = 0
    output: type | None = None

    def look_at(
        self, given: ToolCallComplete | None, ask: Ask = _here, asked: int | None = None
    ) -> tuple[Any, NoFinalAnswer | InvalidFinalAnswer | None]:
        """The answer in this call, or what is wrong with it. It is never repaired.

        The type's validators are the user's own code: *ask* calls it, so that it can be given up. *asked* is how
        often the model was asked by now, where it can be asked again.
        """
        if given is None:
            return None, NoFinalAnswer(self.name, asked)
        check = partial(check_answer, self.schema, given.arguments, self.output)
        answer, problems = check() if self.output is None else ask(CHECK, check)
        return (None, InvalidFinalAnswer(problems, asked)) if problems else (answer, None)


def for_turn(structure: Mapping[str, Any] | None, tools: Mapping[str, object]) -> Final | None:
    """The final-answer tool of a turn with that stored structure; a tool of the same name keeps its name."""
    if structure is None:
        return None
    name, number = FINAL_ANSWER, 0
    while name in tools:
        number += 1
        name = f"{FINAL_ANSWER}_{number}"
    output = loaded_output(structure.get("output"), structure["schema"])
    return Final(name, structure["schema"], structure.get("output_retries") or 0, output)


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
