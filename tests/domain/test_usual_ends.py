"""The end in one statement: what it leaves is what the transaction leaves, and where another waits, nothing."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, update

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    clerk,
    everything,
    line,
    prompt,
    row,
    transaction,
    wait_for_lock,
    workers,
)
from tests.domain.talk import talker
from think_celery.domain import tick
from think_celery.domain.submissions import claims, lines
from think_celery.domain.submissions.claimed import Claim
from think_celery.domain.turns import turns
from think_celery.providers.scripted import ScriptedModel, fail
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus
from think_celery.store import endings, tables
from think_celery.store import lines as line_rows
from think_celery.store.database import Tx


@pytest.fixture
def rt(postgres_url: str, by_hand: None) -> Iterator[Runtime]:
    with workers(postgres_url) as made:
        yield made


def submit(rt: Runtime, name: str = "a", text: str = "hi") -> str:
    return clerk(rt, name).submit_messages(text).submission_id


OF_A_TURN = ("think_submissions", "think_lines", "think_messages", "think_outbox")


@contextmanager
def statements(rt: Runtime) -> Iterator[list[str]]:
    """What is said of a turn's rows: a first word each, and where that was in a transaction."""
    seen: list[str] = []

    def note(conn: Any, cursor: Any, text: str, *rest: Any) -> None:
        if any(table in text for table in OF_A_TURN):
            alone = conn.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
            seen.append(text.split()[0] + ("" if alone else " in a transaction"))

    event.listen(rt.db.engine, "before_cursor_execute", note)
    yield seen
    event.remove(rt.db.engine, "before_cursor_execute", note)


def stored(rt: Runtime, name: str) -> list[dict[str, Any]]:
    """What a turn has written for an agent, without what differs each time."""
    differs = {"id", "seq", "agent_id", "agent_name", "message_id", "dedupe_key", "submission_id"}
    differs |= {"idempotency_key", "workflow_key"}
    found = []
    for table, rows in everything(rt).items():
        for each in rows:
            values = dict(each._mapping)
            mine = values.get("agent_id") == Clerk(name)._ref.id
            if mine or (table == "think_outbox" and values["workflow_key"] == name):
                values["payload"] = str(values.get("payload")).replace(str(values.get("submission_id")), "it")
                times = {key for key in values if key.endswith("_at") and values[key] is not None}
                found.append({key: key if key in times else values[key] for key in values.keys() - differs})
    return found


def of_a_workflow(rt: Runtime, name: str) -> str:
    """A turn whose news goes to the workflow of its agent's name."""
    mine = prompt(rt, name, key=name)
    change(rt, update(tables.submissions).where(tables.submissions.c.id == mine).values(workflow_key=name))
    return mine


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("ask", [submit, of_a_workflow])
def test_it_leaves_what_the_transaction_leaves(
    rt: Runtime, ask: Callable[[Runtime, str], str], failing: bool, monkeypatch: pytest.MonkeyPatch
):
    """The same rows, and the same news, whether the turn answered or failed."""
    if failing:
        broken = ScriptedModel(*[fail("no")] * 2)
        rt.stand_in = lambda _: broken
    first, second = ask(rt, "a"), ask(rt, "b")

    with statements(rt) as quick:
        assert claims.run(rt, first).ended
    monkeypatch.setattr(lines, "finish_at_once", lambda *_, **__: None)
    assert claims.run(rt, second).ended

    assert not [each for each in quick if "transaction" in each]
    assert stored(rt, "a") == stored(rt, "b")
    assert row(rt, first).status == ("error" if failing else "completed")
    assert line(rt, clerk(rt)).process_id is None


def test_a_usual_turn_has_no_transaction(rt: Runtime):
    """Of an agent that had one: two to claim it, the conversation, the end, and the look at who is next."""
    assert claims.run(rt, submit(rt)).word == "completed"
    mine = submit(rt)

    with statements(rt) as seen:
        assert claims.run(rt, mine).word == "completed"

    assert seen == ["SELECT", "WITH", "SELECT", "WITH", "SELECT"]


def test_hooks_keep_the_line_in_that_statement(rt: Runtime):
    """It is given back by one of its own when they have returned, whoever waits meanwhile."""
    heard: list[Any] = []
    agent = talker(on_chat_response=lambda self, result: heard.append((result.status, held())))(
        "h"
    )._bound_to(rt, "h")
    mine, other = (agent.submit_messages(text).submission_id for text in ("one", "two"))

    def held() -> bool:
        return line(rt, agent).process_id is not None

    assert claims.run(rt, mine).word == "completed"

    assert heard == [("completed", True)]
    assert not held()
    assert row(rt, other).knock_at is not None


def claimed(rt: Runtime) -> Claim:
    found = claims.claim(rt, submit(rt))
    assert isinstance(found, Claim)
    return found


def end(rt: Runtime, claim: Claim) -> Any:
    completed = endings.TurnEnd(
        lease=claim.lease,
        seq=claim.row.seq,
        status=SubmissionStatus.COMPLETED,
        message_id=claim.message_id,
    )
    return rt.db.single(lambda tx: endings.end_at_once(tx, completed, news=None))


def test_where_another_waits_nothing_is_changed(rt: Runtime):
    """The transaction expects it, so that it is knocked for whatever becomes of this worker."""
    mine = claimed(rt)
    other = submit(rt, text="next")
    change(rt, update(tables.submissions).where(tables.submissions.c.id == other).values(knock_at=None))
    before = everything(rt)

    assert end(rt, mine) is None
    assert everything(rt) == before
    assert turns.run(rt, mine).word == "completed"
    assert row(rt, other).knock_at is not None


def test_whoever_lost_the_line_changes_nothing(rt: Runtime):
    """Its token is another's: no message, no end, no news."""
    mine = claimed(rt)
    change(rt, update(tables.lines).values(token=tables.lines.c.token + 1))
    before = everything(rt)

    assert end(rt, mine) is None
    assert everything(rt) == before
    assert turns.run(rt, mine).word == "lease-lost"
    assert everything(rt)["think_submissions"] == before["think_submissions"]


def test_one_that_was_cancelled_has_its_line_given_back(rt: Runtime):
    """The status is the canceller's, and says so."""
    mine = claimed(rt)
    assert clerk(rt).cancel_submission(mine.row.id)

    assert end(rt, mine) == (False, None)
    assert row(rt, mine.row.id).status == "aborted"
    assert line(rt, clerk(rt)).process_id is None


def test_one_that_the_tick_met_while_the_line_was_waited_for(rt: Runtime):
    """The statement does not see it, and the tick expects it no more: so the line says that somebody waits."""
    mine, ended = claimed(rt), list[Any]()
    ending = threading.Thread(target=lambda: ended.append(end(rt, mine)))

    def work(tx: Tx) -> str:
        assert line_rows.lock_line(tx, mine.lease.key) is not None
        ending.start()
        wait_for_lock(rt)
        other = submit(rt, text="next")
        tick._knock_missed(rt, tx, [row(rt, other)])
        return other

    other = rt.db.transact(work)
    ending.join(10)

    assert ended == [None]
    assert row(rt, other).knock_at is None
    assert turns.run(rt, mine).word == "completed"
    assert row(rt, other).knock_at is not None


def test_one_that_the_tick_met_while_the_end_waits_for_a_caller(rt: Runtime):
    """The line is locked, so nobody can say in it that somebody waits: who does is put off, not forgotten."""
    mine = claimed(rt)
    with transaction(rt):
        clerk(rt).cancel_submission(mine.row.id)
        ending = threading.Thread(target=lambda: end(rt, mine))
        ending.start()
        wait_for_lock(rt)
        (other,) = at_once(1, lambda _: submit(rt, text="next"))  # in no transaction of the caller's
        before = row(rt, other).knock_at
        changed = rt.db.transact(lambda tx: tick._knock_missed(rt, tx, [row(rt, other)]))
    ending.join(10)

    assert changed == 1
    assert row(rt, other).knock_at > before
    assert row(rt, mine.row.id).status == "completed"
