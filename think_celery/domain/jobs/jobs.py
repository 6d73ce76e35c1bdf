"""Jobs: durable calls of an agent's methods. Accept them, end them, and see to it that the next one runs.

A job's lease is in its own row. Jobs of one agent and lane ("queue", "hook") run one at a time in the order in which
they were accepted; all others run as soon as a worker is free. How one is run: ``domain.jobs.runs``.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Literal

from think_celery.described import describe
from think_celery.domain import knocks
from think_celery.domain.passes import ROWS, batches, each_row, worth_a_knock
from think_celery.domain.schedules import slots
from think_celery.durations import as_timedelta
from think_celery.errors import JobTimeout, LeaseLost, NonRetryableError, UnreadableValue
from think_celery.ids import AgentRef, named_id, new_id
from think_celery.retries import Retry, knock_again_after
from think_celery.runtime import Runtime, agent_classes
from think_celery.states import JobStatus
from think_celery.store import joblanes, jobs
from think_celery.store.database import Tx
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.jobs")

Kind = Literal["scheduled", "queue", "fiber", "hook"]

QUEUE, HOOK = "queue", "hook"
"""The lanes, and the kinds of the jobs that run in them."""

DEFAULT_RETRY = Retry(max_attempts=3, delay=1, max_delay=30)
"""How often a queued or scheduled call is tried, unless it was said otherwise. Fibers and hooks are tried once."""

ONCE = Retry(max_attempts=1)


# --- accepting ------------------------------------------------------------------------------------


def insert(
    rt: Runtime,
    tx: Tx,
    agent: AgentRef,
    *,
    kind: Kind,
    method: str | None = None,
    task_id: str | None = None,
    payload_text: str | None = None,
    retry: Retry | None = None,
    metadata: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    due_at: datetime | None = None,
    lane: str | None = None,
    queue: str | None = None,
    slot_id: str | None = None,
    timeout_seconds: float | None = None,
    job_id: str | None = None,
    knocks_now: bool = True,
) -> Any | None:
    """Store a job in this transaction, whosever it is, and knock for it after the commit.

    Returns its row; ``None`` where the agent has a job of that kind with that key.

    Args:
        rt: The runtime.
        tx: The transaction. When it is rolled back there is no job.
        agent: Whose method is called.
        kind: Of a "hook" the payload is a list: the arguments of the method, one after the other.
        method: The method's name, as ``domain.agents.methods`` has checked it.
        task_id: Of a declared task: which one, in place of *method*.
        payload_text: The payload as ``serialization.dumps`` wrote it; ``None``: the method is called without one.
        retry: How often it is tried; ``None`` leaves that to the kind.
        metadata: JSON of the user's, kept with the job.
        idempotency_key: One for each agent and kind.
        due_at: Not before this instant; ``None``: at once.
        lane: Those of one lane run one at a time, in order.
        queue: The Celery queue, if not that of the agent's class.
        slot_id: The slot of a schedule that ends with the job.
        timeout_seconds: How long an attempt may take; ``None``: ``think_turn_timeout``.
        job_id: The id of a job without a key, where the transaction may be repeated.
        knocks_now: Whether a worker is told at once; else the tick sees to it, if nobody has run it by then.
    """
    chosen = queue or _class_queue(agent) or rt.settings.queue
    row = jobs.insert(
        tx,
        agent,
        id=job_id
        or (new_id() if idempotency_key is None else named_id("job", agent.id, kind, idempotency_key)),
        kind=kind,
        lane=lane,
        method=method,
        task_id=task_id,
        payload=payload_text,
        retry=None if retry is None else stored_retry(retry),
        metadata=None if metadata is None else dict(metadata),
        idempotency_key=idempotency_key,
        due_at=due_at,
        queue=chosen,
        slot_id=slot_id,
        timeout_seconds=timeout_seconds,
    )
    if row is not None and due_at is None and knocks_now:
        tx.after_commit(lambda: knock(rt, row))
    return row


def _class_queue(agent: AgentRef) -> str | None:
    known = agent.agent_class in agent_classes
    queue: str | None = agent_classes.get(agent.agent_class).queue if known else None
    return queue


def knock(rt: Runtime, row: Any) -> None:
    """Tell the broker of a job that waits for a worker."""
    rt.failpoint("job:committed")
    rt.knock(knocks.for_job(row))


def stored_retry(retry: Retry) -> dict[str, Any]:
    """A ``Retry`` as rows hold it: its spans in seconds."""
    stored = asdict(retry)
    for name in ("delay", "max_delay"):
        stored[name] = as_timedelta(stored[name]).total_seconds()
    return stored


def retry_of(row: Any) -> Retry:
    """How often that job is tried."""
    if row.retry is not None:
        return Retry(**row.retry)
    return DEFAULT_RETRY if row.kind in ("queue", "scheduled") else ONCE


# --- ends -----------------------------------------------------------------------------------------


def end(rt: Runtime, lease: Lease, row: Any, status: JobStatus, **values: Any) -> None:
    """End a job in hand, with all that follows from it.

    Raises:
        LeaseLost: It is another worker's, or was ended meanwhile.
    """

    def work(tx: Tx) -> None:
        if not jobs.end(tx, lease, status, **values):
            raise LeaseLost(str(lease))
        slots.job_ended(tx, row, status, error_type=values.get("error_type"), error=values.get("error"))
        left(rt, tx, row)

    if row.kind == "fiber":
        rt.db.single(work)
    else:
        rt.db.transact(work)


def cancel(rt: Runtime, tx: Tx, job_id: str, reason: str | None) -> Any | None:
    """End a job that has not ended as aborted, and return its row; ``None`` where there is none.

    One that runs is told within a second; until it has stopped, its lane waits.
    """
    row = jobs.cancel(tx, job_id, reason)
    if row is None:
        return None
    slots.job_ended(tx, row, JobStatus.ABORTED, began=row.started_at is not None, error=reason)
    if row.process_id is None:
        left(rt, tx, row)
    return row


def left(rt: Runtime, tx: Tx, row: Any) -> None:
    """A job is out of its lane with this transaction: the next one of the lane begins."""
    if row.kind in (QUEUE, HOOK):
        agent_id, lane = row.agent_id, row.kind
        joblanes.expect_head(tx, agent_id, lane, row.seq)
        tx.after_commit(lambda: knock_lane(rt, agent_id, lane))


def knock_lane(rt: Runtime, agent_id: str, lane: str) -> None:
    """Knock for the first job of a lane, as it is now, if nobody works on it and its time has come."""
    row = rt.db.read(lambda tx: joblanes.head(tx, agent_id, lane))
    if row is not None and row.process_id is None and row.due:
        rt.knock(knocks.for_job(row))


def failed(rt: Runtime, tx: Tx, lease: Lease, row: Any, error: BaseException) -> bool:
    """An attempt has failed: the job is tried again if that may help, and ends else; says whether it ended.

    Raises:
        LeaseLost: It is another worker's, or was ended meanwhile.
    """
    error_type, text = describe(error)
    retry, attempt = retry_of(row), row.failures + 1
    final = isinstance(error, NonRetryableError | UnreadableValue)
    if attempt < retry.max_attempts and not final:
        after = retry.delay_before(attempt + 1)
        again = jobs.try_again(tx, lease, after, error_type, text)
        if again is None:
            raise LeaseLost(str(lease))
        if not after:
            tx.after_commit(lambda: rt.knock(knocks.for_job(again)))
        return False
    told = {"error_type": error_type, "error": text}
    if not jobs.end(tx, lease, JobStatus.ERROR, **told, attempts=0, failures=attempt):
        raise LeaseLost(str(lease))
    slots.job_ended(tx, row, JobStatus.ERROR, error_type=error_type, error=text)
    left(rt, tx, row)
    return True


# --- when a worker died, or does not let go -------------------------------------------------------


def free(rt: Runtime, tx: Tx, lease: Lease) -> bool:
    """Take a job from a holder that is gone, for the next one; whether it still had it."""
    row = jobs.seize(tx, lease)
    if row is not None:
        tx.after_commit(lambda: rt.knock(knocks.for_job(row)))
        return True
    return released(rt, tx, lease)


def released(rt: Runtime, tx: Tx, lease: Lease) -> bool:
    """Give up a job that was cancelled while it ran: its lane goes on."""
    row = jobs.release(tx, lease)
    if row is not None:
        left(rt, tx, row)
    return row is not None


def overdue(rt: Runtime, tx: Tx, lease: Lease) -> None:
    """Take a job from code of this process that ignored its deadline: the attempt has failed."""
    row = jobs.lock(tx, lease.key)
    if row is None or row.status != JobStatus.RUNNING:
        released(rt, tx, lease)
        return
    failed(rt, tx, lease, row, JobTimeout(seconds_of(rt, row)))


def seconds_of(rt: Runtime, row: Any) -> float:
    """How long an attempt of the job may take."""
    return float(row.timeout_seconds or rt.settings.turn_timeout_seconds)


# --- the tick -------------------------------------------------------------------------------------


def knock_missed(rt: Runtime, limit: int) -> int:
    """Knock for jobs whose time has come or whose knock seems lost, and say how many rows were looked after.

    One behind another in its lane needs no knock until it is the first: the end of that one sees to it.
    """

    def work(tx: Tx, row: Any) -> int:
        if row.lane is not None:
            head = joblanes.lock_head(tx, row.agent_id, row.lane)
            if head is not None and head < row.seq:
                return joblanes.expect_none_behind(tx, row, head, 10 * ROWS)
        after = knock_again_after(row.knocks, watched=rt.broker_is_watched)
        again = joblanes.knock_again(tx, row.id, row.knock_at, after, row.knocks + 1)
        if again is None:
            return 0
        tx.after_commit(lambda: rt.knock(knocks.for_job(again)))
        return 1

    return each_row(rt, "knock for a job", _missed(rt, limit), work)


def _missed(rt: Runtime, limit: int) -> Iterator[Any]:
    """The jobs that are to be looked at, the first of each lane; again while there are more."""
    for due in batches(rt, lambda tx: joblanes.missed(tx, limit), limit):
        lanes: set[tuple[str, str]] = set()
        for row in worth_a_knock(rt, due, knocks.for_job, "id", joblanes.put_off):
            if row.lane is None or (row.agent_id, row.lane) not in lanes:
                yield row
            if row.lane is not None:
                lanes.add((row.agent_id, row.lane))


LOOK_AGAIN = timedelta(seconds=1)
"""How soon a job is looked at again that can't begin because its agent is just being started."""
