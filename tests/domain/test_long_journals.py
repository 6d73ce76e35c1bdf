"""What a long journal costs a pass: for each entry the same, however many there are."""

import sys
import tracemalloc
from typing import Any

import pytest
from sqlalchemy import event

from tests.domain.flows import Handle, begin, start
from think_celery.testing import ThinkTest

FEW, MANY = 100, 400


def waiting(t: ThinkTest, name: str, steps: int) -> Handle:
    """A run that has recorded so many steps of that name, and waits for an event that is there now."""

    def run(event: Any, step: Any) -> int:
        said = [step.do(name.format(number), lambda: "x" * 1000) for number in range(event.payload["n"])]
        step.wait_for_event("go", type="go")
        return len(said)

    workflow = begin(t, run, {"n": steps}, id=f"{name}-{steps}", name=f"Long{steps}")
    assert workflow.status == "waiting"
    workflow.send("go")
    return workflow


def lines_of(workflow: Handle) -> int:
    """How many lines of Python a pass executes."""
    counted = 0

    def trace(frame: Any, what: str, _: Any) -> Any:
        nonlocal counted
        counted += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        outcome = workflow.advance()
    finally:
        sys.settrace(before)
    assert outcome.word == "complete"
    return counted


@pytest.mark.parametrize("name", ["step-{}", "charge"])
def test_a_step_costs_no_more_behind_many(quick: ThinkTest, name: str):
    """Also where all have one name: of a thousand repeats none is looked for among those before it."""
    few, many = (lines_of(waiting(quick, name, count)) for count in (FEW, MANY))

    assert many < few * MANY / FEW * 1.05


def test_the_journal_is_read_once(t: ThinkTest):
    """A pass asks the database as often for four hundred entries as for one hundred."""
    asked: dict[int, list[str]] = {}
    for count in (FEW, MANY):
        workflow = waiting(t, "step-{}", count)
        statements = asked[count] = []

        def note(_: Any, __: Any, statement: str, *___: Any, statements: list[str] = statements) -> None:
            statements.append(statement)

        event.listen(t.rt.db.engine, "before_cursor_execute", note)
        try:
            assert workflow.advance().word == "complete"
        finally:
            event.remove(t.rt.db.engine, "before_cursor_execute", note)

    assert asked[FEW] == asked[MANY] != []


def test_memory_is_that_of_the_journal(quick: ThinkTest):
    """A pass holds the entries once, as they are stored: what it decodes of them is the code's own."""
    workflow = waiting(quick, "step-{}", MANY)
    tracemalloc.start()
    try:
        workflow.advance()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert workflow.output == MANY
    assert (
        peak < MANY * 4500
    )  # a thousand characters as they are stored, as they are decoded, and what is around them


def test_five_thousand_steps(quick: ThinkTest):
    """A run of that length goes on after a wait, with every value as it was."""

    def run(event: Any, step: Any) -> int:
        said = [step.do("add", lambda number=number: number) for number in range(5000)]
        step.wait_for_event("go", type="go")
        return sum(said)

    workflow = start(quick.rt, run)
    assert workflow.advance().word == "parked"
    workflow.send("go")

    assert workflow.advance().word == "complete"
    assert workflow.output == sum(range(5000))
    assert workflow.journal[4999].step == "add#5000"
