"""Agents that ask each other, a workflow whose step asks, and a task of the host's own that does; all of them wait."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery

from think_celery import Think, ThinkCelery, ThinkWorkflow
from think_celery.protocols import Finish, ModelEvent, ModelRequest, TextDelta, ToolCallComplete, Usage
from think_celery.signals import AbortSignal
from think_celery.tools import tool


def make_app(environ: Mapping[str, str]) -> Celery:
    """The app, with everything where the environment says."""
    app = Celery("waits", set_as_current=False)
    app.conf.update(
        broker_url=environ["WAITS_BROKER"],
        broker_connection_retry_on_startup=True,
        task_default_queue=environ["WAITS_QUEUE"],
        think_database_url=environ["WAITS_DATABASE"],
        think_imports=["tests.waits.project"],
        think_live_database_url=environ["WAITS_LIVE"],
        worker_prefetch_multiplier=1,
    )
    ThinkCelery(app)

    app.task(name="waits.ask")(ask)
    return app


def ask(name: str) -> str:
    """A task of the host's that waits for an agent."""
    return Echo(name).save_messages("from a task", timeout=60).text


class Mind:
    """The model of all of them: it does what the last words say, and ends once a tool has answered."""

    name = "mind"

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """``ask NAME`` calls the tool, ``slow`` takes its time, all else is repeated."""
        last = request.messages[-1]
        word, _, rest = last.text.partition(" ")
        if last.role == "assistant":
            yield TextDelta("asked")
        elif word == "ask":
            time.sleep(0.3)  # so that two who ask each other both have begun
            yield ToolCallComplete(0, f"call-{threading.get_ident()}", "ask", f'{{"name": "{rest}"}}')
        elif word == "slow":
            yield TextDelta("half of it")
            for _ in range(40):
                if signal.aborted:
                    break
                time.sleep(0.05)
                yield TextDelta("")
        else:
            yield TextDelta(f"re: {last.text}")
        yield Finish("tool-calls" if word == "ask" and last.role != "assistant" else "stop", None, Usage())


class Echo(Think):
    """Repeats what it is told."""

    def get_model(self) -> Any:
        """The one model."""
        return Mind()


class Left(Echo):
    """Asks the agent of the other class."""

    @tool(idempotent=True)
    def ask(self, name: str) -> str:
        """Ask an agent of the other side."""
        return Right(name).save_messages(f"ask {self.name}", timeout=60).text


class Right(Echo):
    """Asks back."""

    @tool(idempotent=True)
    def ask(self, name: str) -> str:
        """Ask an agent of the other side."""
        return Left(name).save_messages("ask nobody", timeout=60).text


class Nowhere(Echo):
    """Its turns go to a queue that no worker consumes."""

    queue = "nowhere"


class Survey(ThinkWorkflow[Echo, dict[str, Any]]):
    """Its one step waits for an agent of its own."""

    def run(self, event: Any, step: Any) -> str:
        """Ask, and return the answer."""
        who = Echo(event.payload["name"])
        return str(step.do("ask", lambda: who.save_messages("from a step", timeout=60).text))
