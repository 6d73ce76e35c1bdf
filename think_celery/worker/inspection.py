"""What a worker tells of itself, and how another process asks: for ``think-celery doctor``.

A worker that answers is connected, which does not mean that it takes messages. So there is a task, too, which notes
in the database that it ran.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.worker import state as worker_state
from celery.worker.control import inspect_command
from kombu import Connection

from think_celery.agents.think import Think
from think_celery.domain import health
from think_celery.domain.agents.versions import is_ours
from think_celery.errors import ConfigurationError
from think_celery.runtime import Runtime, agent_classes, workflow_classes
from think_celery.tasks import PING, ThinkTask

ABOUT = "think_about"
"""Our remote control command."""

ANSWER_SECONDS = 1.0
"""How long workers may take to answer. All are asked twice: one that is busy at the first time may answer then."""

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
        "methods": {name: _methods(name) for name in agent_classes.names()},
        "workflows": {name: versions for name in workflow_classes.names() if (versions := _versions(name))},
        "pool": type(pool).__module__.rpartition(".")[2],
        "slots": max(pool.num_processes or 0, pool.limit or 0),  # the first is 0 in an idle pool of greenlets
        "busy": len(worker_state.active_requests),
    }


def _methods(agent_class: str) -> list[str]:
    """The methods of an agent's class that its users wrote: jobs and schedules call them by name."""
    try:
        cls = agent_classes.get(agent_class)
    except ConfigurationError:  # two classes of one name
        return []
    theirs = [base for base in cls.__mro__ if base is not object and not is_ours(base)]
    return sorted({name for base in theirs for name, value in vars(base).items() if callable(value)})


def _versions(workflow: str) -> list[str]:
    """The versions of a workflow whose runs this worker takes on."""
    try:
        cls = workflow_classes.get(workflow)
    except ConfigurationError:  # two classes of one name: this worker runs neither
        return []
    return [cls.version, *cls.also_runs]


# --- the asking side ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A worker that answered through the broker. ``knows_us`` says whether it has our tasks at all."""

    name: str
    queues: frozenset[str]
    knows_us: bool = True
    agents: frozenset[str] = frozenset()
    methods: Mapping[str, Sequence[str]] = field(default_factory=dict)
    workflows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pool: str | None = None
    slots: int = 0
    busy: int = 0

    @property
    def full(self) -> bool:
        """Whether it can take nothing more just now."""
        return 0 < self.slots <= self.busy

    def has(self, agent_class: str, method: str | None) -> bool:
        """Whether it has imported that class, and the class has that method there (``None``: it calls none)."""
        if agent_class not in self.agents:
            return False
        known = self.methods.get(agent_class)  # of an older release, it does not say
        return method is None or known is None or method in known or callable(getattr(Think, method, None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """Those that answered, or ``None`` if nobody could be asked; and the queue that a task goes to by itself."""

    answered: Sequence[Worker] | None
    route: Callable[[str], str]

    def called(self, name: str) -> list[Worker]:
        """Those of that name; each should have one of its own."""
        return [each for each in self.answered or () if each.name == name]

    def listening_to(self, queue: str) -> list[Worker]:
        """Those that take our messages from this queue."""
        return [each for each in self.answered or () if each.knows_us and queue in each.queues]


def ask_workers(app: Celery, connection: Connection) -> list[Worker]:
    """Every worker that answers through this broker within a few seconds."""
    queues = _fuller(*(_ask(app, connection, "active_queues", None) for _ in range(2)))
    names = {name for name, _ in queues}
    told: dict[str, Any] = {}
    for _ in range(2):
        if left := sorted(names - told.keys()):
            told |= _ask(app, connection, ABOUT, left)
    return [_worker(name, consumed, told.get(name) or {}) for name, consumed in queues]


def _fuller(first: list[tuple[str, Any]], second: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """What was told at either time: of each name, when more workers of that name answered."""
    found = []
    for name in sorted({name for name, _ in [*first, *second]}):
        one, other = ([each for each in answers if each[0] == name] for answers in (first, second))
        found += one if len(one) > len(other) else other
    return found


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
        methods=told.get("methods", {}),
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
