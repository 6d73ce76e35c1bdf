"""Workflows for tests, each made of one function, and what a test asks of their rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from think_celery.agents.think import Think
from think_celery.clock import SystemClock
from think_celery.domain import recovery
from think_celery.domain.outcomes import Outcome
from think_celery.domain.workflows import advance, runs, workflows
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.ids import WorkflowRef
from think_celery.protocols import Knock
from think_celery.runtime import Runtime
from think_celery.settings import Settings
from think_celery.store import processes, steps, tables
from think_celery.store import workflows as workflow_rows
from think_celery.store.database import Database, Tx
from think_celery.store.leases import Lease
from think_celery.testing import ThinkTest
from think_celery.workflow import ThinkWorkflow

Run = Callable[[Any, Any], Any]


class Desk(Think):
    """The agent that starts the workflows of these tests."""


DESK = Desk("front")


def flow(run: Callable[..., Any], *, name: str = "Flow", version: str = "1") -> type[ThinkWorkflow[Any, Any]]:
    """A workflow class whose ``run(event, step)`` is that function; it replaces the one before it."""

    class Flow(ThinkWorkflow, name=name):  # type: ignore[type-arg]
        def run(self, event: Any, step: Any) -> Any:
            return run(event, step)

    Flow.version = version
    return Flow


@dataclass(frozen=True)
class Handle:
    """One workflow, as a test looks at it."""

    rt: Runtime
    ref: WorkflowRef

    @property
    def row(self) -> Any:
        """Its row."""
        return workflows.get(self.rt, self.ref)

    @property
    def status(self) -> str:
        """Its status."""
        return str(self.row.status)

    @property
    def output(self) -> Any:
        """What it returned."""
        return runs.look_up(self.rt, self.ref.workflow_id, self.ref.workflow).output

    @property
    def journal(self) -> Sequence[Any]:
        """Its entries."""
        return self.rt.db.read(lambda tx: steps.of_run(tx, self.ref.key, self.row.run))

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Key and status of each entry."""
        return [(row.step, row.status) for row in self.journal]

    @property
    def inbox(self) -> Sequence[Any]:
        """Its events."""
        columns, run = tables.events.c, self.row.run
        mine = select(tables.events).where(columns.workflow_key == self.ref.key, columns.run == run)
        return self.rt.db.read(lambda tx: tx.execute(mine.order_by(columns.seq)).all())

    def send(self, type: str, payload: Any = None, **options: Any) -> None:
        """Send it an event."""
        workflows.send_event(self.rt, self.ref, type=type, payload=payload, **options)

    def advance(self) -> Outcome:
        """Do what a worker does that is knocked for it."""
        return advance.advance(self.rt, self.ref.workflow, self.ref.workflow_id)


def start(
    rt: Runtime, run: Callable[..., Any] | None, params: Any = None, *, id: str = "w1", **options: Any
) -> Handle:
    """Start a workflow of that function (``None``: of the class that there is), without running it yet."""
    name = options.pop("name", "Flow")
    if run is not None:
        flow(run, name=name)
    workflows.start(rt, DESK._ref, name, params, workflow_id=id, **options)
    return Handle(rt, WorkflowRef(name, id))


def runs_of(rt: Runtime, name: str) -> Sequence[Any]:
    """The rows of the workflows of that class."""
    columns = tables.workflows.c
    mine = select(tables.workflows).where(columns.workflow == name).order_by(columns.created_at)
    return rt.db.read(lambda tx: tx.execute(mine).all())


def begin(t: ThinkTest, run: Callable[..., Any], params: Any = None, **options: Any) -> Handle:
    """Start a workflow, and do all the work that can be done now."""
    handle = start(t.rt, run, params, **options)
    t.run_until_idle()
    return handle


def seize_of(tx: Tx, key: str, process_id: str) -> Any:
    """Take a workflow away from that process, as the sweep does; ``None`` if it does not have it."""
    row = workflow_rows.get(tx, key)
    assert row is not None
    lease = Lease(kind="workflow", key=key, process_id=process_id, token=row.token)
    return workflow_rows.seize(tx, lease)


def worker_dies(t: ThinkTest) -> None:
    """This process's end is proven, and the sweep of another frees what it held."""
    dead = t.rt.monitor.forget_process()
    assert dead is not None
    t.rt.db.transact(lambda tx: processes.declare_dead(tx, dead, known=True))
    recovery.sweep(t.rt, 100)


@contextmanager
def worker(url: str, **options: Any) -> Iterator[Runtime]:
    """A runtime as a real worker has it: threads, the real clock, and knocks that nobody hears."""
    knocks: list[Knock] = []
    db = Database(url, SystemClock(), durable=False)
    log = SqlEventLog(db)
    rt = Runtime(
        settings=Settings(database_url=url, **options),
        clock=SystemClock(),
        db=db,
        events=log,
        live=LiveWriter(log, synchronous=True),
        knock=knocks.append,
    )
    try:
        yield rt
    finally:
        rt.close()
