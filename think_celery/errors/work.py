"""What can happen to any work: time, attempts, leases, transactions, tasks."""

from think_celery.errors.root import ThinkError


class CallTimeout(ThinkError):
    """A function did not return in time and was given up; what it does from now on is nobody's."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"It did not return within {self.seconds:g} s and was given up; it may still be running."


class StepTimeout(CallTimeout):
    """An attempt of a step took longer than its ``timeout``."""


class TooManyAttempts(ThinkError):
    """Each worker that took this work died in it, or was stopped."""

    def __init__(self, what: str, attempts: int) -> None:
        super().__init__(what, attempts)
        self.what, self.attempts = what, attempts

    def __str__(self) -> str:
        return (
            f"{self.what} was started {self.attempts} times and got nowhere (the worker was killed, ran out of memory, "
            "lost its lease or was told to stop), so it was ended. See the workers' logs from those times."
        )


class NoProgress(ThinkError):
    """A turn was found interrupted, and had got nowhere for longer than its class's ``chat_recovery`` allows."""

    def __init__(self, what: str, seconds: float, longest: float) -> None:
        super().__init__(what, seconds, longest)
        self.what, self.seconds, self.longest = what, seconds, longest

    def __str__(self) -> str:
        return (
            f"{self.what} was interrupted, and its last progress lies {self.seconds:.0f} s back; its class gives up "
            f"after {self.longest:g} s (chat_recovery, max_time), so it was ended. See the workers' logs for what "
            "interrupted it, or allow more time."
        )


class StateContended(ThinkError):
    """Others changed an agent's state each time that an update was about to be stored."""

    def __init__(self, agent: str, tries: int) -> None:
        super().__init__(agent, tries)
        self.agent, self.tries = agent, tries

    def __str__(self) -> str:
        return (
            f"The state of {self.agent} could not be updated: in {self.tries} tries somebody else was faster each "
            "time. Nothing was stored. Let the function of update_state return sooner, change the state less often, "
            "or keep what changes so often in rows of your own."
        )


class LeaseLost(ThinkError):
    """The lease of this work is another worker's now, so nothing more may be written."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return (
            f"{self.what}: its lease went to another worker, which owns the outcome now; this worker stops. "
            "It happens when a worker stalls for longer than `think_lease`."
        )


class InsideTransaction(ThinkError):
    """A call was made in the caller's open joined transaction that can't be: it waits, or needs its own."""

    def __init__(self, call: str, why: str | None = None) -> None:
        super().__init__(call, why)
        self.call, self.why = call, why

    def __str__(self) -> str:
        why = self.why or "waits for work that can't begin before this transaction is committed"
        return f"{self.call} {why}. Call it after the transaction."


class TaskFailed(ThinkError):
    """A row ended in error. Carries ids and the error's type only; the row holds the rest."""

    def __init__(self, row: str, error_type: str) -> None:
        super().__init__(row, error_type)
        self.row, self.error_type = row, error_type

    def __str__(self) -> str:
        return f"{self.row} ended in error: {self.error_type}"


class TaskInterrupted(TaskFailed):
    """A task met an error that is not its row's, such as a database that is away. Its row has not ended."""

    def __str__(self) -> str:
        return (
            f"{self.row} could not be worked on: {self.error_type}. Its row is as it was, and is tried again by "
            "itself. The worker's log says where it happened."
        )


class TurnFailed(TaskFailed):
    """A submission ended in error."""


class WorkflowFailed(TaskFailed):
    """A workflow ended in error, or stopped until it is resumed."""


class JobFailed(TaskFailed):
    """A job ended in error."""
