"""What statements are made of that are built once, when their module is imported.

SQLAlchemy takes several times as long to build a statement as to run one that it knows. So the statements of the
hot paths are constants with named parameters, and :meth:`Tx.execute` gets the values.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Executable,
    Integer,
    Table,
    UpdateBase,
    bindparam,
    cast,
    func,
    select,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ColumnElement, visitors
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from think_celery.clock import MICROSECOND
from think_celery.store.types import Span, UtcDateTime

ZERO = timedelta(0)

HOST_TIME = "think_now"
"""The parameter that every transaction gives: the host's time, or nothing where the database's clock counts."""

AT_MOST: BindParameter[int] = bindparam("at_most", type_=Integer())
"""The parameter for the LIMIT of a look at many rows."""

Statement = Executable | Mapping[str, Executable]
"""A statement, or one for each database by the name of its dialect."""


class _DatabaseClock(FunctionElement[int]):
    """Microseconds since 1970 by the database's own clock; NULL where it has none of its own."""

    type = BigInteger()
    inherit_cache = True


@compiles(_DatabaseClock)
def _no_clock(element: _DatabaseClock, compiler: SQLCompiler, **options: Any) -> str:
    return "NULL"


@compiles(_DatabaseClock, "postgresql")
def _postgresql_clock(element: _DatabaseClock, compiler: SQLCompiler, **options: Any) -> str:
    return "CAST(EXTRACT(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


def now(plus: timedelta | ColumnElement[timedelta] = ZERO) -> ColumnElement[datetime]:
    """The present instant, moved by *plus*, as SQL: by the database's own clock where it has one.

    A scalar subquery, so that it is read once a statement and indexes can be used.
    """
    host = cast(bindparam(HOST_TIME, type_=UtcDateTime), BigInteger)
    present: ColumnElement[int] = func.coalesce(host, _DatabaseClock())
    if isinstance(plus, timedelta):
        moved = present + plus // MICROSECOND if plus else present
    else:
        moved = present + cast(plus, BigInteger)  # type_coerce would take the parameter for a number
    return type_coerce(select(moved).scalar_subquery(), UtcDateTime)


def span(name: str) -> ColumnElement[timedelta]:
    """A parameter of that name which takes a ``timedelta``, for :func:`now`."""
    return bindparam(name, type_=Span)


def unlocked(column: ColumnElement[Any], where: ColumnElement[bool]) -> ColumnElement[bool]:
    """*where*, for a change of the tick, but for rows that somebody has locked: *column* is the primary key.

    Waiting for a caller's slow transaction would hold up the whole pass. (SQLite has one writer anyway.)
    """
    return column.in_(select(column).where(where).with_for_update(key_share=True, skip_locked=True))


def on_each(make: Callable[[Any], Executable]) -> Statement:
    """A statement for each database, whose ``insert`` function *make* is given: it has ``on_conflict_…``."""
    return {"postgresql": make(postgresql.insert), "sqlite": make(sqlite.insert)}


def insert_new(table: Table, *returning: ColumnElement[Any], **values: Any) -> Statement:
    """An INSERT that changes nothing where an index or constraint has such a row already.

    Columns that are not among *values* are given when it is run. Returned is the new row, or *returning* of it;
    nothing where there was one (the count of rows of an INSERT is not known on PostgreSQL).
    """
    return on_each(
        lambda insert: (
            insert(table).values(values).on_conflict_do_nothing().returning(*(returning or table.c))
        )
    )


_names: WeakKeyDictionary[Executable, frozenset[str]] = WeakKeyDictionary()


def check_names(statement: Executable, given: Iterable[str]) -> None:
    """Make sure that each of these is a parameter of the statement, or a column of the row that it writes.

    SQLAlchemy passes over any other, and a column that was misspelt would keep its value without a word.

    Raises:
        TypeError: One of them is neither.
    """
    names = _names.get(statement)
    if names is None:
        names = _names[statement] = frozenset(_names_of(statement))
    if not names.issuperset(given):
        wrong = ", ".join(sorted(set(given) - names))
        raise TypeError(f"the statement has no parameter or column {wrong}")


def _names_of(statement: Executable) -> Iterable[str]:
    yield HOST_TIME
    if isinstance(statement, UpdateBase):
        yield from statement.table.c.keys()
    for element in visitors.iterate(statement):  # type: ignore[arg-type,unused-ignore]
        if isinstance(element, BindParameter):
            yield element.key
