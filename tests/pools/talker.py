"""Agents that use what a turn can do beside answering (hooks, chains, approvals, state), jobs, and all of `step`."""

import itertools
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import BaseModel

from tests.crash.project import effect
from think_celery import (
    ChatAgent,
    ChatContext,
    ChatResponseResult,
    Fiber,
    Retry,
    Think,
    ThinkWorkflow,
    ToolCallContext,
    ToolCallDecision,
    TurnConfig,
    TurnContext,
    WorkflowNews,
    tool,
)
from think_celery.errors import ModelAborted
from think_celery.messages import ToolPart
from think_celery.protocols import (
    FINAL_ANSWER,
    Finish,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCallComplete,
    Usage,
)
from think_celery.signals import AbortSignal


class Correspondent(Think):
    """Says what it is told; ``pay`` and ``peek`` call tools, ``draft`` leads to a second turn, ``slowly`` is long.

    Whoever listens is told that it has heard ``loud``.
    """

    initial_state: ClassVar[Any] = {"told": 0}
    message_concurrency = "latest"

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
        if result.message.text == "loud":
            self.broadcast({"heard": "loud"})

    def carry(self, what: str) -> str:
        """What is queued; ``a lot`` takes a while."""
        effect(f"carries {what}", self.name)
        time.sleep(2.0 if what == "a lot" else 0.0)
        return f"carried {what}"

    def walk(self, fiber: Fiber, where: str) -> str:
        """What a fiber does; it comes ``far`` only in a second worker."""
        if fiber.attempt == 1:
            fiber.stash(f"half of {where}")
            effect(f"walks {where}", self.name)
            while where == "far":
                fiber.signal.wait(0.1)
                fiber.check()
        return f"walked {fiber.snapshot}"


class Soloist(ChatAgent):
    """Answers by itself."""

    def on_chat_message(self, ctx: ChatContext) -> Iterator[Any]:
        """Say what it was told, in two pieces."""
        yield "You said: "
        yield TextDelta(ctx.messages[-1].text)


class Relay(ThinkWorkflow[Correspondent, dict[str, Any]]):
    """Its second step is for workers of another queue, and the first try of it fails."""

    def run(self, event: Any, step: Any) -> list[str]:
        """Here, there, and here again."""
        tries = itertools.count(1)

        def there() -> str:
            effect("there", event.workflow_id)
            if next(tries) == 1:
                raise OSError("not yet")
            return "there"

        here = step.do("here", lambda: effect("here", event.workflow_id))
        far = step.do("there", there, queue=event.payload["queue"], retry=Retry(max_attempts=3, delay=0))
        back = step.do("back", lambda: effect("back", event.workflow_id))
        return [here, far, back]


class RoundTrip(ThinkWorkflow[Correspondent, dict[str, Any]]):
    """Does something at home, in the queue that its params name, and at home again."""

    def run(self, event: Any, step: Any) -> list[str]:
        """There and back."""
        return [
            step.do("here", lambda: effect("here", event.workflow_id)),
            step.do("there", lambda: effect("there", event.workflow_id), queue=event.payload["queue"]),
            step.do("back", lambda: effect("back", event.workflow_id)),
        ]


class Word(BaseModel):
    """What a prompt of a journey is answered with."""

    word: str


class Chronicler(Correspondent):
    """Writes down what its workflows tell it."""

    def on_workflow_event(self, news: WorkflowNews) -> None:
        """What a step sends."""
        effect(f"event {news.event}", news.workflow_id)

    def on_workflow_complete(self, news: WorkflowNews) -> None:
        """What one returned."""
        effect(f"complete {news.output}", news.workflow_id)


class Sideline(ThinkWorkflow[Chronicler, dict[str, Any]]):
    """What a journey sends somebody on."""

    def run(self, event: Any, step: Any) -> str:
        """Ask, and come back."""
        asked = step.prompt("ask", prompt="errand", output=Word, agent=("Chronicler", "eve"))
        return f"{asked.word} done"


class Itinerary(ThinkWorkflow[Chronicler, dict[str, Any]]):
    """Each kind of step that the other workflows here do not take."""

    def run(self, event: Any, step: Any) -> list[Any]:
        """Several answers, the first of two things, a child, times, a state, and news on the way."""

        def asks(name: str) -> Any:
            return step.start_prompt("ask", key=name, prompt=name, output=Word, agent=("Chronicler", name))

        step.sleep_until("soon", step.now() + timedelta(seconds=0.1))
        both = [answer.word for answer in step.gather(*map(asks, ("bob", "cid")))]
        first = step.wait_any("never", asks("dan"), timeout=60)
        errand = step.run_workflow("errand", Sideline, {})
        state = step.update_agent_state(lambda state: {**state, "journeys": state.get("journeys", 0) + 1})
        step.send_event("half", errand)
        step.report_complete("nearly")
        return [*both, first.name, first.payload.word, errand, state["journeys"]]


class _Parrot:
    name = "parrot"

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Call a tool where the last message asks for one; else say that message, or what the tool has answered."""
        assert request.system == "hooked"
        last = request.messages[-1]
        calls = [part for part in last.parts if isinstance(part, ToolPart)]
        word = next(message.text for message in reversed(request.messages) if message.role == "user")
        if FINAL_ANSWER in [tool.name for tool in request.tools]:
            yield ToolCallComplete(0, "call-answer", FINAL_ANSWER, json.dumps({"word": word}))
            yield Finish("tool-calls", None, Usage(1, 2, 3))
            return
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
