"""An agent that uses what a turn can do beside answering: hooks, chains, approvals, state."""

from collections.abc import Iterator
from typing import Any, ClassVar

from tests.crash.project import effect
from think_celery import (
    ChatResponseResult,
    Think,
    ToolCallContext,
    ToolCallDecision,
    TurnConfig,
    TurnContext,
    tool,
)
from think_celery.errors import ModelAborted
from think_celery.messages import ToolPart
from think_celery.protocols import Finish, ModelEvent, ModelRequest, TextDelta, ToolCallComplete, Usage
from think_celery.signals import AbortSignal


class Correspondent(Think):
    """Says what it is told; ``pay`` and ``peek`` call tools, ``draft`` leads to a second turn, ``slowly`` is long."""

    initial_state: ClassVar[Any] = {"told": 0}

    def get_model(self) -> Any:
        """A model that needs no server."""
        return _Parrot()

    @tool(needs_approval=True)
    def pay(self) -> str:
        """Pay."""
        return effect("pay", self.name)

    @tool
    def peek(self) -> str:
        """Never allowed to run."""
        return effect("peek", self.name)

    def before_turn(self, ctx: TurnContext) -> TurnConfig | None:
        """The prompt of the system tells the model that hooks are asked."""
        return TurnConfig(system="hooked")

    def before_tool_call(self, ctx: ToolCallContext) -> ToolCallDecision | None:
        """Nobody peeks."""
        return ToolCallDecision.block("no peeking") if ctx.tool_name == "peek" else None

    def on_chat_response(self, result: ChatResponseResult) -> None:
        """Count it, write it down, and let a draft lead to a better answer."""
        self.update_state(lambda state: {"told": state["told"] + 1})
        effect(f"told {result.status}", result.submission_id)
        if result.message.text == "draft":
            better = self.save_messages("better")
            effect(f"chained {better.text}", better.submission_id)


class _Parrot:
    name = "parrot"

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Call a tool where the last message asks for one; else say that message, or what the tool has answered."""
        assert request.system == "hooked"
        last = request.messages[-1]
        calls = [part for part in last.parts if isinstance(part, ToolPart)]
        word = next(message.text for message in reversed(request.messages) if message.role == "user")
        if word in ("pay", "peek") and not calls:
            yield ToolCallComplete(0, f"call-{len(request.messages)}", word, "{}")
        elif word == "slowly":
            for _ in range(600):
                yield TextDelta("slowly ")
                if signal.wait(0.1):
                    raise ModelAborted("told to stop")
        else:
            yield TextDelta(str(calls[-1].output or calls[-1].error_text) if calls else word)
        yield Finish("tool-calls" if word in ("pay", "peek") and not calls else "stop", None, Usage(1, 2, 3))
