"""A rolling deploy: beats with old and new code run beside each other."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from tests.beat.agents import Deployed
from tests.beat.stand import Stand
from think_celery.store.schedule_tables import schedules as table

pytestmark = pytest.mark.services


def test_old_and_new_code_declare_different_tasks(stand: Stand) -> None:
    """The tasks of both are there while both run, and each fires once a slot: neither removes what the other declared
    just now (C4)."""
    names = ("both", "changed", "old", "new")
    Deployed._bound_to(stand.rt, "site").start()  # a worker of the old code does
    stand.until(lambda: tasks(stand) == {"both", "changed", "old"}, what="the tasks of the old code")
    change(stand, table.c.task_id == "old", due_at=None)  # as after an accident
    old = stand.beat(version="1")
    stand.until(lambda: tasks(stand) == {"both", "changed", "old"}, what="the lost one armed again")
    new = stand.beat(version="2")
    stand.until(lambda: tasks(stand) == set(names), what="the tasks of the new code, too")
    before = {row.task_id: row for row in stand.schedules("Deployed")}
    due = stand.rt.clock.now() - timedelta(minutes=1)
    change(stand, table.c.agent_class == "Deployed", next_run_at=due, due_at=due)
    stand.until(lambda: all(stand.effects(f"prompt {name}") for name in names), what="all done")
    stand.end(old, new)

    assert tasks(stand) == set(names)
    assert {name: before[name].next_run_at.hour for name in names} == {
        "both": 3,
        "changed": 4,
        "old": 5,
        "new": 5,
    }
    assert {row.id for row in stand.schedules("Deployed")} == {row.id for row in before.values()}
    assert [len(stand.effects(f"prompt {name}")) for name in names] == [1] * 4


def tasks(stand: Stand) -> set[str]:
    """The declared tasks that may fire."""
    return {row.task_id for row in stand.schedules("Deployed") if row.due_at is not None}


def change(stand: Stand, which: Any, **values: Any) -> None:
    """Change rows of schedules."""
    stand.db.transact(lambda tx: tx.execute(update(table).where(which).values(values)))
