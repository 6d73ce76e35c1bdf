"""Leases: who may work on an agent's turns or on a workflow, and the fence that keeps everyone else out.

An agent's lease is in its line (``store.lines``), a workflow's in its own row. Whoever takes a lease, or takes
one away, raises its token in the same statement; whoever holds an older token can't write.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Select, Table, and_, func, literal_column, or_, select, union_all
from sqlalchemy.sql import ColumnElement

from think_celery.errors import LeaseLost
from think_celery.states import WorkflowStatus
from think_celery.store.database import Tx
from think_celery.store.tables import lines, processes, workflows

TURNS: Literal["turn"] = "turn"
"""The kind of the leases on an agent's turns, and of the lines that hold them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The right to work on one row, held by one process under one token."""

    kind: Literal["turn", "workflow"]
    key: str
    process_id: str
    token: int

    @property
    def table(self) -> Table:
        """Where the lease is kept."""
        return workflows if self.kind == "workflow" else lines

    @property
    def row(self) -> ColumnElement[bool]:
        """The row that it is about."""
        if self.kind == "workflow":
            return workflows.c.key == self.key
        return and_(lines.c.agent_id == self.key, lines.c.kind == TURNS)

    @property
    def held(self) -> ColumnElement[bool]:
        """The row while the lease is still its holder's."""
        table = self.table
        own = and_(self.row, table.c.token == self.token, table.c.process_id == self.process_id)
        return and_(own, table.c.status == WorkflowStatus.RUNNING) if self.kind == "workflow" else own

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


_held = union_all(
    select(
        literal_column("'turn'").label("kind"),
        lines.c.agent_id.label("key"),
        lines.c.process_id,
        lines.c.token,
    ).where(lines.c.kind == TURNS, lines.c.process_id.is_not(None)),
    select(literal_column("'workflow'"), workflows.c.key, workflows.c.process_id, workflows.c.token).where(
        workflows.c.status == WorkflowStatus.RUNNING, workflows.c.process_id.is_not(None)
    ),
).subquery("held")


def fence(tx: Tx, lease: Lease) -> Any:
    """Lock the lease's row for this transaction, or raise. A workflow's row comes with its ``inbox``.

    The first statement of each write of a holder (in ``step.transaction`` the last). The lock doesn't
    collide with foreign keys of the callers' own inserts.

    Raises:
        LeaseLost: The token is no longer the holder's. Nothing may be written.
    """
    column = workflows.c.inbox if lease.kind == "workflow" else lines.c.token
    row = tx.execute(select(column).where(lease.held).with_for_update(key_share=True)).first()
    if row is None:
        raise LeaseLost(str(lease))
    return row


def is_held(tx: Tx, lease: Lease) -> bool:
    """Whether the lease is still its holder's, without locking anything."""
    return tx.execute(select(lease.table.c.token).where(lease.held)).first() is not None


def held_by(tx: Tx, process_id: str) -> set[Lease]:
    """Every lease that a process holds, on lines and on workflows."""
    return set(_leases(tx, select(_held).where(_held.c.process_id == process_id)))


def orphaned(tx: Tx, limit: int) -> list[Lease]:
    """The leases whose process is dead, or so long dead that its row is gone.

    In no order, so that rows that can't be freed hide no others.
    """
    lost = or_(processes.c.id.is_(None), processes.c.dead.is_(True))
    statement = select(_held).outerjoin(processes, processes.c.id == _held.c.process_id).where(lost)
    return _leases(tx, statement.order_by(func.random()).limit(limit))


def _leases(tx: Tx, statement: Select[Any]) -> list[Lease]:
    return [Lease(**row._mapping) for row in tx.execute(statement)]
