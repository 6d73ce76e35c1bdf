"""Start workflows, send them events, look at them; and what the tick does for them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from think_celery import schemas, serialization
from think_celery.domain import knocks
from think_celery.domain.passes import ROWS, each_row, worth_a_knock
from think_celery.domain.workflows import inbox
from think_celery.errors import InvalidValue, WorkflowExists
from think_celery.ids import AgentRef, WorkflowRef, new_id
from think_celery.names import check_name
from think_celery.retries import knock_again_after
from think_celery.runtime import Runtime, agent_classes, workflow_classes
from think_celery.states import WorkflowStatus, is_terminal
from think_celery.store import control, events, outbox, wakes, workflows
from think_celery.store.database import Tx
from think_celery.wording import shown

logger = logging.getLogger("think_celery.workflows")

EARLY_KEPT = timedelta(hours=24)
"""How long an event waits for a workflow that does not exist yet."""


def name_of(workflow: Any) -> str:
    """The registered name of a workflow, given as its class or as that name.

    Raises:
        InvalidValue: Something else was given.
    """
    name = workflow if isinstance(workflow, str) else getattr(workflow, "workflow_name", None)
    if not isinstance(name, str):
        raise InvalidValue(f"workflow={shown(workflow)}: pass a ThinkWorkflow class, or its registered name.")
    return name


def reference(workflow: Any, workflow_id: str) -> WorkflowRef:
    """Which workflow: by its class or registered name, and its id.

    Raises:
        InvalidValue: The name or the id is not 1 to 200 printable characters.
    """
    name = name_of(workflow)
    check_name("workflow", name, 200)
    check_name("workflow_id", workflow_id, 200)
    return WorkflowRef(name, workflow_id)


# --- starting -------------------------------------------------------------------------------------


def start(
    rt: Runtime,
    agent: AgentRef,
    workflow: Any,
    params: Any = None,
    *,
    workflow_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    on_conflict: str = "return",
) -> str:
    """Store a run to begin as soon as a worker is free, and return its id.

    Raises:
        UnknownClass: No workflow of that name is registered here.
        InvalidValue: The params don't fit the workflow's params type, or the agent is none of its agent type.
        NotSerializable, PayloadTooLarge: The params or the metadata can't be stored.
        WorkflowExists: There is one of that id, and *on_conflict* is ``"raise"``; or another agent has started it.
        ValueError: *on_conflict* or the id is unfit.
    """
    if on_conflict not in ("return", "raise"):
        raise InvalidValue(f'on_conflict={shown(on_conflict)}: it must be "return" or "raise".')
    new = check(rt, agent, workflow, params, metadata)
    ref = reference(new.name, workflow_id if workflow_id is not None else new_workflow_id())

    def insert_new(tx: Tx) -> bool:
        return _accepted(rt, tx, workflows.insert(tx, ref, agent, **new.columns))

    # Repeated after a lost answer, it could not tell a workflow that was there from its own.
    accept = rt.db.accept_single if on_conflict == "return" else rt.db.accept
    if accept(insert_new) or (workflow_id and rt.db.accept(lambda tx: _revive(rt, tx, ref, agent, new))):
        return ref.workflow_id
    _found(rt.db.look(lambda tx: workflows.get(tx, ref.key)), ref, agent, new)
    if on_conflict == "raise":
        raise WorkflowExists(ref.workflow, ref.workflow_id)
    return ref.workflow_id


def _found(row: Any, ref: WorkflowRef, agent: AgentRef, new: "New") -> None:
    """Look at the run that has the id: another agent's is an error, one with other params is told in the log."""
    if row is None:  # deleted meanwhile
        return
    owner = AgentRef.of(row)
    if owner != agent:
        raise WorkflowExists(ref.workflow, ref.workflow_id, str(owner), str(agent))
    if row.params != new.columns["params"]:
        logger.warning(
            "%s exists already, and was started with other params than it is now; those of the first start stand",
            ref,
            extra={"think_event": "workflow.differs", "think_workflow": ref.workflow_id},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class New:
    """A run that may be stored: the class's name, and the columns that it brings."""

    name: str
    columns: Mapping[str, Any]


def check(
    rt: Runtime, agent: AgentRef, workflow: Any, params: Any, metadata: Mapping[str, Any] | None
) -> New:
    """A run of that class with these params. Raises what :func:`start` raises for what is unfit."""
    name = name_of(workflow)
    if getattr(workflow, "_abstract", False):
        raise InvalidValue(
            f"{name} is a base of workflows and none by itself. Pass a class that subclasses it."
        )
    cls = workflow_classes.get(name)
    if agent.agent_class in agent_classes:
        cls._check_agent(agent_classes.get(agent.agent_class))
    limit = rt.settings.max_payload
    payload = schemas.as_type(cls._params_type(), {} if params is None else params, f"The params of {name}")
    return New(
        name=name,
        columns={
            "version": cls.version,
            "queue": cls.queue or rt.settings.queue,
            "params": serialization.dumps(payload, what="params", limit=limit),
            "metadata": serialization.json_metadata(metadata, limit),
        },
    )


def new_workflow_id() -> str:
    """An id for a run that is given none."""
    return f"wf_{new_id().replace('-', '')}"


def insert(rt: Runtime, tx: Tx, ref: WorkflowRef, agent: AgentRef, new: New, **parent: Any) -> bool:
    """Store a run in this transaction, and say whether it is new; the knock follows the commit."""
    is_new = _accepted(rt, tx, workflows.insert(tx, ref, agent, **new.columns, **parent))
    return is_new or _revive(rt, tx, ref, agent, new, **parent)


def _revive(rt: Runtime, tx: Tx, ref: WorkflowRef, agent: AgentRef, new: New, **parent: Any) -> bool:
    """Store a run in the place of a workflow of that id that was deleted, or that an earlier run of its parent had."""
    row = control.revive(tx, ref.key, agent, **new.columns, **parent)
    if row is None:
        return False
    control.release_keys(tx, control.prompted(tx, [ref.key]))
    control.clear(tx, ref.key, before=row.run)
    return _accepted(rt, tx, row)


def _accepted(rt: Runtime, tx: Tx, row: Any) -> bool:
    if row is not None:
        tx.after_commit(lambda: _started(rt, row))
    return row is not None


def _started(rt: Runtime, row: Any) -> None:
    rt.failpoint("workflow:started")
    logger.info(
        "%s is queued",
        WorkflowRef.of(row),
        extra={"think_event": "workflow.queued", "think_workflow": row.workflow_id},
    )
    rt.knock(knocks.for_workflow(row))
    inbox.adopt(rt, row.key)


# --- events ---------------------------------------------------------------------------------------


def send_event(
    rt: Runtime,
    ref: WorkflowRef,
    *,
    type: str,
    payload: Any = None,
    idempotency_key: str | None = None,
) -> bool:
    """Store an event for a workflow and wake it; one that comes before its workflow is kept for 24 hours.

    Say whether a run can still take it: not one that has ended.

    In a caller's joined transaction it is stored as news, which is delivered after the commit: the
    workflow's row is not locked until then.

    Raises:
        ValueError: The type or the key begins with ``think-``, or is blank or too long.
        NotSerializable, PayloadTooLarge: The payload can't be stored.
    """
    check_name("type", type, 200, reserved=True)
    if idempotency_key is not None:
        check_name("idempotency_key", idempotency_key, 200, reserved=True)
    text = serialization.dumps(payload, what="payload", limit=rt.settings.max_payload)
    dedupe_key = f"{inbox.SENT}{ref.key}:{idempotency_key or new_id()}"
    if rt.db.inside_joined:
        return rt.db.accept(lambda tx: _send_later(rt, tx, ref, type, text, dedupe_key))
    return _send_now(rt, ref, type, text, dedupe_key)


def _can_take(row: Any) -> bool:
    return row is None or not is_terminal(WorkflowStatus(row.status))


def _send_now(rt: Runtime, ref: WorkflowRef, type: str, text: str, dedupe_key: str) -> bool:
    def work(tx: Tx) -> bool:
        rt.failpoint("event:before-commit")
        row = events.send(tx, ref.key, type=type, payload=text, dedupe_key=dedupe_key)
        inbox.tell(rt, tx, ref.key, row)
        return _can_take(row)

    if rt.db.on_postgres:
        return rt.db.single(work, repeatable=True)
    return rt.db.transact(work)


def _send_later(rt: Runtime, tx: Tx, ref: WorkflowRef, type: str, text: str, dedupe_key: str) -> bool:
    row = workflows.get(tx, ref.key)
    queue = rt.settings.queue if row is None else row.queue
    run = events.EARLY if row is None else row.run
    outbox_id = outbox.insert(
        tx,
        dedupe_key=inbox.key_of_news(dedupe_key, run),
        workflow_key=ref.key,
        run=run,
        event_type=type,
        payload=text,
        queue=queue,
    )
    if outbox_id is not None:
        tx.after_commit(lambda: rt.knock(knocks.for_outbox(outbox_id, ref.key, run, queue)))
    return _can_take(row)


# --- looking --------------------------------------------------------------------------------------


def get(rt: Runtime, ref: WorkflowRef) -> Any:
    """The row of a workflow, or ``None``."""
    return rt.db.look(lambda tx: workflows.get(tx, ref.key))


# --- the tick -------------------------------------------------------------------------------------


def _woken(rt: Runtime, tx: Tx, row: Any) -> bool:
    if row is None:
        return False
    inbox.knock(rt, tx, row)
    return True


def wake_due(rt: Runtime, limit: int) -> int:
    """Queue the waiting runs whose time has come, and say how many."""
    due = rt.db.read(lambda tx: wakes.due(tx, limit))
    return each_row(rt, "wake a workflow", due, lambda tx, key: _woken(rt, tx, wakes.wake_due(tx, key)))


def wake_unread(rt: Runtime, limit: int) -> int:
    """Queue waiting runs that have events which they were not woken for, and say how many. A backstop."""
    found = rt.db.read(lambda tx: wakes.unread(tx, limit))
    return each_row(rt, "wake a workflow", found, lambda tx, key: _woken(rt, tx, wakes.wake_unread(tx, key)))


def knock_missed(rt: Runtime, limit: int) -> int:
    """Knock again for runs whose knock seems lost, and say how often. The distance doubles, up to 5 minutes."""

    def work(tx: Tx, missed: Any) -> bool:
        after = knock_again_after(missed.knocks, watched=rt.broker_is_watched)
        row = wakes.knock_again(tx, missed.key, missed.knock_at, after, missed.knocks + 1)
        if row is None:
            return False
        tx.after_commit(lambda: rt.knock(knocks.for_workflow(row)))
        return True

    missed = rt.db.read(lambda tx: wakes.missed(tx, limit))
    wanted = worth_a_knock(rt, missed, knocks.for_workflow, "key", wakes.put_off)
    return each_row(rt, "knock for a workflow", wanted, work)


def adopt_early(rt: Runtime, limit: int = ROWS) -> int:
    """Give early events to the workflows that have begun meanwhile; drop those that waited for a day."""
    found = rt.db.read(lambda tx: events.adoptable(tx, limit))
    adopted = each_row(rt, "move early events", found, lambda tx, key: inbox.adopt_now(rt, tx, key))
    return adopted + rt.db.transact(lambda tx: events.forget_early(tx, EARLY_KEPT, limit))
