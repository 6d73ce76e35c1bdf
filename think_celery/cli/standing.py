"""Where a run's code stands, as far as its rows tell: a step's entry is written when its function has ended."""

from collections.abc import Sequence
from typing import Any

from think_celery.cli.printing import shown
from think_celery.errors import TooManyAttempts
from think_celery.runtime import Runtime
from think_celery.states import StepStatus, WorkflowStatus, is_terminal
from think_celery.store import processes

_WHEN_ENDED = "a step is recorded when its function has ended."


def is_in_hand(rt: Runtime, row: Any) -> bool:
    """Whether a worker has the run, and has been heard of lately."""
    process_id = row.process_id
    if row.status != WorkflowStatus.RUNNING or process_id is None:
        return False
    return rt.db.read(lambda tx: processes.is_heard_of(tx, process_id))


def nothing_recorded(row: Any) -> str:
    """What is said in place of the steps of a run that has none."""
    status = WorkflowStatus(row.status)
    yet = "" if is_terminal(status) else " yet"
    if row.started_at is None:
        return f"It has done nothing{yet}."
    if status is WorkflowStatus.COMPLETE:
        return "Its code asked for no step."
    return f"It has begun, and no step of it has ended{yet}: {_WHEN_ENDED}"


def of_code(rt: Runtime, row: Any, journal: Sequence[Any], *, in_hand: bool) -> str | None:
    """What the run's code does now, or where it came to no end; ``None`` where there is nothing to be told."""
    last = journal[-1] if journal else None
    if row.error_type == TooManyAttempts.__name__ and last is not None:
        if last.status == StepStatus.RETRYING:
            return f"It died in attempt {last.attempts + 1} of {last.step!r}, or before that began."
        return f"It got no further than {last.step!r}. What its code did after it is not known: {_WHEN_ENDED}"
    if not in_hand:
        return None
    return f"{_doing(rt, row, last)}{_again(row)}"


def _doing(rt: Runtime, row: Any, last: Any) -> str:
    if last is None:
        since = f", since {shown(row.started_at)}" if row.takeovers == 1 else ""
        return f"Its code runs{since}."
    if last.status != StepStatus.RETRYING:
        return f"Its code runs, behind {last.step!r}: {_WHEN_ENDED}"
    attempt = f"attempt {last.attempts + 1} of {last.step!r}"
    if last.deadline_at > rt.clock.now():
        return f"A worker waits for {attempt}, at {shown(last.deadline_at)}."
    return f"In hand is {attempt}, due since {shown(last.deadline_at)}."


def _again(row: Any) -> str:
    """What is said of claims that came to nothing."""
    if row.attempts < 2:
        return ""
    return f" {row.attempts} workers in a row have had it: those before this one died in it, or lost it."
