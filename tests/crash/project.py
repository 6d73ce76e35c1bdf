"""The agents and workflows whose workers the crash tests kill, and the effects that they count."""

import json
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sqlalchemy import text

from think_celery import FiberRecovery, Think, ThinkWorkflow
from think_celery.errors import WorkflowTimeoutError
from think_celery.tools import ToolContext, tool

EFFECTS = "CRASH_EFFECTS"
"""The environment variable that names the file to which each effect appends a line."""
MODELS = "CRASH_MODELS"
"""The one that names several models, in order; one whose name begins with ``poor-`` refuses each request."""
ASKED = "CRASH_ASKED"
"""With this one, being asked what becomes of an interrupted turn is an effect, too."""
LINGER = "CRASH_LINGER"
"""The one that says how many seconds pass then, before its result can be stored."""


def effect(what: str, key: str) -> str:
    """Something that the world sees: a line with the idempotency key that came with the call."""
    line = json.dumps({"what": what, "key": key, "pid": os.getpid(), "at": time.monotonic()}) + "\n"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    time.sleep(float(os.environ.get(LINGER, "0")))
    return f"{what} done"


def effects(path: Path) -> list[dict[str, Any]]:
    """What the world has seen so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Scribe(Think):
    """Does what a prompt such as ``do: note post`` says, with one tool that may be repeated and one that may not.

    A third one, ``pay``, waits for an approval.
    """

    system_prompt = "Do as you are told."

    def get_model(self) -> Any:
        """Those of the environment, if it names some."""
        return [f"openai/{name}" for name in os.environ.get(MODELS, "").split()] or None

    def on_chat_recovery(self, ctx: Any) -> None:
        """Go on."""
        if os.environ.get(ASKED):
            effect("asked", ctx.submission_id)

    def haul(self, what: str) -> str:
        """What is queued: an effect."""
        return effect(what, "haul")

    def trek(self, fiber: Any, what: str) -> str:
        """What a fiber does: half of it, which is stashed, and an effect."""
        fiber.stash("half")  # again, too, so that each worker comes to where one of them dies
        return effect(what, fiber.fiber_id)

    def on_fiber_recovered(self, ctx: Any) -> FiberRecovery:
        """Go on from the snapshot."""
        return FiberRecovery(status="retry")

    @tool(idempotent=True)
    def note(self, what: str, context: ToolContext) -> str:
        """Take a note. Taking it twice is harmless."""
        return effect("note", context.idempotency_key)

    @tool
    def post(self, what: str, context: ToolContext) -> str:
        """Post a letter."""
        return effect("post", context.idempotency_key)

    @tool(needs_approval=True)
    def pay(self, what: str, context: ToolContext) -> str:
        """Pay for it, if somebody says so."""
        return effect("pay", context.idempotency_key)


class Draft(BaseModel):
    """What the agent answers in a workflow."""

    title: str
    labels: list[str]


class Saga(ThinkWorkflow[Scribe, dict[str, Any]]):
    """One step of each kind that a worker can die in. Its params' ``prompt`` is what its agent is told."""

    def run(self, event: Any, step: Any) -> dict[str, Any]:
        """Fetch, ask, wait, book, send."""
        fetched = step.do("fetch", lambda context: effect("fetch", context.idempotency_key))
        retries = event.payload.get("retries", 0)
        draft = step.prompt("ask", prompt=event.payload["prompt"], output=Draft, output_retries=retries)
        go = step.wait_for_event("go", type="go")
        booked = step.transaction("book", lambda conn: book(conn, event.workflow_id))
        sent = step.do("send", lambda context: effect("send", context.idempotency_key))
        return {
            "fetched": fetched,
            "title": draft.title,
            "go": go.payload,
            "booked": booked,
            "sent": sent,
        }


def book(conn: Any, workflow_id: str) -> str:
    """Add a row to the ledger, which nothing but the step's own transaction keeps from growing twice."""
    conn.execute(text("INSERT INTO ledger (workflow_id) VALUES (:it)"), {"it": workflow_id})
    return "booked"


SAGA = {
    "fetched": "fetch done",
    "title": "A title",
    "go": {"by": "Ada"},
    "booked": "booked",
    "sent": "send done",
}
"""What a saga returns that went well."""


STEPS = 20
REST = STEPS // 2
"""The step of a journey at which it parks."""


def step_name(number: int) -> str:
    """What each step of a journey is called: it is counted in the database, or done elsewhere."""
    if number == REST:
        return f"rest-{number}"
    return f"count-{number}" if number % 3 == 1 else f"do-{number}"


class Journey(ThinkWorkflow[Scribe, dict[str, Any]]):
    """Twenty steps: effects that are counted in the database itself, effects elsewhere, and a rest."""

    def run(self, event: Any, step: Any) -> int:
        """Take them, one after the other; returns how many said what they should."""
        said = 0
        for name in map(step_name, range(STEPS)):
            here = f"{event.workflow_id}/{name}"
            if name.startswith("rest"):
                step.sleep(name, 0.05)
                said += 1
            elif name.startswith("count"):
                said += step.transaction(name, lambda conn, here=here: count(conn, here)) == here
            else:
                done = step.do(name, lambda context, here=here: effect(here, context.idempotency_key))
                said += done == f"{here} done"
        return said


def count(conn: Any, what: str) -> str:
    """Count an effect in a table that refuses no second one."""
    conn.execute(text("INSERT INTO counted (what) VALUES (:it)"), {"it": what})
    return what


class Patient(ThinkWorkflow[Scribe, dict[str, Any]]):
    """Waits for what never comes, as long as its params say."""

    def run(self, event: Any, step: Any) -> str:
        """Wait."""
        try:
            step.wait_for_event("never", type="never", timeout=event.payload["seconds"])
        except WorkflowTimeoutError:
            return "timed out"
        return "it came"
