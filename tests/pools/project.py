"""The agent whose turns the pools run, with tools that take long, compute and fetch; and one that listens to itself."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
from celery import signals

from tests.crash.project import effect
from think_celery import Think
from think_celery.protocols import Finish, ModelEvent, ModelRequest, TextDelta, Usage
from think_celery.signals import AbortSignal
from think_celery.tools import ToolContext, tool

REST, COMPUTE = "POOLS_REST", "POOLS_COMPUTE"
"""Environment variables with seconds: how long ``rest`` waits, and how long ``compute`` keeps its processor busy."""


class Hand(Think):
    """Does what a prompt such as ``do: visit rest`` says."""

    system_prompt = "Do as you are told."

    @tool
    def rest(self, what: str, context: ToolContext) -> str:
        """Wait."""
        effect("rest-begun", context.idempotency_key)
        time.sleep(float(os.environ[REST]))
        return effect("rest", context.idempotency_key)

    @tool
    def compute(self, what: str, context: ToolContext) -> str:
        """Compute without a pause: in gevent no other greenlet gets to run."""
        effect("compute-begun", context.idempotency_key)
        until = time.monotonic() + float(os.environ[COMPUTE])
        while time.monotonic() < until:
            sum(range(1000))
        return effect("compute", context.idempotency_key)

    @tool
    def visit(self, what: str, context: ToolContext) -> str:
        """Ask a server twice: as the package does, and with an async client in a loop of this call's own."""
        url = f"{os.environ['THINK_OPENAI_BASE_URL']}/fetched"
        question = json.dumps({"model": "fetch", "messages": [{"role": "user", "content": "do:"}]}).encode()

        async def fetch() -> int:
            async with httpx.AsyncClient() as client:
                return (await client.post(url, content=question)).status_code

        with httpx.Client() as client:
            codes = {client.post(url, content=question).status_code, asyncio.run(fetch())}
        assert codes == {200}
        return effect("visit", context.idempotency_key)


class Listener(Think):
    """Its model repeats a word that nobody else says until it has read it back from the live log."""

    def get_model(self) -> Any:
        """A model of the turn's own."""
        return _Listening(self)


class _Listening:
    """Raises if it reads what another turn has said. A slow log may drop what was said, but not for ever."""

    name = "listening"

    def __init__(self, agent: Listener) -> None:
        self._log, self._agent_id = agent._rt.events, agent._ref.id

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Say the word, and that it was heard."""
        cursor, word, heard = self._log.head(self._agent_id), f"{uuid4()} ", ""
        until = time.monotonic() + 60
        while not heard:
            assert time.monotonic() < until, "it has not heard itself"
            yield TextDelta(word)
            time.sleep(0.1)
            page = self._log.read(self._agent_id, cursor)
            cursor = page.cursor
            # What the turn before it said last may come as late as this.
            heard = "".join(frame.event.get("delta", "") for frame in page.frames).replace("heard", "")
        assert set(heard.split()) == {word.strip()}, "it has heard another one"
        yield TextDelta("heard")
        yield Finish("stop", None, Usage())


@signals.worker_init.connect
def _lose_what_a_child_had(sender: object, **_: object) -> None:
    """With ``POOLS_NO_REQUEUE``, the message of a child that dies does not come back."""
    if os.environ.get("POOLS_NO_REQUEUE"):
        app = sender.app  # type: ignore[attr-defined]
        for name, task in app.tasks.items():
            if name.startswith("think."):
                task.reject_on_worker_lost = False
