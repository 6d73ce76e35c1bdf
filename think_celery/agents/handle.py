"""What every agent is: a class that rows carry by its name, and a handle on one agent of it."""

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Self

from think_celery.agents.checks import check_constructor, check_made, refuse_shadows, warn_of_near_misses
from think_celery.errors import AsyncNotSupported, InvalidValue
from think_celery.ids import AgentRef
from think_celery.names import check_name
from think_celery.runtime import Runtime, agent_classes, current
from think_celery.tools import is_tool


class QueueName:
    """The attribute ``queue``: of a class it is the name of a Celery queue, of an agent the method that queues a job.

    So ``queue = "gpu"`` in a class and ``self.queue(self.index, 42)`` in its methods are both what they seem to be.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name

    def __get__(self, agent: Any, owner: type) -> Any:
        return self.name if agent is None else agent._queue_job


class AgentHandle:
    """The identity of an agent: its class's name and its own. Making the object is free.

    Agents subclass ``Think`` or ``ChatAgent``, which bring what an agent can do.
    """

    if TYPE_CHECKING:
        queue: ClassVar[Any]
    else:
        queue = QueueName(None)
    agent_class: ClassVar[str]
    _hooks: ClassVar[tuple[str, ...]] = ()
    """The methods that the engine calls. Each of our classes adds its own to those of its bases."""
    _abstract: ClassVar[bool] = True

    def __init_subclass__(cls, *, name: str | None = None, abstract: bool = False, **kwargs: Any) -> None:
        """Register the class under its own name, or under *name*: the one that rows and Flower carry.

        An *abstract* one is a base of agents and no agent by itself.
        """
        super().__init_subclass__(**kwargs)
        _refuse_async(cls)
        refuse_shadows(cls)
        cls.agent_class, cls._abstract = cls.__name__ if name is None else name, abstract
        check_name("The agent class's name", cls.agent_class, 200)
        _keep_queue(cls)
        warn_of_near_misses(cls)
        if not abstract:
            check_constructor(cls)
            agent_classes.add(cls.agent_class, cls)

    def __init__(self, name: str) -> None:
        if self._abstract:
            base = type(self).__name__
            raise TypeError(
                f"{base} is no agent by itself. Subclass it (class TriageAgent({base}): …) and name one: "
                'TriageAgent("issue-42").'
            )
        agent_classes.get(self.agent_class)  # two of one name must not go unnoticed until a worker meets them
        check_name("name", name, 200)
        self.name = name
        self._own_rt: Runtime | None = None

    @classmethod
    def _bound_to(cls, rt: Runtime, name: str) -> Self:
        """The agent of that name, working with this runtime instead of the process's own."""
        agent = cls(name)
        check_made(agent)
        agent._own_rt = rt
        return agent

    @classmethod
    def _overrides(cls, hook: str) -> bool:
        """Whether the engine has something to call: the first class that has the method is none of ours."""
        owner = next((base for base in cls.__mro__ if hook in vars(base)), None)
        return owner is not None and hook not in vars(owner).get("_hooks", ())

    @property
    def _rt(self) -> Runtime:
        check_made(self)
        return self._own_rt or current()

    @property
    def _ref(self) -> AgentRef:
        return AgentRef(self.agent_class, self.name)

    @property
    def _celery_queue(self) -> str | None:
        return type(self).queue or self._rt.settings.queue

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _keep_queue(cls: type[AgentHandle]) -> None:
    """Let a name that the class, or a base of it, gives to ``queue`` not hide the method.

    Raises:
        InvalidValue: It is no name of a queue.
    """
    given = inspect.getattr_static(cls, "queue")
    if isinstance(given, QueueName):
        return
    if given is not None:
        check_name(f"{cls.agent_class}.queue", given, 200)
    cls.queue = QueueName(given)


def _refuse_async(cls: type) -> None:
    hooks = {hook for base in cls.__mro__ for hook in vars(base).get("_hooks", ())}
    for name in sorted({*hooks, *vars(cls)}):
        method = inspect.getattr_static(cls, name)
        ours = name in hooks or any(is_tool(vars(base).get(name)) for base in cls.__mro__)
        function = getattr(method, "__func__", method)
        if ours and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise AsyncNotSupported(f"{cls.__name__}.{name}")


def check_count(cls: type, name: str, meaning: str) -> None:
    """Refuse a class whose attribute of that name is no number of things.

    Raises:
        InvalidValue: It is none.
    """
    given: object = getattr(cls, name)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidValue(
            f"{cls.__name__}.{name} is {given!r}: it must be a whole number, 1 or more. It is {meaning}."
        )
