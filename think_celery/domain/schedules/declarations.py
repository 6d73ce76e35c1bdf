"""Tasks that classes of agents declare: stored as schedules, and brought up to date when the code is another.

An agent's start, in a worker, only adds and changes. Removing is for :func:`reconcile` and :func:`reconcile_all`, and
never meets what another version of the class declared a short time ago: in a rolling deployment old and new code run
beside each other, and neither knows what the other is about.
"""

import hashlib
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from think_celery.domain import calls
from think_celery.domain.agents.versions import version_of
from think_celery.domain.jobs import jobs
from think_celery.domain.passes import PATIENCE
from think_celery.domain.schedules import schedules
from think_celery.errors import AsyncNotSupported, ConfigurationError, InvalidSchedule, UnknownScheduledTask
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.names import RESERVED
from think_celery.runtime import Runtime, agent_classes
from think_celery.scheduled import DeclaredTask, ReconciledTasks, ScheduledTaskContext, read_tasks
from think_celery.store import declarations as stored
from think_celery.store import schedules as rows
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.schedules")

HOOK = "get_scheduled_tasks"

KEPT = timedelta(minutes=10)
"""How long what another version has declared is left alone."""

BATCH = 500
ASKED_SECONDS = 60.0
"""How long an agent's code may take to say what it declares, where a job depends on it."""

Tasks = Mapping[str, DeclaredTask]


def declares(cls: Any) -> bool:
    """Whether a class says which tasks its agents have."""
    return bool(cls._overrides(HOOK))


def of_agent(made: Any) -> Tasks:
    """What an agent declares now, checked. Its own code is called for it.

    Raises:
        InvalidSchedule, AsyncNotSupported: One of the tasks can't be used.
    """
    if not declares(type(made)):
        return {}
    return read_tasks(
        made.get_scheduled_tasks(),
        repr(made),
        default_timezone=made.get_default_timezone(),
        cron_timezone=made._rt.timezone,
        limit=made._rt.settings.max_payload,
    )


def _digest(task: DeclaredTask, queue: str | None) -> str:
    retry = None if task.task.retry is None else jobs.stored_retry(task.task.retry)
    told = [task.rule.canonical, task.task.prompt, retry, task.metadata, queue]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


# --- storing --------------------------------------------------------------------------------------


def store(rt: Runtime, tx: Tx, made: Any, tasks: Tasks) -> list[str]:
    """Add and change schedules of an agent so that they say what it declares; the ids of tasks that this changed.

    After this no other rows than schedules may be locked in the transaction.
    """
    version, queue = version_of(type(made)), made._celery_queue
    return [
        task.task_id
        for task in sorted(tasks.values(), key=lambda task: task.task_id)
        if schedules.upsert_declared(
            rt,
            tx,
            made._ref,
            task.task_id,
            task.rule,
            task.spec,
            digest=_digest(task, queue),
            version=version,
            prompt=task.task.prompt,
            retry=task.task.retry,
            metadata=task.metadata,
            queue=queue,
        )
    ]


def reconcile(made: Any) -> ReconciledTasks:
    """Let the schedules of an agent say what it declares now: add, change and remove.

    Raises:
        InvalidSchedule, AsyncNotSupported: One of the tasks can't be used; nothing is changed.
    """
    tasks = of_agent(made)
    rt: Runtime = made._rt
    return rt.db.accept(lambda tx: _reconcile(rt, tx, made, tasks))


def _reconcile(rt: Runtime, tx: Tx, made: Any, tasks: Tasks) -> ReconciledTasks:
    changed = store(rt, tx, made, tasks)
    removed, kept, version = [], [], version_of(type(made))
    for row in rows.declared(tx, made._ref.id):
        if row.task_id in tasks:
            continue
        locked = rows.lock(tx, row.id)  # or it might be declared again meanwhile
        if locked is None or locked.ended_at is not None:
            continue
        if _is_another_s(locked, version, locked.now):
            kept.append(row.task_id)
        elif schedules.end(rt, tx, row.id):
            removed.append(row.task_id)
    return ReconciledTasks(changed=tuple(changed), removed=tuple(sorted(removed)), kept=tuple(sorted(kept)))


def _is_another_s(row: Any, version: str, now: datetime) -> bool:
    return row.version != version and row.declared_at is not None and row.declared_at > now - KEPT


# --- all agents -----------------------------------------------------------------------------------


def reconcile_all(rt: Runtime) -> int:
    """Reconcile every agent that is known and whose class is known here; says for how many something changed.

    Each in a transaction of its own, and only where something differs; agents are looked at in batches. One whose
    tasks can't be used is passed over; each class says in the log why, once.

    Raises:
        Exception: Something could not be stored: the database is away, or somebody has a row locked. The others are;
            who calls this calls it again.
    """
    changed, unfit, unstored = 0, _Failures(), None
    for agent, declared in _known(rt):
        if rt.stopping.signal.aborted:
            break
        try:
            made = rt.make_agent(agent.agent_class, agent.name)
            tasks = of_agent(made)
        except Exception as error:
            unfit.add(agent, error)
            continue
        try:
            changed += _reconciled(rt, made, tasks, declared)
        except Exception as error:
            unstored = unstored or error
    unfit.log()
    if unstored is not None:
        raise unstored
    return changed


def _known(rt: Runtime) -> Iterator[tuple[AgentRef, Sequence[Any]]]:
    """Agents that declare tasks or have declared some, each with the rows of those, in batches."""
    classes, after = agent_classes.usable(), ""
    declaring = [name for name, cls in classes.items() if declares(cls)]
    while True:
        found = rt.db.read(partial(_batch, declaring=declaring, classes=sorted(classes), after=after))
        yield from found
        if len(found) < BATCH:
            return
        after = found[-1][0].id


def _batch(
    tx: Tx, *, declaring: Sequence[str], classes: Sequence[str], after: str
) -> list[tuple[AgentRef, Sequence[Any]]]:
    known = stored.agents_that_declare(tx, declaring, classes, after, BATCH)
    declared: dict[str, list[Any]] = {row.agent_id: [] for row in known}
    for row in stored.declared_of(tx, list(declared)):
        declared[row.agent_id].append(row)
    return [(AgentRef.of(row), declared[row.agent_id]) for row in known]


def _reconciled(rt: Runtime, made: Any, tasks: Tasks, declared: Sequence[Any]) -> bool:
    if _is_as_declared(made, tasks, declared):
        return False

    def work(tx: Tx) -> ReconciledTasks:
        tx.wait_at_most(PATIENCE)
        return _reconcile(rt, tx, made, tasks)

    done = rt.db.transact(work)
    if not (done.changed or done.removed):
        return False
    logger.info(
        "scheduled tasks of %s: changed %s, removed %s",
        made,
        ", ".join(done.changed) or "none",
        ", ".join(done.removed) or "none",
        extra={"think_event": "schedules.reconciled", "think_agent": str(made._ref)},
    )
    return True


def _is_as_declared(made: Any, tasks: Tasks, declared: Sequence[Any]) -> bool:
    """Whether the stored schedules say what an agent declares, so that nothing has to be locked."""
    version, queue, found = version_of(type(made)), made._celery_queue, {row.task_id: row for row in declared}
    return tasks.keys() == found.keys() and all(
        row.version == version and row.due_at is not None and row.hash == _digest(tasks[task_id], queue)
        for task_id, row in found.items()
    )


class _Failures:
    """What could not be reconciled. A thousand agents of a class that fails are one line of the log."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[AgentRef, Exception]] = {}
        self._number: Counter[str] = Counter()

    def add(self, agent: AgentRef, error: Exception) -> None:
        """Remember one."""
        self._first.setdefault(agent.agent_class, (agent, error))
        self._number[agent.agent_class] += 1

    def log(self) -> None:
        """Tell the log."""
        for name, (agent, error) in self._first.items():
            others = self._number[name] - 1
            logger.error(
                "the scheduled tasks of %s%s can't be stored, and stay as they are: %s",
                agent,
                f" and {others} more of its class" if others else "",
                said(error),
            )


def said(error: BaseException) -> str:
    """An error for the log: what a declaration lacks in full, others without their texts, which may be anything."""
    return str(error) if isinstance(error, InvalidSchedule | ConfigurationError) else trace_of(error)


# --- what a handler's job calls -------------------------------------------------------------------


def is_known(rt: Runtime, agent: AgentRef, task_id: str) -> bool:
    """Whether the code here has a handler for an agent's task: a job of it waits for a worker that has.

    When the agent's own code fails at that, it is known: the attempt that follows fails with that error.
    """
    made = rt.make_agent(agent.agent_class, agent.name)
    asked = calls.attempt(rt, lambda: of_agent(made), timeout=ASKED_SECONDS)
    if not isinstance(asked, calls.Done):
        return True
    return task_id in asked.value and asked.value[task_id].task.handler is not None


def handler_call(rt: Runtime, made: Any, job: Any) -> Callable[[], Any]:
    """What the job of a declared task's slot calls: the handler that the class has now, told which slot it is.

    Raises:
        UnknownScheduledTask: The class declares no such task here, or one without a handler.
        InvalidSchedule, AsyncNotSupported: One of its tasks can't be used. The call, too, refuses a coroutine.
    """
    declared = of_agent(made).get(job.task_id)
    if declared is None or declared.task.handler is None:
        raise UnknownScheduledTask(repr(made), job.task_id)
    handler, told = declared.task.handler, job.metadata
    context = ScheduledTaskContext(
        task_id=job.task_id,
        scheduled_for=datetime.fromisoformat(told["scheduled_for"]),
        occurrence_key=told["occurrence_key"],
        idempotency_key=job.idempotency_key.removeprefix(RESERVED),  # for keys of the user's own
        schedule=told["schedule"],
        schedule_kind=told["schedule_kind"],
        timezone=told.get("timezone"),
        metadata=declared.metadata,
    )

    def call() -> Any:
        result = handler(context)
        if inspect.iscoroutine(result):  # of a lambda that calls an async function
            result.close()
            raise AsyncNotSupported(f"What the handler of {made!r}, scheduled task {job.task_id!r}, returned")
        return result

    return call
