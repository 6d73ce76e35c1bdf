"""What a worker says that lacks a class, a method or a task: once for each, however many rows wait for it."""

from typing import Any

import pytest
from sqlalchemy import update

from tests.domain.crowd import change
from tests.domain.flows import flow
from tests.domain.porter import porter, run
from think_celery import Think
from think_celery.domain.agents import starts
from think_celery.domain.submissions import claims
from think_celery.domain.workflows import advance, workflows
from think_celery.ids import AgentRef
from think_celery.store import tables
from think_celery.testing import ThinkTest


class Lacked(Think):
    """One whose class the worker of these tests comes to lack."""

    def on_start(self) -> None:
        """There is something to begin with."""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of rows that wait."""
    return [message for message in caplog.messages if " waits: " in message]


def test_one_line_for_all_that_waits_for_a_class(quick: ThinkTest, caplog: pytest.LogCaptureFixture):
    """Turns, calls and starts of one agent class, at each try; another class has its own line."""
    turns = [Lacked(f"{number}").submit_messages("hi").submission_id for number in range(3)]
    jobs = [porter(quick.rt, f"{number}").queue("carry", 1).job_id for number in range(3)]
    Lacked("s").start()
    for name in ("Gone", "Lost"):
        for table in (tables.submissions, tables.jobs):
            change(quick.rt, update(table).values(agent_class=name))
        begins = update(tables.agents).where(tables.agents.c.name == "s")
        change(quick.rt, begins.values(agent_class=name, id=AgentRef(name, "s").id))
        for _ in range(2):
            said = [claims.run(quick.rt, each).word for each in turns]
            said += [run(quick.rt, each).word for each in jobs]
            said.append(starts.run(quick.rt, name, "s").word)
            assert set(said) == {"unknown-class"}

    assert [message.split("agent class ")[1][:6] for message in lines(caplog)] == ["'Gone'", "'Lost'"]
    assert all("think_imports" in message and "doctor" in message for message in lines(caplog))


def test_one_line_for_a_method_and_for_a_task(quick: ThinkTest, caplog: pytest.LogCaptureFixture):
    """Of whichever agent of the class."""
    jobs = [porter(quick.rt, f"{number}").queue("carry", 1).job_id for number in range(3)]
    for values, word in (({"method": "lift"}, "unknown-method"), ({"task_id": "daily"}, "unknown-task")):
        change(quick.rt, update(tables.jobs).values(**values))
        for _ in range(2):
            assert {run(quick.rt, each).word for each in jobs} == {word}
        change(quick.rt, update(tables.jobs).values(method=None))

    method, task = lines(caplog)
    assert "has no method 'lift'" in method
    assert "'daily'" in task


def test_one_line_for_a_workflow_and_for_a_version(quick: ThinkTest, caplog: pytest.LogCaptureFixture):
    """A thousand runs that an old release left behind are one line, not a thousand at each look."""

    def pass_by() -> set[str]:
        return {advance.advance(quick.rt, "Flow", f"{number}").word for _ in "ab" for number in range(3)}

    flow(lambda event, step: None)
    for number in range(3):
        workflows.start(quick.rt, AgentRef("Lacked", "x"), "Flow", workflow_id=f"{number}")
    flow(lambda event, step: None, version="2")
    assert pass_by() == {"unknown-class"}
    change(quick.rt, update(tables.workflows).values(agent_class="Gone"))
    assert pass_by() == {"unknown-class"}

    version, missing = lines(caplog)
    assert "version '1'" in version
    assert "'Gone'" in missing


def test_another_process_says_it_too(quick: ThinkTest, caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    """What was said is remembered by the process, in its runtime."""
    turn = Lacked("a").submit_messages("hi").submission_id
    change(quick.rt, update(tables.submissions).values(agent_class="Gone"))
    claims.run(quick.rt, turn)
    monkeypatch.setattr(quick.rt, "said", type(quick.rt.said)())
    claims.run(quick.rt, turn)

    assert len(lines(caplog)) == 2
