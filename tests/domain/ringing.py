"""An agent whose methods are scheduled, declared tasks without their class, and a look at their slots."""

from typing import Any, ClassVar

from sqlalchemy import select, update

from think_celery import Think
from think_celery.domain.schedules import schedules
from think_celery.ids import AgentRef, short_hash
from think_celery.recurrence import parse
from think_celery.runtime import Runtime
from think_celery.store.schedule_tables import schedules as schedule_table
from think_celery.store.schedule_tables import slots as slot_table


class Ringer(Think):
    """Rings when its time has come, and remembers it."""

    rung: ClassVar[list[Any]] = []
    zone: ClassVar[str | None] = None

    def get_default_timezone(self) -> str | None:
        """The zone of a test."""
        return self.zone

    def ring(self, payload: Any = None) -> None:
        """Remember what it was called with."""
        self.rung.append(payload)

    def fail(self) -> None:
        """Fail each time."""
        self.rung.append("failed")
        raise RuntimeError("the bell is broken")


def ringer(rt: Runtime, name: str = "a") -> Ringer:
    """That agent, on a runtime."""
    return Ringer._bound_to(rt, name)


def declare(
    rt: Runtime, task_id: str = "digest", spec: str = "every minute", *, agent: str = "a", **options: Any
) -> bool:
    """Declare a task with a prompt, as the start of an agent does; whether something changed."""
    options = {
        "digest": short_hash(f"{spec} {options}"),
        "version": "1",
        "prompt": "Write the digest.",
        **options,
    }
    rule = parse(spec, default_timezone=options.pop("timezone", None))
    ref = AgentRef("Ringer", agent)
    return rt.db.transact(lambda tx: schedules.upsert_declared(rt, tx, ref, task_id, rule, spec, **options))


def rule(rt: Runtime) -> Any:
    """The row of the only schedule."""
    return rt.db.read(lambda tx: tx.execute(select(schedule_table)).one())


def rules(rt: Runtime) -> list[Any]:
    """The rows of all schedules."""
    return rt.db.read(
        lambda tx: list(tx.execute(select(schedule_table).order_by(schedule_table.c.created_at)))
    )


def slots(rt: Runtime) -> list[tuple[str, str, str | None]]:
    """Time, status and reason of each slot, in order."""
    query = select(slot_table).order_by(slot_table.c.scheduled_for)
    rows = rt.db.read(lambda tx: list(tx.execute(query)))
    return [(f"{row.scheduled_for:%H:%M:%S}", str(row.status), row.reason) for row in rows]


def statuses(rt: Runtime) -> list[tuple[str, str]]:
    """Time and status of each slot."""
    return [(moment, status) for moment, status, _ in slots(rt)]


def change_rule(rt: Runtime, schedule_id: str | None = None, **values: Any) -> None:
    """Change that schedule, or every one, behind everybody's back."""
    mine = schedule_table.c.id == (schedule_id or schedule_table.c.id)
    rt.db.transact(lambda tx: tx.execute(update(schedule_table).where(mine).values(values)))
