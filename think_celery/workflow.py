"""``ThinkWorkflow``: the class that users subclass to write a durable workflow."""

import inspect
import re
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

from think_celery.domain.advance import WorkflowEvent
from think_celery.domain.steps import ThinkWorkflowStep
from think_celery.domain.waits import Approval
from think_celery.durations import Duration
from think_celery.errors import AsyncNotSupported, InvalidClass, InvalidValue
from think_celery.ids import AgentRef
from think_celery.names import check_name
from think_celery.runtime import Runtime, workflow_classes

__all__ = ["ThinkWorkflow", "ThinkWorkflowStep", "WorkflowEvent"]

Agent = TypeVar("Agent")
Params = TypeVar("Params")

_NAME = re.compile(r"[\w.-]{1,200}")


class ThinkWorkflow(Generic[Agent, Params]):
    """A workflow: subclass it, write :meth:`run`, and start it from an agent with ``run_workflow``.

    ``class TriageWorkflow(ThinkWorkflow[TriageAgent, TriageParams])``; the agent's class may be a text, so
    that its module need not be imported. Bare, without types, its params are a dict.

    ``version`` goes into each run; a worker whose class has another one leaves the run alone, so give changed
    code a new one as long as a worker with the old code finishes the old runs. ``queue`` is the Celery queue
    of its tasks. ``agent`` is the agent that started the run.
    """

    workflow_name: ClassVar[str] = "ThinkWorkflow"
    version: ClassVar[str] = "1"
    queue: ClassVar[str | None] = None
    agent: Agent
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
        version: object = cls.version
        if not isinstance(version, str) or not 1 <= len(version) <= 100 or not version.isprintable():
            raise InvalidValue(
                f'{cls.__name__}.version is {version!r}: it must be a short text, such as "2".'
            )
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
        found = _params_of(cls)
        if found is None or isinstance(found, TypeVar):
            return dict[str, Any]
        holder = type("Holder", (), {"__annotations__": {"params": found}, "__module__": cls.__module__})
        return get_type_hints(holder)["params"]  # resolves a type that was given as a text

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


def _params_of(cls: type) -> Any:
    """What stands for ``Params`` in the bases of a class; ``None`` where nothing does."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        origin, given = get_origin(base), get_args(base)
        if origin is ThinkWorkflow:
            return given[1]
        if isinstance(origin, type) and issubclass(origin, ThinkWorkflow):
            inner = _params_of(origin)
            parameters = getattr(origin, "__parameters__", ())
            return given[parameters.index(inner)] if inner in parameters else inner
    for plain in cls.__bases__:
        if issubclass(plain, ThinkWorkflow) and plain is not ThinkWorkflow:
            return _params_of(plain)
    return None
