"""The page on concepts says which primitive is for what, and every one of them is there."""

import re

from tests.test_docs import ROOT
from tests.test_docs_reference import table_of
from think_celery import Think


def test_a27_each_primitive_is_in_the_table():
    """A27: submit, save, queue, schedule, scheduled tasks, fiber, workflow, a plain task: when, once by what, after a
    crash, with what result."""
    rows = table_of((ROOT / "docs" / "concepts.md").read_text(), "primitive")
    named = [re.search(r"`(\w+)`", row[0]) for row in rows]

    assert [name and name[1] for name in named] == [
        "submit_messages",
        "save_messages",
        "queue",
        "schedule",
        "get_scheduled_tasks",
        "start_fiber",
        "run_workflow",
        None,
    ]
    assert [name[1] for name in named if name and not hasattr(Think, name[1])] == []
    assert [row[0] for row in rows if not all(cell.strip("| ") for cell in row)] == []
