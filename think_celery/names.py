"""What may be a name or an id that users give: to agents, workflows, events, steps, submissions."""

from typing import Any
from uuid import UUID

from think_celery.errors import InvalidValue


class MisspeltName(UserWarning):
    """A class of agents has a public name that looks like a hook or an attribute of ours, misspelt."""


RESERVED = "think-"
"""The beginning of keys and event types that are the engine's own."""


def name_problem(value: Any, longest: int, *, ascii_only: bool = False) -> str | None:
    """Why *value* is no name of at most *longest* characters; ``None`` if it is one."""
    if not isinstance(value, str):
        such_as = f", such as '{value}'" if isinstance(value, int | UUID) else ""  # a row's primary key
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
        InvalidValue: It is not. Its text begins with *what* and shows the value's beginning.
    """
    problem = name_problem(value, longest, ascii_only=ascii_only)
    if problem is None and reserved and value.startswith(RESERVED):
        problem = f"what begins with {RESERVED!r} is reserved for the engine. Choose another beginning"
    if problem is not None:
        shown = value[:60] if isinstance(value, str) else value
        raise InvalidValue(f"{what}={shown!r}: {problem}.")
