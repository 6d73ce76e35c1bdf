"""Rows of the database as the records that users see."""

from dataclasses import fields
from typing import Any, TypeVar

from think_celery.ids import AgentRef

Record = TypeVar("Record")


def as_record(cls: type[Record], row: Any, **told: Any) -> Record:
    """A row as a record of *cls*, a dataclass: what is not *told* is the column of the field's name.

    A private field's column has the name without the underscore. ``agent`` is whose row it is.
    """
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name == "agent":
            told["agent"] = AgentRef.of(row)
        elif each.name not in told:
            told[each.name] = getattr(row, each.name.removeprefix("_"))
    return cls(**told)
