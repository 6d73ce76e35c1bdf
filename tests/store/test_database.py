"""Transactions: repeated when the database asks for it, fork-safe, with calls that follow the commit."""

import multiprocessing
import os
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, make_url, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from think_celery.clock import SystemClock
from think_celery.store.database import REPEATS, Database, is_away
from think_celery.store.statements import now
from think_celery.store.tables import agents

NOW = datetime(2027, 1, 1, tzinfo=UTC)
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def pg(postgres_url):
    """A `Database` on PostgreSQL."""
    database = Database(postgres_url, SystemClock())
    yield database
    database.dispose()


def add(tx, agent_id):
    tx.execute(agents.insert().values(id=agent_id, agent_class="A", name=agent_id, created_at=NOW))


def epoch(db, agent_id):
    return db.read(lambda tx: tx.execute(select(agents.c.epoch).where(agents.c.id == agent_id)).scalar())


def lock(tx, agent_id):
    query = select(agents.c.epoch).where(agents.c.id == agent_id).with_for_update(key_share=True)
    return tx.execute(query).scalar()


def increment(tx, agent_id="a"):
    seen = lock(tx, agent_id)
    tx.execute(update(agents).where(agents.c.id == agent_id).values(epoch=seen + 1))


def in_children(count, work):
    """Run *work(number)* in forked processes at once, and return their exit codes."""
    barrier = FORK.Barrier(count)

    def child(number):
        barrier.wait()
        work(number)

    children = [FORK.Process(target=child, args=(number,)) for number in range(count)]
    for process in children:
        process.start()
    for process in children:
        process.join(60)
    return [process.exitcode for process in children]


class TestRepeats:
    def test_a_deadlock_is_resolved_by_running_one_of_the_two_again(self, pg):
        """Two transactions that lock two rows crosswise both end well: the one that was aborted is repeated."""
        pg.transact(lambda tx: [add(tx, "a"), add(tx, "b")])
        both_hold_one = threading.Barrier(2)
        runs = []

        def crosswise(first, second):
            def work(tx):
                increment(tx, first)
                runs.append(first)
                if len(runs) <= 2:
                    both_hold_one.wait()
                increment(tx, second)

            pg.transact(work)

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(crosswise, "a", "b"), pool.submit(crosswise, "b", "a")]:
                future.result()

        assert len(runs) == 3
        assert (epoch(pg, "a"), epoch(pg, "b")) == (2, 2)

    def test_a_serialization_failure_is_repeated(self, pg):
        """A transaction whose snapshot was overtaken runs again, and then sees the other's change."""
        pg.transact(lambda tx: add(tx, "a"))
        runs = []

        def work(tx):
            tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            seen = tx.execute(select(agents.c.epoch).where(agents.c.id == "a")).scalar()
            runs.append(seen)
            if len(runs) == 1:
                pg.transact(increment)
            tx.execute(update(agents).where(agents.c.id == "a").values(epoch=seen + 10))

        pg.transact(work)

        assert runs == [0, 1]
        assert epoch(pg, "a") == 11

    def test_a_busy_sqlite_is_asked_again(self, sqlite_url):
        """A lock that is held longer than the busy timeout delays a transaction and does not fail it."""
        db = Database(sqlite_url, SystemClock(), busy_timeout=timedelta(seconds=0.3))
        db.transact(lambda tx: add(tx, "a"))
        holder = sqlite3.connect(db.url.database, check_same_thread=False, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.5, lambda: holder.execute("COMMIT"))
        release.start()

        db.transact(increment)

        release.join()
        holder.close()
        assert epoch(db, "a") == 1
        db.dispose()

    def test_it_gives_up_at_last(self, sqlite_url):
        """A lock that is never released is an error of the database in the end, and the work did not run."""
        db = Database(sqlite_url, SystemClock(), busy_timeout=timedelta(milliseconds=1))
        db.engine.connect().close()
        holder = sqlite3.connect(db.url.database, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        ran = []

        with pytest.raises(OperationalError, match="database is locked"):
            db.transact(lambda tx: ran.append(tx))

        assert ran == []
        holder.close()
        db.dispose()

    def test_an_error_of_the_work_is_raised_at_once_and_rolls_back(self, db):
        """Only what the database asks to repeat is repeated; all else ends the transaction and is raised."""
        runs = []

        def work(tx):
            runs.append(tx)
            add(tx, "a")
            raise LookupError("not today")

        with pytest.raises(LookupError, match="not today"):
            db.transact(work)

        assert len(runs) == 1
        assert epoch(db, "a") is None


class TestAway:
    """Which errors say that the database is away, so that asking later may help."""

    def error_of(self, db, work):
        with pytest.raises(Exception) as raised:
            db.once(work)
        return raised.value

    def test_a_server_that_is_not_there(self):
        """Nobody listens at the port."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        db = Database(f"postgresql://postgres@127.0.0.1:{port}/none", SystemClock())

        assert is_away(self.error_of(db, lambda tx: None))

    def test_a_connection_that_was_ended(self, pg):
        """The server process is gone in the middle."""
        own = "SELECT pg_terminate_backend(pg_backend_pid())"

        assert is_away(self.error_of(pg, lambda tx: tx.execute(text(own))))

    def test_a_locked_sqlite_file(self, sqlite_url):
        """Its one writer does not end."""
        db = Database(sqlite_url, SystemClock(), busy_timeout=timedelta(milliseconds=1))
        db.engine.connect().close()
        holder = sqlite3.connect(db.url.database, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        assert is_away(self.error_of(db, lambda tx: None))
        holder.close()
        db.dispose()

    def test_not_an_error_in_the_statement_and_not_a_refused_row(self, db):
        """Asking again would give the same answer for ever."""
        db.transact(lambda tx: add(tx, "a"))

        assert not is_away(self.error_of(db, lambda tx: tx.execute(text("SELECT nonsense FROM nowhere"))))
        assert not is_away(self.error_of(db, lambda tx: add(tx, "a")))
        assert not is_away(self.error_of(db, lambda tx: 1 / 0))


class TestOnce:
    """A user's own function: it may have effects, so it is never run again."""

    def test_what_the_database_would_have_repeated_is_raised(self, pg):
        """A serialization failure inside it is an error, and nothing of it is stored."""
        runs = []

        def work(tx):
            runs.append(1)
            add(tx, "a")
            tx.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

        with pytest.raises(DBAPIError, match="again"):
            pg.once(work)

        assert runs == [1]
        assert epoch(pg, "a") is None

    def test_what_comes_before_it_is_tried_again(self, sqlite_url):
        """Waiting for SQLite's one writer is not the function's business: it runs once, when it can."""
        db = Database(sqlite_url, SystemClock(), busy_timeout=timedelta(seconds=0.3))
        db.engine.connect().close()
        holder = sqlite3.connect(db.url.database, check_same_thread=False, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.5, lambda: holder.execute("COMMIT"))
        release.start()
        runs = []

        assert db.once(lambda tx: runs.append(add(tx, "a")) or "result") == "result"

        release.join()
        holder.close()
        assert len(runs) == 1
        assert epoch(db, "a") == 0
        db.dispose()


class TestLimit:
    def test_a_statement_that_takes_too_long_is_ended_by_the_server(self, pg):
        """The limit is this transaction's: the next one on the same connection has none."""

        def work(tx):
            tx.limit(timedelta(milliseconds=20))
            tx.execute(text("SELECT pg_sleep(10)"))

        with pytest.raises(DBAPIError, match="statement timeout"):
            pg.transact(work)

        timeouts = "SELECT current_setting('statement_timeout')"
        assert pg.transact(lambda tx: tx.execute(text(timeouts)).scalar()) == "0"

    def test_so_is_a_pause_between_two(self, pg):
        """A transaction that is held open without using it loses its connection, and is rolled back."""
        gone = threading.Event()

        def work(tx):
            add(tx, "a")
            tx.limit(timedelta(milliseconds=20))
            own = tx.execute(text("SELECT pg_backend_pid()")).scalar()
            alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
            for _ in range(500):
                if pg.read(lambda other: other.execute(alive, {"pid": own}).scalar()) == 0:
                    gone.set()
                    break
                gone.wait(0.01)
            add(tx, "b")

        with pytest.raises(DBAPIError):
            pg.once(work)

        assert gone.is_set()
        assert epoch(pg, "a") is None


class TestWriters:
    def test_increments_of_six_processes_all_count(self, db):
        """FR-33: 6 processes × 60 read-then-increment give 360 and no error, on both databases."""
        db.transact(lambda tx: add(tx, "a"))

        codes = in_children(6, lambda number: [db.transact(increment) for _ in range(60)])

        assert codes == [0] * 6
        assert epoch(db, "a") == 360

    def test_a_reader_waits_for_no_writer(self, db):
        """What is read while a transaction is open is what was committed before it."""
        db.transact(lambda tx: add(tx, "a"))

        def work(tx):
            increment(tx)
            return epoch(db, "a")

        assert db.transact(work) == 0
        assert epoch(db, "a") == 1

    def test_on_postgresql_each_statement_of_a_read_sees_what_is_committed_by_then(self, pg):
        """A long read holds no snapshot and no transaction open."""
        pg.transact(lambda tx: add(tx, "a"))
        query = select(agents.c.epoch)

        def work(tx):
            before = tx.execute(query).scalar()
            pg.transact(increment)
            return before, tx.execute(query).scalar()

        assert pg.read(work) == (0, 1)

    def test_a_host_with_another_default_isolation_level_changes_nothing(self, pg):
        """A conditional UPDATE counts on READ COMMITTED, so that is what our transactions ask for."""
        with psycopg.connect(
            pg.url.set(drivername="postgresql").render_as_string(False), autocommit=True
        ) as admin:
            name = pg.url.database
            admin.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
            try:
                level = pg.transact(lambda tx: tx.execute(text("SHOW transaction_isolation")).scalar())
            finally:
                admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')

        assert level == "read committed"


class TestOpening:
    def test_whoever_comes_meanwhile_is_not_given_an_engine_that_commits_nothing(self, pg, monkeypatch):
        """Threads begin with their first statements at one moment; one that commits by itself is kept in all."""
        options, others = Engine.execution_options, []

        def while_another_comes(engine, **given):
            made, number = options(engine, **given), len(others)
            others.append(threading.Thread(target=lambda: pg.single(lambda tx: add(tx, f"other {number}"))))
            others[-1].start()
            others[-1].join(0.3)  # at most: where it waits for the one who opens, it goes on after that
            return made

        monkeypatch.setattr(Engine, "execution_options", while_another_comes)
        pg.single(lambda tx: add(tx, "first"))
        for other in others:
            other.join()
        kept = pg.read(lambda tx: tx.execute(select(agents.c.id)).scalars().all())

        assert sorted(kept) == ["first", *(f"other {number}" for number in range(len(others)))]
        assert others


class TestDeadConnections:
    """FR-13: the database restarted, or closed connections that were idle."""

    @pytest.fixture
    def end_all(self, pg):
        """Ends every server process of this database but the one that does it."""
        admin = create_engine(pg.url, isolation_level="AUTOCOMMIT")

        def end():
            query = (
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            with admin.connect() as conn:
                return len(conn.execute(text(query)).all())

        yield end
        admin.dispose()

    def warm_up(self, pg, count):
        """Leave that many idle connections in the pool."""
        barrier = threading.Barrier(count)
        with ThreadPoolExecutor(count) as pool:
            for future in [pool.submit(pg.read, lambda tx: barrier.wait()) for _ in range(count)]:
                future.result()

    def test_nobody_sees_connections_that_died_between_transactions(self, pg, end_all):
        """With every idle connection ended, the next write and the next read work, each for any caller."""
        pg.transact(lambda tx: add(tx, "a"))
        self.warm_up(pg, 4)
        assert end_all() >= 4

        pg.transact(increment)
        self.warm_up(pg, 4)
        end_all()

        assert epoch(pg, "a") == 1

    def test_one_that_dies_within_a_transaction_has_it_run_again(self, pg, end_all):
        """The server rolled it back, so it is repeated on a new connection, and counts once."""
        pg.transact(lambda tx: add(tx, "a"))
        runs = []

        def work(tx):
            increment(tx)
            runs.append(1)
            if len(runs) == 1:
                end_all()
            increment(tx)

        pg.transact(work)

        assert len(runs) == 2
        assert epoch(pg, "a") == 2

    def test_one_that_dies_at_the_commit_is_the_callers_to_know(self, pg, end_all):
        """It may have been committed: repeating it could count twice, so the error is raised."""
        pg.transact(lambda tx: add(tx, "a"))
        runs, called = [], []

        def work(tx):
            increment(tx)
            tx.after_commit(lambda: called.append(1))
            runs.append(1)
            end_all()

        with pytest.raises(DBAPIError):
            pg.transact(work)

        assert len(runs) == 1
        assert called == []
        assert epoch(pg, "a") == 0


class TestForks:
    def test_a_child_opens_connections_of_its_own(self, pg):
        """No connection is shared: the child has another server process, and the parent keeps its own."""
        own = "SELECT pg_backend_pid()"
        before = pg.transact(lambda tx: tx.execute(text(own)).scalar())

        def child(number):
            inherited = pg.transact(lambda tx: tx.execute(text(own)).scalar()) == before
            os._exit(3 if inherited else 0)

        codes = in_children(1, child)

        assert codes == [0]
        assert pg.transact(lambda tx: tx.execute(text(own)).scalar()) == before

    def test_no_connection_to_a_sqlite_file_lives_through_a_fork(self, sqlite_url):
        """SQLite counts its locks in memory that a child would inherit: the file is closed before a fork."""
        db = Database(sqlite_url, SystemClock())
        db.transact(lambda tx: add(tx, "a"))

        def child(number):
            opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
            os._exit(3 if any(path.startswith(db.url.database) for path in opened) else 0)

        assert in_children(1, child) == [0]
        assert epoch(db, "a") == 0
        db.dispose()

    def test_a_child_forked_while_another_thread_writes_can_write(self, sqlite_url):
        """The fork waits for the end of a transaction in another thread; no lock is inherited as held."""
        db = Database(sqlite_url, SystemClock(), busy_timeout=timedelta(milliseconds=200))
        db.transact(lambda tx: add(tx, "a"))
        inside, go_on = threading.Event(), threading.Event()

        def slow(tx):
            increment(tx)
            inside.set()
            go_on.wait(10)

        writer = threading.Thread(target=db.transact, args=(slow,))
        writer.start()
        inside.wait(10)
        threading.Timer(0.2, go_on.set).start()

        codes = in_children(1, lambda number: db.transact(increment))

        writer.join()
        assert codes == [0]
        assert epoch(db, "a") == 2
        db.dispose()

    def test_nor_is_one_opened_while_it_forks(self, sqlite_url, monkeypatch):
        """A thread that comes to the file in that moment waits, or the fork does: a child that has inherited a lock as
        held would write beside whoever writes."""
        db = Database(sqlite_url, SystemClock())
        db.transact(lambda tx: add(tx, "a"))
        connect, dispose = Engine.connect, Engine.dispose
        comes, closed, inside, go_on = (threading.Event() for _ in range(4))

        def late(engine):
            comes.set()
            closed.wait(0.5)  # at most: where the fork waits for this one, it closes nothing before
            return connect(engine)

        def and_wait(engine, **given):
            dispose(engine, **given)
            closed.set()
            inside.wait(0.5)

        def slow(tx):
            increment(tx)
            inside.set()
            go_on.wait(0.5)

        def child(number):
            opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
            os._exit(3 if any(path.startswith(db.url.database) for path in opened) else 0)

        monkeypatch.setattr(Engine, "connect", late)
        monkeypatch.setattr(Engine, "dispose", and_wait)
        writer = threading.Thread(target=db.transact, args=(slow,))
        writer.start()
        comes.wait(10)

        codes = in_children(1, child)

        go_on.set()
        writer.join()
        monkeypatch.undo()
        assert codes == [0]
        assert epoch(db, "a") == 1
        db.dispose()

    def test_what_prepares_an_engine_is_asked_again_in_a_child(self, db, database_url):
        """Each fresh engine passes through *prepare* before its first use."""
        prepared = []
        prepares = Database(database_url, SystemClock(), prepare=lambda engine: prepared.append(os.getpid()))
        assert epoch(prepares, "a") is None

        def child(number):
            epoch(prepares, "a")
            os._exit(0 if prepared[-1] == os.getpid() else 3)

        assert in_children(1, child) == [0]
        assert set(prepared) == {os.getpid()}
        prepares.dispose()


class TestAfterCommit:
    def test_calls_are_made_in_order_after_the_commit_and_without_a_connection(self, db):
        """Each sees the committed rows, and none is made while a connection is held."""
        seen = []

        def work(tx):
            add(tx, "a")
            for name in ("first", "second"):
                tx.after_commit(lambda n=name: seen.append((n, epoch(db, "a"), db.engine.pool.checkedout())))
            assert seen == []

        db.transact(work)

        assert seen == [("first", 0, 0), ("second", 0, 0)]

    def test_one_that_raises_is_logged_and_hides_no_other(self, db, caplog):
        """The work is committed and the tick finds it, so a failed call fails nobody."""
        seen = []

        def work(tx):
            tx.after_commit(lambda: 1 / 0)
            tx.after_commit(lambda: seen.append("second"))
            return "result"

        assert db.transact(work) == "result"
        assert seen == ["second"]
        assert "a call after a commit failed" in caplog.text
        assert "ZeroDivisionError" in caplog.text

    def test_the_log_of_a_refused_statement_holds_nothing_that_a_user_wrote(self, db, caplog):
        """An error of the database says which statement failed, never with which values."""
        refused = text("INSERT INTO think_no_such_table (words) VALUES (:words)")
        users = {"words": "tulip"}

        with pytest.raises(DBAPIError, match="think_no_such_table") as raised:
            db.transact(lambda tx: tx.execute(refused, users))
        db.transact(
            lambda tx: tx.after_commit(lambda: db.transact(lambda again: again.execute(refused, users)))
        )

        assert "tulip" not in str(raised.value)
        assert "a call after a commit failed" in caplog.text
        assert "tulip" not in caplog.text

    def test_a_rolled_back_transaction_makes_none(self, db):
        """What never happened is not announced."""
        seen = []

        def work(tx):
            tx.after_commit(lambda: seen.append(1))
            raise LookupError

        with pytest.raises(LookupError):
            db.transact(work)

        assert seen == []

    def test_a_repeated_transaction_makes_those_of_its_last_run(self, pg):
        """The calls of a run that was rolled back go with it."""
        pg.transact(lambda tx: add(tx, "a"))
        seen, runs = [], []

        def work(tx):
            runs.append(1)
            run = len(runs)
            tx.after_commit(lambda: seen.append(run))
            if run <= REPEATS:
                tx.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

        pg.transact(work)

        assert len(runs) == REPEATS + 1
        assert seen == [REPEATS + 1]


class TestClock:
    def test_the_database_tells_the_time(self, pg):
        """On PostgreSQL an instant in SQL is the server's, moved by any span, and exact to microseconds."""
        hour = timedelta(hours=1)

        def work(tx):
            server = tx.execute(
                text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            ).scalar()
            present, later = tx.execute(select(now(), now(hour))).one()
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=server), present, later

        server, present, later = pg.transact(work)

        assert timedelta(0) <= present - server < timedelta(seconds=5)
        assert hour <= later - present < hour + timedelta(seconds=5)

    def test_a_clock_of_the_tests_replaces_it(self, database_url):
        """A clock that does not want the database's time is asked itself, on both databases."""

        class Stopped(SystemClock):
            database_time = False

            def now(self):
                return NOW

        db = Database(database_url, Stopped())

        assert db.read(lambda tx: tx.execute(select(now(timedelta(days=1)))).scalar()) == NOW + timedelta(
            days=1
        )
        db.dispose()


def test_a_joined_transaction_is_of_one_database_only(db, tmp_path):
    """Inside a joined transaction, what another database accepts is committed there, as ever."""
    other = Database(f"sqlite:///{tmp_path / 'other.db'}", SystemClock())
    agents.create(other.engine)

    def work(tx):
        with db.joining(tx):
            assert db.inside_joined
            assert not other.inside_joined
            db.accept(lambda joined: add(joined, "here"))
            other.accept(lambda own: add(own, "there"))
            assert db.look(lambda joined: joined.execute(select(agents.c.id)).scalar()) == "here"
        raise LookupError

    with pytest.raises(LookupError):
        db.transact(work)

    assert epoch(db, "here") is None
    assert epoch(other, "there") == 0
    other.dispose()


def test_no_secret_is_needed_to_show_a_database_url(db):
    """`make_url` hides the password when it is shown; ours stays a URL object all the way."""
    url = Database("postgresql://u:secret@h/db", SystemClock()).url

    assert "secret" not in str(url)
    assert "secret" not in repr(url)
    assert make_url(url.render_as_string(hide_password=False)).password == "secret"
