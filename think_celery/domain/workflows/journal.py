"""The journal of a workflow run: which steps its code asked for, in their order, and how each one went.

Replaying is asking again: the i-th call of a pass must be the i-th recorded one, by kind and key. Keys are
the steps' names, repeats numbered in the order of the calls (``charge``, ``charge#2``).
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from think_celery import serialization
from think_celery.described import MAX_ERROR, describe, storable
from think_celery.errors import (
    ChildWorkflowError,
    ChildWorkflowTimeoutError,
    ReplayMismatch,
    StepError,
    ThinkPromptAbortedError,
    ThinkPromptError,
    ThinkPromptSkippedError,
    ThinkPromptTimeoutError,
    ThinkPromptValidationError,
    WorkflowError,
    WorkflowRejectedError,
    WorkflowTimeoutError,
)
from think_celery.states import StepStatus
from think_celery.store.steps import StepRef

MAX_TRACE = 40_000

OWN_ERRORS: dict[str, type[WorkflowError]] = {
    error.__name__: error
    for error in (
        WorkflowTimeoutError,
        WorkflowRejectedError,
        ChildWorkflowError,
        ChildWorkflowTimeoutError,
        ThinkPromptError,
        ThinkPromptAbortedError,
        ThinkPromptSkippedError,
        ThinkPromptValidationError,
        ThinkPromptTimeoutError,
    )
}
"""The errors that a recorded step raises again as themselves; every other one is a ``StepError``."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a step: which entry it is, and the entry's row if it is recorded already."""

    ref: StepRef
    row: Any

    @property
    def status(self) -> StepStatus | None:
        """How the entry stands; ``None`` where the step was never asked for before."""
        return None if self.row is None else StepStatus(self.row.status)


class Journal:
    """One pass over a run's entries."""

    def __init__(self, workflow_key: str, workflow_id: str, run: int, rows: Sequence[Any]) -> None:
        self._workflow_key, self._workflow_id, self._run = workflow_key, workflow_id, run
        self._rows = rows
        self._keys: set[str] = set()
        self._repeats: dict[str, int] = {}  # of a name: the last number that was given to it
        self._asked = 0

    @property
    def replaying(self) -> bool:
        """Whether the code is where it was before: what is asked for next is recorded."""
        return self._asked < len(self._rows)

    def ask(self, name: str, kind: str) -> Asked:
        """The entry of the step that the code asks for now.

        Raises:
            ReplayMismatch: Another one is recorded at this place.
        """
        position = self._asked
        key, number = self._key_for(name)
        row = self._rows[position] if position < len(self._rows) else None
        if row is not None and (row.step, row.kind) != (key, kind):
            raise self._mismatch(row, f"{kind} {key!r}")
        self._keys.add(key)
        if number > 1:
            self._repeats[name] = number
        self._asked += 1
        ref = StepRef(workflow_key=self._workflow_key, run=self._run, step=key, position=position, kind=kind)
        return Asked(ref, row)

    def _key_for(self, name: str) -> tuple[str, int]:
        """The key that a step of that name gets now, and its number."""
        key, number = name, 1
        if key in self._keys:  # what is taken stays taken: of a thousand repeats none is tried again
            number = self._repeats.get(name, 1)
        while key in self._keys:
            number += 1
            key = f"{name}#{number}"
        return key, number

    def holds(self, name: str, kind: str) -> bool:
        """Whether the step of that name is recorded at this place; if not, what may refuse it is checked first.

        Checked after :meth:`ask`, it would have taken a place in the order without an entry.
        """
        row = self._rows[self._asked] if self._asked < len(self._rows) else None
        return row is not None and (row.step, row.kind) == (self._key_for(name)[0], kind)

    def take_back(self, asked: Asked) -> None:
        """Forget that this step was asked for, the last one: nothing of it was recorded, nor will be."""
        key = asked.ref.step
        self._keys.discard(key)
        self._asked = asked.ref.position
        name, _, number = key.rpartition("#")
        if number.isdecimal() and self._repeats.get(name) == int(number):
            self._repeats[name] -= 1

    def mismatch(self, asked: Asked, recorded: str, now: str) -> ReplayMismatch:
        """The error for an entry of the right kind and key whose further contents don't fit."""
        return ReplayMismatch(self._workflow_id, asked.ref.position, recorded, now)

    def end(self, how: str) -> None:
        """Check that the code has asked for all that is recorded. *how* says how it ended.

        Raises:
            ReplayMismatch: It has not.
        """
        if self._asked < len(self._rows):
            raise self._mismatch(self._rows[self._asked], f"nothing more: it {how}")

    def _mismatch(self, row: Any, asked: str) -> ReplayMismatch:
        return ReplayMismatch(self._workflow_id, row.position, f"{row.kind} {row.step!r}", asked)


# --- errors as they are recorded ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error in the form in which it is recorded, so that the first pass raises what a replay raises.

    ``place`` is for the log: its type, and where the user's code raised it; empty where no code of the user's did.
    """

    error_type: str
    error: str
    trace: str | None = None
    output: str | None = None
    permanent: bool = False
    place: str = ""

    def for_good(self) -> "Failure":
        """The same failure, as one that trying again can't mend."""
        return replace(self, permanent=True)

    def columns(self) -> dict[str, Any]:
        """The values of the entry's columns."""
        return {
            "error_type": self.error_type,
            "error": self.error,
            "trace": self.trace,
            "output": self.output,
        }


def failure_of(error: BaseException) -> Failure:
    """What a step function raised, as it is recorded; with no trace if it was made to be recorded only."""
    error_type, text = describe(error)
    if error.__traceback__ is None:
        return Failure(error_type=error_type, error=text)
    try:
        lines = traceback.format_exception(error)
    except Exception:
        lines = traceback.format_tb(error.__traceback__)
    # The end of a trace says most, so a long one loses its beginning.
    trace = storable("".join(lines)[-MAX_TRACE:], MAX_TRACE)
    return Failure(error_type=error_type, error=text, trace=trace)


def own_failure(error: WorkflowError) -> Failure:
    """One of our own errors, as it is recorded: its fields come back."""
    error_type, text = describe(error)
    fields = [storable(field, MAX_ERROR) if isinstance(field, str) else field for field in error.args]
    return Failure(
        error_type=error_type, error=text, output=serialization.dumps(fields, what="the error's fields")
    )


def recorded_error(step: str, failure: Failure | Any, attempts: int) -> WorkflowError:
    """The error that a failed entry raises: from its :class:`Failure` on the first pass, its row on replay."""
    own = OWN_ERRORS.get(failure.error_type)
    if own is not None and failure.output is not None:
        return own(*serialization.loads(failure.output))
    return StepError(step, failure.error_type, failure.error, attempts)
