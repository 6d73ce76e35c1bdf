"""The rows whose knock seems lost: of each queue some, so that one which no worker serves hides no other."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice, zip_longest
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    func,
    select,
    update,
)

from think_celery.store.database import Tx
from think_celery.store.statements import AT_MOST, now, span, unlocked


class Missed:
    """The look for them in one table.

    Its queues are found by one step through an index for each, and the rows of a queue in which something is due by
    that index, too. So a look costs the same however many rows of other queues wait.
    """

    def __init__(
        self, table: Table, *columns: ColumnElement[Any], queues: Sequence[ColumnElement[Any]] = ()
    ) -> None:
        """*columns* are what is asked of each row.

        A row's queue is the first of *queues* that is not null in it, else its ``queue``.
        """
        named_in = [*queues, table.c.queue]
        due = select(*columns, table.c.knock_at, table.c.knocks).where(table.c.knock_at <= now())
        self._by_queue: list[tuple[Select[Any], Select[Any]]] = []
        for place, queue in enumerate(named_in):
            not_before = [earlier.is_(None) for earlier in named_in[:place]]
            of_queue = due.where(*not_before, queue == bindparam("of_queue"))
            self._by_queue.append((_due_queues(table, queue, not_before), _in_order(of_queue, queue, table)))
        of_none = due.where(*(queue.is_(None) for queue in named_in))
        self._of_none = _in_order(of_none, table.c.queue, table)

    def __call__(self, tx: Tx, limit: int) -> list[Row[Any]]:
        """So many of them at most: the queues take turns, and each gives those first that are due the longest."""
        in_turn = chain.from_iterable(zip_longest(*self._of_each(tx, limit)))
        return list(islice((row for row in in_turn if row is not None), limit))

    def _of_each(self, tx: Tx, limit: int) -> Iterator[Sequence[Row[Any]]]:
        yield tx.execute(self._of_none, {"at_most": limit}).all()
        for due_queues, of_queue in self._by_queue:
            for name in tx.execute(due_queues).scalars().all():
                yield tx.execute(of_queue, {"at_most": limit, "of_queue": name}).all()


def _in_order(rows: Select[Any], queue: ColumnElement[Any], table: Table) -> Select[Any]:
    return rows.order_by(queue, table.c.knock_at).limit(AT_MOST)  # as the index has them


def _due_queues(
    table: Table, queue: ColumnElement[Any], not_before: Sequence[ColumnElement[bool]]
) -> Select[Any]:
    """The queues in which something is due; those in which anything is expected are found one behind the other."""
    awaited = and_(*not_before, queue.is_not(None), table.c.knock_at.is_not(None))
    found = select(func.min(queue).label("queue")).where(awaited).cte("found", recursive=True)
    following = select(func.min(queue)).where(awaited, queue > found.c.queue).scalar_subquery()
    found = found.union_all(select(following).where(found.c.queue.is_not(None)))
    first = select(table.c.knock_at).where(*not_before, queue == found.c.queue, table.c.knock_at.is_not(None))
    first_at = first.order_by(queue, table.c.knock_at).limit(1).scalar_subquery()
    return select(found.c.queue).where(found.c.queue.is_not(None), first_at <= now())


class PutOff:
    """What lets the tick look at rows again only later, as if it had knocked for them."""

    def __init__(self, table: Table, key: ColumnElement[Any]) -> None:
        """*key* is what a row is told by."""
        (primary,) = table.primary_key.columns
        seen = and_(
            key.in_(bindparam("keys", expanding=True)),
            table.c.knock_at <= bindparam("seen", type_=table.c.knock_at.type),
        )
        self._change: Update = (
            update(table)
            .where(seen, unlocked(primary, seen))
            .values(knock_at=now(span("after")), knocks=table.c.knocks + 1)
        )

    def __call__(self, tx: Tx, keys: Sequence[str], seen: datetime, after: timedelta) -> int:
        """Put them off, but for what somebody has locked or has set a later time for than *seen*; returns how many."""
        return tx.execute(self._change, {"keys": keys, "seen": seen, "after": after}).rowcount
