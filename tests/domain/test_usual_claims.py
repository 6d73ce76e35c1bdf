"""The claim in one statement: what it leaves is what the transaction leaves, and where it is not the usual, nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import update

from tests.domain.crowd import Clerk, change, clerk, everything, line, row, workers
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.submissions.claimed import Claim
from think_celery.messages import UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus
from think_celery.store import beginnings, lines, tables


@pytest.fixture
def rt(postgres_url: str, by_hand: None) -> Iterator[Runtime]:
    with workers(postgres_url) as made:
        yield made


def submit(rt: Runtime, name: str = "a", text: str = "hi") -> str:
    return clerk(rt, name).submit_messages(text).submission_id


def in_a_transaction(rt: Runtime, submission_id: str) -> Any:
    process = rt.monitor.process_id()
    return rt.db.transact(lambda tx: claims._claim(rt, tx, submission_id, process))


def stored(rt: Runtime, name: str) -> list[dict[str, Any]]:
    """What a claim has written for an agent, without what differs each time."""
    differs = {"id", "seq", "agent_id", "agent_name", "message_id"}
    found = []
    for rows in everything(rt).values():
        for each in rows:
            values = each._mapping
            if values["agent_id"] == Clerk(name)._ref.id:
                times = {key for key in values if key.endswith("_at") and values[key] is not None}
                found.append({key: key if key in times else values[key] for key in values.keys() - differs})
    return found


@pytest.mark.parametrize("known", [False, True])
def test_it_leaves_what_the_transaction_leaves(rt: Runtime, known: bool):
    """Of a new agent and of one that has a line: the same rows, the same claim."""
    names = ("a", "b")
    if known:
        for name in names:
            assert claims.run(rt, submit(rt, name)).word == "completed"
    first, second = (submit(rt, name) for name in names)

    quick = claims._claim_at_once(rt, first, rt.monitor.process_id())
    slow = in_a_transaction(rt, second)

    assert isinstance(quick, Claim)
    assert (quick.attempt, quick.lease.token, quick.resumes) == (slow.attempt, slow.lease.token, slow.resumes)
    assert quick.row._mapping.keys() >= slow.row._mapping.keys()
    assert stored(rt, "a") == stored(rt, "b")
    assert row(rt, first).message_id == quick.message_id


def held_since(rt: Runtime, submission_id: str) -> None:
    """Somebody has had the line, and has given it back."""
    agent_id = row(rt, submission_id).agent_id
    lease = rt.db.transact(lambda tx: lines.take_line_of(tx, agent_id, "another"))
    assert lease is not None
    rt.db.transact(lambda tx: lines.free_line(tx, lease))


def held_now(rt: Runtime, submission_id: str) -> None:
    agent_id = row(rt, submission_id).agent_id
    rt.db.transact(lambda tx: lines.take_line_of(tx, agent_id, "another"))


def cancelled(rt: Runtime, submission_id: str) -> None:
    assert submissions.cancel_by_id(rt, submission_id)


def reset(rt: Runtime, submission_id: str) -> None:
    clerk(rt).clear_messages()


def begun_before(rt: Runtime, submission_id: str) -> None:
    at = row(rt, submission_id).created_at
    change(rt, update(tables.submissions).values(applied_at=at))


def message_is_there(rt: Runtime, submission_id: str) -> None:
    (message,) = as_messages(row(rt, submission_id).messages)
    clerk(rt).persist_messages([UIMessage(id=message.id, role="user", parts=message.parts)])


MEANWHILE = [held_since, held_now, cancelled, reset, begun_before, message_is_there]


@pytest.mark.parametrize("happens", MEANWHILE)
def test_what_was_seen_is_not_so_any_more(rt: Runtime, happens: Callable[[Runtime, str], None]):
    """Between the look and the statement: nothing is changed, and the transaction decides."""
    assert claims.run(rt, submit(rt)).word == "completed"
    mine, process = submit(rt), rt.monitor.process_id()
    seen: Any = rt.db.read(lambda tx: beginnings.look(tx, mine))
    (message,) = as_messages(seen.messages)
    happens(rt, mine)
    before = everything(rt)

    lease = rt.db.single(
        lambda tx: beginnings.begin(
            tx, seen, seen.line_token, process, "answer", conversation.as_row(message)
        )
    )

    assert lease is None
    assert everything(rt) == before
    assert line(rt, clerk(rt)).process_id in (None, "another")


@pytest.mark.parametrize("unusual", ["behind", "later", "two messages", "unknown", "ended"])
def test_what_is_not_usual_is_left_to_the_transaction(rt: Runtime, unusual: str):
    """The look tells it, and nothing is locked or written."""
    table = tables.submissions
    mine = submit(rt)
    mine_is = table.c.id == mine
    match unusual:
        case "behind":
            mine = submit(rt, text="second")
        case "later":
            later = row(rt, mine).created_at.replace(year=2100)
            change(rt, update(table).where(mine_is).values(not_before=later))
        case "two messages":
            mine = clerk(rt, "b").submit_messages(["one", "two"]).submission_id
        case "unknown":
            change(rt, update(table).where(mine_is).values(agent_class="Gone"))
        case "ended":
            cancelled(rt, mine)
    before = everything(rt)

    assert claims._claim_at_once(rt, mine, rt.monitor.process_id()) is None
    assert everything(rt) == before
    words = {"behind": "not-head", "later": "waiting", "unknown": "unknown-class", "ended": "ended-before"}
    claimed = claims.claim(rt, mine)
    assert isinstance(claimed, Claim) if unusual == "two messages" else claimed.word == words[unusual]
    assert row(rt, mine).status != SubmissionStatus.RUNNING or unusual == "two messages"


def test_a_caller_who_makes_the_agent_is_not_waited_for(rt: Runtime):
    """Who has just inserted the agent's row, and takes his time: the turn is busy, and the tick comes again."""
    mine = submit(rt)
    other = rt.db.engine.connect()
    try:
        values = {"id": Clerk("a")._ref.id, "agent_class": "Clerk", "name": "a", "epoch": 0, "created_at": 0}
        other.exec_driver_sql(
            "INSERT INTO think_agents (id, agent_class, name, epoch, created_at)"
            " VALUES (%(id)s, %(agent_class)s, %(name)s, %(epoch)s, %(created_at)s)",
            values,
        )

        assert claims.claim(rt, mine).word == "busy"
    finally:
        other.rollback()
        other.close()

    assert rt.db.read(lambda tx: tx.conn.exec_driver_sql("SHOW lock_timeout").scalar()) == "0"
    assert claims.run(rt, mine).word == "completed"
