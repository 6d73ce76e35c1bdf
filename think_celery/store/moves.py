"""How a status changes.

A module of rows makes each of its moves once, as a constant, with :func:`moving`; :func:`move` and
:func:`moved` then carry it out:

    _SETTLE = moving(outbox, outbox.c.id == bindparam("outbox_id"), OutboxStatus.DROPPED, allowed=OUTBOX_MOVES)

    move(tx, _SETTLE, outbox_id=outbox_id, last_error="…")

Three statements do without, for they go over rows of several statuses at once, or to one of two: ``workflows.wake``,
``submissions.end_all`` and ``outbox.deliver``. Tests hold them to the same lists of moves.
"""

from collections.abc import Iterable
from typing import Any, NewType

from sqlalchemy import Row, Table, Update, false, or_, update
from sqlalchemy.sql import ColumnElement

from think_celery.states import Moves
from think_celery.store.database import Tx

Move = NewType("Move", Update)
"""One way in which the rows of a table may come to one status."""


def moving(
    table: Table,
    where: ColumnElement[bool],
    to: str,
    *,
    allowed: Moves,
    returning: Iterable[ColumnElement[Any]] = (),
    **changes: Any,
) -> Move:
    """The move of the row that *where* names to the status *to*, from each status that *allowed* lists.

    The check and the change are one UPDATE, so of any number of racing calls exactly one moves the row; a
    call that comes too late changes nothing. A holder of a lease moves inside its fence.

    A move from a status to itself (a takeover) can be won by every racer. Where such a move is allowed,
    the caller holds the lease's row, or *where* asks for a row without a holder.

    Args:
        table: Where the row is.
        where: Its parameters have names that no column has, for further columns are given by theirs.
        to: The new status.
        allowed: The list of ``states.py``.
        returning: What :func:`moved` returns of the row as it is then; its status, unless said.
        changes: Columns that change with the status, whatever :func:`move` is given.
    """
    is_source = [table.c.status == source for source, targets in allowed.items() if to in targets]
    statement = update(table).where(where, or_(false(), *is_source)).values(status=to, **changes)
    return Move(statement.returning(*(returning or [table.c.status])))


def moved(tx: Tx, how: Move, **values: Any) -> Row[Any] | None:
    """Do as :func:`move` does, and return the row as it is then; ``None`` if this call did not move it."""
    return tx.execute(how, values).first()


def move(tx: Tx, how: Move, **values: Any) -> bool:
    """Make this move, and say whether this call made it. *values*: its parameters, and further columns."""
    return moved(tx, how, **values) is not None
