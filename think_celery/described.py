"""Errors as rows hold them: a type and a text that a database takes."""

from think_celery.messages import clean

MAX_ERROR, MAX_TYPE = 20_000, 200
"""Characters of an error's text and of its type."""


def storable(text: str, limit: int) -> str:
    """*text* as a database takes it: no NUL, no half character, no more than *limit* characters."""
    text = str(clean(text)).replace("\x00", "\N{SYMBOL FOR NULL}")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def describe(error: BaseException) -> tuple[str, str]:
    """The type and the text of an error, storable; also of one whose own ``__str__`` fails."""
    try:
        text = str(error)
    except BaseException as broken:
        text = f"(its text can't be made: {type(broken).__name__})"
    return storable(type(error).__name__, MAX_TYPE), storable(text, MAX_ERROR)
