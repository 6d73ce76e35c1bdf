"""What users ask of fibers: start one, run one here, look at them, cancel one, decide on an interrupted one."""

from collections.abc import Mapping, Sequence
from typing import Any

from think_celery.described import kept_reason
from think_celery.domain.agents import methods
from think_celery.domain.jobs import control, jobs, runs, waiting
from think_celery.domain.jobs.fiberruns import changes_of
from think_celery.domain.jobs.records import FiberRun, as_fiber
from think_celery.domain.pages import Page
from think_celery.domain.turns import helping
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import InsideTransaction, InvalidType, InvalidValue
from think_celery.hooks.fibers import FiberRecovery
from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.states import JobStatus
from think_celery.store import jobs as rows
from think_celery.store.database import Tx
from think_celery.wording import a_type

# --- beginning ------------------------------------------------------------------------------------


def start(
    rt: Runtime,
    ref: AgentRef,
    agent: Any,
    method: Any,
    payload: Any,
    *,
    idempotency_key: str | None,
    metadata: Mapping[str, Any] | None,
    waits: bool,
    timeout: Duration | None,
    time_limit: Duration | None,
) -> FiberRun:
    """Accept a fiber; with *waits*, give it when it has ended or is interrupted."""
    if timeout is not None and not waits:
        raise InvalidValue(
            "start_fiber(timeout=…) is how long to wait, and nothing waits. Pass wait_for_completion=True; or, to "
            "limit how long the fiber may take, time_limit=…."
        )
    if waits and rt.db.inside_joined:
        raise InsideTransaction("start_fiber(wait_for_completion=True)")
    if timeout is not None:
        as_timedelta(timeout, "timeout")  # before anything is stored
    row, accepted = accept(
        rt,
        ref,
        agent,
        method,
        payload,
        call="start_fiber()",
        idempotency_key=idempotency_key,
        metadata=metadata,
        time_limit=time_limit,
    )
    if waits:
        row = waiting.end_of(rt, row.id, "start_fiber()", timeout)
    return as_fiber(row, accepted=accepted)


def run(
    rt: Runtime,
    ref: AgentRef,
    agent: Any,
    method: Any,
    payload: Any,
    *,
    metadata: Mapping[str, Any] | None,
    time_limit: Duration | None,
) -> Any:
    """Run a fiber here, and give what its method returns."""
    if rt.db.inside_joined:
        raise InsideTransaction("run_fiber()")
    row, _ = accept(
        rt,
        ref,
        agent,
        method,
        payload,
        call="run_fiber()",
        idempotency_key=None,
        metadata=metadata,
        time_limit=time_limit,
        knock=False,
    )
    # Who waits for the turn or job that calls this waits for the fiber, too.
    with helping.waits_for_job(rt, row.id, "run_fiber()"):
        return runs.run_inline(rt, row, agent)


def accept(
    rt: Runtime,
    ref: AgentRef,
    agent: Any,
    method: Any,
    payload: Any,
    *,
    call: str,
    idempotency_key: str | None,
    metadata: Mapping[str, Any] | None,
    time_limit: Duration | None,
    knock: bool = True,
) -> tuple[Any, bool]:
    """Store a fiber, and say whether this call did; else its row is that of the same key."""
    named = methods.named(agent, method, payload, call=call, limit=rt.settings.max_payload, fiber=True)
    return control.accept(
        rt,
        ref,
        kind="fiber",
        named=named,
        idempotency_key=idempotency_key,
        metadata=metadata,
        time_limit=time_limit,
        knock=knock,
    )


# --- looking --------------------------------------------------------------------------------------


def row_of(rt: Runtime, fiber_id: str, agent_id: str | None) -> Any | None:
    """The row of that fiber; with *agent_id* only if it is that agent's."""
    row = control.row_of(rt, fiber_id, agent_id)
    return row if row is not None and row.kind == "fiber" else None


def inspect(rt: Runtime, fiber_id: str, agent_id: str | None = None) -> FiberRun | None:
    """The fiber of that id as it stands now."""
    row = row_of(rt, fiber_id, agent_id)
    return None if row is None else as_fiber(row)


def inspect_by_key(rt: Runtime, ref: AgentRef, idempotency_key: str) -> FiberRun | None:
    """The agent's fiber with that key as it stands now."""
    row = control.row_by_key(rt, ref, "fiber", idempotency_key)
    return None if row is None else as_fiber(row)


def find(
    rt: Runtime,
    *,
    agent_id: str | None = None,
    status: str | Sequence[str] | None = None,
    method: Any = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[FiberRun]:
    """Fibers, newest first. Raises what ``domain.jobs.control.find`` does."""
    found = control.find_rows(
        rt, agent_id=agent_id, kind="fiber", status=status, method=method, limit=limit, cursor=cursor
    )
    return found.of(as_fiber)


# --- changing -------------------------------------------------------------------------------------


def cancel(rt: Runtime, fiber_id: str, reason: str | None, agent_id: str | None = None) -> bool:
    """End a fiber as aborted, and say whether this call did.

    Raises:
        InvalidType: *reason* is no text.
    """
    said = kept_reason(reason)
    if row_of(rt, fiber_id, agent_id) is None:
        return False
    return control.cancel(rt, fiber_id, said)


def cancel_by_key(rt: Runtime, ref: AgentRef, idempotency_key: str, reason: str | None) -> bool:
    """The same for the agent's fiber with that key."""
    said = kept_reason(reason)
    row = control.row_by_key(rt, ref, "fiber", idempotency_key)
    return row is not None and control.cancel(rt, row.id, said)


def resolve(rt: Runtime, fiber_id: str, decision: FiberRecovery, agent_id: str | None = None) -> bool:
    """Decide on an interrupted fiber, and say whether this call did; any other stays as it is.

    Raises:
        InvalidType: *decision* is no ``FiberRecovery``.
        InvalidValue: It would leave the fiber as it is.
        NotSerializable, PayloadTooLarge: Its output or snapshot can't be stored.
    """
    if not isinstance(decision, FiberRecovery):
        raise InvalidType(f"resolve_fiber() takes a FiberRecovery, not {a_type(decision)}.")
    if decision.status == "interrupted":
        raise InvalidValue(
            "resolve_fiber(): an interrupted fiber is interrupted already. Decide on another status."
        )
    if row_of(rt, fiber_id, agent_id) is None:
        return False
    status = JobStatus.PENDING if decision.status == "retry" else JobStatus(decision.status)
    changes = changes_of(rt, decision)

    def work(tx: Tx) -> bool:
        row = rows.resolve(tx, fiber_id, status, **changes)
        if row is not None and status is JobStatus.PENDING:
            tx.after_commit(lambda: jobs.knock(rt, row))
        return row is not None

    return rt.db.accept(work)
