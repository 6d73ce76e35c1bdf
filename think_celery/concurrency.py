"""What becomes of a client's message that comes while the agent is busy: ``message_concurrency``."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from think_celery.errors import InvalidValue
from think_celery.wording import shown


@dataclass(frozen=True, slots=True)
class Debounce:
    """Like ``latest``, and its turn begins only when no further message has come for so many *seconds*."""

    seconds: float = 0.75

    def __post_init__(self) -> None:
        seconds: object = self.seconds
        fit = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not fit or not math.isfinite(self.seconds) or not 0 < self.seconds <= 3600:
            raise InvalidValue(
                f"Debounce(seconds={shown(self.seconds)}): it must be a number of seconds above 0, and at most 3600."
            )


MessageConcurrency = Literal["queue", "latest", "merge", "drop"] | Debounce
WORDS = ("queue", "latest", "merge", "drop")


def check_concurrency(where: str, given: Any) -> None:
    """Make sure that this is one of the strategies.

    Raises:
        InvalidValue: It is none.
    """
    if given not in WORDS and not isinstance(given, Debounce):
        raise InvalidValue(
            f"{where} is {given!r}: it must be one of {', '.join(WORDS)}, or a Debounce(seconds=0.75)."
        )
