"""Statements that the driver gets as they are: nothing about them tells which way they went."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import bindparam, event, insert, select, text, update
from sqlalchemy.exc import (
    IntegrityError,
    MultipleResultsFound,
    NoResultFound,
    OperationalError,
    StatementError,
)

from think_celery.clock import SystemClock
from think_celery.errors import InvalidValue
from think_celery.store import direct
from think_celery.store.database import Database, Tx
from think_celery.store.statements import insert_new, now
from think_celery.store.tables import agents, events, processes, steps

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
ROW = {"until": NOON, "host": {"pid": 1, "name": "a\x00b"}, "started_at": NOON}


@pytest.fixture
def db(postgres_url: str) -> Iterator[Database]:
    """On PostgreSQL, whose driver it is for."""
    database = Database(postgres_url, SystemClock())
    yield database
    database.dispose()


@pytest.fixture
def ways(monkeypatch) -> list[str]:
    """The statements that went straight to the driver."""
    seen: list[str] = []
    run = direct._run

    def noted(conn: Any, prepared: Any, given: Any) -> Any:
        seen.append(prepared.text)
        return run(conn, prepared, given)

    monkeypatch.setattr(direct, "_run", noted)
    return seen


def test_it_gives_what_sqlalchemy_gives(db, ways):
    """The first time SQLAlchemy runs a statement, then the driver: rows, types, names and counts are the same."""
    add = insert(processes).returning(processes)
    change = update(processes).where(processes.c.id == bindparam("of_id"))
    look = select(processes, now().label("time")).where(processes.c.until == bindparam("at"))

    def work(tx: Tx) -> list[Any]:
        name = str(len(ways))
        added: Any = tx.execute(add, {"id": name, **ROW}).first()
        changed = tx.execute(change, {"of_id": name, "dead": True}).rowcount
        found: Any = tx.execute(look, {"at": NOON}).all()[-1]
        everything = tx.execute(look, {"at": NOON}).scalars().all()
        tx.execute(change, {"of_id": name, "until": datetime.now(UTC)})
        types = [type(value) for value in found]
        return [added.host, added.until, added._mapping["dead"], changed, found.host, types, len(everything)]

    first, second = (db.transact(work) for _ in range(2))

    assert first == second
    assert first[:5] == [ROW["host"], NOON, False, 1, ROW["host"]]
    assert len(ways) > 4


def test_numbers_with_a_fraction(db, ways):
    """What the driver gives depends on the type that the server names."""
    entry = {"workflow_key": "w", "run": 1, "position": 0, "kind": "do", "status": "done", "created_at": NOON}
    add = insert(steps).returning(steps.c.timeout_seconds)

    found = [
        db.single(
            lambda tx, n=n: tx.execute(add, {**entry, "step": f"s{n}", "timeout_seconds": 1.5}).scalar()
        )
        for n in range(3)
    ]

    assert found == [1.5, 1.5, 1.5]
    assert {type(value) for value in found} == {float}
    assert len(ways) == 2


def test_what_an_insert_that_changes_nothing_returns(db, ways):
    """No row, on either way."""
    statement = insert_new(agents, created_at=now())
    new = {"id": "a", "agent_class": "A", "name": "a", "epoch": 1}

    found = [db.single(lambda tx: tx.execute(statement, new).first()) for _ in range(3)]

    assert [row is None for row in found] == [False, True, True]
    assert len(ways) == 2


def test_other_parameters_are_another_text(db, ways):
    """A column that is given once and not the next time is not kept from before."""
    statement = update(processes).where(processes.c.id == "p")
    db.transact(lambda tx: tx.execute(insert(processes), {"id": "p", **ROW}))

    for values in ({"dead": True}, {"dead": True}, {"host": 5}, {"host": 6, "dead": False}):
        db.single(lambda tx, values=values: tx.execute(statement, values))

    row = db.read(lambda tx: tx.execute(select(processes)).one())
    assert (row.host, row.dead, row.until) == (6, False, NOON)
    assert len(ways) == 3


def test_errors_are_sqlalchemys(db, ways):
    """Whoever catches them sees class, cause and no parameters."""
    statement = insert(processes)
    seen: list[IntegrityError] = []

    def add() -> None:
        with pytest.raises(IntegrityError) as caught:
            db.transact(lambda tx: tx.execute(statement, {"id": "taken", **ROW}))
        seen.append(caught.value)

    db.transact(lambda tx: tx.conn.execute(insert(processes), {"id": "taken", **ROW}))
    add()
    assert ways == []
    add()

    assert len(ways) == 1
    first, second = seen
    assert str(first) == str(second)
    assert "parameters hidden" in str(second)
    assert type(first.orig) is type(second.orig)
    assert not second.connection_invalidated


@pytest.mark.parametrize(
    ("values", "kind"),
    [({"host": float("nan")}, StatementError), ({"until": datetime(2027, 1, 1)}, InvalidValue)],
    ids=["wrapped", "not to be wrapped"],
)
def test_a_value_that_can_not_be_stored_is_the_same_error(db, ways, values, kind):
    """The first time as later, also where our types forbid to wrap it; no value is shown."""
    statement = insert(processes)
    row = {"id": "p", **ROW, **values}

    def add() -> Exception:
        with pytest.raises(Exception) as caught:
            db.single(lambda tx: tx.execute(statement, row))
        return caught.value

    first, second = add(), add()

    assert len(ways) == 1
    assert isinstance(second, kind)
    assert (type(first), str(first)) == (type(second), str(second))


def test_one_row_is_asked_for(db, ways):
    """No row and several are SQLAlchemy's errors."""
    db.transact(lambda tx: tx.conn.execute(insert(processes), [{"id": id_, **ROW} for id_ in "ab"]))
    statement = select(processes.c.id).where(processes.c.id >= bindparam("least"))

    def one(least: str) -> Any:
        return db.read(lambda tx: tx.execute(statement, {"least": least}).scalar_one())

    assert [one("b"), one("b")] == ["b", "b"]
    with pytest.raises(NoResultFound):
        one("c")
    with pytest.raises(MultipleResultsFound):
        one("a")
    assert len(ways) == 3


def test_a_connection_that_died_is_told_and_replaced(db):
    """What may have been committed raises, and no connection of that age is used again: all died with the server."""
    statement = update(processes).values(dead=True)

    def change() -> int:
        return db.single(lambda tx: tx.execute(statement).rowcount)

    def change_on_two() -> list[int]:
        return db.single(lambda tx: [change(), tx.execute(statement).rowcount])

    assert [change_on_two(), change_on_two()] == [[0, 0], [0, 0]]
    other = Database(db.url, SystemClock())
    others = "datname = current_database() AND pid != pg_backend_pid()"
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    other.read(lambda tx: tx.conn.exec_driver_sql(end).all())
    other.dispose()

    with pytest.raises(OperationalError) as caught:
        change()
    assert caught.value.connection_invalidated
    assert change_on_two() == [0, 0]


def test_a_connection_that_is_known_to_be_closed(db):
    """The driver then refuses a cursor already; that is an error in passing like any other of a dead connection."""
    look, seen = select(now()), []

    def work(tx: Tx) -> None:
        seen.append(tx.conn)
        if len(seen) == 3:
            tx.conn.connection.dbapi_connection.close()
        tx.execute(look).one()

    for _ in range(3):
        db.read(work)

    assert len(seen) == 4


def test_whoever_listens_is_told_of_each_statement(db, ways):
    """Tracing of the host's listens to SQLAlchemy: then SQLAlchemy runs them all."""
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(db.engine, "before_cursor_execute", note)
    statement = select(events.c.seq)
    for _ in range(3):
        db.read(lambda tx: tx.execute(statement).all())

    assert len(seen) == 3
    assert ways == []


@pytest.mark.parametrize(
    "statement",
    [
        text("SELECT 1 AS one"),
        select(events.c.seq).where(events.c.seq.in_([1, 2])),
        select(events.c.seq, events.c.seq),
    ],
)
def test_some_are_left_to_sqlalchemy(db, ways, statement):
    """Plain text, lists of values, and columns of one name."""
    found = [db.read(lambda tx: tx.execute(statement).all()) for _ in range(3)]

    assert found[0] == found[1] == found[2]
    assert ways == []


def test_a_callers_transaction_goes_sqlalchemys_way(db, ways):
    """Its connection is the caller's, with whatever driver and listeners it has."""
    statement = select(events.c.seq)
    with db.engine.connect() as conn:
        for _ in range(3):
            Tx(conn, db.clock, joined=True).execute(statement).all()

    assert ways == []


def test_what_was_met_on_one_database_is_known_on_the_next(db, ways, postgres):
    """A test suite has hundreds; they speak alike. One whose server is of another version is another kind."""
    statement = select(events.c.seq)
    db.read(lambda tx: tx.execute(statement).all())
    for version in (None, (9, 9)):
        other = Database(postgres.migrated(), SystemClock())
        other.read(lambda tx: None)
        other.engine.dialect.server_version_info = version or other.engine.dialect.server_version_info
        other.read(lambda tx: tx.execute(statement).all())
        other.dispose()

    assert len(ways) == 2
    assert len(direct._met[statement]) == 2
