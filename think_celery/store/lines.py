"""Leases: who may work on an agent's turns or on a workflow, and the fence that keeps everyone else out.

A *line* is the row that owns an agent's turn order and its lease. A workflow's lease is in its own row.
Whoever takes a lease, or takes one away, raises its token in the same statement; whoever holds an older
token can't write.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import Row, Table, Update, and_, func, or_, select, update
from sqlalchemy.sql import ColumnElement

from think_celery.errors import LeaseLost
from think_celery.states import WorkflowStatus
from think_celery.store.database import Tx
from think_celery.store.tables import lines, processes, workflows

TURNS = "turn"


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


def fence(tx: Tx, lease: Lease) -> Any:
    """Lock the lease's row for this transaction, or raise.

    The first statement of each write of a holder (in ``step.transaction`` the last). The lock doesn't
    collide with foreign keys of the callers' own inserts.

    Raises:
        LeaseLost: The token is no longer the holder's. Nothing may be written.
    """
    columns = [workflows.c.inbox, workflows.c.run] if lease.kind == "workflow" else [lines.c.token]
    row = tx.execute(select(*columns).where(lease.held).with_for_update(key_share=True)).first()
    if row is None:
        raise LeaseLost(str(lease))
    return row


def make_line(tx: Tx, agent_id: str) -> None:
    """Make the agent's line where there is none yet."""
    tx.execute(tx.insert(lines).values(agent_id=agent_id, kind=TURNS, token=0).on_conflict_do_nothing())


def lock_line(tx: Tx, agent_id: str) -> Any:
    """Lock the agent's line, and return it (``None`` where there is none)."""
    statement = (
        select(lines.c.process_id, lines.c.token)
        .where(lines.c.agent_id == agent_id, lines.c.kind == TURNS)
        .with_for_update(key_share=True)
    )
    return tx.execute(statement).first()


def take_line(tx: Tx, agent_id: str, process_id: str, deadline: timedelta) -> Lease | None:
    """Take the agent's line if it is free; ``None`` if another holds it."""
    statement = (
        update(lines)
        .where(lines.c.agent_id == agent_id, lines.c.kind == TURNS, lines.c.process_id.is_(None))
        .values(process_id=process_id, token=lines.c.token + 1, deadline_at=tx.now(deadline))
        .returning(lines.c.token)
    )
    token = tx.execute(statement).scalar()
    return None if token is None else Lease(kind="turn", key=agent_id, process_id=process_id, token=token)


def free_line(tx: Tx, lease: Lease) -> bool:
    """Give the line back, and say whether it was still the holder's."""
    statement = update(lines).where(lease.held).values(process_id=None, deadline_at=None)
    return tx.execute(statement).rowcount == 1


def seize_line(tx: Tx, agent_id: str) -> None:
    """Take the line from whoever holds it, and leave it free."""
    own = and_(lines.c.agent_id == agent_id, lines.c.kind == TURNS)
    tx.execute(_seize(own))


def seize_from(tx: Tx, lease: Lease) -> bool:
    """Take the line from that holder, leave it free, and say whether it still had it."""
    return tx.execute(_seize(lease.held)).rowcount == 1


def _seize(where: ColumnElement[bool]) -> Update:
    return update(lines).where(where).values(process_id=None, deadline_at=None, token=lines.c.token + 1)


def orphaned(tx: Tx, limit: int) -> list[Lease]:
    """The leases on lines whose process is dead, or so long dead that its row is gone; in no order.

    In no order, so that lines that can't be freed hide no others.
    """
    statement = (
        select(lines.c.agent_id, lines.c.process_id, lines.c.token)
        .outerjoin(processes, processes.c.id == lines.c.process_id)
        .where(
            lines.c.kind == TURNS,
            lines.c.process_id.is_not(None),
            or_(processes.c.id.is_(None), processes.c.dead.is_(True)),
        )
        .order_by(func.random())
        .limit(limit)
    )
    return [_of_line(row) for row in tx.execute(statement)]


def held_by(tx: Tx, process_id: str) -> set[Lease]:
    """Every lease that a process holds, on lines and on workflows."""
    turns = select(lines.c.agent_id, lines.c.process_id, lines.c.token).where(
        lines.c.kind == TURNS, lines.c.process_id == process_id
    )
    runs = select(workflows.c.key, workflows.c.token).where(
        workflows.c.process_id == process_id, workflows.c.status == WorkflowStatus.RUNNING
    )
    held = {_of_line(row) for row in tx.execute(turns)}
    return held | {
        Lease(kind="workflow", key=row.key, process_id=process_id, token=row.token)
        for row in tx.execute(runs)
    }


def _of_line(row: Row[Any]) -> Lease:
    return Lease(kind="turn", key=row.agent_id, process_id=row.process_id, token=row.token)


def wait_at_most(tx: Tx, span: timedelta) -> None:
    """Let no statement of this transaction wait longer than *span* for another's lock; it raises then.

    For passes over many rows, which one slow transaction of a caller must not hold up. On SQLite the
    busy timeout is that limit.
    """
    if tx.postgres:
        tx.conn.exec_driver_sql(f"SET LOCAL lock_timeout = {span // timedelta(milliseconds=1)}")


def is_held(tx: Tx, lease: Lease) -> bool:
    """Whether the lease is still its holder's, without locking anything."""
    return tx.execute(select(lease.table.c.token).where(lease.held)).first() is not None
