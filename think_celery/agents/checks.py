"""What is looked at when a class of agents is made: what its names would do, and what they would not."""

import functools
import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from think_celery import classes, serialization
from think_celery.errors import InvalidClass, NotSerializable
from think_celery.names import MisspeltName, meant_by
from think_celery.tools import is_tool, may_wait
from think_celery.wording import a_type

HIGHEST_MISS = 0.85
"""From how alike two names are (see ``difflib``) one is taken for the other, misspelt."""


def ours(cls: type) -> list[type]:
    """Those of its bases that are this package's."""
    nearest = next(base for base in cls.__mro__ if "_hooks" in vars(base))
    return [base for base in cls.__mro__ if issubclass(nearest, base) and base is not object]


def defined(cls: type) -> Iterator[tuple[type, str, Any]]:
    """What the users' own classes among its bases define, mixins too: the class, the name and what it stands for."""
    mine = set(ours(cls))
    for base in cls.__mro__:
        if base is not object and base not in mine and not base.__module__.startswith(("typing", "abc")):
            yield from ((base, name, value) for name, value in vars(base).items())


def check_loop(cls: Any, families: Iterable[type], *, abstract: bool) -> None:
    """Refuse a class of agents that defines what its loop, ours or its own, would never call.

    Args:
        cls: The class.
        families: Our classes that some agents subclass and others don't.
        abstract: Whether it is a base of agents, which need not be complete.

    Raises:
        InvalidClass: It does, perhaps in a mixin or a base; or it has no loop at all.
    """
    answers, name = cls._overrides("on_chat_message"), cls.__name__
    if cls._has_loop and answers:
        raise InvalidClass(
            name,
            "it defines on_chat_message, the loop of a ChatAgent, and is a Think, which has a loop of its own",
            "Subclass ChatAgent in place of Think, or take on_chat_message away: before_turn and the other hooks "
            "decide how the loop of Think goes.",
        )
    if not (abstract or cls._has_loop or answers):
        raise InvalidClass(
            name,
            "it has no on_chat_message(self, ctx)",
            "Write one that returns or yields the answer, or subclass Think, which has a loop.",
        )
    _refuse_unused_hooks(cls, families)
    if not cls._has_loop:
        _refuse_unasked_approvals(cls)


def _refuse_unused_hooks(cls: type, families: Iterable[type]) -> None:
    others = [family for family in families if "_hooks" in vars(family) and not issubclass(cls, family)]
    for base, name, _ in defined(cls):
        owner = next((family for family in others if name in vars(family)["_hooks"]), None)
        if owner is not None:
            where = "it defines" if base is cls else f"{base.__name__}, which it inherits, defines"
            raise InvalidClass(
                cls.__name__,
                f"{where} {name}, which is a hook of {owner.__name__}; here nobody would call it",
                f"Subclass {owner.__name__}, or do it in on_chat_message. If it is a method of your own, give it "
                "another name.",
            )


def _refuse_unasked_approvals(cls: type) -> None:
    for _, name, _ in defined(cls):
        if may_wait(cls, name):
            raise InvalidClass(
                cls.__name__,
                f"its tool {name} has needs_approval, and in a loop of your own nobody would be asked",
                "Subclass Think, whose loop asks; or leave needs_approval out and let on_chat_message decide.",
            )


def check_constructor(cls: type) -> None:
    """Refuse a class of agents whose objects can't be made from their names alone.

    Raises:
        InvalidClass: They can't.
    """
    classes.check_constructor(
        cls,
        "name",
        called=f"with a name alone, and a worker makes each agent from its name alone: {cls.__name__}(name)",
        remedy="Give what else it takes a default. What belongs to one agent is kept in its state, or is part of its "
        "name.",
    )


def check_made(agent: Any) -> None:
    """Make sure that our part of an agent was made, too.

    Raises:
        InvalidClass: Its class has an ``__init__`` that forgot it.
    """
    if "_own_rt" not in vars(agent):
        raise InvalidClass(
            type(agent).__name__,
            "its __init__ has not called super().__init__(name)",
            "Call it first: it gives the agent its name.",
        )


def refuse_shadows(cls: type) -> None:
    """Refuse a class that puts a plain value where our classes have a property or a method.

    Raises:
        InvalidClass: It does.
    """
    theirs = {name: value for base in reversed(ours(cls)) for name, value in vars(base).items()}
    for _, name, value in defined(cls):
        there = theirs.get(name)
        if isinstance(there, property) and not is_property(value):
            state = " Its first value is initial_state." if name == "state" else ""
            raise InvalidClass(
                cls.__name__,
                f"its {name} takes the place of the agent's own {name}, which is read from the database",
                f"Give it another name.{state}",
            )
        if inspect.isfunction(there) and not name.startswith("_") and _is_plain(value):
            raise InvalidClass(
                cls.__name__,
                f"its {name} is {a_type(value)}, and {name} is a method",
                f"Write def {name}(self, …), or give it another name.",
            )


def check_first_state(cls: Any) -> None:
    """Refuse a class whose ``initial_state`` can't be stored.

    Not for what another process imports as another module, nor for a value of a class inside this one, which has
    no name to be found by yet.

    Raises:
        NotSerializable: It can't.
    """
    if is_property(cls.initial_state) or cls.__module__ == "__main__":
        return
    try:
        serialization.dumps(cls.initial_state, what=f"{cls.__name__}.initial_state")
    except NotSerializable as error:
        if f"{cls.__module__}.{cls.__qualname__}." not in error.problem:
            raise


def is_property(value: Any) -> bool:
    """Whether it is read with code of its own."""
    return inspect.isdatadescriptor(value) or isinstance(value, functools.cached_property)


def _is_plain(value: Any) -> bool:
    return not callable(value) and not hasattr(value, "__get__")


# --- near misses ----------------------------------------------------------------------------------


def warn_of_near_misses(cls: type) -> None:
    """Warn of public names that look like a hook or an attribute of ours, misspelt, which the class does not define.

    A tool is what it is called: the model calls it. A dict under the plural of a name is the user's own collection.
    """
    theirs = ours(cls)
    known, used = {name for base in theirs for name in _to_define(base)}, dir(theirs[0])
    seen = {each for base in cls.__bases__ if hasattr(base, "_hooks") for each in base.__mro__}
    mine = {name: (base, value) for base, name, value in defined(cls) if not is_tool(value)}
    for name, (base, value) in mine.items():
        if name.startswith("_") or name in used or base in seen:
            continue
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        near = meant_by(snake, known - mine.keys(), cutoff=HIGHEST_MISS)
        if near is not None and not (name == f"{near}s" and isinstance(value, Mapping)):
            _warn(
                f"{base.__name__}.{name} looks like {near}, misspelt: nothing here calls or reads {name}. Rename it "
                f"to {near}; or, if it is your own, give it a name that is less like it, or silence "
                "think_celery.MisspeltName."
            )


def _to_define(base: type) -> Iterator[str]:
    """The hooks and attributes of one of our classes: what a subclass may set, as against what it calls."""
    yield from vars(base).get("_hooks", ())
    for name, value in vars(base).items():
        plain = not (callable(value) or isinstance(value, property | classmethod | staticmethod))
        if plain and not name.startswith("_") and name != "agent_class":
            yield name


def _warn(text: str) -> None:
    """Warn at the line that made the class: the first that is not of this package."""
    frame, package = sys._getframe(1), __name__.partition(".")[0]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    warnings.warn_explicit(
        text,
        MisspeltName,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
