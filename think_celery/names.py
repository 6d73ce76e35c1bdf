"""What may be a name or an id that users give: to agents, workflows, events, steps, submissions."""

import difflib
from collections.abc import Iterable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID

from think_celery.errors import InvalidType, InvalidValue
from think_celery.wording import shown

Made = TypeVar("Made")


class MisspeltName(UserWarning):
    """A class of agents has a public name that looks like a hook or an attribute of ours, misspelt."""


MAX_KEY = 500
"""Characters of an idempotency key: longer ones don't fit into an index of PostgreSQL, if each takes four bytes."""

RESERVED = "think-"
"""The beginning of keys and event types that are the engine's own."""


def name_problem(value: Any, longest: int, *, ascii_only: bool = False) -> str | None:
    """Why *value* is no name of at most *longest* characters; ``None`` if it is one."""
    if not isinstance(value, str):
        such_as = (
            f", such as '{value if isinstance(value, UUID) else shown(value)}'"
            if isinstance(value, int | UUID)
            else ""
        )  # a row's primary key
        return f"it is of type {type(value).__name__}; pass a text{such_as}"
    if (
        1 <= len(value) <= longest
        and value.isprintable()
        and value.strip()
        and (value.isascii() or not ascii_only)
    ):
        return None
    return f"it must be 1 to {longest} printable {'ASCII ' if ascii_only else ''}characters, and not blank"


def can_be_a_name(value: Any, longest: int) -> bool:
    """Whether *value* is such a name. One that is none can't be stored either, nor looked for in every database."""
    return name_problem(value, longest) is None


def check_name(
    what: str, value: Any, longest: int, *, ascii_only: bool = False, reserved: bool = False
) -> None:
    """Make sure that *value* is such a name; with *reserved*, also that it is none of the engine's own.

    Raises:
        InvalidValue: It is not; ``InvalidType`` where it is no text at all. The error's text begins with *what* and
            shows the value's beginning.
    """
    problem = name_problem(value, longest, ascii_only=ascii_only)
    if problem is None and reserved and value.startswith(RESERVED):
        problem = f"what begins with {RESERVED!r} is reserved for the engine. Choose another beginning"
    if problem is not None:
        if not isinstance(value, str):
            raise InvalidType(f"{what}={shown(value)}: {problem}.")
        raise InvalidValue(f"{what}={value[:60]!r}: {problem}.")


def meant_by(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The one of these names that is meant by *name*, which is misspelt: its like, or two of its letters swapped.

    *cutoff* says how much alike they have to be, from 0 to 1. Names with an underscore in front are nobody's to mean.
    """
    public = sorted(each for each in known if not each.startswith("_"))
    swapped = {f"{name[:at]}{name[at + 1]}{name[at]}{name[at + 2 :]}" for at in range(len(name) - 1)}
    near = [each for each in public if each in swapped] or difflib.get_close_matches(name, public, 1, cutoff)
    return near[0] if near else None


def refuse_unknown(made: type[Made]) -> type[Made]:
    """Let a dataclass refuse a field that it does not have with our error, which says the name that may be meant."""
    cls: Any = made
    known, init = [each.name for each in fields(cls)], cls.__init__

    @wraps(init)
    def checked(self: Any, **given: Any) -> None:
        for name in given.keys() - known:
            near = meant_by(name, known)
            meant = f"Did you mean {near}?" if near else f"It has {', '.join(known)}."
            raise InvalidValue(f"{cls.__name__} has no {name}. {meant}")
        init(self, **given)

    cls.__init__ = checked
    return made
