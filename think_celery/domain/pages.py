"""Lists of rows: what is asked of one, and the pages in which it is given."""

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from think_celery.clock import from_microseconds, to_microseconds
from think_celery.durations import as_timedelta
from think_celery.errors import InvalidDuration, InvalidType, InvalidValue
from think_celery.wording import a_type, shown

MAX_PAGE = 1000
LARGEST = 2**63 - 1
"""The greatest number that a database orders rows by."""

KEY_CHARACTERS = 36
"""Those of an id, which is a UUID."""

Record = TypeVar("Record")
Other = TypeVar("Other")

Place = tuple[datetime, str]
"""Where a row stands in an order by time: its instant, and its id."""


class Page(list[Record]):
    """Some of what was asked for, and the ``cursor`` of the next page: ``None`` where there is none.

    A list whose order stays goes on just behind the page, whatever has been added or deleted meanwhile.
    """

    def __init__(self, records: Iterable[Record] = (), cursor: str | None = None) -> None:
        super().__init__(records)
        self.cursor = cursor

    def of(self, read: Callable[[Record], Other]) -> "Page[Other]":
        """The same page of what *read* makes of each."""
        return Page(map(read, self), self.cursor)


def page_of(
    rows: Sequence[Record], limit: int, of: str, place: Callable[[Record], Place | int]
) -> Page[Record]:
    """A page of rows, of which one more than *limit* was asked for; *place* is where a row stands in the list *of*
    its kind."""
    return Page(rows[:limit], cursor_of(place(rows[limit - 1]), of) if len(rows) > limit else None)


def cursor_of(place: Place | int, of: str) -> str:
    """A place in the list *of* that kind, as a caller keeps it."""
    where = str(place) if isinstance(place, int) else f"{to_microseconds(place[0])}:{place[1]}"
    return base64.urlsafe_b64encode(f"{of}:{where}".encode("ascii")).decode("ascii")


def read_number(cursor: Any, of: str) -> int | None:
    """The place in the list *of* that kind, which is one by number; ``None`` without a cursor.

    Raises:
        InvalidValue: It is no cursor of such a list.
    """
    try:
        number = None if cursor is None else int(_text_of(cursor, of))
    except ValueError:
        raise _no_cursor(cursor) from None
    if number is not None and not 0 <= number <= LARGEST:
        raise _no_cursor(cursor)
    return number


def read_place(cursor: Any, of: str) -> Place | None:
    """The place in the list *of* that kind, which is one by time; ``None`` without a cursor.

    Raises:
        InvalidValue: It is no cursor of such a list.
    """
    if cursor is None:
        return None
    try:
        moment, _, key = _text_of(cursor, of).partition(":")
        place = from_microseconds(int(moment)), key
    except (ValueError, OverflowError):
        raise _no_cursor(cursor) from None
    if len(key) != KEY_CHARACTERS or not key.isprintable():
        raise _no_cursor(cursor)
    return place


def _text_of(cursor: Any, of: str) -> str:
    try:
        kind, _, text = base64.urlsafe_b64decode(cursor).decode("ascii").partition(":")
    except (TypeError, ValueError, binascii.Error):
        raise _no_cursor(cursor) from None
    if kind != of:
        raise _no_cursor(cursor)
    return text


def _no_cursor(cursor: Any) -> InvalidValue:
    return InvalidValue(
        f"cursor={shown(cursor)} is no cursor of this list. Pass the cursor of the page before this one, as it was."
    )


def check_limit(limit: Any) -> None:
    """Make sure that *limit* is a number of rows.

    Raises:
        InvalidValue: It is no whole number between 1 and 1000.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidValue(f"limit={shown(limit)}: it must be a whole number between 1 and {MAX_PAGE}.")


def status_names(given: Any, known: Iterable[str], what: str = "status") -> list[str] | None:
    """The names of the statuses (or *what* else) in *given*: one, or several; ``None`` where it is ``None``.

    Raises:
        InvalidValue: One is none of *known*, or it is something else.
    """
    if given is None:
        return None
    if not isinstance(given, str | Iterable):
        raise InvalidValue(f"{what}={shown(given)}: pass one of {', '.join(known)}, or a list of them.")
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in list(known):
            raise InvalidValue(f"{what}={shown(name)} is none of {', '.join(known)}.")
    return [str(name) for name in names]


Before = datetime | timedelta | str
"""An instant; or a span, such as ``"90 days"``: that long ago."""


def as_instant(name: str, given: Any, now: datetime) -> datetime | None:
    """The instant that is meant: an aware datetime, or so long ago; ``None`` where none is given.

    Raises:
        InvalidType: It is neither.
        InvalidValue: It has no time zone, or the span can't be read.
    """
    if given is not None and not isinstance(given, datetime | timedelta | str):
        raise InvalidType(
            f'{name} is {shown(given)}; pass an aware datetime, or how long ago: "90 days", a timedelta.'
        )
    if given is None or isinstance(given, datetime):
        check_instant(name, given)
        return given
    try:
        return now - as_timedelta(given, name)
    except (InvalidDuration, OverflowError) as error:
        raise InvalidValue(f"{error} Or pass an aware datetime.") from None


def check_instant(name: str, given: Any) -> None:
    """Make sure that it is an instant, or ``None``.

    Raises:
        InvalidType: It is no ``datetime``.
        InvalidValue: It has no time zone.
    """
    if not isinstance(given, datetime | None):
        raise InvalidType(f"{name} is {a_type(given)}; pass an aware datetime.")
    if given is not None and given.utcoffset() is None:
        raise InvalidValue(
            f"{name}={given!r} has no time zone, so it names no instant. Pass an aware datetime."
        )


def class_name(agent_class: Any) -> str | None:
    """The registered name of an agent class, given as the class or as that name; ``None`` where none is given.

    Raises:
        InvalidType: Something else was given.
    """
    name = getattr(agent_class, "agent_class", agent_class)
    if name is not None and not isinstance(name, str):
        raise InvalidType(f"agent_class is {shown(agent_class)}; pass an agent class, or the name of one.")
    return name
