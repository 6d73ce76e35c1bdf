"""Calls of the methods that users' agents override: those that decide, and those that react."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from think_celery.domain import calls
from think_celery.domain.agents import reactions
from think_celery.domain.leases import LET_GO_SECONDS, Hold
from think_celery.domain.turns.fallback import Lineup
from think_celery.errors import InvalidValue, ModelAborted
from think_celery.protocols import AgentHooks, Models
from think_celery.runtime import Runtime
from think_celery.tools import Tool, as_tools, tools_of
from think_celery.wording import a_type

T = TypeVar("T")


class Hooks:
    """The hooks of one agent, as one turn calls them.

    ``get_*`` and ``before_*`` decide (:meth:`decide`): what they raise fails the turn. ``on_*`` and ``after_*``
    react (:meth:`react`): what they raise is logged, with the turn's id, and changes nothing. A hook that was not
    overridden costs nothing: it is not called. No transaction and no connection is held meanwhile.

    They run one after the other in a thread of their own, so that one that does not come back can be given up when
    the turn is cancelled, or at its deadline. With ``rt.threads`` off they run in the calling thread.
    """

    def __init__(self, rt: Runtime, agent: AgentHooks | None, hold: Hold, submission_id: str) -> None:
        self._rt, self.agent, self._hold, self._submission_id = rt, agent, hold, submission_id
        self._helper = calls.Helper()
        self._known: dict[str, bool] = {}

    def has(self, hook: str) -> bool:
        """Whether the agent's class overrides that method of ours."""
        known = self._known.get(hook)
        if known is None:
            known = self._known[hook] = self.agent is not None and self.agent._overrides(hook)
        return known

    def decide(self, hook: str, *told: Any) -> Any:
        """Call a method whose answer counts, and return it. What it raises goes through.

        Raises:
            ModelAborted: It was given up, for the turn is to end. Whoever catches it finds out why.
        """
        method = getattr(self.agent, hook)
        return self.ask(hook, lambda: method(*told)) if self.has(hook) else method(*told)

    def ask(self, hook: str, function: Callable[[], T]) -> T:
        """The same of a function of the user's."""
        result = self.attempt(hook, function)
        if isinstance(result, calls.Failed):
            raise result.error
        return result.value

    def attempt(self, hook: str, function: Callable[[], T]) -> calls.Done[T] | calls.Failed:
        """The same, but what it raises is returned.

        Raises:
            ModelAborted: It was given up.
        """
        result = self._call(function)
        if isinstance(result, calls.Abandoned):
            raise ModelAborted(f"{hook} did not return in time and was given up")
        return result

    def config(self, hook: str, kind: type[T], *told: Any, unlike: tuple[type, ...] = ()) -> T | None:
        """The same of a hook that answers with one of *kind*, or with ``None``; ``None`` if it is not overridden.

        One of *kind* that is also one of *unlike* would be half ignored, so it is refused, too.

        Raises:
            InvalidValue: It answered with something else.
        """
        if self.agent is None or not self.has(hook):
            return None
        given = self.decide(hook, *told)
        if given is None or (isinstance(given, kind) and not isinstance(given, unlike)):
            return given
        raise InvalidValue(
            f"{self.agent.agent_class}.{hook} returned {a_type(given)}. "
            f"Return a {kind.__name__}, or None to leave everything as it is."
        )

    def react(self, hook: str, *told: Any, default: T | None = None) -> Any:
        """Call a hook that reacts, if it is overridden. Where it fails or was given up, the *default* stands."""
        if not self.has(hook):
            return default
        method = getattr(self.agent, hook)
        result = self._call(lambda: method(*told))
        returned = reactions.returned(
            result, f"{hook} of submission {self._submission_id}", think_submission=self._submission_id
        )
        return result.value if returned and isinstance(result, calls.Done) else default

    def close(self) -> None:
        """Let the thread go."""
        self._helper.close()

    def _call(self, function: Callable[[], T]) -> calls.Result[T]:
        left = max(0.0, self._hold.deadline - self._rt.clock.elapsed()) + LET_GO_SECONDS
        signal, helper = self._hold.signal, self._helper
        return calls.attempt(self._rt, function, timeout=left, signal=signal, helper=helper)


def resolve(rt: Runtime, agent_class: str, given: Models, position: int = 0) -> Lineup:
    """The models that are meant, in order; in tests, what stands in for those that are only named.

    Raises:
        NoModel: None was named, or the name of the first can't be resolved.
    """
    if rt.stand_in is not None and (given is None or isinstance(given, str)):
        given = rt.stand_in(agent_class)
    models = Lineup(rt, rt.settings.model if given is None else given, position)
    _ = models.model
    return models


def models_of(rt: Runtime, agent: AgentHooks, hooks: Hooks | None = None, position: int = 0) -> Lineup:
    """The models that the agent's next turn asks, from that position on.

    Raises:
        NoModel: None was named, or the name of the first can't be resolved.
    """
    if rt.stand_in is not None:
        return resolve(rt, agent.agent_class, rt.stand_in(agent.agent_class), position)
    given = agent.get_model() if hooks is None else hooks.decide("get_model")
    return resolve(rt, agent.agent_class, given, position)


def all_tools(agent: AgentHooks, hooks: Hooks | None = None) -> Sequence[Tool]:
    """Every tool that the model is offered: the ``@tool`` methods, then those of ``get_tools()``.

    Raises:
        InvalidTool: One can't be a tool, or two have one name.
        InvalidValue: What ``get_tools()`` returned is no list; ``None`` is one without any.
    """
    further: Any = agent.get_tools() if hooks is None else hooks.decide("get_tools")
    if further is None:
        further = ()
    if not isinstance(further, Iterable) or isinstance(further, str | Mapping):
        raise _unfit(
            agent, "get_tools", further, "a list of functions or Tool objects, or None for no further ones"
        )
    return as_tools([*tools_of(agent), *further])


def system_prompt(agent: AgentHooks, hooks: Hooks) -> str | None:
    """The agent's system prompt.

    Raises:
        InvalidValue: It is no text.
    """
    given = hooks.decide("get_system_prompt")
    if not isinstance(given, str | None):
        raise _unfit(agent, "get_system_prompt", given, "a text, or None for no system prompt")
    return given


def _unfit(agent: AgentHooks, hook: str, given: object, wanted: str) -> InvalidValue:
    return InvalidValue(f"{agent.agent_class}.{hook} returned {a_type(given)}. Return {wanted}.")
