"""Rows of the journal: what each run of a workflow has done or waits for. Only the run's holder writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CTE, Row, and_, bindparam, literal, select, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import ReturningInsert

from think_celery.states import STEP_MOVES, StepStatus
from think_celery.store.database import Tx
from think_celery.store.leases import WORKFLOW_HELD, Lease
from think_celery.store.moves import move, moving
from think_celery.store.statements import ZERO, insert_new, now, span
from think_celery.store.tables import steps, workflows

ENDED = (StepStatus.DONE, StepStatus.FAILED)


def its_row() -> ColumnElement[bool]:
    """The row of an entry; :attr:`StepRef.mine` gives the values."""
    return and_(
        steps.c.workflow_key == bindparam("of_key"),
        steps.c.run == bindparam("of_run"),
        steps.c.step == bindparam("of_step"),
    )


_MINE = its_row()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRef:
    """Which journal entry: the run, the step's key, its place in the order of calls, and its kind."""

    workflow_key: str
    run: int
    step: str
    position: int
    kind: str

    @property
    def mine(self) -> Mapping[str, Any]:
        """The values that name its row."""
        return {"of_key": self.workflow_key, "of_run": self.run, "of_step": self.step}


_OF_RUN = (
    select(steps)
    .where(steps.c.workflow_key == bindparam("of_key"), steps.c.run == bindparam("of_run"))
    .order_by(steps.c.position)
)


def of_run(tx: Tx, workflow_key: str, run: int) -> Sequence[Row[Any]]:
    """The journal of a run, in the order of its calls."""
    return tx.execute(_OF_RUN, {"of_key": workflow_key, "of_run": run}).all()


_OF_WORKFLOW = (
    select(
        workflows.c.status.label("workflow_status"),
        workflows.c.run.label("workflow_run"),
        workflows.c.version.label("workflow_version"),
        workflows.c.token.label("workflow_token"),
        workflows.c.process_id.label("workflow_process"),
        workflows.c.step_queue.label("workflow_step_queue"),
        workflows.c.agent_class,
        steps.c.step,
        steps.c.position,
        steps.c.kind,
        steps.c.status,
        steps.c.output,
        steps.c.error_type,
        steps.c.error,
        steps.c.attempts,
        steps.c.timeout_seconds,
        steps.c.deadline_at,
    )
    .select_from(
        workflows.outerjoin(
            steps, and_(steps.c.workflow_key == workflows.c.key, steps.c.run == workflows.c.run)
        )
    )
    .where(workflows.c.key == bindparam("of_key"))
    .order_by(steps.c.position)
)


def of_workflow(tx: Tx, key: str) -> Sequence[Row[Any]]:
    """How a run stands and the entries of its journal, as of one moment; nothing where there is no such workflow.

    Each entry comes with its run's ``agent_class``, and its status, version, token, process and queue of the next step
    as ``workflow_…``. A run without entries is one row without a ``step``.
    """
    return tx.execute(_OF_WORKFLOW, {"of_key": key}).all()


_GET = select(steps).where(_MINE)


def get(tx: Tx, ref: StepRef) -> Row[Any] | None:
    """One entry."""
    return tx.execute(_GET, ref.mine).first()


_INSERT = insert_new(
    steps, steps.c.step, steps.c.deadline_at, deadline_at=now(span("deadline")), created_at=now(span("ago"))
)
_INSERT_ENDED = insert_new(steps, steps.c.step, created_at=now(span("ago")), completed_at=now())


def insert(
    tx: Tx,
    ref: StepRef,
    status: StepStatus,
    *,
    deadline: timedelta | None = None,
    took: timedelta = ZERO,
    **values: Any,
) -> Row[Any] | None:
    """Add an entry, and return its key and ``deadline_at``; ``None`` where it is there already: nothing is changed.

    *deadline* is counted from now and fixed for good. The step began so long ago as it *took*.
    """
    values |= {
        "ago": -took,
        "workflow_key": ref.workflow_key,
        "run": ref.run,
        "step": ref.step,
        "position": ref.position,
        "kind": ref.kind,
        "status": status,
    }
    if status in ENDED:
        return tx.execute(_INSERT_ENDED, values).first()
    values |= {
        "deadline": deadline,
        "timeout_seconds": None if deadline is None else deadline.total_seconds(),
    }
    return tx.execute(_INSERT, values).first()


def fence() -> CTE:
    """The fence as a part of one statement: key and run of the workflow, locked, or nothing where the lease is lost.

    Nothing, too, where somebody wants the run to pause: such a statement could not tell its holder. The transaction
    that then does the same can. ``Lease.parameters`` gives the values.
    """
    held = select(workflows.c.key, workflows.c.run).where(WORKFLOW_HELD, workflows.c.pause_at.is_(None))
    return held.with_for_update(key_share=True).cte("fence").prefix_with("MATERIALIZED", dialect="postgresql")


def _inserting(
    status: StepStatus, *given: str, returning: ColumnElement[Any], **values: ColumnElement[Any]
) -> Mapping[str, ReturningInsert[Any]]:
    # The lock and the entry are one statement: that is one round trip, and a worker that has lost its lease gets
    # nothing in.
    run = fence()
    values |= {
        "workflow_key": run.c.key,
        "run": run.c.run,
        "status": literal(status.value, steps.c.status.type),
    }
    names = ("step", "position", "kind", *given)
    values |= {name: bindparam(f"new_{name}", type_=steps.c[name].type) for name in names}
    # SQLite takes ON CONFLICT behind a SELECT only where that has a WHERE.
    row = select(*values.values()).select_from(run).where(true())
    return {
        dialect: insert(steps).from_select([*values], row).on_conflict_do_nothing().returning(returning)
        for dialect, insert in (("postgresql", postgresql.insert), ("sqlite", sqlite.insert))
    }


_INSERT_DONE = _inserting(
    StepStatus.DONE, "output", returning=steps.c.step, created_at=now(span("ago")), completed_at=now()
)


def insert_done(tx: Tx, lease: Lease, ref: StepRef, output: str, took: timedelta = ZERO) -> bool:
    """Add the entry of a step that is done, fenced by the lease in the same statement, and say whether it is new.

    It began so long ago as it *took*.

    False, and nothing is changed, where the lease is lost, where there is such an entry already, and where somebody
    wants the run to pause.
    """
    values = {**_new(lease, ref), "new_output": output, "ago": -took}
    return tx.execute(_INSERT_DONE, values).first() is not None


INSERT_WAITING = _inserting(
    StepStatus.WAITING,
    "timeout_seconds",
    "output",
    returning=steps.c.deadline_at,
    created_at=now(),
    deadline_at=now(span("deadline")),
)
"""Adds the entry of a step that waits, fenced in the same way, and returns its deadline."""


def new_waiting(
    lease: Lease, ref: StepRef, deadline: timedelta | None, told: str | None = None
) -> dict[str, Any]:
    """The parameters of :data:`INSERT_WAITING`. *told* is what it waits for, for those who look at it."""
    seconds = None if deadline is None else deadline.total_seconds()
    waits = {"new_timeout_seconds": seconds, "deadline": deadline, "new_output": told}
    return {**_new(lease, ref), **waits}


def _new(lease: Lease, ref: StepRef) -> dict[str, Any]:
    entry = {"new_step": ref.step, "new_position": ref.position, "new_kind": ref.kind}
    return {**entry, **lease.parameters}


_SETTLE = {status: moving(steps, _MINE, status, allowed=STEP_MOVES, completed_at=now()) for status in ENDED}


def settle(tx: Tx, ref: StepRef, status: StepStatus, **changes: Any) -> bool:
    """End an entry that waits or is tried again, and say whether this call did."""
    return move(tx, _SETTLE[status], **ref.mine, **changes)


_TRY_LATER = moving(steps, _MINE, StepStatus.RETRYING, allowed=STEP_MOVES, deadline_at=now(span("delay")))


def try_later(tx: Tx, ref: StepRef, delay: timedelta, **changes: Any) -> bool:
    """Note another failed attempt of an entry, and when the next one is due."""
    return move(tx, _TRY_LATER, **ref.mine, delay=delay, **changes)


_IS_DUE = select(steps.c.step).where(_MINE, steps.c.deadline_at <= now())


def is_due(tx: Tx, ref: StepRef) -> bool:
    """Whether an entry's deadline has come, by the database's clock; never where it has none."""
    return tx.execute(_IS_DUE, ref.mine).first() is not None


_DUE_AND_NOW = select(steps.c.deadline_at, now().label("now")).where(_MINE)


def due_in(tx: Tx, ref: StepRef) -> timedelta:
    """How long it is until an entry's deadline, by the database's clock; zero once it has come."""
    found: tuple[datetime | None, datetime] | None = tx.execute(  # type: ignore[assignment]
        _DUE_AND_NOW, ref.mine
    ).first()
    if found is None or found[0] is None:
        return timedelta(0)
    return max(found[0] - found[1], timedelta(0))


_CLOCK = select(now())


def clock(tx: Tx) -> datetime:
    """The present instant, by the database's clock."""
    present: datetime = tx.execute(_CLOCK).scalar_one()
    return present


_DEADLINES = select(steps.c.step, steps.c.deadline_at, (steps.c.deadline_at <= now()).label("due")).where(
    steps.c.workflow_key == bindparam("of_key"),
    steps.c.run == bindparam("of_run"),
    steps.c.step.in_(bindparam("of_steps", expanding=True)),
    steps.c.deadline_at.is_not(None),
)


def deadlines(tx: Tx, workflow_key: str, run: int, keys: Sequence[str]) -> Sequence[Row[Any]]:
    """The deadlines of these entries, and whether each is due; entries without one are left out."""
    return tx.execute(_DEADLINES, {"of_key": workflow_key, "of_run": run, "of_steps": list(keys)}).all()


_ENDED_AT = select(steps.c.completed_at).where(_MINE)


def ended_at(tx: Tx, ref: StepRef) -> datetime:
    """When an entry ended."""
    at: datetime = tx.execute(_ENDED_AT, ref.mine).scalar_one()
    return at
