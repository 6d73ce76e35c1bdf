"""The toolbox that every rule gets as its first argument, and the classes that users have defined."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from think_celery.clock import Clock
from think_celery.errors import DuplicateName, NotConfigured, UnknownClass
from think_celery.events.writer import LiveWriter
from think_celery.logs import Once
from think_celery.protocols import EventLog, Knock, KnockFunction, Model, Sentinel
from think_celery.settings import Settings
from think_celery.signals import AbortController
from think_celery.store.database import Database

if TYPE_CHECKING:
    from think_celery.domain.leases import Monitor
    from think_celery.domain.poller import Poller
    from think_celery.domain.turns.snapshots import Snapshots

Class = TypeVar("Class", bound=type)


class Registry(Generic[Class]):
    """Classes of one kind by the name that rows carry. They register by being defined."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, dict[str, Class]] = {}

    def add(self, name: str, cls: Class) -> None:
        """Register a class. The same module defining the name again replaces its earlier one."""
        # Whoever looks meanwhile finds the class or nothing, and no name without a class.
        self._classes.setdefault(name, {cls.__module__: cls})[cls.__module__] = cls

    def get(self, name: str) -> Class:
        """The class of that name.

        Raises:
            UnknownClass: This process has imported none.
            DuplicateName: Classes of different modules have it.
        """
        found = self._classes.get(name)
        if not found:
            raise UnknownClass(self.kind, name, sorted(self._classes))
        if len(found) > 1:
            raise DuplicateName(self.kind, name, sorted(found))
        return next(iter(found.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def names(self) -> list[str]:
        """Every registered name."""
        return sorted(self._classes)

    def usable(self) -> dict[str, Class]:
        """Every class by its name, but those of which several have one: whoever asks for such a name is told."""
        return {name: self.get(name) for name in self.names() if len(self._classes[name]) == 1}


agent_classes: Registry[Any] = Registry("agent class")
workflow_classes: Registry[Any] = Registry("workflow class")


def _nothing(point: str) -> None:
    """The failpoint of a real process: nothing happens."""


def _unknown(*_: Any) -> int | None:
    """A process without a broker can't ask how much waits there."""
    return None


def _no(*_: Any) -> bool:
    """A process without a worker has no task in hand, and takes no message."""
    return False


@dataclass(kw_only=True)
class Runtime:
    """What the rules work with in one process. Made by ``ThinkCelery``, or by ``think_test``.

    ``knock`` tells the broker of work; it never raises. ``sentinel`` notices that the broker has lost what it
    was told; not every broker can have one. ``waiting`` says how many messages wait in the queue of a knock, where
    the broker tells, and none of them is taken. ``failpoint`` is called at the named points
    where tests kill a worker. ``timezone`` is the Celery app's, for cron without a zone. ``threads`` says that
    tools and step functions run in helper threads.
    ``stand_in`` gives, in tests, the model (or several) that an agent class asks instead of its own. ``takes`` says
    whether a worker in this process consumes the queue of a message, ``in_task`` whether the caller is a task of it.
    ``said`` is what the log was told once and need not be told again.
    ``meanwhile`` is, in tests, what a call that waits does: the work of the workers, for so many seconds at most.
    """

    settings: Settings
    clock: Clock
    db: Database
    events: EventLog
    live: LiveWriter
    knock: KnockFunction
    sentinel: Sentinel | None = None
    waiting: Callable[[Knock], int | None] = _unknown
    failpoint: Callable[[str], None] = _nothing
    threads: bool = True
    timezone: str = "UTC"
    stand_in: Callable[[str], Model | Sequence[Model]] | None = None
    takes: Callable[[Knock], bool] = _no
    in_task: Callable[[], bool] = _no
    meanwhile: Callable[[float | None], None] | None = None
    said: Once = field(default_factory=Once)
    stopping: AbortController = field(default_factory=AbortController)
    monitor: "Monitor" = field(init=False)
    poller: "Poller" = field(init=False)
    snapshots: "Snapshots" = field(init=False)

    def __post_init__(self) -> None:
        from think_celery.domain.leases import Monitor
        from think_celery.domain.poller import Poller
        from think_celery.domain.turns.snapshots import Snapshots

        self.monitor = Monitor(self)
        self.poller = Poller(self)
        self.snapshots = Snapshots(self)

    def make_agent(self, agent_class: str, name: str) -> Any:
        """The user's agent of that class and name, bound to this runtime."""
        return agent_classes.get(agent_class)._bound_to(self, name)

    @property
    def broker_is_watched(self) -> bool:
        """Whether it would be noticed that the broker has lost all messages."""
        return self.sentinel is not None and self.sentinel.watching

    def close(self) -> None:
        """Give back what this process holds: its row, its threads, its connections."""
        self.monitor.stop()
        self.snapshots.close()
        self.poller.close()
        if self.sentinel is not None:
            self.sentinel.close()
        self.live.close()
        self.events.close()
        self.db.dispose()


Source = Callable[[], Runtime]

_default: Runtime | Source | None = None
_lock = threading.Lock()


def current() -> Runtime:
    """This process's runtime.

    Raises:
        NotConfigured: Nobody has made one yet.
    """
    given = _default
    if given is None:
        raise NotConfigured()
    return given if isinstance(given, Runtime) else given()


def set_current(runtime: Runtime | Source | None) -> Runtime | Source | None:
    """Make this the process's runtime (or what makes it at its first use), and return the one before."""
    global _default
    with _lock:
        before, _default = _default, runtime
    return before
