"""``ThinkCelery.joined``: the caller's transaction holds what agents store, in a test as in the application."""

from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from think_celery import Think, ThinkCelery
from think_celery.errors import CannotJoin
from think_celery.providers.scripted import say
from think_celery.runtime import set_current
from think_celery.store.migrate import upgrade
from think_celery.testing import think_test


class Cashier(Think):
    """The agent whose turns are submitted with rows of the caller's."""


@pytest.fixture
def think(tmp_path: Path):
    """An application with a database of its own."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.think_database_url = f"sqlite:///{tmp_path / 'shop.db'}"
    before = set_current(None)
    upgrade(app.conf.think_database_url)
    think = ThinkCelery(app)
    yield think
    think.close()
    set_current(before)


def test_in_a_test_it_joins_the_tests_database(think: ThinkCelery):
    """Code of the application that joins its session can be tested: what is rolled back is gone there, too."""
    with think_test() as t:
        t.script(Cashier, say("Confirmed."))
        engine = create_engine(t.rt.db.url)

        with Session(engine) as session, think.joined(session):
            Cashier("a").submit_messages("rolled back")
            session.rollback()
        with Session(engine) as session:
            with think.joined(session):
                kept = Cashier("a").submit_messages("committed")
            session.commit()
        t.run_until_idle()

        assert [s.submission_id for s in Cashier("a").list_submissions()] == [kept.submission_id]
        assert [m.text for m in Cashier("a").messages] == ["committed", "Confirmed."]


def test_a_session_of_another_database_is_refused(think: ThinkCelery):
    """It would hold nothing of what agents store: an error, not a transaction that does not join."""
    url = think.app.conf.think_database_url
    with think_test() as t:
        with Session(create_engine(url)) as session, pytest.raises(CannotJoin, match=r"shop\.db"):
            with think.joined(session):
                Cashier("a").submit_messages("where?")

        assert Cashier("a").list_submissions() == []
        assert t.rt.db.url != think.runtime.db.url


def test_outside_a_test_it_joins_the_applications(think: ThinkCelery):
    """Both databases are one: the row is there after the commit, and only then."""
    engine = create_engine(think.app.conf.think_database_url)

    with Session(engine) as session:
        with think.joined(session):
            first = Cashier("a").submit_messages("rolled back")
        session.rollback()
        with think.joined(session):
            second = Cashier("a").submit_messages("committed")
        session.commit()

    assert Cashier("a").inspect_submission(first.submission_id) is None
    assert Cashier("a").inspect_submission(second.submission_id) is not None


def test_the_very_first_call_may_join(tmp_path: Path):
    """Nobody migrates SQLite by hand: on a fresh file the tables are there when the transaction is joined."""
    url = f"sqlite:///{tmp_path / 'fresh.db'}"
    app = Celery("fresh", broker="memory://", set_as_current=False)
    app.conf.think_database_url = url
    before = set_current(None)
    think = ThinkCelery(app)
    try:
        with Session(create_engine(url)) as session:
            with think.joined(session):
                submission = Cashier("a").submit_messages("Hello")
            session.commit()

        assert Cashier("a").inspect_submission(submission.submission_id) is not None
    finally:
        think.close()
        set_current(before)
