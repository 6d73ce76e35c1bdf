"""What unwinds work of ours, past a user's ``except Exception``."""


class Unwind(BaseException):
    """Unwinds work of ours. Not an ``Exception``, so that a user's ``except Exception`` can't catch it."""


class Suspend(Unwind):
    """Unwinds a workflow that waits."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class TurnCancelled(Unwind):
    """Unwinds a turn that was cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
