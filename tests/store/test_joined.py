"""Joining a caller's transaction: stored with it, gone with it, and announced only after its commit."""

import contextvars
import gc
import threading
import weakref
from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, func, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from think_celery.clock import SystemClock
from think_celery.errors import CannotJoin
from think_celery.store.database import Database
from think_celery.store.joined import joined
from think_celery.store.tables import agents

NOW = datetime(2027, 1, 1, tzinfo=UTC)

orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(50)))


@pytest.fixture
def engine(db):
    """The caller's own engine, as a host application makes it, with a table of its own."""
    engine = create_engine(db.url)
    orders.create(engine)
    yield engine
    orders.drop(engine)
    engine.dispose()


@pytest.fixture
def session(engine):
    """The caller's session; it has written a row of its own."""
    with Session(engine) as session:
        session.execute(orders.insert().values(item="shoes"))
        yield session


class Accepting:
    """What our accepting calls do: store a row, and ask for a call after the commit."""

    def __init__(self, db):
        self.db, self.calls = db, []

    def __call__(self, name):
        def work(tx):
            tx.execute(agents.insert().values(id=name, agent_class="A", name=name, created_at=NOW))
            tx.after_commit(lambda: self.calls.append((name, self.stored())))

        self.db.accept(work)

    def stored(self):
        """The names that another connection sees."""
        return set(self.db.read(lambda tx: tx.execute(select(agents.c.id)).scalars().all()))


@pytest.fixture
def accept(db):
    return Accepting(db)


def count_orders(engine):
    with engine.connect() as conn:
        return conn.execute(select(func.count()).select_from(orders)).scalar()


class TestSession:
    def test_a_commit_after_the_block_stores_both_rows_and_then_makes_the_call(
        self, db, engine, session, accept
    ):
        """FR-38: nothing is visible or called before the caller's commit, everything right after it."""
        with joined(db, session):
            accept("a")
        assert (accept.calls, accept.stored()) == ([], set())

        session.commit()

        assert accept.calls == [("a", {"a"})]
        assert count_orders(engine) == 1

    def test_a_commit_inside_the_block_does_too_and_the_session_may_go_on(self, db, session, accept):
        """FR-38: one block may span several transactions; each commit makes its own calls, once."""
        with joined(db, session):
            accept("a")
            session.commit()
            assert [name for name, _ in accept.calls] == ["a"]
            accept("b")
            accept("c")
            session.commit()
            accept("d")
            session.rollback()
            accept("e")
        session.commit()

        assert accept.calls == [
            ("a", {"a"}),
            ("b", {"a", "b", "c"}),
            ("c", {"a", "b", "c"}),
            ("e", {"a", "b", "c", "e"}),
        ]

    @pytest.mark.parametrize("how", ["rollback", "close"])
    def test_a_rollback_takes_our_row_and_our_call_with_it(self, db, engine, session, accept, how):
        """FR-38: after a rollback there is no row, and no call is made, not even by a later commit."""
        with joined(db, session):
            accept("a")

        getattr(session, how)()

        session.execute(orders.insert().values(item="hat"))
        session.commit()
        assert (accept.calls, accept.stored()) == ([], set())
        assert count_orders(engine) == 1

    def test_an_error_in_the_block_leaves_the_transaction_to_its_owner(self, db, engine, session, accept):
        """We roll nothing back: the caller may catch the error and commit what is there."""

        def work():
            with joined(db, session):
                accept("a")
                raise LookupError

        with pytest.raises(LookupError):
            work()
        session.commit()

        assert accept.calls == [("a", {"a"})]
        assert count_orders(engine) == 1

    def test_a_rolled_back_savepoint_drops_its_calls_and_no_others(self, db, session, accept):
        """FR-38: what was asked for within it is gone; what came before and after it is made."""
        with joined(db, session):
            accept("before")
            savepoint = session.begin_nested()
            accept("within")
            savepoint.rollback()
            accept("after")
        session.commit()

        assert accept.calls == [("before", {"before", "after"}), ("after", {"before", "after"})]

    def test_a_released_savepoint_waits_for_the_outermost_commit(self, db, session, accept):
        """FR-38: the end of a savepoint is no commit; calls keep the order in which they were asked for."""
        with joined(db, session):
            accept("first")
            with session.begin_nested():
                accept("second")
            assert accept.calls == []
            accept("third")
        session.commit()

        assert [name for name, _ in accept.calls] == ["first", "second", "third"]

    def test_a_savepoint_released_into_one_that_is_rolled_back_is_gone_too(self, db, session, accept):
        """FR-38: an inner savepoint's fate is that of the outer one."""
        with joined(db, session):
            accept("kept")
            outer = session.begin_nested()
            with session.begin_nested():
                accept("inner")
            outer.rollback()
        session.commit()

        assert accept.calls == [("kept", {"kept"})]

    def test_a_savepoint_abandoned_within_one_that_is_rolled_back_is_gone_too(self, db, session, accept):
        """FR-38: rolling back the outer one ends the inner one, which nobody ended."""
        with joined(db, session):
            outer = session.begin_nested()
            session.begin_nested()
            accept("inner")
            outer.rollback()
            accept("kept")
        session.commit()

        assert accept.calls == [("kept", {"kept"})]

    def test_a_commit_with_a_savepoint_open_keeps_it(self, db, session, accept):
        """FR-38: committing the session releases its open savepoints first."""
        with joined(db, session):
            session.begin_nested()
            accept("inner")
        session.commit()

        assert accept.calls == [("inner", {"inner"})]

    def test_a_call_that_raises_does_not_reach_the_caller(self, db, session, accept, caplog):
        """The caller's commit has happened; a failed call is logged, and hides no other."""
        with joined(db, session):
            db.accept(lambda tx: tx.after_commit(lambda: 1 / 0))
            accept("a")

        session.commit()

        assert accept.calls == [("a", {"a"})]
        assert "a call after a commit failed" in caplog.text

    def test_a_call_may_use_the_same_session(self, db, session):
        """Calls are made when the transaction is over: code that they run may begin the next one."""
        seen = []
        with joined(db, session):
            db.accept(lambda tx: tx.after_commit(lambda: seen.append(session.scalar(select(orders.c.item)))))

        session.commit()

        assert seen == ["shoes"]

    def test_what_is_read_inside_sees_its_own_writes(self, db, session, accept):
        """A duplicate accepted in the same transaction is found there, and nowhere else."""
        ids = select(agents.c.id)
        with joined(db, session):
            accept("a")
            inside = db.look(lambda tx: tx.execute(ids).scalars().all())
        outside = db.look(lambda tx: tx.execute(ids).scalars().all())

        assert (inside, outside) == (["a"], [])

    def test_a_scoped_session_is_the_session_of_its_thread(self, db, engine, accept):
        """Flask's and many others' way to hold a session is taken as it is."""
        scoped = scoped_session(sessionmaker(engine))
        with joined(db, scoped):
            accept("a")
        assert accept.calls == []

        scoped.commit()

        assert accept.calls == [("a", {"a"})]
        scoped.remove()

    def test_a_session_lent_a_connection_in_a_transaction_does_not_commit_it(self, db, engine, accept):
        """The test suite's idiom: its outer transaction is what counts, and nobody tells us of its end."""
        with engine.connect() as conn:
            conn.execute(orders.insert().values(item="shoes"))
            with Session(conn, join_transaction_mode="create_savepoint") as session:
                with joined(db, session):
                    accept("a")
                session.commit()
            assert accept.calls == []
            conn.rollback()

        assert accept.stored() == set()

    def test_nothing_of_ours_outlives_the_session(self, db, engine, accept):
        """A session that was joined, and left in the middle, is collected like any other."""
        session = Session(engine)
        for name in ("a", "b", "c"):
            with joined(db, session):
                accept(name)
            session.commit()
        with joined(db, session):
            accept("d")
        listeners = len(session.dispatch.after_commit)
        gone = weakref.ref(session)

        del session
        gc.collect()

        assert listeners == 1
        assert gone() is None

    def test_listeners_of_the_caller_are_left_alone(self, db, session, accept):
        """Our listeners are beside the caller's own, on that one session only."""
        heard = []
        event.listen(session, "after_commit", lambda session: heard.append("commit"))

        with joined(db, session):
            accept("a")
        session.commit()

        assert heard == ["commit"]
        assert len(accept.calls) == 1


class TestConnection:
    def test_the_row_follows_the_connection_and_the_call_is_left_to_the_tick(self, db, engine, accept):
        """FR-38: a Core connection tells of its commit before it happens, so no call is made at all."""
        with engine.connect() as conn:
            conn.execute(orders.insert().values(item="shoes"))
            with joined(db, conn):
                accept("a")
            assert accept.stored() == set()
            conn.commit()

        assert (accept.calls, accept.stored()) == ([], {"a"})

    def test_a_rollback_takes_our_row_with_it(self, db, engine, accept):
        """FR-38: no commit and no rollback is ours."""
        with engine.connect() as conn:
            conn.execute(orders.insert().values(item="shoes"))
            with joined(db, conn):
                accept("a")
            conn.rollback()

        assert (accept.calls, accept.stored()) == ([], set())

    def test_begin_blocks_work(self, db, engine, accept):
        """`with engine.begin() as conn` commits at its end, and what was accepted inside with it."""
        with engine.begin() as conn, joined(db, conn):
            accept("a")

        assert accept.stored() == {"a"}


class TestScope:
    def test_only_the_block_joins(self, db, session, accept):
        """After the block, accepting is a transaction of ours again."""
        session.rollback()
        with joined(db, session):
            pass

        accept("a")

        assert accept.calls == [("a", {"a"})]

    def test_blocks_nest(self, db, engine, accept):
        """The innermost block says which transaction is joined; leaving it restores the outer one."""
        with Session(engine) as outer, Session(engine) as inner:
            with joined(db, outer):
                with joined(db, inner):
                    accept("inner")
                inner.commit()
                accept("outer")
            outer.rollback()

        assert accept.calls == [("inner", {"inner"})]
        assert accept.stored() == {"inner"}

    def test_another_thread_joins_only_in_a_copy_of_the_context(self, db, session):
        """A thread of its own has its own transactions; one that runs for the caller has the caller's."""
        inside = {}

        def look(name):
            inside[name] = db.inside_joined

        with joined(db, session):
            copied = contextvars.copy_context()
            for thread in (
                threading.Thread(target=look, args=("plain",)),
                threading.Thread(target=copied.run, args=(look, "copied")),
            ):
                thread.start()
                thread.join()

        assert inside == {"plain": False, "copied": True}


class TestRefused:
    def test_a_transaction_of_another_database(self, db, tmp_path):
        """Rows of two databases can't be committed together, so the first call says so, without passwords."""
        elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")

        with Session(elsewhere) as session, pytest.raises(CannotJoin, match="keeps its rows in") as refused:
            with joined(db, session):
                raise AssertionError("never inside")

        assert "elsewhere.db" in str(refused.value)
        elsewhere.dispose()

    def test_a_connection_that_does_not_see_our_tables(self, empty_database_url):
        """The remedy is named, and the caller's transaction is not broken by finding out."""
        db = Database(empty_database_url, SystemClock())
        engine = create_engine(db.url)
        with Session(engine) as session:
            with pytest.raises(CannotJoin, match="think-celery db upgrade"):
                with joined(db, session):
                    raise AssertionError("never inside")
            assert session.scalar(select(1)) == 1
        engine.dispose()
        db.dispose()

    def test_a_connection_that_commits_by_itself(self, db):
        """With autocommit there is no transaction that could hold both rows."""
        engine = create_engine(db.url, isolation_level="AUTOCOMMIT")

        with (
            engine.connect() as conn,
            conn.begin(),
            pytest.raises(CannotJoin, match="commits each statement"),
        ):
            with joined(db, conn):
                raise AssertionError("never inside")
        engine.dispose()

    @pytest.mark.parametrize("set_on", ["connection", "engine", "create_engine"])
    def test_one_that_has_not_begun_yet(self, db, engine, set_on):
        """It is refused before its first statement, too: a rollback would undo nothing."""
        options = {"isolation_level": "AUTOCOMMIT"}
        made = create_engine(db.url, **options) if set_on == "create_engine" else engine
        source = made.execution_options(**options) if set_on == "engine" else made

        with source.connect() as conn:
            if set_on == "connection":
                conn = conn.execution_options(**options)
            with pytest.raises(CannotJoin, match="commits each statement"), joined(db, conn):
                raise AssertionError("never inside")
            assert not conn.in_transaction()
        made.dispose()

    def test_an_engine_that_begins_by_a_listener_of_its_own(self, sqlite_url):
        """On SQLite many have the driver begin nothing and say BEGIN themselves: that is a transaction."""
        db = Database(sqlite_url, SystemClock())
        engine, accept = create_engine(sqlite_url), Accepting(db)
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))

        with engine.connect() as conn:
            with joined(db, conn):
                accept("a")
            conn.rollback()
            with joined(db, conn):
                accept("b")
            conn.commit()

        assert accept.stored() == {"b"}
        engine.dispose()
        db.dispose()

    def test_a_session_of_several_engines(self, db, engine):
        """Which of its engines is ours is the caller's to say."""
        with Session(binds={orders: engine}) as session:
            with pytest.raises(CannotJoin, match=r"session\.connection\(bind_arguments"):
                with joined(db, session):
                    raise AssertionError("never inside")
            with joined(db, session.connection(bind_arguments={"clause": orders})):
                assert db.inside_joined

    def test_what_is_no_transaction(self, db, engine):
        """An engine, or an AsyncSession, is refused with what to pass instead."""
        with pytest.raises(CannotJoin, match="Engine is no Session and no Connection"):
            with joined(db, engine):
                raise AssertionError("never inside")
