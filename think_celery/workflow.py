"""``ThinkWorkflow``: the class that users subclass to write a durable workflow."""

import inspect
import re
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ForwardRef,
    Generic,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from think_celery.classes import check_constructor
from think_celery.domain.agents import agents
from think_celery.domain.steps.steps import ThinkWorkflowStep
from think_celery.domain.steps.waits import Approval
from think_celery.domain.workflows import hooks
from think_celery.domain.workflows.events import WorkflowEvent
from think_celery.domain.workflows.replay import Replay
from think_celery.durations import Duration
from think_celery.errors import AsyncNotSupported, InvalidClass, InvalidValue
from think_celery.ids import AgentRef
from think_celery.names import check_name, meant_by
from think_celery.runtime import Runtime, workflow_classes

__all__ = ["ThinkWorkflow", "ThinkWorkflowStep", "WorkflowEvent"]

Agent = TypeVar("Agent")
Params = TypeVar("Params")

_NAME = re.compile(r"[\w.-]{1,200}")


class ThinkWorkflow(Generic[Agent, Params]):
    """A workflow: subclass it, write :meth:`run`, and start it from an agent with ``run_workflow``.

    ``class TriageWorkflow(ThinkWorkflow[TriageAgent, TriageParams])``; the agent's class may be a text, so
    that its module need not be imported. Bare, without types, its params are a dict.

    ``version`` goes into each run; a worker whose class has another one leaves the run alone, unless that class
    names the run's version in ``also_runs``: then old runs go on in it, and it may branch on ``step.version``.
    ``queue`` is the Celery queue of its tasks. ``agent`` is the agent that started the run.
    """

    workflow_name: ClassVar[str] = "ThinkWorkflow"
    version: ClassVar[str] = "1"
    also_runs: ClassVar[tuple[str, ...]] = ()
    queue: ClassVar[str | None] = None
    agent: Agent
    _replay: Replay | None = None
    _abstract: ClassVar[bool] = True

    def __init_subclass__(cls, *, name: str | None = None, abstract: bool = False, **kwargs: Any) -> None:
        """Register the class under its own name, or under *name*: the one that rows and Flower carry.

        An *abstract* one is a base of workflows and no workflow by itself.
        """
        super().__init_subclass__(**kwargs)
        cls.workflow_name = name or cls.__name__
        if not _NAME.fullmatch(cls.workflow_name):
            raise InvalidValue(
                f"The workflow name {cls.workflow_name!r} can't be used: a name is 1 to 200 letters, digits, dots, "
                "dashes or underscores, for it is part of idempotency keys."
            )
        if cls.queue is not None:
            check_name(f"{cls.__name__}.queue", cls.queue, 200)
        if not _is_version(cls.version):
            raise InvalidValue(
                f'{cls.__name__}.version is {cls.version!r}: it must be a short text, such as "2".'
            )
        others: object = cls.also_runs
        if not isinstance(others, tuple | list) or not all(map(_is_version, others)):
            raise InvalidValue(
                f"{cls.__name__}.also_runs is {others!r}: it must be a tuple of the versions whose runs this class "
                'takes on, too, such as ("1",).'
            )
        cls.also_runs = tuple(others)
        if inspect.iscoroutinefunction(cls.run) or inspect.isasyncgenfunction(cls.run):
            raise AsyncNotSupported(f"{cls.__name__}.run")
        cls._abstract = abstract
        if abstract:
            return
        if cls.run is ThinkWorkflow.run:
            raise InvalidClass(
                cls.__name__,
                "it has no run(self, event, step)",
                "Write one; or, if it is a base of other workflows, say so: "
                f"class {cls.__name__}(ThinkWorkflow, abstract=True).",
            )
        _check_run(cls)
        check_constructor(
            cls,
            called="without arguments, and a worker makes it anew, without any, each time a run goes on",
            remedy="Take what a run needs from event.payload, and give what else it takes a default.",
        )
        workflow_classes.add(cls.workflow_name, cls)

    @classmethod
    def _bound_to(cls, rt: Runtime, agent: AgentRef) -> Self:
        """The object whose :meth:`run` is called, with its ``agent``."""
        workflow = cls()
        workflow.agent = rt.make_agent(agent.agent_class, agent.name)
        return workflow

    @classmethod
    def _params_type(cls) -> Any:
        """The type of the params; ``dict`` for a bare class."""
        found = _given_of(cls, 1)
        if found is None or isinstance(found, TypeVar):
            return dict[str, Any]
        holder = type("Holder", (), {"__annotations__": {"params": found}, "__module__": cls.__module__})
        return get_type_hints(holder)["params"]  # resolves a type that was given as a text

    @classmethod
    def _check_agent(cls, starting: type) -> None:
        """Make sure that agents of that class may start it.

        Raises:
            InvalidValue: They are none of the agent type that the class names.
        """
        declared = _given_of(cls, 0)
        if not _may_be(declared, starting):
            shown = getattr(declared, "__forward_arg__", None) or getattr(declared, "__name__", declared)
            raise InvalidValue(
                f"{cls.workflow_name} is a workflow of {shown}: class {cls.__name__}(ThinkWorkflow[{shown}, …]). "
                f"A {starting.__name__} can't start it. Start it from a {shown}, or correct that name."
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say where it is what ``step`` has, and not the workflow itself."""
            told = not name.startswith("_") and callable(getattr(ThinkWorkflowStep, name, None))
            hint = f" It is on step: step.{name}(…)." if told else ""
            if not hint and (near := meant_by(name, dir(type(self)))):
                hint = f" Did you mean self.{near}?"
            raise AttributeError(f"{type(self).__name__} has no {name!r}.{hint}", name=name, obj=self)

    def run(self, event: WorkflowEvent[Params], step: ThinkWorkflowStep) -> Any:
        """Yours to write: plain code between steps, started again from the top each time the run goes on.

        Whatever must not be repeated, and whatever may differ from one time to the next (the time, random
        values, reads), belongs into a step. Code in ``finally`` and ``with`` also runs each time the
        workflow begins to wait. What it returns is the workflow's output.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run(self, event, step). Write one.")

    def wait_for_approval(
        self, step: ThinkWorkflowStep, name: str = "approval", *, timeout: Duration | None = None
    ) -> Approval:
        """The same as ``step.wait_for_approval(name, timeout=timeout)``."""
        return step.wait_for_approval(name, timeout=timeout)

    def report_progress(self, progress: Any) -> None:
        """Say how far the run has come: a percentage, a text, whatever a step could return.

        ``get_workflow(…).progress`` shows the last one, and the agent's ``on_workflow_progress`` is called here and
        now. A hint, not a step: nothing happens while the run is replayed, but after a crash it may be told again.

        Raises:
            NotSerializable, PayloadTooLarge: The progress can't be stored.
        """
        if self._replay is not None:
            hooks.report_progress(self._replay, progress)

    def broadcast_to_clients(self, message: str | dict[str, Any]) -> None:
        """Show a text or a dict to everyone who listens to the agent now, as its ``broadcast`` does.

        A hint, as :meth:`report_progress` is.

        Raises:
            InvalidType: It is neither.
            NotSerializable, PayloadTooLarge: It is no JSON, or too much.
        """
        replay = self._replay
        if replay is not None and not replay.journal.replaying:
            agents.broadcast(replay.rt, replay.agent, message)


def _is_version(given: object) -> bool:
    return isinstance(given, str) and 1 <= len(given) <= 100 and given.isprintable()


def _check_run(cls: type[ThinkWorkflow[Any, Any]]) -> None:
    """Make sure that ``run`` takes what it is called with, in that order."""
    static = isinstance(inspect.getattr_static(cls, "run"), staticmethod | classmethod)
    signature = inspect.signature(cls.run)
    names = list(signature.parameters)[0 if static else 1 :]
    problem = "takes them the other way round" if names[:1] == ["step"] or names[1:2] == ["event"] else None
    try:
        signature.bind(*[None] * (2 if static else 3))
    except TypeError:
        problem = "can't be called with an event and a step"
    if problem is not None:
        raise InvalidClass(
            cls.__name__, f"its run{signature} {problem}", "Write: def run(self, event, step)."
        )


def _may_be(declared: Any, starting: type) -> bool:
    """Whether an agent of that class may be of the *declared* type. A text is compared with the names of its bases."""
    if isinstance(declared, ForwardRef):
        declared = declared.__forward_arg__
    if isinstance(declared, str):
        name = declared.rpartition(".")[2].strip()
        names = {"Any", *(each for base in starting.__mro__ for each in _names(base))}
        return not name.isidentifier() or name in names
    if declared is Any or not isinstance(declared, type) or getattr(declared, "_is_protocol", False):
        return True
    return any(base is declared or _names(base) & _names(declared) for base in starting.__mro__)


def _names(cls: type) -> set[str]:
    return {cls.__name__, vars(cls).get("agent_class", cls.__name__)}


def _given_of(cls: type, index: int) -> Any:
    """What stands for ``Agent`` (0) or ``Params`` (1) in the bases of a class; ``None`` where nothing does."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        origin, given = get_origin(base), get_args(base)
        if origin is ThinkWorkflow:
            return given[index]
        if isinstance(origin, type) and issubclass(origin, ThinkWorkflow):
            inner = _given_of(origin, index)
            parameters = getattr(origin, "__parameters__", ())
            return given[parameters.index(inner)] if inner in parameters else inner
    for plain in cls.__bases__:
        if issubclass(plain, ThinkWorkflow) and plain is not ThinkWorkflow:
            return _given_of(plain, index)
    return None
