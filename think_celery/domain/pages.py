"""What is asked of a list of rows: how many, and of which status."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from think_celery.errors import InvalidValue

MAX_PAGE = 1000


def check_limit(limit: Any) -> None:
    """Make sure that *limit* is a number of rows.

    Raises:
        InvalidValue: It is no whole number between 1 and 1000.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidValue(f"limit={limit!r}: it must be a whole number between 1 and {MAX_PAGE}.")


def status_names(given: Any, known: type[StrEnum]) -> list[str] | None:
    """The names of the statuses in *given*: one, or several; ``None`` where it is ``None``.

    Raises:
        InvalidValue: One is none of *known*, or it is something else.
    """
    if given is None:
        return None
    if not isinstance(given, str | Iterable):
        raise InvalidValue(f"status={given!r}: pass one of {', '.join(known)}, or a list of them.")
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in list(known):
            raise InvalidValue(f"status={name!r} is none of {', '.join(known)}.")
    return [str(name) for name in names]
