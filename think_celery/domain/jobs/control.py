"""What users ask of jobs: queue a call, look at jobs, cancel, repeat or delete them."""

from collections.abc import Mapping, Sequence
from typing import Any

from think_celery import serialization
from think_celery.described import kept_reason
from think_celery.domain.agents import methods
from think_celery.domain.jobs import jobs
from think_celery.domain.jobs.jobs import Kind
from think_celery.domain.jobs.records import Job, as_job
from think_celery.domain.pages import (
    Before,
    Page,
    as_instant,
    check_limit,
    page_of,
    read_number,
    status_names,
)
from think_celery.domain.passes import ROWS
from think_celery.domain.schedules import slots
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import InvalidValue, JobError, JobNotFound
from think_celery.ids import AgentRef, new_id
from think_celery.names import MAX_KEY, can_be_a_name, check_name
from think_celery.retries import Retry, check_retry
from think_celery.runtime import Runtime
from think_celery.states import JobStatus, is_terminal
from think_celery.store import jobdeletes
from think_celery.store import jobs as rows
from think_celery.store.database import Tx

KINDS: tuple[Kind, ...] = ("scheduled", "queue", "fiber", "hook")

LOST_RACES = 5
SETTLED = [status.value for status in JobStatus if is_terminal(status)]


# --- accepting ------------------------------------------------------------------------------------


def queue(
    rt: Runtime,
    ref: AgentRef,
    agent: Any,
    method: Any,
    payload: Any = None,
    *,
    retry: Retry | None = None,
    idempotency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    time_limit: Duration | None = None,
) -> Job:
    """Accept a call of this agent's method, to be made after all that were queued before it."""
    named = methods.named(agent, method, payload, call="queue()", limit=rt.settings.max_payload)
    check_retry(retry)
    row, accepted = accept(
        rt,
        ref,
        kind="queue",
        lane=jobs.QUEUE,
        named=named,
        retry=retry,
        idempotency_key=idempotency_key,
        metadata=metadata,
        time_limit=time_limit,
    )
    return as_job(row, accepted=accepted)


def accept(
    rt: Runtime,
    ref: AgentRef,
    *,
    kind: Kind,
    named: methods.Named,
    idempotency_key: str | None,
    metadata: Mapping[str, Any] | None,
    time_limit: Duration | None,
    lane: str | None = None,
    retry: Retry | None = None,
    knock: bool = True,
) -> tuple[Any, bool]:
    """Store a job of a method, and say whether this call did; else its row is that of the same key."""
    if idempotency_key is not None:
        check_name("idempotency_key", idempotency_key, MAX_KEY)
    kept = serialization.json_metadata(metadata, rt.settings.max_payload)
    seconds = None if time_limit is None else as_timedelta(time_limit, "time_limit").total_seconds()
    if seconds is not None and seconds <= 0:
        raise InvalidValue(f"time_limit={time_limit!r}: it must be longer than nothing.")

    job_id = None if idempotency_key is not None else new_id()

    def insert(tx: Tx) -> Any:
        return jobs.insert(
            rt,
            tx,
            ref,
            kind=kind,
            lane=lane,
            method=named.name,
            payload_text=named.payload_text,
            retry=retry,
            metadata=kept,
            idempotency_key=idempotency_key,
            timeout_seconds=seconds,
            job_id=job_id,
            knocks_now=knock,
        )

    def insert_or_find(tx: Tx) -> tuple[Any, bool]:
        for _ in range(LOST_RACES):
            row = insert(tx)
            if row is not None:
                return row, True
            row = rows.by_key(tx, ref.id, kind, idempotency_key or "")
            if row is not None:
                return row, False
        raise InvalidValue(f"idempotency_key={idempotency_key!r}: others delete its job again and again.")

    if job_id is None:
        return rt.db.accept(insert_or_find)
    row = rt.db.accept_single(insert)
    return row or rt.db.look(lambda tx: rows.get(tx, job_id)), True  # stored, and the answer was lost


# --- looking --------------------------------------------------------------------------------------


def look_up(rt: Runtime, job_id: str, agent_id: str | None = None) -> Job | None:
    """The job of that id; with *agent_id* only if it is that agent's."""
    row = row_of(rt, job_id, agent_id)
    return None if row is None else as_job(row)


def by_key(rt: Runtime, ref: AgentRef, kind: Kind, idempotency_key: str) -> Job | None:
    """The agent's job of that kind with that key."""
    row = row_by_key(rt, ref, kind, idempotency_key)
    return None if row is None else as_job(row)


def row_by_key(rt: Runtime, ref: AgentRef, kind: Kind, idempotency_key: str) -> Any | None:
    """The same as a row."""
    if not can_be_a_name(idempotency_key, MAX_KEY):
        return None
    return rt.db.look(lambda tx: rows.by_key(tx, ref.id, kind, idempotency_key))


def row_of(rt: Runtime, job_id: str, agent_id: str | None = None) -> Any | None:
    """The same as a row."""
    row = rt.db.look(lambda tx: rows.get(tx, job_id)) if can_be_a_name(job_id, 200) else None
    return None if row is None or agent_id not in (None, row.agent_id) else row


def find(
    rt: Runtime,
    *,
    agent_id: str | None = None,
    kind: str | Sequence[str] | None = None,
    status: str | Sequence[str] | None = None,
    method: Any = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[Job]:
    """Jobs, newest first.

    Raises:
        ValueError: A status or kind is unknown, *limit* is not between 1 and 1000, or *cursor* can't be read.
    """
    found = find_rows(
        rt, agent_id=agent_id, kind=kind, status=status, method=method, limit=limit, cursor=cursor
    )
    return found.of(as_job)


def find_rows(
    rt: Runtime,
    *,
    agent_id: str | None,
    kind: str | Sequence[str] | None,
    status: str | Sequence[str] | None,
    method: Any,
    limit: int,
    cursor: str | None,
) -> Page[Any]:
    """The same as rows."""
    check_limit(limit)
    kinds = status_names(kind, KINDS, "kind")
    wanted = method if method is None or isinstance(method, str) else getattr(method, "__name__", None)
    if method is not None and not can_be_a_name(wanted, 200):
        return Page()
    statuses, after = status_names(status, JobStatus), read_number(cursor, "jobs")
    found = rt.db.look(
        lambda tx: rows.find(
            tx,
            agent_id=agent_id,
            kinds=kinds,
            statuses=statuses,
            method=wanted,
            after=after,
            limit=limit + 1,
        )
    )
    return page_of(found, limit, "jobs", lambda row: row.seq)


# --- changing -------------------------------------------------------------------------------------


def cancel(rt: Runtime, job_id: str, reason: str | None = None, agent_id: str | None = None) -> bool:
    """End a job as aborted, and say whether this call did; an ended or unknown one stays as it is.

    Raises:
        InvalidType: *reason* is no text.
    """
    said = kept_reason(reason)
    if row_of(rt, job_id, agent_id) is None:
        return False
    row = rt.db.accept(lambda tx: jobs.cancel(rt, tx, job_id, said))
    if row is not None and row.process_id is not None and not rt.db.inside_joined:
        rt.monitor.beat()  # it may run in this very process
    return row is not None


def delete(rt: Runtime, job_id: str, agent_id: str | None = None) -> bool:
    """Delete a job, so that one that waits never runs; False, and it stays, while a worker has it."""
    if row_of(rt, job_id, agent_id) is None:
        return False

    def work(tx: Tx) -> bool:
        row = rows.remove(tx, job_id)
        if row is not None and row.completed_at is None:
            slots.job_ended(tx, row, JobStatus.ABORTED, began=row.started_at is not None, error="deleted")
            jobs.left(rt, tx, row)
        return row is not None

    return rt.db.accept(work)


def delete_ended(
    rt: Runtime,
    *,
    agent_id: str | None = None,
    kind: str | Sequence[str] | None = None,
    status: str | Sequence[str] | None = None,
    completed_before: Before | None = None,
    limit: int | None = None,
    end_it_with: str = "cancel_job()",
) -> int:
    """Delete jobs that have ended, and say how many; interrupted ones only where *status* says so.

    Raises:
        ValueError: A kind or status is unknown, or the status of jobs that go on; or another argument is unfit.
    """
    kinds = status_names(kind, KINDS, "kind")
    statuses = status_names(status, JobStatus)
    if statuses is None:
        statuses = SETTLED
    going_on = sorted({*statuses} - {*SETTLED, JobStatus.INTERRUPTED.value})
    if going_on:
        raise InvalidValue(
            f"status={going_on[0]!r}: what stands so has not ended. {end_it_with} ends it; then it can be deleted."
        )
    before = as_instant("completed_before", completed_before, rt.clock.now())
    if limit is not None:
        check_limit(limit)
    done = 0
    while True:
        batch = ROWS if limit is None else min(ROWS, limit - done)
        count = rt.db.accept(
            lambda tx, batch=batch: jobdeletes.delete_some(  # type: ignore[misc]
                tx,
                agent_id=agent_id,
                kinds=KINDS if kinds is None else kinds,
                statuses=statuses,
                before=before,
                limit=batch,
            )
        )
        done += count
        if count < batch or done == limit:
            return done


def retry(rt: Runtime, job_id: str, agent_id: str | None = None) -> Job:
    """Let a job run again, or at once: a waiting one need not wait for its time, an interrupted one begins anew.

    One that has ended stays as it is, and another one like it is stored.

    Raises:
        JobNotFound: There is none of that id.
        JobError: A worker has it; or it was of a declared task, whose next slot comes by itself.
    """

    def work(tx: Tx) -> Any:
        row = rows.get(tx, job_id) if can_be_a_name(job_id, 200) else None
        if row is None or agent_id not in (None, row.agent_id):
            raise JobNotFound(job_id)
        status = JobStatus(row.status)
        if is_terminal(status) and row.task_id is None:
            return _insert_like(rt, tx, row)
        again = None
        if status is JobStatus.PENDING:
            again = rows.make_due(tx, job_id)
        elif status is JobStatus.INTERRUPTED:
            again = rows.resolve(tx, job_id, JobStatus.PENDING, attempts=0)
        if again is None:
            remedy = (
                "It was of a declared task, whose next slot comes by itself."
                if is_terminal(status)
                else "Wait for its end, or end it with cancel_job()."
            )
            raise JobError(f"Job {job_id!r} is {status}, so it can't be begun again now. {remedy}")
        tx.after_commit(lambda: jobs.knock(rt, again))
        return rows.get(tx, job_id)

    return as_job(rt.db.accept(work))


def _insert_like(rt: Runtime, tx: Tx, row: Any) -> Any:
    return jobs.insert(
        rt,
        tx,
        AgentRef.of(row),
        kind=row.kind,
        method=row.method,
        payload_text=row.payload,
        retry=None if row.retry is None else jobs.retry_of(row),
        metadata=row.metadata,
        lane=row.kind if row.kind in (jobs.QUEUE, jobs.HOOK) else None,
        queue=row.queue,
        timeout_seconds=row.timeout_seconds,
    )
