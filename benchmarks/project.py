"""The agents and workflows that are measured, and models that answer at once."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from think_celery import Think, ThinkWorkflow
from think_celery.protocols import (
    FINAL_ANSWER,
    Finish,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    Usage,
)
from think_celery.signals import AbortSignal

CHUNK = "a word or so "


class InstantModel:
    """Answers at once, with text in so many chunks, or with the final answer that a prompt wants."""

    name = "instant"

    def __init__(self, chunks: int = 1) -> None:
        self._chunks = chunks

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Answer."""
        wanted = next((tool.name for tool in request.tools if tool.name.startswith(FINAL_ANSWER)), None)
        if wanted is not None:
            text = json.dumps({"title": "A title", "labels": ["bug"]})
            yield ToolCallDelta(0, "call_answer", wanted, text)
            yield ToolCallComplete(0, "call_answer", wanted, text)
            yield Finish("tool-calls", "tool_calls", Usage(1, 1, 2))
            return
        for _ in range(self._chunks):
            yield TextDelta(CHUNK)
        yield Finish("stop", "stop", Usage(1, self._chunks, self._chunks + 1))


class Answer1(Think, name="bench-answer-1"):
    """Its turns are answered in one chunk."""

    model = InstantModel(1)


class Answer20(Think, name="bench-answer-20"):
    """Its turns are answered in 20 chunks."""

    model = InstantModel(20)


class Answer200(Think, name="bench-answer-200"):
    """Its turns are answered in 200 chunks."""

    model = InstantModel(200)


ANSWERS: dict[int, type[Think]] = {1: Answer1, 20: Answer20, 200: Answer200}


class Clerk(Think, name="bench-clerk"):
    """Has a method that is scheduled."""

    def note(self, what: str) -> None:
        """Nothing."""


class Draft(BaseModel):
    """What a prompt asks for."""

    title: str
    labels: list[str]


class Steps(ThinkWorkflow, name="bench-steps"):
    """So many steps that do nothing; its output says when the first began and the last was stored."""

    def run(self, event: Any, step: Any) -> dict[str, float]:
        """Take the steps."""
        began = time.monotonic()
        for number in range(event.payload["steps"]):
            step.do(f"step-{number}", nothing)
        return {"began": began, "ended": time.monotonic()}


def nothing() -> None:
    """What such a step does."""


class Replayed(ThinkWorkflow, name="bench-replayed"):
    """So many steps that do nothing, and then an event, for which it waits."""

    def run(self, event: Any, step: Any) -> None:
        """Take the steps, and wait."""
        for number in range(event.payload["steps"]):
            step.do(f"step-{number}", nothing)
        step.wait_for_event("go", type="go")


class Waiter(ThinkWorkflow, name="bench-waiter"):
    """Waits for one event, as long as thirty days; its output says when it went on."""

    def run(self, event: Any, step: Any) -> dict[str, float]:
        """Wait."""
        step.wait_for_event("go", type="go", timeout="30 days")
        return {"went_on": time.monotonic()}


class Asker(ThinkWorkflow, name="bench-asker"):
    """One prompt."""

    def run(self, event: Any, step: Any) -> str:
        """Ask."""
        return step.prompt("ask", prompt="Triage this report.", output=Draft).title


class SlowModel:
    """The first time it is asked in a project's folder it streams until it is killed or told to stop; then at once.

    The file ``asked-<name>`` in the folder ``BENCH_FOLDER`` says who was asked first.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Stream."""
        try:
            mark = os.open(
                Path(os.environ["BENCH_FOLDER"], f"asked-{self.name}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY
            )
        except FileExistsError:
            yield TextDelta("the rest")
            yield Finish("stop", "stop", Usage(1, 1, 2))
            return
        os.write(mark, str(os.getpid()).encode())
        os.close(mark)
        while not signal.wait(0.05):
            yield TextDelta(CHUNK)


class Streams(Think, name="bench-streams"):
    """Its first turn goes on until its worker dies or stops."""

    def get_model(self) -> SlowModel:
        """One that knows this agent's name."""
        return SlowModel(self.name)


class Nobodys(Think, name="bench-nobodys"):
    """Its turns go to a queue that no worker serves."""

    queue = "nobody"
