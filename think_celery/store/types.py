"""Column types that read back the same on SQLite and PostgreSQL."""

import json
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Dialect, Text
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.types import TypeDecorator

from think_celery.clock import MICROSECOND, from_microseconds, to_microseconds
from think_celery.errors import InvalidValue


class _NamesNoInstant(InvalidValue, DontWrapMixin):
    """A naive datetime. SQLAlchemy lets it through as it is, so that callers meet a ``ValueError``."""


class UtcDateTime(TypeDecorator[datetime]):
    """An instant, stored as microseconds since 1970, so that no driver's converter touches it.

    Takes aware datetimes of any zone and gives aware ones in UTC; a naive one is a ``ValueError``.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        try:
            return to_microseconds(value)
        except ValueError as error:
            raise _NamesNoInstant(str(error)) from None

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else from_microseconds(int(value))


class Span(TypeDecorator[timedelta]):
    """A span of time, as microseconds."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> int | None:
        return None if value is None else value // MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> timedelta | None:
        return None if value is None else int(value) * MICROSECOND


class JsonText(TypeDecorator[Any]):
    """JSON as ASCII-escaped text: a NUL or a lone surrogate in a user's string survives on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return as_json_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def as_json_text(value: Any) -> str | None:
    """A value as :class:`JsonText` stores it."""
    return None if value is None else json.dumps(value, allow_nan=False, separators=(",", ":"))
