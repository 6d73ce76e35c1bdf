"""When to try again."""

import math
import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal, get_args

from think_celery.durations import Duration, as_timedelta
from think_celery.errors import InvalidType, InvalidValue
from think_celery.wording import a_type

Backoff = Literal["exponential", "linear", "constant"]

MISSED_AFTER = timedelta(seconds=2)
"""How long after its row a knock is given before the tick knocks again."""

LONGEST_AGAIN = timedelta(minutes=5)
"""The longest time between two tries of what is tried for ever."""

LONGEST_UNWATCHED = timedelta(seconds=60)
"""The longest time between two knocks where nobody would notice that the broker lost them all."""

_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,9})?")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often to try, and how long to wait between two attempts.

    ``max_attempts`` counts the first one, so 1 means no second. ``delay`` comes before the second attempt;
    it then doubles (exponential), grows by itself (linear) or stays (constant), up to ``max_delay``.
    Both take seconds, a ``timedelta`` or words.

    Raises:
        InvalidDuration: A delay is no span of time.
        InvalidValue: Another value is unfit.
    """

    max_attempts: int = 6
    delay: Duration = 10
    backoff: Backoff = "exponential"
    max_delay: Duration = 300

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise InvalidValue(
                f"Retry(max_attempts={attempts!r}): it must be a whole number, 1 or more. It counts the "
                "first attempt too: Retry(max_attempts=1) never tries again."
            )
        if self.backoff not in get_args(Backoff):
            raise InvalidValue(
                f'Retry(backoff={self.backoff!r}): it must be one of "exponential", "linear" or "constant".'
            )
        delay, longest = as_timedelta(self.delay, "delay"), as_timedelta(self.max_delay, "max_delay")
        if delay > longest:
            raise InvalidValue(
                f"Retry(delay={self.delay!r}, max_delay={self.max_delay!r}): the first delay is longer than "
                f"the longest one. Pass a greater max_delay, such as max_delay={self.delay!r}."
            )

    def delay_before(self, attempt_number: int) -> timedelta:
        """How long to wait before that attempt; nothing before the first, which has the number 1."""
        delay, longest = as_timedelta(self.delay), as_timedelta(self.max_delay)
        retry = attempt_number - 1
        if retry < 1:
            return timedelta(0)
        if self.backoff == "exponential":
            return doubled(delay, retry - 1, longest)
        return _grown(delay, retry if self.backoff == "linear" else 1, longest)


def check_retry(given: object) -> None:
    """Make sure that it is a ``Retry``, or ``None``.

    Raises:
        InvalidType: It is neither.
    """
    if not isinstance(given, Retry | None):
        raise InvalidType(f"retry is {a_type(given)}; pass Retry(max_attempts=…).")


def doubled(first: timedelta, times: int, longest: timedelta) -> timedelta:
    """*first*, doubled that many times, but no more than *longest*."""
    return _grown(first, 2 ** min(times, 60), longest)


def _grown(first: timedelta, factor: int, longest: timedelta) -> timedelta:
    return longest if first and factor > longest / first else first * factor


def knock_again_after(knocks: int, *, watched: bool = True) -> timedelta:
    """How long after that many lost knocks the next one follows: 2 s, doubled each time, up to 5 min.

    Up to one minute where the broker is not *watched*, so that a loss of all its messages goes unnoticed.
    """
    return doubled(MISSED_AFTER, knocks, LONGEST_AGAIN if watched else LONGEST_UNWATCHED)


def jittered(seconds: float, rng: random.Random) -> float:
    """*seconds*, or up to a quarter more, so that those who failed together don't come back together.

    Never less: a server that asked for a delay gets it.
    """
    return seconds * (1 + rng.random() / 4)


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """The seconds to wait that a ``Retry-After`` header asks for; ``None`` where it asks for nothing.

    It holds seconds or an HTTP date. A date that has passed, and what can't be read, ask for nothing.

    Args:
        header: The header's value.
        now: The present instant, aware.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:  # "-0000", or the form without a zone: HTTP dates are in GMT
        moment = moment.replace(tzinfo=UTC)
    seconds = (moment - now).total_seconds()
    return seconds if seconds > 0 and math.isfinite(seconds) else None
