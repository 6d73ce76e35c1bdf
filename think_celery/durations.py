"""Spans of time as callers write them: seconds, a ``timedelta``, or words."""

import math
from datetime import timedelta

from pydantic import TypeAdapter, ValidationError
from pytimeparse2 import parse as parse_words

from think_celery.errors import InvalidDuration
from think_celery.wording import shown

Duration = float | int | timedelta | str

LONGEST, LONGEST_WORDS = timedelta(days=250 * 365), "250 years"
"""The longest span: dates and the waits of threads (292 years) overflow with more."""

LONGEST_TEXT, SHOWN = 1000, 60
"""Characters that words may have, and how many of longer ones an error shows."""

_ISO_8601 = TypeAdapter(timedelta)


def as_timedelta(given: Duration, name: str | None = None) -> timedelta:
    """The span that *given* means: seconds, a ``timedelta``, words ("3 days", "1h30m") or ISO 8601 ("P3D").

    Zero is a span. Words know months (30 days) and years (365 days); they are spans, not calendar dates.

    Args:
        given: What the caller wrote.
        name: The argument or setting that it was written for; the error repeats it.

    Raises:
        InvalidDuration: It can't be read, has more than 1,000 characters, is negative, not finite, or longer than 250
            years.
    """
    too_long = isinstance(given, str) and len(given) > LONGEST_TEXT
    text = repr(given[:SHOWN] + "…") if isinstance(given, str) and too_long else shown(given)
    told = text if name is None else f"{name}={text}"
    if too_long:
        raise InvalidDuration(told)
    try:
        span = _read(given)
    except OverflowError:
        raise InvalidDuration(told, LONGEST_WORDS) from None
    except ValueError:  # Pydantic's ValidationError is one
        span = None
    if span is None or span < timedelta(0):
        raise InvalidDuration(told)
    if span > LONGEST:
        raise InvalidDuration(told, LONGEST_WORDS)
    return span


def _read(given: object) -> timedelta | None:
    if isinstance(given, timedelta):
        return given
    if isinstance(given, bool):  # True is an int, and surely a slip
        return None
    if isinstance(given, int | float):
        return timedelta(seconds=given) if math.isfinite(given) else None
    if not isinstance(given, str):
        return None
    words = given.strip()
    if words[:1].upper() == "P":
        return _iso_8601(words.upper())
    seconds = parse_words(words)
    return timedelta(seconds=seconds) if isinstance(seconds, int | float) else None


def _iso_8601(text: str) -> timedelta | None:
    try:
        return _ISO_8601.validate_python(text)
    except ValidationError:
        return None
