"""The one way to change a status."""

from typing import Any

from sqlalchemy import Table, update
from sqlalchemy.sql import ColumnElement

from think_celery.states import Moves
from think_celery.store.database import Tx


def move(
    tx: Tx,
    table: Table,
    where: ColumnElement[bool],
    to: str,
    *,
    allowed: Moves,
    source: str | None = None,
    **changes: Any,
) -> bool:
    """Move the row that *where* names to the status *to*, and say whether this call moved it.

    The check and the change are one UPDATE, so of any number of racing calls exactly one returns True;
    a call that comes too late changes nothing. A holder of a lease calls this inside its fence.

    A move from a status to itself (a takeover) can be won by every racer. Where such a move is allowed,
    either the caller holds the lease's row or it names the one *source* that it means.
    """
    sources = [status for status, targets in allowed.items() if to in targets and source in (None, status)]
    statement = update(table).where(where, table.c.status.in_(sources)).values(status=to, **changes)
    return tx.execute(statement).rowcount == 1
