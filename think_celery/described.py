"""Errors as rows hold them: a type and a text that a database takes."""

from typing import Any

from think_celery.errors import InvalidType
from think_celery.messages import clean
from think_celery.wording import a_type

MAX_ERROR, MAX_TYPE = 20_000, 200
"""Characters of an error's text and of its type."""


def storable(text: str, limit: int) -> str:
    """*text* as a database takes it: no NUL, no half character, no more than *limit* characters."""
    text = str(clean(text)).replace("\x00", "\N{SYMBOL FOR NULL}")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def kept_reason(given: Any, name: str = "reason") -> str | None:
    """What a caller gave as a reason, storable; ``None`` where it gave none.

    Raises:
        InvalidType: It is no text.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        raise InvalidType(f"{name} is {a_type(given)}; pass a text.")
    return storable(given, MAX_ERROR)


def describe(error: BaseException) -> tuple[str, str]:
    """The type and the text of an error, storable; also of one whose own ``__str__`` fails."""
    try:
        text = str(error)
    except BaseException as broken:
        text = f"(its text can't be made: {type(broken).__name__})"
    return storable(type(error).__name__, MAX_TYPE), storable(text, MAX_ERROR)
