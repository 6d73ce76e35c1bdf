"""What a worker tells of itself, and how another process asks: for ``think-celery doctor``.

A worker that answers is connected, which does not mean that it takes messages. So there is a task, too, which notes
in the database that it ran.
"""

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.worker import state as worker_state
from celery.worker.control import inspect_command
from kombu import Connection

from think_celery.domain import health
from think_celery.domain.health import Worker
from think_celery.errors import ConfigurationError
from think_celery.runtime import Runtime, agent_classes, workflow_classes
from think_celery.tasks import ThinkTask

PING = "think.ping"
ABOUT = "think_about"
"""Our remote control command."""

ANSWER_SECONDS = 1.0
"""How long workers may take to answer; who has not is asked once more."""

PING_EXPIRES_SECONDS = 60
"""A worker that comes later than this throws the ping away."""


def register(app: Celery, runtime: Callable[[], Runtime]) -> None:
    """Add the ping to this app, and to no other of the process."""

    def ping(*, queue: str) -> str:
        """Note in the database that this queue is consumed."""
        health.answer_ping(runtime(), queue)
        return "answered"

    app.task(name=PING, base=ThinkTask, shared=False)(ping)


@inspect_command(name=ABOUT, help="What this worker can do for think_celery.")
def about(state: Any) -> dict[str, Any]:
    """The remote control command: classes and slots of this worker, in names and numbers."""
    if PING not in state.app.tasks:
        return {}
    pool = state.consumer.pool
    return {
        "agents": agent_classes.names(),
        "workflows": {name: version for name in workflow_classes.names() if (version := _version(name))},
        "pool": type(pool).__module__.rpartition(".")[2],
        "slots": max(pool.num_processes or 0, pool.limit or 0),  # the first is 0 in an idle pool of greenlets
        "busy": len(worker_state.active_requests),
    }


def _version(workflow: str) -> str | None:
    try:
        return str(workflow_classes.get(workflow).version)
    except ConfigurationError:  # two classes of one name: this worker runs neither
        return None


# --- the asking side ------------------------------------------------------------------------------


def ask_workers(app: Celery, connection: Connection, name: str | None = None) -> list[Worker]:
    """Every worker (or those of that name) that answers through this broker within a second or two."""
    to = None if name is None else [name]
    queues = _ask(app, connection, "active_queues", to) or _ask(app, connection, "active_queues", to)
    names = {name for name, _ in queues}
    told: dict[str, Any] = {}
    for _ in range(2):
        if left := sorted(names - told.keys()):
            told |= _ask(app, connection, ABOUT, left)
    return [_worker(name, consumed, told.get(name) or {}) for name, consumed in queues]


def _ask(
    app: Celery, connection: Connection, command: str, destination: list[str] | None
) -> list[tuple[str, Any]]:
    answers: Any = app.control.broadcast(
        command, destination=destination, reply=True, timeout=ANSWER_SECONDS, connection=connection
    )
    return sorted(((name, told) for answer in answers or () for name, told in answer.items()), key=str)


def _worker(name: str, queues: Any, told: dict[str, Any]) -> Worker:
    return Worker(
        name=name,
        queues=frozenset(queue["name"] for queue in queues if isinstance(queue, dict)),
        knows_us="agents" in told,
        agents=frozenset(told.get("agents", ())),
        workflows=told.get("workflows", {}),
        pool=told.get("pool"),
        slots=told.get("slots", 0),
        busy=told.get("busy", 0),
    )


def send_ping(app: Celery, connection: Connection, queue: str) -> None:
    """Ask whoever takes messages from this queue to answer in the database."""
    through: Any = {"queue": queue, "connection": connection, "retry": False}
    app.tasks[PING].apply_async(kwargs={"queue": queue}, expires=PING_EXPIRES_SECONDS, **through)


def route(app: Celery, task: str) -> str:
    """The queue that a task goes to where nobody names one."""
    found = app.amqp.router.route({}, task).get("queue")
    return str(getattr(found, "name", found) or app.conf.task_default_queue)
