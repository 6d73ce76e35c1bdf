"""Rows of the journal: what each run of a workflow has done or waits for. Only the run's holder writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, select
from sqlalchemy.sql import ColumnElement

from think_celery.states import STEP_MOVES, StepStatus
from think_celery.store.database import Tx
from think_celery.store.moves import move
from think_celery.store.tables import steps


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRef:
    """Which journal entry: the run, the step's key, its place in the order of calls, and its kind."""

    workflow_key: str
    run: int
    step: str
    position: int
    kind: str

    @property
    def row(self) -> ColumnElement[bool]:
        """The entry's row."""
        return and_(
            steps.c.workflow_key == self.workflow_key, steps.c.run == self.run, steps.c.step == self.step
        )


def of_run(tx: Tx, workflow_key: str, run: int) -> Sequence[Row[Any]]:
    """The journal of a run, in the order of its calls."""
    statement = select(steps).where(steps.c.workflow_key == workflow_key, steps.c.run == run)
    return tx.execute(statement.order_by(steps.c.position)).all()


def get(tx: Tx, ref: StepRef) -> Row[Any] | None:
    """One entry."""
    return tx.execute(select(steps).where(ref.row)).first()


def insert(
    tx: Tx, ref: StepRef, status: StepStatus, *, deadline: timedelta | None = None, **values: Any
) -> Row[Any] | None:
    """Add an entry, and return it; ``None`` where it is there already: nothing is changed.

    *deadline* is counted from now and fixed for good.
    """
    statement = (
        tx.insert(steps)
        .values(
            workflow_key=ref.workflow_key,
            run=ref.run,
            step=ref.step,
            position=ref.position,
            kind=ref.kind,
            status=status,
            timeout_seconds=None if deadline is None else deadline.total_seconds(),
            deadline_at=None if deadline is None else tx.now(deadline),
            created_at=tx.now(),
            completed_at=tx.now() if status in (StepStatus.DONE, StepStatus.FAILED) else None,
            **values,
        )
        .on_conflict_do_nothing()
        .returning(steps)
    )
    return tx.execute(statement).first()


def settle(tx: Tx, ref: StepRef, status: StepStatus, **changes: Any) -> bool:
    """End an entry that waits or is tried again, and say whether this call did."""
    return move(tx, steps, ref.row, status, allowed=STEP_MOVES, completed_at=tx.now(), **changes)


def try_later(tx: Tx, ref: StepRef, delay: timedelta, **changes: Any) -> bool:
    """Note another failed attempt of an entry, and when the next one is due."""
    return move(
        tx, steps, ref.row, StepStatus.RETRYING, allowed=STEP_MOVES, deadline_at=tx.now(delay), **changes
    )


def is_due(tx: Tx, ref: StepRef) -> bool:
    """Whether an entry's deadline has come, by the database's clock; never where it has none."""
    return (
        tx.execute(select(steps.c.step).where(ref.row, steps.c.deadline_at <= tx.now())).first() is not None
    )


def due_in(tx: Tx, ref: StepRef) -> timedelta:
    """How long it is until an entry's deadline, by the database's clock; zero once it has come."""
    found: tuple[datetime | None, datetime] | None = tx.execute(  # type: ignore[assignment]
        select(steps.c.deadline_at, tx.now().label("now")).where(ref.row)
    ).first()
    if found is None or found[0] is None:
        return timedelta(0)
    return max(found[0] - found[1], timedelta(0))
