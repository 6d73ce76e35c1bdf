"""Methods of agents that are called later, by their name: checked when they are named, found when they are called.

``queue``, ``start_fiber`` and ``schedule`` store the name of a method and one payload. A worker makes the agent and
calls ``method(payload)``, or ``method()`` where there is none.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

from think_celery import schemas, serialization
from think_celery.errors import AsyncNotSupported, InvalidMethod, InvalidValue, UnreadableValue
from think_celery.wording import a_type

LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Named:
    """A method as rows hold it: its name, and the payload's text (``None``: it is called without one)."""

    name: str
    payload_text: str | None


def named(agent: Any, method: Any, payload: Any, *, call: str, limit: int, fiber: bool = False) -> Named:
    """Check that a method of this agent can be called later with this payload, and give what is stored of both.

    Args:
        agent: The user's agent.
        method: A bound method of it, or its name.
        payload: What it is called with; ``None`` calls it without one, if it can be.
        call: What was called with it, for errors: ``"queue()"``.
        limit: The most characters of the payload's text.
        fiber: Whether the method gets its fiber as the first argument.

    Raises:
        InvalidMethod: It is no method of this agent, or can't be called in this way.
        AsyncNotSupported: It is an ``async def``.
        InvalidValue: The payload does not fit the annotation of its parameter.
        NotSerializable, PayloadTooLarge: The payload can't be stored.
    """
    name, bound = _found(agent, method, call)
    if len(name) > LONGEST_NAME:
        raise _unfit(
            agent, f"{name[:60]}…", call, f"its name is stored, and has more than {LONGEST_NAME} characters"
        )
    if inspect.iscoroutinefunction(bound) or inspect.isasyncgenfunction(bound):
        raise AsyncNotSupported(f"{type(agent).__name__}.{name}")
    if inspect.isgeneratorfunction(bound):
        raise _unfit(agent, name, call, "it is a generator, which does nothing when it is called")
    first = 1 if fiber else 0
    if payload is None and _takes(bound, first):
        return Named(name, None)
    if not _takes(bound, first + 1):
        raise _wrong_signature(agent, name, bound, call, fiber=fiber, given=payload is not None)
    hint = _hint(agent, name, bound, first, call)
    return Named(name, _stored(payload, hint, f"The payload of {name}", limit))


def _found(agent: Any, method: Any, call: str) -> tuple[str, Callable[..., Any]]:
    if isinstance(method, str):
        bound = getattr(type(agent), method, None) if not method.startswith("__") else None
        if not callable(bound):
            raise InvalidMethod(
                call,
                repr(method if len(method) <= LONGEST_NAME else method[:60] + "…"),
                f"{type(agent).__name__} has no such method",
                "Pass a method: self.my_method.",
            )
        return method, getattr(agent, method)
    name: Any
    owner: Any
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", None)
    is_agents = hasattr(owner, "_ref") or owner is type(agent)
    if not callable(method) or not is_agents or not isinstance(name, str):
        shown = getattr(method, "__qualname__", None) or f"{a_type(method)}"
        raise InvalidMethod(
            call,
            shown,
            "it is no method of this agent",
            "Pass a method of the agent: self.my_method, or its name.",
        )
    mine = owner is type(agent) or (type(owner) is type(agent) and owner.name == agent.name)
    if not mine:
        raise InvalidMethod(
            call,
            getattr(method, "__qualname__", name),
            f"it belongs to {owner!r}, and {agent!r} was asked",
            "Ask the agent whose method it is.",
        )
    if _function(getattr(agent, name, None)) != _function(method):  # the owner may be another handle on it
        raise InvalidMethod(
            call,
            getattr(method, "__qualname__", name),
            f"under its name {name!r} the agent has another method, or none",
            "Give the method the name under which the class has it (a decorator needs functools.wraps).",
        )
    return name, method


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether the function can be called with that many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _unfit(agent: Any, name: str, call: str, problem: str) -> InvalidMethod:
    return InvalidMethod(
        call, f"{type(agent).__name__}.{name}", problem, "Write a plain method for it, and name that one."
    )


def _wrong_signature(
    agent: Any, name: str, bound: Callable[..., Any], call: str, *, fiber: bool, given: bool
) -> InvalidMethod:
    wanted = f"{'fiber, ' if fiber else ''}payload" if given else ("fiber" if fiber else "")
    return _unfit(
        agent,
        name,
        call,
        f"its signature is {name}{inspect.signature(bound)}, and it would be called as {name}({wanted})",
    )


def _parameter(bound: Callable[..., Any], position: int) -> inspect.Parameter | None:
    """The parameter that gets the positional argument of that number; ``None`` where it is one of many."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [each for each in inspect.signature(bound).parameters.values() if each.kind in positional]
    return found[position] if position < len(found) else None


def _hint(agent: Any, name: str, bound: Callable[..., Any], position: int, call: str) -> Any:
    """What the payload's parameter is annotated with; ``Any`` where it is not."""
    parameter = _parameter(bound, position)
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return Any
    try:
        hints = get_type_hints(inspect.unwrap(getattr(bound, "__func__", bound)), include_extras=True)
    except NameError as error:
        raise _unfit(agent, name, call, f"an annotation can't be resolved ({error})") from None
    return hints.get(parameter.name, Any)


def _stored(payload: Any, hint: Any, what: str, limit: int) -> str:
    value = payload if hint is Any else schemas.as_type(hint, payload, what)
    plain = value if hint is Any else schemas.as_plain(hint, value)
    return serialization.dumps(plain, what="payload", limit=limit)


# --- calling --------------------------------------------------------------------------------------


def call_of(agent: Any, name: str, payload_text: str | None, *first: Any) -> Callable[[], Any]:
    """The call of that method with its stored payload, behind *first*.

    Raises:
        UnreadableValue: The payload no longer fits the method's annotation, or its class is gone.
    """
    bound = getattr(agent, name)
    if payload_text is None:
        return partial(bound, *first)
    value, what = serialization.loads(payload_text), f"The payload of {type(agent).__name__}.{name}"
    hint = _hint(agent, name, bound, len(first), "a job")
    if hint is not Any:
        try:
            value = schemas.as_type(hint, value, what)
        except InvalidValue as error:
            raise UnreadableValue(what, f"it no longer fits its annotation ({error})") from None
    return partial(bound, *first, value)


def call_with_all(agent: Any, name: str, payload_text: str | None) -> Callable[[], Any]:
    """The call of a method whose payload is a list of its arguments, as it is for hooks."""
    arguments = [] if payload_text is None else serialization.loads(payload_text)
    return partial(getattr(agent, name), *arguments)
