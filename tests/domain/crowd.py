"""An agent for the tests of its line, callers and workers that do things at once, and a look at the rows."""

import multiprocessing
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Table, create_engine, func, select, text, update
from sqlalchemy.orm import Session

from tests.domain.flows import worker
from think_celery import Think
from think_celery.domain.submissions import submissions
from think_celery.domain.work import perform
from think_celery.messages import as_messages
from think_celery.providers.scripted import FunctionModel, say
from think_celery.runtime import Runtime
from think_celery.store import processes, tables
from think_celery.store.joined import joined

PATIENCE = 60.0
FORK = multiprocessing.get_context("fork")


class Clerk(Think):
    """The agent whose line is tested."""


def clerk(rt: Runtime, name: str = "a") -> Clerk:
    """That agent, on a runtime."""
    return Clerk._bound_to(rt, name)


def echo() -> FunctionModel:
    """A model that answers with what it was told last."""
    return FunctionModel(lambda request: say(f"re: {request.messages[-1].text}"))


@contextmanager
def workers(url: str, **options: Any) -> Iterator[Runtime]:
    """A worker's runtime whose agents ask :func:`echo`."""
    model = echo()
    with worker(url, **options) as rt:
        rt.stand_in = lambda _: model
        yield rt


# --- at once --------------------------------------------------------------------------------------


def at_once(count: int, work: Callable[[int], Any], patience: float = PATIENCE) -> list[Any]:
    """Run *work(number)* in that many threads, all begun at one moment; what they return, in order."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    failures: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            results[number] = work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]
    return results


def in_processes(count: int, work: Callable[[int, Callable[[], object]], Any]) -> list[Any]:
    """Run *work(number, ready)* in forked processes; *ready()* waits for all. What they return, in order."""
    barrier, answers = FORK.Barrier(count), FORK.Queue()

    def child(number: int) -> None:
        try:
            answers.put((number, work(number, lambda: barrier.wait(PATIENCE)), None))
        except BaseException:
            answers.put((number, None, traceback.format_exc()))

    children = [FORK.Process(target=child, args=(number,), daemon=True) for number in range(count)]
    for process in children:
        process.start()
    results = [answers.get(timeout=PATIENCE) for _ in children]
    for process in children:
        process.join(PATIENCE)
    assert not [failure for _, _, failure in results if failure], [failure for *_, failure in results]
    return [value for _, value, _ in sorted(results, key=lambda result: result[0])]


def drain(rt: Runtime, knocks: Any) -> None:
    """Do the work of every message that is under way, as one worker does."""
    while True:
        try:
            knock = knocks.popleft()
        except IndexError:
            return
        perform(rt, knock)


def wait_for_lock(rt: Runtime) -> None:
    """Until somebody waits for a lock in this database, which is a PostgreSQL.

    Each look is a transaction of its own, also within a caller's: one transaction sees the same activity all along.
    """
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(1000):
        with rt.db.engine.connect() as conn:
            if conn.exec_driver_sql(query).first():
                return
        threading.Event().wait(0.005)
    raise AssertionError("nobody waits")


# --- callers with a transaction of their own ------------------------------------------------------


@contextmanager
def transaction(rt: Runtime) -> Iterator[Session]:
    """A caller's session, joined; closing it without a commit rolls it back."""
    engine = create_engine(rt.db.url)
    try:
        with Session(engine) as session, joined(rt.db, session):
            yield session
    finally:
        engine.dispose()


# --- rows -----------------------------------------------------------------------------------------


def row(rt: Runtime, submission_id: str) -> Any:
    """The row of a submission."""
    return submissions.get(rt, submission_id)


def count(rt: Runtime, table: Any = tables.submissions) -> int:
    """How many rows a table has."""
    return rt.db.read(lambda tx: tx.execute(select(func.count()).select_from(table)).scalar_one())


def line(rt: Runtime, agent: Clerk) -> Any:
    """The line of an agent."""
    query = select(tables.lines).where(tables.lines.c.agent_id == agent._ref.id)
    return rt.db.read(lambda tx: tx.execute(query).first())


def change(rt: Runtime, statement: Any) -> None:
    """Change rows behind everybody's back."""
    rt.db.transact(lambda tx: tx.execute(statement))


def forget_knock(rt: Runtime, *names: str) -> None:
    """As the tick does with what stands behind a head."""
    mine = tables.submissions.c.id.in_(names)
    change(rt, update(tables.submissions).where(mine).values(knock_at=None))


def everything(rt: Runtime) -> dict[str, list[Any]]:
    """Every row that a turn writes, each table's in the order of its key: a server has none of its own."""
    kinds = (tables.submissions, tables.lines, tables.messages, tables.outbox)
    return {table.name: rows(rt, table) for table in kinds}


def rows(rt: Runtime, table: Table) -> list[Any]:
    """All rows of a table, in the order of its key."""
    return rt.db.read(lambda tx: list(tx.execute(select(table).order_by(*table.primary_key))))


def prompt(rt: Runtime, name: str = "a", text: str = "hi", *, key: str = "think-workflow:w") -> str:
    """A turn that a workflow waits for; its id."""
    waiting = submissions.Waiting(workflow_key="w", run=1, event_type="think-prompt:w")
    accepted, _ = rt.db.transact(
        lambda tx: submissions.accept(
            rt,
            tx,
            Clerk(name)._ref,
            as_messages(text),
            kind="submit",
            idempotency_key=key,
            waiting=waiting,
        )
    )
    return str(accepted.id)


def news(rt: Runtime) -> list[Any]:
    """All news that is stored."""
    return rt.db.read(lambda tx: list(tx.execute(select(tables.outbox).order_by(tables.outbox.c.id))))


def said(agent: Clerk, role: str = "user") -> list[str]:
    """What stands in the transcript, of one role."""
    return [message.text for message in agent.messages if message.role == role]


def die(rt: Runtime) -> None:
    """The worker is killed, and its end is proven; what goes on here is another one."""
    dead = rt.monitor.forget_process()
    if dead is not None:
        rt.db.transact(lambda tx: processes.declare_dead(tx, dead, known=True))


@contextmanager
def broken(rt: Runtime, table: str, rows: str) -> Iterator[None]:
    """The database refuses to change these rows, as a broken disk or a trigger of somebody's does."""
    if rt.db.engine.dialect.name == "postgresql":
        make = [
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RAISE EXCEPTION ''disk full''; END'",
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({rows}) EXECUTE FUNCTION refuse()",
        ]
        drop = [f"DROP TRIGGER refuse ON {table}", "DROP FUNCTION refuse"]
    else:
        stop = "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        make = [f"CREATE TRIGGER refuse BEFORE UPDATE ON {table} WHEN {rows} {stop}"]
        drop = ["DROP TRIGGER refuse"]
    rt.db.transact(lambda tx: [tx.execute(text(statement)) for statement in make])
    try:
        yield
    finally:
        rt.db.transact(lambda tx: [tx.execute(text(statement)) for statement in drop])


class Watch:
    """A sentinel that is told whether the broker was emptied."""

    def __init__(self, *, watching: bool = True) -> None:
        self.watching, self.lost = watching, False

    def look(self, when_lost: Callable[[], None]) -> None:
        """Pass a loss on, once."""
        if self.lost:
            when_lost()
            self.lost = False

    def close(self) -> None:
        """Nothing."""
