"""Run a job: claim it under a lease in its own row, and let it be worked on. It runs no other.

Only one worker does this at a time, and every write is fenced by the lease's token.
"""

import logging
from typing import Any

from think_celery.domain import calls, inhand, lacking
from think_celery.domain.agents import starts
from think_celery.domain.jobs import jobs
from think_celery.domain.jobs.attempts import Claim, JobRun
from think_celery.domain.jobs.fiberruns import FiberAttempt, InlineRun
from think_celery.domain.outcomes import Outcome
from think_celery.domain.schedules import declarations
from think_celery.errors import JobTimeout, LeaseLost, TurnCancelled, UnknownScheduledTask
from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.states import JobStatus, is_terminal
from think_celery.store import agents
from think_celery.store import jobs as rows
from think_celery.store.database import Refused
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.jobs")

DESTROYED = "Its agent was destroyed."


def run(rt: Runtime, job_id: str) -> Outcome:
    """Run that job if its turn has come, and say how it went. It runs no other."""
    claimed = claim(rt, job_id)
    if isinstance(claimed, Outcome):
        return claimed
    rt.failpoint("job:claimed")
    seconds = jobs.seconds_of(rt, claimed.row)
    with rt.monitor.hold(claimed.lease, seconds=seconds) as hold, inhand.doing(hold):
        try:
            kind = FiberAttempt if claimed.row.kind == "fiber" else JobRun
            return kind(rt, claimed, hold).run()
        except LeaseLost:
            logger.warning("job %s: the lease was lost; another worker goes on", job_id)
            return Outcome("lease-lost")


def run_inline(rt: Runtime, row: Any, agent: Any) -> Any:
    """Call the method of a fiber that was just stored, here, on this very object; return and raise what it does.

    If this process dies meanwhile, a worker takes the fiber up as any that was interrupted.

    Raises:
        LeaseLost: A worker has it.
        JobTimeout: It took longer than its time limit; what it returned is dropped.
        TurnCancelled: It was cancelled. (No ``Exception``.)
    """
    claimed = claim(rt, row.id, starts_agent=False)
    if isinstance(claimed, Outcome):
        raise LeaseLost(f"fiber {row.id}")
    rt.failpoint("job:claimed")
    seconds = jobs.seconds_of(rt, claimed.row)
    with rt.monitor.hold(claimed.lease, seconds=seconds) as hold, inhand.doing(hold):
        attempt = InlineRun(rt, claimed, hold, agent)
        outcome = attempt.run()
    match attempt.result:
        case calls.Failed(error):
            raise error
        case calls.Done(value) if outcome.word == "completed":
            return value
    if hold.overdue:
        raise JobTimeout(seconds)
    raise TurnCancelled("the fiber was cancelled")


# --- claiming -------------------------------------------------------------------------------------


def claim(rt: Runtime, job_id: str, *, starts_agent: bool = True) -> Claim | Outcome:
    """Take a job that waits for a worker, with one more attempt counted; else say why not.

    Its agent starts first, if it has not, unless it is the agent's own code that claims it.
    """
    process_id = rt.monitor.process_id()
    row: Any = rt.db.read(lambda tx: rows.candidate(tx, job_id))
    refused = _refused(rt, row)
    if refused is not None:
        return refused
    agent = AgentRef.of(row)
    if not row.agent_is_made:
        rt.db.transact(lambda tx: agents.make(tx, agent))
    if starts_agent and not starts.is_ready(rt, agent, row.started_version):
        rt.db.transact(lambda tx: rows.look_again(tx, job_id, jobs.LOOK_AGAIN))
        return Outcome("waiting")
    if row.task_id is not None and not declarations.is_known(rt, agent, row.task_id):
        problem = UnknownScheduledTask(str(agent), row.task_id)
        lacking.no_task(rt, row.agent_class, row.task_id, job_id, problem)
        return Outcome("unknown-task")
    # Not repeated when the connection dies: if it was committed, the repeat would call the job busy, and nobody would
    # be told that it waits. It waits for the monitor, which gives back what nobody works under.
    try:
        found = rt.db.single(lambda tx: rows.claim(tx, job_id, process_id, row.token))
    except Refused:
        found = None  # the index of one job at a time in a lane has the last word
    if found is None:
        return Outcome("busy")
    lease = Lease(kind="job", key=job_id, process_id=process_id, token=found.token)
    return Claim(row=row, lease=lease, attempts=found.attempts, takeovers=found.takeovers)


def _refused(rt: Runtime, row: Any) -> Outcome | None:
    """Why a job does not run here and now; ``None`` if it may."""
    if row is None:
        return Outcome("not-found")
    if is_terminal(JobStatus(row.status)):
        return Outcome("ended-before")
    if row.status == JobStatus.INTERRUPTED:
        return Outcome("interrupted")
    if row.outdated:
        ended = rt.db.transact(lambda tx: jobs.cancel(rt, tx, row.id, DESTROYED))
        return Outcome("aborted", ended=True, row=row.id) if ended else Outcome("ended-before")
    if row.process_id is not None:
        return Outcome("busy")
    if not row.is_head:
        jobs.knock_lane(rt, row.agent_id, row.lane)
        return Outcome("not-head")
    return _unfit_here(rt, row) if row.due else Outcome("waiting")


def _unfit_here(rt: Runtime, row: Any) -> Outcome | None:
    """Whether this worker lacks what the job needs; that is said in the log, and no attempt is counted."""
    if not lacking.has_agent(rt, row.agent_class, f"job {row.id}"):
        return Outcome("unknown-class")
    if row.method is not None and not lacking.has_method(rt, row.agent_class, row.method, row.id):
        return Outcome("unknown-method")
    return None
