"""How one run of a task went, in a word that Flower shows."""

from dataclasses import dataclass
from typing import Literal

Word = Literal[
    # The run ended its row.
    "completed",
    "aborted",
    "skipped",
    "complete",
    "delivered",
    "dropped",
    "error",
    # It did not.
    "ended-before",
    "not-found",
    "not-head",
    "busy",
    "waiting",
    "unknown-class",
    "handed-over",
    "lease-lost",
    "parked",
    "paused",
    "failed-delivery",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a task: ``ended`` says that it ended its row; ``error_type`` that the row ended in error."""

    word: Word
    ended: bool = False
    row: str = ""
    error_type: str | None = None
