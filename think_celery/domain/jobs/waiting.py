"""Wait for the end of a job, and run it right here where a worker waits and nobody else has it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from think_celery.domain import inhand, knocks
from think_celery.domain.inhand import in_hand
from think_celery.domain.jobs import runs
from think_celery.domain.poller import Watch
from think_celery.domain.submissions import waiting
from think_celery.domain.turns import afterwards, helping
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import InsideTransaction, JobNotFound, JobStillRunning, NestedJob
from think_celery.ids import AgentRef
from think_celery.names import can_be_a_name
from think_celery.runtime import Runtime, agent_classes
from think_celery.states import JobStatus, is_terminal
from think_celery.store import jobs as rows
from think_celery.store.database import is_away


def end_of(rt: Runtime, job_id: str, call: str, timeout: Duration | None = None) -> Any:
    """The row of that job once it has ended, or is interrupted, and nobody has decided on it.

    Raises:
        JobStillRunning: The time is up, or the worker that waits stops; the job goes on.
        JobNotFound: There is no such job, or not any more.
        InsideTransaction: The caller's transaction is joined: the job can't begin before its commit.
        NestedJob: Called in that very job, in one of its lane that comes before it, or in one that it waits for.
        LeaseLost, TurnCancelled: The work that waits is no longer wanted.
    """
    if rt.db.inside_joined:
        raise InsideTransaction(call)
    if not can_be_a_name(job_id, 200):  # it is no job's, and not every text fits a database
        raise JobNotFound(job_id)
    seconds = None if timeout is None else as_timedelta(timeout, "timeout").total_seconds()
    began = rt.clock.elapsed()
    helps = helping.may_help(rt)

    def left() -> float | None:
        return None if seconds is None else max(0.0, began + seconds - rt.clock.elapsed())

    row = _look(rt, job_id)
    if row is not None and _is_over(row):
        return row
    if row is not None:
        _refuse_nested(rt, row, call)
    with helping.waits_for_job(rt, job_id, call), _watching(rt, job_id) as watch:
        while True:
            waiting.heed_the_work_in_hand()
            row = _look(rt, job_id)
            if row is not None and _is_over(row):
                return row
            if row is not None:
                _refuse_nested(rt, row, call)
            stops = rt.stopping.signal.aborted and (in_hand() is not None or rt.in_task())
            if left() == 0 or stops:
                raise JobStillRunning(job_id, rt.clock.elapsed() - began)
            if row is None or not (helps and _helped(rt, row)):
                _rest(rt, watch, left())


def _is_over(row: Any) -> bool:
    return is_terminal(JobStatus(row.status)) or bool(row.status == JobStatus.INTERRUPTED)


def _look(rt: Runtime, job_id: str) -> Any | None:
    """The job as it stands; nothing while the database is away for a moment."""
    try:
        row = rt.db.read(lambda tx: rows.get(tx, job_id))
    except Exception as error:
        if not is_away(error):
            raise
        return None
    if row is None:
        raise JobNotFound(job_id)
    return row


def _refuse_nested(rt: Runtime, row: Any, call: str) -> None:
    """Make sure that the job does not begin only when one that waits for it in this very thread has ended."""
    for own_id in (work.hold.lease.key for work in inhand.all_in_hand() if work.hold.lease.kind == "job"):
        if own_id != row.id:
            own = rt.db.read(lambda tx, own_id=own_id: rows.get(tx, own_id))  # type: ignore[misc]
            if own is None or own.lane is None or own.seq > row.seq:
                continue
            if (own.agent_id, own.lane) != (row.agent_id, row.lane):
                continue
        raise NestedJob(call, row.id, own_id)


def _helped(rt: Runtime, row: Any) -> bool:
    """Run the job right here, if nobody has it and its messages come to this worker, and say whether it moved."""
    if row.process_id is not None or row.agent_class not in agent_classes:
        return False
    if not rt.takes(knocks.for_job(row)):
        return False
    with inhand.helping(), afterwards.outside():
        outcome = runs.run(rt, row.id)
    return outcome.ended or outcome.word == "interrupted"


@contextmanager
def _watching(rt: Runtime, job_id: str) -> Iterator[Watch]:
    """A watch that also rings when somebody wants this call to end."""
    row = _look(rt, job_id)
    agent_id = "" if row is None else AgentRef.of(row).id
    with ExitStack() as stack:
        watch = stack.enter_context(rt.poller.watching(agent_id, job_id, for_line=False))
        work = in_hand()
        for signal in (rt.stopping.signal, None if work is None else work.hold.signal):
            if signal is not None:
                stack.callback(signal.on_abort(watch.ring))
        yield watch


def _rest(rt: Runtime, watch: Watch, left: float | None) -> None:
    if rt.meanwhile is not None:
        rt.meanwhile(left)
    else:
        watch.rest(waiting.LOOK_SECONDS if left is None else min(left, waiting.LOOK_SECONDS))
