"""How a status changes.

Two statements do without :func:`move`, for they go over rows of several statuses at once: ``workflows.wake``
and ``submissions.end_all``. Tests hold them to the same lists of moves.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Table, update
from sqlalchemy.sql import ColumnElement

from think_celery.states import Moves
from think_celery.store.database import Tx


def move(
    tx: Tx, table: Table, where: ColumnElement[bool], to: str, *, allowed: Moves, **changes: Any
) -> bool:
    """Move the row that *where* names to the status *to*, and say whether this call moved it.

    The check and the change are one UPDATE, so of any number of racing calls exactly one returns True;
    a call that comes too late changes nothing. A holder of a lease calls this inside its fence.

    A move from a status to itself (a takeover) can be won by every racer. Where such a move is allowed,
    the caller holds the lease's row, or *where* asks for a row without a holder.
    """
    return moved(tx, table, where, to, allowed=allowed, returning=[table.c.status], **changes) is not None


def moved(
    tx: Tx,
    table: Table,
    where: ColumnElement[bool],
    to: str,
    *,
    allowed: Moves,
    returning: Sequence[ColumnElement[Any]] = (),
    **changes: Any,
) -> Row[Any] | None:
    """Do as :func:`move` does, and return the row as it is then; ``None`` if this call did not move it.

    *returning*: these columns of it, else all.
    """
    sources = [status for status, targets in allowed.items() if to in targets]
    statement = update(table).where(where, table.c.status.in_(sources)).values(status=to, **changes)
    return tx.execute(statement.returning(*(returning or table.c))).first()
