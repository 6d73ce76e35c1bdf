"""Statements that are run over and over, given to the driver as they are.

SQLAlchemy makes the text of a statement once. But each time that it runs one it takes several times as long as the
driver does, and for our small statements longer than the database. So a transaction of ours runs by the driver's cursor
what it has met before. Values and errors are those of SQLAlchemy all the same.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Executable, Row, SelectBase, UpdateBase
from sqlalchemy.engine import result_tuple
from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound
from sqlalchemy.sql.compiler import SQLCompiler


class Found:
    """What a statement has returned: of SQLAlchemy's results the part that is used here."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: list[Row[Any]], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def __iter__(self) -> Iterator[Row[Any]]:
        return iter(self._rows)

    def all(self) -> Sequence[Row[Any]]:
        """Every row."""
        return self._rows

    def first(self) -> Row[Any] | None:
        """The first row, if there is one."""
        return self._rows[0] if self._rows else None

    def one(self) -> Row[Any]:
        """The only row."""
        if not self._rows:
            raise NoResultFound("there is no row, and one is needed")
        if len(self._rows) > 1:
            raise MultipleResultsFound("there are several rows, and one is needed")
        return self._rows[0]

    def scalar(self) -> Any:
        """The first value of the first row, if there is one."""
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        """The first value of the only row."""
        return self.one()[0]

    def close(self) -> None:
        """Nothing is left to be closed."""

    def scalars(self) -> "Values":
        """The first value of each row."""
        return Values(row[0] for row in self._rows)


class Values(list[Any]):
    """One value of each row."""

    def all(self) -> Sequence[Any]:
        """Each of them."""
        return self


class Unfit(Exception):
    """A statement needs what SQLAlchemy does each time that it runs it."""


class Prepared:
    """One statement with one set of parameters, as the driver takes it.

    Raises:
        Unfit: It can't be run in this way.
    """

    def __init__(self, statement: Executable, dialect: Dialect, names: Sequence[str]) -> None:
        if not isinstance(statement, SelectBase | UpdateBase):
            raise Unfit
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        columns = list(statement.exported_columns)
        keys = [str(column.key) for column in columns]
        if not isinstance(compiled, SQLCompiler) or _needs_more(compiled):
            raise Unfit
        if len(set(keys)) != len(keys):
            raise Unfit
        self.text, self.returns = str(compiled), bool(columns)
        converts = {
            name: parameter.type.dialect_impl(dialect).bind_processor(dialect)
            for parameter, name in compiled.bind_names.items()
        }
        self._given = [(name, converts[name]) for name in names if name in converts]
        self._always = {
            name: value if (convert := converts[name]) is None else convert(value)
            for name, value in compiled.construct_params(dict.fromkeys(names)).items()
            if name not in names
        }
        self._make = result_tuple(keys)
        self._types = [column.type.dialect_impl(dialect) for column in columns]
        self._dialect = dialect
        self._read: list[tuple[int, Any]] | None = None

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """These values for the driver."""
        values = dict(self._always)
        for name, convert in self._given:
            value = given[name]
            values[name] = value if convert is None else convert(value)
        return values

    def rows(self, cursor: Any) -> list[Row[Any]]:
        """The driver's rows as SQLAlchemy gives them."""
        if not self.returns:
            return []
        if self._read is None:
            self._read = list(self._conversions(cursor.description))
        if not self._read:
            return [self._make(row) for row in cursor.fetchall()]
        found = []
        for row in cursor.fetchall():
            values = list(row)
            for place, convert in self._read:
                values[place] = convert(values[place])
            found.append(self._make(values))
        return found

    def _conversions(self, description: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for place, type_ in enumerate(self._types):
            convert = type_.result_processor(self._dialect, description[place][1])
            if convert is not None:
                yield place, convert


def _needs_more(compiled: SQLCompiler) -> bool:
    """Whether the text changes with the values, or values are made in Python, or are given by their place."""
    makes = compiled.insert_prefetch or compiled.update_prefetch
    return bool(compiled.positional or compiled.post_compile_params or compiled.escaped_bind_names or makes)


_met: WeakKeyDictionary[Executable, dict[tuple[Any, ...], Prepared | None]] = WeakKeyDictionary()
"""What this process has run before; the same for all databases whose servers speak alike."""


def run(conn: Connection, statement: Executable, given: Mapping[str, Any]) -> Found | None:
    """Run a statement that was met before; ``None``, and nothing was done: SQLAlchemy is to run it.

    Raises:
        DBAPIError: As SQLAlchemy raises it.
    """
    variants = _met.get(statement)
    if variants is None:
        _met[statement] = {}
        return None
    if conn.dispatch.before_cursor_execute or conn.dispatch.after_cursor_execute:
        return None  # somebody wants to be told of each statement
    names = tuple(given)
    variant = (type(conn.dialect), conn.dialect.server_version_info, names)
    if variant not in variants:
        try:
            variants[variant] = Prepared(statement, conn.dialect, names)
        except Unfit:
            variants[variant] = None
    prepared = variants[variant]
    return None if prepared is None else _run(conn, prepared, given)


def _run(conn: Connection, prepared: Prepared, given: Mapping[str, Any]) -> Found:
    try:
        values = prepared.parameters(given)
    except (TypeError, ValueError) as error:  # not all: a soft time limit may come here as anywhere
        raise _as_sqlalchemy(conn, prepared, given, error) from error
    pooled = conn.connection
    try:
        with contextlib.closing(pooled.cursor()) as cursor:
            cursor.execute(prepared.text, values)
            return Found(prepared.rows(cursor), cursor.rowcount)
    except conn.dialect.loaded_dbapi.Error as error:
        gone = conn.dialect.is_disconnect(error, pooled, None)
        if gone:
            _tell(conn)
        raise _as_sqlalchemy(conn, prepared, values, error, gone) from error


def _as_sqlalchemy(
    conn: Connection, prepared: Prepared, values: Mapping[str, Any], error: Exception, gone: bool = False
) -> BaseException:
    return DBAPIError.instance(
        prepared.text,
        dict(values),
        error,
        conn.dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=gone,
        dialect=conn.dialect,
    )


def _tell(conn: Connection) -> None:
    """Let SQLAlchemy find out by itself that a connection is dead: it then gives up all that are as old."""
    with contextlib.suppress(DBAPIError):
        conn.exec_driver_sql("SELECT 1")
