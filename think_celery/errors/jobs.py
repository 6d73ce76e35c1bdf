"""Jobs that can't be accepted or found, or don't come to their end."""

from collections.abc import Sequence

from think_celery.errors.root import ThinkError
from think_celery.errors.work import CallTimeout
from think_celery.wording import shown


class JobError(ThinkError):
    """A job could not be accepted or found."""


class InvalidMethod(JobError, ValueError):
    """What was named can't be called later by its name."""

    def __init__(self, call: str, method: str, problem: str, remedy: str) -> None:
        super().__init__(call, method, problem, remedy)
        self.call, self.method, self.problem, self.remedy = call, method, problem, remedy

    def __str__(self) -> str:
        return (
            f"{self.call}: {self.method} can't be called later: {self.problem}. Only its name and one JSON payload are "
            f"stored, and a worker calls it as method(payload), or method() without one. {self.remedy}"
        )


class JobNotFound(JobError, LookupError):
    """No such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"There is no job {shown(self.job_id)}. Check the id; it may have been deleted."


class JobTimeout(CallTimeout, JobError):
    """An attempt of a job took longer than its ``time_limit``."""


class JobStillRunning(JobError, TimeoutError):
    """Who waited for the end of a job had no more time. The job goes on."""

    def __init__(self, job_id: str, seconds: float) -> None:
        super().__init__(job_id, seconds)
        self.job_id, self.seconds = job_id, seconds

    def __str__(self) -> str:
        return (
            f"Job {self.job_id!r} had not ended after {self.seconds:.0f} s; it goes on. Look at it later by this id, "
            "or wait with a longer timeout. If no worker has begun with it, see: think-celery doctor"
        )


class NestedJob(JobError):
    """A job would wait for itself, or for one that begins only when it has ended, or that waits for it."""

    def __init__(self, call: str, job_id: str, own_id: str, circle: Sequence[str] = ()) -> None:
        super().__init__(call, job_id, own_id, tuple(circle))
        self.call, self.job_id, self.own_id, self.circle = call, job_id, own_id, tuple(circle)

    def __str__(self) -> str:
        if self.circle:
            return (
                f"{self.call} would wait for ever: {' → '.join(self.circle)}. Each waits for the next. Let one of them "
                "go on without waiting: queue the call, and look at what came of it later by its id."
            )
        if self.job_id == self.own_id:
            return f"{self.call} would wait for ever: job {self.job_id!r} would wait for itself. Don't wait for it."
        return (
            f"{self.call} would wait for ever: job {self.job_id!r} begins when job {self.own_id!r} has ended, in which "
            "this is called. An agent's queued calls run one at a time. Let it run afterwards, without waiting for it; "
            "or call the method itself, or queue the call on another agent."
        )


class NotInFiber(JobError):
    """A call that only a fiber can make was made elsewhere."""

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call

    def __str__(self) -> str:
        return (
            f"{self.call} was called where no fiber runs. Call it in a method that start_fiber() or run_fiber() "
            "calls, or use the fiber that such a method gets as its first argument."
        )
