"""Statements that are built once: their parameters, and transactions of a single one."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Select, bindparam, event, func, literal, select, text, update
from sqlalchemy.exc import DBAPIError

from think_celery.clock import SystemClock
from think_celery.store.database import REPEATS, Database
from think_celery.store.statements import insert_new, now, span
from think_celery.store.tables import agents, messages

NOW = datetime(2027, 1, 1, tzinfo=UTC)
OWN = {"agent_class": "A", "name": "a"}
INSERT = insert_new(agents, epoch=0, created_at=now())
EPOCH = select(agents.c.epoch).where(agents.c.id == bindparam("agent"))
SEVEN = select(literal(7) + func.coalesce(literal(None), 0).label("nothing"))
NEXT = update(agents).where(agents.c.id == bindparam("agent")).values(epoch=agents.c.epoch + 1)


class Stopped(SystemClock):
    """A clock of the tests."""

    database_time = False

    def now(self):
        return NOW


@pytest.fixture
def stopped(database_url):
    """A `Database` whose time stands still, on each database."""
    database = Database(database_url, Stopped())
    yield database
    database.dispose()


@pytest.fixture
def pg(postgres_url):
    """A `Database` on PostgreSQL."""
    database = Database(postgres_url, SystemClock())
    yield database
    database.dispose()


def add(tx):
    tx.execute(INSERT, {"id": "a", **OWN}).one()


def epoch(db):
    return db.read(lambda tx: tx.execute(EPOCH, {"agent": "a"}).scalar())


class TestParameters:
    def test_the_time_of_the_run_and_not_of_the_import_is_written(self, stopped):
        """A statement made when nobody knew the time asks for it each time it is run, and moves it by a span."""
        soon = update(agents).where(agents.c.id == "a").values(created_at=now(span("after")))

        new = stopped.transact(lambda tx: tx.execute(INSERT, {"id": "a", **OWN}).one())
        moved = stopped.transact(
            lambda tx: tx.execute(
                soon.returning(agents.c.created_at), {"after": timedelta(minutes=5)}
            ).scalar()
        )

        assert (new.created_at, moved) == (NOW, NOW + timedelta(minutes=5))

    def test_further_columns_are_given_when_it_is_run(self, stopped):
        """A column that the statement does not name is written by its name."""
        stopped.transact(add)
        stopped.transact(lambda tx: tx.execute(NEXT, {"agent": "a", "name": "b"}))

        row = stopped.read(lambda tx: tx.execute(select(agents)).one())
        assert (row.epoch, row.name) == (1, "b")

    @pytest.mark.parametrize("statement", [NEXT, EPOCH, INSERT["sqlite"]], ids=["update", "select", "insert"])
    def test_a_name_that_is_neither_parameter_nor_column_is_refused(self, stopped, statement):
        """A misspelt column would keep its value, and nobody would know."""
        with pytest.raises(TypeError, match="no parameter or column epcoh, nmae"):
            stopped.transact(lambda tx: tx.execute(statement, {"epcoh": 7, "nmae": "b"}))

    def test_a_row_that_is_there_is_not_touched_and_not_returned(self, stopped):
        """`insert_new` says by its row whether there was none before."""
        first = stopped.transact(lambda tx: tx.execute(INSERT, {"id": "a", **OWN}).first())
        second = stopped.transact(lambda tx: tx.execute(INSERT, {"id": "a", **OWN, "epoch": 9}).first())

        assert (first.id, second) == ("a", None)
        assert epoch(stopped) == 0

    def test_returned_is_what_was_asked_for(self, stopped):
        """Only the columns that someone needs."""
        new = insert_new(agents, agents.c.name, epoch=0, created_at=now())

        row = stopped.transact(lambda tx: tx.execute(new, {"id": "a", **OWN}).one())

        assert tuple(row) == ("a",)


class TestCompiledOnce:
    """Tests of users have a database each; what they wait for is not the same statements, compiled again."""

    def compiles(self, monkeypatch):
        """The names of the kinds of dialect for which something is compiled from now on."""
        seen = []
        compile_with = Select._compiler

        def noted(statement, dialect, **options):
            seen.append(dialect.name)
            return compile_with(statement, dialect, **options)

        monkeypatch.setattr(Select, "_compiler", noted)
        return seen

    def answers(self, url):
        """Run one statement in a `Database` of its own."""
        database = Database(url, SystemClock())
        value = database.read(lambda tx: tx.execute(SEVEN).scalar_one())
        database.dispose()
        return value

    def test_for_all_databases_of_a_kind(self, monkeypatch, tmp_path):
        """Three files of SQLite's have one compilation."""
        seen = self.compiles(monkeypatch)
        assert [self.answers(f"sqlite:///{tmp_path / name}.db") for name in "abc"] == [7, 7, 7]
        assert seen == ["sqlite"]

    def test_and_once_more_for_another_kind(self, monkeypatch, tmp_path, postgres_url):
        """PostgreSQL is not given what was compiled for SQLite: once by SQLAlchemy, then once for the driver."""
        self.answers(f"sqlite:///{tmp_path / 'a'}.db")
        seen = self.compiles(monkeypatch)
        assert [self.answers(postgres_url) for _ in range(4)] == [7, 7, 7, 7]
        assert seen == ["postgresql", "postgresql"]


class TestSingle:
    def test_it_is_committed_and_its_calls_are_made(self, db):
        """What is called after the commit sees the row, in whatever connection."""
        seen = []

        def work(tx):
            tx.after_commit(lambda: seen.append(epoch(db)))
            return tx.execute(INSERT, {"id": "a", **OWN}).one().id

        assert db.single(work) == "a"
        assert seen == [0]

    def test_on_postgresql_there_is_neither_begin_nor_commit(self, pg):
        """It is one round trip: the statement commits by itself."""
        sent = []
        pg.single(add)
        event.listen(pg.engine, "before_cursor_execute", lambda conn, cursor, sql, *_: sent.append(sql))
        event.listen(pg.engine, "commit", lambda conn: sent.append("COMMIT"))

        pg.single(lambda tx: tx.execute(NEXT, {"agent": "a"}))

        assert [sql.split()[0] for sql in sent] == ["UPDATE"]
        assert epoch(pg) == 1

    def test_a_second_statement_is_refused(self, db):
        """It would not be in the same transaction, on one of the two databases."""

        def work(tx):
            add(tx)
            tx.execute(NEXT, {"agent": "a"})

        with pytest.raises(RuntimeError, match="single statement"):
            db.single(work)

    def test_an_error_makes_no_calls(self, db):
        """A statement that failed has changed nothing."""
        seen = []

        def work(tx):
            tx.after_commit(lambda: seen.append(1))
            tx.execute(messages.insert(), {"agent_id": "a"})

        with pytest.raises(DBAPIError):
            db.single(work)

        assert seen == []

    def dying(self, pg, runs):
        """A statement whose connection dies the first time, before anybody knows how it went."""

        def work(tx):
            runs.append(1)
            if len(runs) == 1:
                pid = tx.conn.connection.dbapi_connection.info.backend_pid
                pg.transact(lambda other: other.execute(text(f"SELECT pg_terminate_backend({pid}, 5000)")))
            tx.execute(NEXT, {"agent": "a"})

        return work

    def test_a_connection_that_died_is_the_callers_to_know(self, pg):
        """It may have been committed: repeating it could count twice, so the error is raised."""
        pg.single(add)
        runs = []

        with pytest.raises(DBAPIError):
            pg.single(self.dying(pg, runs))

        assert len(runs) == 1

    def test_unless_it_is_right_to_repeat_it(self, pg):
        """What may be run again whether it was committed or not, is."""
        pg.single(add)
        runs = []

        pg.single(self.dying(pg, runs), repeatable=True)

        assert len(runs) == 2
        assert epoch(pg) == 1

    def test_it_gives_up_at_last(self, pg):
        """A server that ends each connection ends the attempts, too."""
        runs = []

        def work(tx):
            runs.append(1)
            tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        with pytest.raises(DBAPIError):
            pg.single(work, repeatable=True)

        assert len(runs) == REPEATS + 1

    def test_in_a_callers_transaction_it_is_part_of_that(self, db):
        """`accept_single` commits nothing of a caller's."""

        def work(tx):
            with db.joining(tx):
                db.accept_single(add)
                db.accept_single(lambda own: own.execute(NEXT, {"agent": "a"}))
            raise KeyError("rolled back")

        with pytest.raises(KeyError):
            db.transact(work)
        assert epoch(db) is None

        db.accept_single(add)
        assert epoch(db) == 0
