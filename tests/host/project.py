"""An application whose configuration suits nobody but itself, with an agent and a workflow of ours in it.

``HOSTILE`` is what its tasks are made and sent with; ``make_app`` adds where everything is, from ``HOST_…`` in the
environment. Each secret is ``MARK`` and the place where it stands, so that one that is found tells where it came from.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery, Task
from kombu import Queue
from pydantic import BaseModel
from sqlalchemy import text

from think_celery import Fiber, Think, ThinkCelery, ThinkWorkflow
from think_celery.tools import ToolContext, tool

MARK = "tulip4711"
"""No secret may be found by it where it does not belong."""


# --- the host's own -------------------------------------------------------------------------------


class HostsTask(Task):  # type: ignore[type-arg]
    """What its tasks are made with: each call goes through it, and is tried again whatever it raises."""

    abstract = True
    autoretry_for = (Exception,)
    default_retry_delay = 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Note the call, as another host would begin a transaction."""
        with Path(os.environ["HOST_CALLS"]).open("a") as calls:
            calls.write(f"{self.name}\n")
        return super().__call__(*args, **kwargs)


LIMIT = 1
"""Seconds that its tasks may take."""

HOSTILE: dict[str, Any] = {
    "enable_utc": False,
    "result_extended": True,
    "task_acks_late": False,
    "task_acks_on_failure_or_timeout": False,
    "task_annotations": {
        "*": {
            "acks_late": False,
            "autoretry_for": (Exception,),
            "ignore_result": False,
            "max_retries": 9,
            "rate_limit": "1/m",
            "serializer": "pickle",
            "soft_time_limit": LIMIT,
            "time_limit": LIMIT,
        }
    },
    "task_compression": "gzip",
    "task_create_missing_queues": False,
    "task_default_delivery_mode": "transient",
    "task_default_priority": 7,
    "task_default_rate_limit": "1/m",
    "task_ignore_result": False,
    "task_inherit_parent_priority": True,
    "task_reject_on_worker_lost": False,
    "task_remote_tracebacks": True,
    "task_send_sent_event": True,
    "task_serializer": "pickle",
    "task_soft_time_limit": LIMIT,
    "task_store_errors_even_if_ignored": True,
    "task_time_limit": LIMIT,
    "task_track_started": True,
    "timezone": "Asia/Kolkata",
    "worker_max_memory_per_child": 1_000_000,
    "worker_max_tasks_per_child": 4,
    "worker_prefetch_multiplier": 8,
    "worker_send_task_events": True,
}


def tasks_of_another_app() -> list[str]:
    """What another app of this process has: all that apps share."""
    return sorted(Celery("second", set_as_current=False).tasks)


def sleep() -> None:
    """Take longer than the host allows."""
    time.sleep(LIMIT + 3)


HOSTS_TASKS = {"host.another_app": tasks_of_another_app, "host.sleep": sleep}


def make_app(environ: Mapping[str, str], **more: Any) -> Celery:
    """The host's app, with ours in it."""
    app = Celery("host", task_cls=HostsTask, set_as_current=False)
    queue = environ["HOST_QUEUE"]
    app.conf.update(
        HOSTILE,
        accept_content=environ.get("HOST_ACCEPTS", "pickle json").split(),
        broker_url=environ["HOST_BROKER"],
        broker_connection_retry_on_startup=True,
        result_backend=environ["HOST_RESULTS"],
        result_serializer=environ.get("HOST_RESULT_SERIALIZER", "pickle"),
        task_default_queue=queue,
        task_queues=[Queue("elsewhere"), Queue("aside"), Queue(queue)],
        task_routes={"*": {"queue": queue, "priority": 3, "serializer": "pickle", "compression": "bzip2"}},
        think_database_url=environ["HOST_DATABASE"],
        think_imports=["tests.host.project"],
        think_lease=10,
        think_live_database_url=environ["HOST_LIVE"],
        think_model="openai/gpt-test",
        think_openai_api_key=f"sk-{MARK}-api-key",
        think_openai_base_url=environ["HOST_MODEL"],
        **more,
    )
    ThinkCelery(app)
    for name, function in HOSTS_TASKS.items():
        app.task(name=name)(function)
    return app


# --- ours -----------------------------------------------------------------------------------------


class Verdict(BaseModel):
    """What the workflow asks its agent for."""

    good: bool
    why: str


class Lodger(Think):
    """Does what the words of a prompt say (``model.py``)."""

    system_prompt = f"Be kind. {MARK}-system-prompt"

    @tool(idempotent=True)
    def note(self, what: str, context: ToolContext) -> str:
        """Take a note."""
        return f"noted {MARK}-tool-result"

    def carry(self, what: str) -> str:
        """What is queued."""
        if "fail" in what:
            raise ValueError(f"{MARK}-error-of-a-job")
        if "slowly" in what:
            time.sleep(2)
        return f"{MARK}-result-of-a-job"

    def walk(self, fiber: Fiber, what: str) -> str:
        """What a fiber does."""
        fiber.stash(f"{MARK}-snapshot")
        return f"{MARK}-result-of-a-fiber"


class Elsewhere(Lodger):
    """Its turns go to a queue of their own, which no worker consumes."""

    queue = "elsewhere"


class Aside(Lodger):
    """The same, of a test that lets a worker consume it for a while."""

    queue = "aside"


class Chore(ThinkWorkflow[Lodger, dict[str, Any]]):
    """One step of each kind."""

    def run(self, event: Any, step: Any) -> dict[str, Any]:
        """Do something long, ask, wait, book."""
        step.do("rest", lambda: time.sleep(event.payload.get("rest", 0)))
        if event.payload.get("fail"):
            raise ValueError(f"{MARK}-error-of-a-workflow")
        verdict = step.prompt("ask", prompt=event.payload["prompt"], output=Verdict)
        go = step.wait_for_event("go", type="go")
        booked = step.transaction("book", lambda conn: conn.execute(text("SELECT 42")).scalar())
        return {"good": verdict.good, "go": go.payload, "booked": booked}
