"""The soak, short: see ``soak.py``; the long one is run by hand."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.load import plan
from tests.crash.soak import Soak, sized
from tests.crash.verdict import Verdict

MINUTES = 0.3


def lose_a_turn(v: Verdict) -> None:
    v.turns.remove(next(row for row in v.turns if row.workflow_key is None))


def lose_an_answer(v: Verdict) -> None:
    messages = next(iter(v.messages.values()))
    messages.remove(next(message for message in messages if message.role == "assistant"))


def turn_the_order(v: Verdict) -> None:
    max(v.messages.values(), key=len).reverse()


def answer_twice(v: Verdict) -> None:
    messages = next(iter(v.messages.values()))
    messages.append(messages[-1])


def post_twice(v: Verdict) -> None:
    v.done.append(next(line for line in v.done if line["what"] == "post"))


def lose_a_step(v: Verdict) -> None:
    gone = next(line["key"] for line in v.done if line["what"] == "send")
    v.done[:] = [line for line in v.done if line["key"] != gone]


def book_twice(v: Verdict) -> None:
    v.ledger.append(v.ledger[0])


def accept_twice(v: Verdict) -> None:
    next(call for call in v.calls if call["do"] == "submit" and not call["accepted"])["accepted"] = True


def forget_an_event(v: Verdict) -> None:
    v.rows["think_events"].pop()


HARM = {
    lose_a_turn: "lost or invented turns",
    lose_an_answer: "does not follow",
    turn_the_order: "accepted later",
    answer_twice: "has an answer twice",
    post_twice: "must not be repeated",
    lose_a_step: "send has",
    book_twice: "the ledger",
    accept_twice: "callers were told",
    forget_an_event: "events",
}
"""What would be found if it had happened, and how it is told."""


def harmed(verdict: Verdict, harm: Callable[[Verdict], None]) -> list[str]:
    """What the verdict says after that has happened to a copy of what it has read."""
    spoiled = copy.copy(verdict)
    spoiled.rows = {name: list(rows) for name, rows in verdict.rows.items()}
    spoiled.turns, spoiled.runs = spoiled.rows["think_submissions"], spoiled.rows["think_workflows"]
    spoiled.messages = {agent: list(messages) for agent, messages in verdict.messages.items()}
    spoiled.done, spoiled.ledger = list(verdict.done), list(verdict.ledger)
    spoiled.calls = [dict(call) for call in verdict.calls]
    harm(spoiled)
    return spoiled.judge()


@pytest.mark.services
@pytest.mark.once  # its servers are always those of the wheels
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_whatever_dies(tmp_path: Path) -> None:
    """Workers, their children, Redis and the database's sessions are killed or frozen at random, all the time."""
    soak = Soak(sized(MINUTES, seed=3), tmp_path)

    broken = soak.run()

    assert broken == [], soak.figures
    assert sum(soak.figures["what happened"].values()) >= 5
    assert soak.figures["turns"]["completed"] >= 100
    for harm, said in HARM.items():
        assert any(said in fault for fault in harmed(soak.verdict, harm)), harm.__name__


def test_a_seed_makes_one_plan() -> None:
    """A soak that has found something can be run again."""
    assert plan(1, 60, 50, 10) == plan(1, 60, 50, 10) != plan(2, 60, 50, 10)
    calls = plan(1, 60, 200, 50)
    assert {op.do for op in calls} == {"submit", "cancel", "start", "send"}
    assert len({op.key for op in calls}) == 250
