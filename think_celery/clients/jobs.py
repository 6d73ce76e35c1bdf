"""The jobs and fibers of all agents, by their ids."""

from collections.abc import Sequence

from think_celery import runtime
from think_celery.domain.jobs import control, fibers, waiting
from think_celery.domain.jobs.records import FiberRun, Job, as_job
from think_celery.domain.pages import Before, Page
from think_celery.durations import Duration
from think_celery.hooks.fibers import FiberRecovery
from think_celery.runtime import Runtime


class JobClient:
    """What a process can ask for by a job's id, without knowing whose it is."""

    @property
    def _rt(self) -> Runtime:
        return runtime.current()

    def get_job(self, job_id: str) -> Job | None:
        """A job as it stands now, of whatever kind; ``None`` if there is none of that id."""
        return control.look_up(self._rt, job_id)

    def list_jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        kind: str | Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Job]:
        """The jobs of all agents, newest first: a page, whose ``cursor`` gives the next one.

        Args:
            status: Only those of this status, or of one of these.
            kind: Only ``"queue"``, ``"scheduled"``, ``"fiber"`` or ``"hook"``; or several of them.
            limit: How many at most, up to 1000.
            cursor: The ``cursor`` of the page before.

        Raises:
            ValueError: A status or kind is unknown, *limit* is not between 1 and 1000, or *cursor* can't be read.
        """
        return control.find(self._rt, status=status, kind=kind, limit=limit, cursor=cursor)

    def wait_for_job(self, job_id: str, timeout: Duration | None = None) -> Job:
        """The job once it has ended, at once if it has; a fiber also when it is interrupted. Any process may wait.

        Raises:
            JobStillRunning: The time is up. The job goes on.
            NestedJob: Called in that very job, in a queued call of the same agent that comes before it, or in work that
                the job waits for itself.
            JobNotFound: There is none of that id, or not any more.
            InsideTransaction: Called inside a joined transaction.
        """
        return as_job(waiting.end_of(self._rt, job_id, "wait_for_job()", timeout))

    def cancel_job(self, job_id: str, reason: str | None = None) -> bool:
        """End a job as aborted, and say whether this call did: see the agent's method of this name."""
        return control.cancel(self._rt, job_id, reason)

    def delete_job(self, job_id: str) -> bool:
        """Delete a job that no worker has, and say whether this call did."""
        return control.delete(self._rt, job_id)

    def delete_jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        kind: str | Sequence[str] | None = None,
        completed_before: Before | None = None,
        limit: int | None = None,
    ) -> int:
        """Delete jobs of all agents that have ended, with their keys, and say how many.

        Args:
            status: Only those of this status, or of one of these. Interrupted fibers are deleted only if it says so.
            kind: Only ``"queue"``, ``"scheduled"``, ``"fiber"`` or ``"hook"``; or several of them.
            completed_before: Only those that ended before that: an aware datetime, or how long ago ("90 days").
            limit: How many at most, up to 1000, those that were accepted first; without it all.

        Raises:
            ValueError: A status is unknown or not of an end, a kind is unknown, the instant has no time zone, or
                *limit* is out of range.
        """
        return control.delete_ended(
            self._rt, status=status, kind=kind, completed_before=completed_before, limit=limit
        )

    def retry_job(self, job_id: str) -> Job:
        """Let a job run again: see the agent's method of this name.

        Raises:
            JobNotFound: There is none of that id.
            JobError: A worker has it just now.
        """
        return control.retry(self._rt, job_id)

    def inspect_fiber(self, fiber_id: str) -> FiberRun | None:
        """A fiber as it stands now; ``None`` if there is none of that id."""
        return fibers.inspect(self._rt, fiber_id)

    def list_fibers(
        self, *, status: str | Sequence[str] | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[FiberRun]:
        """The fibers of all agents, newest first: a page. Raises what :meth:`list_jobs` raises."""
        return fibers.find(self._rt, status=status, limit=limit, cursor=cursor)

    def cancel_fiber(self, fiber_id: str, reason: str | None = None) -> bool:
        """End a fiber as aborted, and say whether this call did: see the agent's method of this name."""
        return fibers.cancel(self._rt, fiber_id, reason)

    def resolve_fiber(self, fiber_id: str, recovery: FiberRecovery) -> bool:
        """Decide on an interrupted fiber, and say whether this call did. Raises what the agent's method does."""
        return fibers.resolve(self._rt, fiber_id, recovery)
