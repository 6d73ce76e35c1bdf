"""A caller that keeps a transaction open holds up its own submission only: no worker, no other agent."""

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from tests.domain.crowd import wait_for_lock
from think_celery import Think
from think_celery.domain import tick
from think_celery.domain.agents import starts
from think_celery.domain.conversation import conversation
from think_celery.domain.outcomes import Outcome
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.providers.scripted import FunctionModel, say
from think_celery.store import agents, tables
from think_celery.store.joined import joined
from think_celery.testing import ThinkTest, think_test


class Opened(Think):
    pass


class Starting(Think):
    """Has something to do at its start."""

    def on_start(self) -> None:
        """Nothing much."""


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


def status(submission_id: str, name: str = "a") -> str:
    found = Opened(name).inspect_submission(submission_id)
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


def test_one_accepted_while_such_an_end_waits(t: ThinkTest, caller: Session):
    """The end does not see it, and the tick meets it behind a turn that runs: it is knocked for all the same."""
    agent = Opened("a")
    held = claims.claim(t.rt, agent.submit_messages("Well?").submission_id)
    assert not isinstance(held, Outcome)
    with joined(t.rt.db, caller):
        agent.cancel_submission(held.row.id)
    others = Others(t)
    others.begin(lambda: turns.run(t.rt, held))
    wait_for_lock(t.rt)

    waits = [agent.submit_messages(text).submission_id for text in ("And?", "So?", "Eh?")]
    for _ in range(3):
        t.skip("3 seconds")
    caller.rollback()
    failures = others.end()
    t.lose_messages()  # those of the end, too
    t.skip("2 minutes")

    assert failures == []
    assert [status(each) for each in waits] == ["completed"] * 3


def test_those_behind_such_an_end_hide_no_other(
    t: ThinkTest, caller: Session, monkeypatch: pytest.MonkeyPatch
):
    """However many they are: they are put off, and the next pass comes to other agents' lost messages."""
    monkeypatch.setattr(tick, "ROWS", 2)
    agent = Opened("a")
    held = claims.claim(t.rt, agent.submit_messages("Well?").submission_id)
    assert not isinstance(held, Outcome)
    with joined(t.rt.db, caller):
        agent.cancel_submission(held.row.id)
    others = Others(t)
    others.begin(lambda: turns.run(t.rt, held))
    wait_for_lock(t.rt)

    for number in range(5):
        agent.submit_messages(str(number))
    other = Opened("b").submit_messages("And you?").submission_id
    t.lose_messages()
    for _ in range(3):
        t.skip("3 seconds")
    during = status(other, "b")
    caller.rollback()

    assert others.end() == []
    assert during == "completed"


class Others:
    """What other threads do meanwhile. PostgreSQL looks for a circle a second after somebody began to wait."""

    def __init__(self, t: ThinkTest) -> None:
        self._t, self._threads, self.failures = t, list[threading.Thread](), list[BaseException]()

    def begin(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def end(self) -> list[BaseException]:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        return self.failures


def test_a_reset_that_waits_for_an_end_that_waits_for_the_caller(t: ThinkTest, caller: Session):
    """It keeps the agent's row from nobody meanwhile: the caller may go on to the agent's state."""
    agent = Opened("a")
    agent.set_state({"number": 0})
    held = claims.claim(t.rt, agent.submit_messages("Well?").submission_id)
    assert not isinstance(held, Outcome)
    with joined(t.rt.db, caller):
        agent.cancel_submission(held.row.id)
    others = Others(t)
    others.begin(lambda: turns.run(t.rt, held))
    wait_for_lock(t.rt)
    others.begin(lambda: conversation.reset(t.rt, agent._ref))
    threading.Event().wait(1.3)

    with joined(t.rt.db, caller):
        agent.set_state({"number": 1})
    caller.commit()

    assert others.end() == []
    assert (agent.state, agent.messages) == ({"number": 1}, [])


def test_a_start_while_an_end_waits_for_the_caller(t: ThinkTest, caller: Session):
    """The worker that is to start another version turns to other work: the line is in use."""
    agent = Starting("a")
    held = claims.claim(t.rt, agent.submit_messages("Well?").submission_id)
    assert not isinstance(held, Outcome)
    with joined(t.rt.db, caller):
        agent.cancel_submission(held.row.id)
    others, words = Others(t), list[str]()
    ending = others.begin(lambda: turns.run(t.rt, held))
    wait_for_lock(t.rt)
    wanted = update(tables.agents).values(started_version="another", knock_at=t.clock.now())
    t.rt.db.transact(lambda tx: tx.execute(wanted))

    starting = others.begin(lambda: words.append(starts.run(t.rt, "Starting", "a").word))
    starting.join(5)
    waits = ending.is_alive()
    before = list(words)
    caller.commit()

    assert others.end() == []
    assert (waits, before) == (True, ["busy"])


def test_a_first_claim_while_the_caller_makes_the_agents_row(t: ThinkTest, caller: Session):
    """The worker turns to other work, and comes back: a caller's first `set_state` holds up no slot."""
    agent = Opened("new")
    with joined(t.rt.db, caller):
        agent.set_state({"number": 1})
    submission = agent.submit_messages("Well?")

    others = Others(t)
    others.begin(t.run_until_idle)
    assert others.end() == []
    before = status(submission.submission_id, "new")
    caller.commit()
    t.skip("1 minute")

    assert (before, status(submission.submission_id, "new")) == ("pending", "completed")


def test_a_lost_broker_while_the_caller_changes_an_agent_that_waits_for_its_start(
    t: ThinkTest, caller: Session
):
    """The tick does not wait for the caller; the agent's start comes at its own time."""
    agent = Starting("a")
    agent.start()
    t.lose_messages()
    with joined(t.rt.db, caller):
        agent.set_state({"number": 1})

    others = Others(t)
    others.begin(lambda: tick.knock_now(t.rt))
    assert others.end() == []
    caller.commit()
    t.skip("1 minute")

    assert agent.state == {"number": 1}
    assert t.rt.db.read(lambda tx: agents.get(tx, agent._ref.id)).started_version is not None
