"""What an agent does with jobs: have its methods called later, in order, and look at these calls."""

from collections.abc import Sequence
from typing import Any

from think_celery.agents.arguments import Method
from think_celery.agents.handle import AgentHandle
from think_celery.domain.jobs import control
from think_celery.domain.jobs.records import Job
from think_celery.domain.pages import Before, Page
from think_celery.durations import Duration
from think_celery.retries import Retry


class AgentJobs(AgentHandle, abstract=True):
    """An agent's jobs."""

    def _queue_job(
        self,
        method: Method,
        payload: Any = None,
        *,
        retry: Retry | None = None,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
        time_limit: Duration | None = None,
    ) -> Job:
        """Let a worker call a method of this agent, after all that were queued before, and return at once.

        When this returns, the call is stored (inside a joined transaction: once that commits). The queued calls of one
        agent are made one at a time, in the order in which they were accepted; one that waits to be tried again
        holds the others up. They may overlap with the agent's turns. A call whose worker dies is made again, so the
        method must be safe to repeat.

        Args:
            method: A method of this agent, ``self.index``, or its name. It is called as ``method(payload)``, or
                as ``method()`` without a payload.
            payload: One JSON value, or what the method's parameter is annotated with: a pydantic model, say.
            retry: How often it is tried when it raises, and how long between; if not said, three times, after
                1 and 2 seconds. ``NonRetryableError`` ends it at once.
            idempotency_key: Your own name for this call: the same one again gives the first call back, with
                ``accepted=False``.
            metadata: JSON of yours, kept with the job.
            time_limit: How long an attempt may take: seconds, a ``timedelta`` or words; ``think_turn_timeout`` if not
                said.

        Raises:
            InvalidMethod: It is no method of this agent, or can't be called with one payload.
            InvalidValue: The payload does not fit the method's annotation, or the key is unfit.
            NotSerializable, PayloadTooLarge: The payload or the metadata can't be stored.
            InvalidType: *retry* is no ``Retry``.
        """
        return control.queue(
            self._rt,
            self._ref,
            self,
            method,
            payload,
            retry=retry,
            idempotency_key=idempotency_key,
            metadata=metadata,
            time_limit=time_limit,
        )

    def get_job(self, job_id: str) -> Job | None:
        """A job of this agent as it stands now, of whatever kind; ``None`` if it has none of that id."""
        return control.look_up(self._rt, job_id, self._ref.id)

    def get_job_by_key(self, idempotency_key: str) -> Job | None:
        """The queued call with that key as it stands now; ``None`` if there is none."""
        return control.by_key(self._rt, self._ref, "queue", idempotency_key)

    def list_jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        kind: str | Sequence[str] | None = None,
        method: Method | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Job]:
        """This agent's jobs, newest first: a page, whose ``cursor`` gives the next one.

        Args:
            status: Only those of this status, or of one of these.
            kind: Only ``"queue"``, ``"scheduled"``, ``"fiber"`` or ``"hook"``; or several of them.
            method: Only calls of this method.
            limit: How many at most, up to 1000.
            cursor: The ``cursor`` of the page before.

        Raises:
            ValueError: A status or kind is unknown, *limit* is not between 1 and 1000, or *cursor* can't be read.
        """
        return control.find(
            self._rt,
            agent_id=self._ref.id,
            status=status,
            kind=kind,
            method=method,
            limit=limit,
            cursor=cursor,
        )

    def cancel_job(self, job_id: str, reason: str | None = None) -> bool:
        """End a job as aborted, and say whether this call did; an ended or unknown one stays as it is.

        One that runs is ``aborted`` at once. The method itself can't be stopped; what it returns is dropped, and
        the next call in the queue begins when it has returned, or after 5 seconds.
        """
        return control.cancel(self._rt, job_id, reason, self._ref.id)

    def delete_job(self, job_id: str) -> bool:
        """Delete a job and its key, so that one that waits never runs; False, and it stays, while a worker has it."""
        return control.delete(self._rt, job_id, self._ref.id)

    def delete_jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        kind: str | Sequence[str] | None = None,
        completed_before: Before | None = None,
        limit: int | None = None,
    ) -> int:
        """Delete jobs of this agent that have ended, with their keys, and say how many.

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
            self._rt,
            agent_id=self._ref.id,
            status=status,
            kind=kind,
            completed_before=completed_before,
            limit=limit,
        )

    def retry_job(self, job_id: str) -> Job:
        """Let a job run again. One that waits for its next attempt is tried at once; an interrupted fiber begins anew.

        One that has ended stays as it is: the same call is queued once more, without its key, and that one is
        returned.

        Raises:
            JobNotFound: This agent has none of that id.
            JobError: A worker has it just now; or it was of a declared task, whose next slot comes by itself.
        """
        return control.retry(self._rt, job_id, self._ref.id)


AgentJobs._queue_job.__qualname__ = f"{AgentJobs.__name__}.queue"  # in Python's own errors: what was called
