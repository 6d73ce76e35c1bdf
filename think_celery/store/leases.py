"""Leases: who may work on an agent's turns, a workflow or a job, and the fence that keeps everyone else out.

An agent's lease is in its line (``store.lines``), a workflow's or a job's in its own row. Whoever takes a lease, or
takes one away, raises its token in the same statement; whoever holds an older token can't write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Executable, and_, bindparam, func, literal_column, or_, select, union_all

from think_celery.errors import LeaseLost
from think_celery.states import JobStatus, WorkflowStatus
from think_celery.store.database import Tx
from think_celery.store.statements import AT_MOST
from think_celery.store.tables import jobs, lines, processes, workflows

TURNS: Literal["turn"] = "turn"
"""The kind of the leases on an agent's turns, and of the lines that hold them."""

Kind = Literal["turn", "workflow", "job"]

LINE_HELD = and_(
    lines.c.agent_id == bindparam("lease_key"),
    lines.c.kind == TURNS,
    lines.c.token == bindparam("lease_token"),
    lines.c.process_id == bindparam("lease_process"),
)
"""The line while the lease with these :attr:`~Lease.parameters` is still its holder's."""

WORKFLOW_HELD = and_(
    workflows.c.key == bindparam("lease_key"),
    workflows.c.token == bindparam("lease_token"),
    workflows.c.process_id == bindparam("lease_process"),
    workflows.c.status == WorkflowStatus.RUNNING,
)
"""The same of a workflow's row."""

JOB_WORKED_ON = and_(
    jobs.c.id == bindparam("lease_key"),
    jobs.c.token == bindparam("lease_token"),
    jobs.c.process_id == bindparam("lease_process"),
)
"""The same of a job's row, also of one that was cancelled meanwhile: its holder has yet to stop."""

JOB_HELD = and_(JOB_WORKED_ON, jobs.c.status == JobStatus.RUNNING)
"""The same of a job that nobody has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The right to work on one row, held by one process under one token."""

    kind: Kind
    key: str
    process_id: str
    token: int

    @property
    def parameters(self) -> dict[str, Any]:
        """The lease for a statement with :data:`LINE_HELD`, :data:`WORKFLOW_HELD` or :data:`JOB_HELD`."""
        return {"lease_key": self.key, "lease_token": self.token, "lease_process": self.process_id}

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


HELD = union_all(
    select(
        literal_column("'turn'").label("kind"),
        lines.c.agent_id.label("key"),
        lines.c.process_id,
        lines.c.token,
    ).where(lines.c.kind == TURNS, lines.c.process_id.is_not(None)),
    select(literal_column("'workflow'"), workflows.c.key, workflows.c.process_id, workflows.c.token).where(
        workflows.c.status == WorkflowStatus.RUNNING, workflows.c.process_id.is_not(None)
    ),
    select(literal_column("'job'"), jobs.c.id, jobs.c.process_id, jobs.c.token).where(
        jobs.c.process_id.is_not(None)
    ),
).subquery("held")
"""Every lease that some process holds, on lines, workflows and jobs."""


_IS_HELD: Mapping[Kind, Any] = {
    "turn": select(lines.c.token).where(LINE_HELD),
    "workflow": select(workflows.c.inbox, workflows.c.pause_at).where(WORKFLOW_HELD),
    "job": select(jobs.c.token).where(JOB_HELD),
}
_FENCE = {kind: is_held.with_for_update(key_share=True) for kind, is_held in _IS_HELD.items()}


def fence(tx: Tx, lease: Lease) -> Any:
    """Lock the lease's row for this transaction, or raise. A workflow's row comes with ``inbox`` and ``pause_at``.

    The first statement of each write of a holder (in ``step.transaction`` the last). The lock doesn't
    collide with foreign keys of the callers' own inserts.

    Raises:
        LeaseLost: The token is no longer the holder's. Nothing may be written.
    """
    row = tx.execute(_FENCE[lease.kind], lease.parameters).first()
    if row is None:
        raise LeaseLost(str(lease))
    return row


def is_held(tx: Tx, lease: Lease) -> bool:
    """Whether the lease is still its holder's, without locking anything."""
    return tx.execute(_IS_HELD[lease.kind], lease.parameters).first() is not None


_HELD_BY = select(HELD).where(HELD.c.process_id == bindparam("process"))


def held_by(tx: Tx, process_id: str) -> set[Lease]:
    """Every lease that a process holds, on lines, workflows and jobs."""
    return set(_leases(tx, _HELD_BY, process=process_id))


# In no order, so that rows that can't be freed hide no others.
_ORPHANED = (
    select(HELD)
    .outerjoin(processes, processes.c.id == HELD.c.process_id)
    .where(or_(processes.c.id.is_(None), processes.c.dead.is_(True)))
    .order_by(func.random())
    .limit(AT_MOST)
)


def orphaned(tx: Tx, limit: int) -> list[Lease]:
    """The leases whose process is dead, or so long dead that its row is gone."""
    return _leases(tx, _ORPHANED, at_most=limit)


def _leases(tx: Tx, statement: Executable, **values: Any) -> list[Lease]:
    return [Lease(**row._mapping) for row in tx.execute(statement, values)]
