"""A caller that keeps a transaction open holds up its own submission only: no worker, no other agent."""

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.domain.crowd import wait_for_lock
from think_celery import Think
from think_celery.domain import claims, tick, turns
from think_celery.domain.outcomes import Outcome
from think_celery.providers.scripted import FunctionModel, say
from think_celery.store.joined import joined
from think_celery.testing import ThinkTest, think_test


class Opened(Think):
    pass


@pytest.fixture
def t(postgres_url: str) -> Iterator[ThinkTest]:
    # On SQLite a writing transaction is the only one, whoever's it is.
    with think_test(database_url=postgres_url, model=FunctionModel(lambda request: say("Yes."))) as t:
        yield t


@pytest.fixture
def caller(postgres_url: str) -> Iterator[Session]:
    engine = create_engine(postgres_url)
    with Session(engine) as session:
        yield session
    engine.dispose()


def status(submission_id: str) -> str:
    found = Opened("a").inspect_submission(submission_id)
    assert found is not None
    return str(found.status)


@pytest.mark.parametrize("kept", [False, True], ids=["rolled back", "committed"])
@pytest.mark.parametrize("behind", [0, 1], ids=["last", "with one behind"])
def test_a_turn_ends_while_its_successor_is_being_cancelled(
    t: ThinkTest, caller: Session, kept: bool, behind: int
):
    """The end doesn't wait for the caller's row, and that row's turn comes afterwards."""
    first, second, *others = [Opened("a").submit_messages("Well?").submission_id for _ in range(2 + behind)]
    with joined(t.rt.db, caller):
        Opened("a").cancel_submission(second)

    t.run_until_idle()
    t.skip("1 minute")
    during = [status(first), *map(status, others)]
    if kept:
        caller.commit()
    else:
        caller.rollback()
    t.lose_messages()
    t.skip("1 minute")

    assert during == ["completed", *["pending" for _ in others]]
    assert status(second) == ("aborted" if kept else "completed")
    assert [status(each) for each in others] == ["completed" for _ in others]


def test_a_claim_does_not_wait_for_the_caller_either(t: ThinkTest, caller: Session):
    """The head itself is locked: its worker turns to other work, and comes back when the row is free."""
    only = Opened("a").submit_messages("Well?").submission_id
    with joined(t.rt.db, caller):
        Opened("a").cancel_submission(only)
    other = Opened("b").submit_messages("And you?")

    t.run_until_idle()
    tick.knock_now(t.rt)
    found = Opened("b").inspect_submission(other.submission_id)
    caller.rollback()
    t.lose_messages()
    t.skip("1 minute")

    assert found is not None
    assert found.status == "completed"
    assert status(only) == "completed"


def test_an_end_that_waits_for_the_caller_keeps_no_other_worker(t: ThinkTest, caller: Session):
    """A turn that ends while it is being cancelled waits for that; messages for those behind it do not."""
    first, second = (Opened("a").submit_messages("Well?").submission_id for _ in range(2))
    held = claims.claim(t.rt, first)
    assert not isinstance(held, Outcome)
    with joined(t.rt.db, caller):
        Opened("a").cancel_submission(first)
    said: list[str] = []
    ending = threading.Thread(target=lambda: said.append(turns.run(t.rt, held).word))
    behind = threading.Thread(target=lambda: said.append(claims.run(t.rt, second).word))

    ending.start()
    wait_for_lock(t.rt)
    behind.start()
    behind.join(10)
    before = list(said)
    caller.commit()
    for thread in (behind, ending):
        thread.join(10)
    t.run_until_idle()

    assert before == ["busy"]
    assert said == ["busy", "aborted"]
    assert status(second) == "completed"
