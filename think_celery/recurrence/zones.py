"""Time zones by name, and the instants at which their clocks show a time."""

import difflib
import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from think_celery.errors import InvalidSchedule

Timezone = str | tzinfo
"""A zone's name, such as "Europe/Paris", or a ``ZoneInfo``."""

ZERO, SECOND, HOUR = timedelta(0), timedelta(seconds=1), timedelta(hours=1)
LONGEST_NAME = 60
"""Characters of a name that an error shows."""

LONGEST_CHANGE = timedelta(hours=24)
"""By how much a clock was ever set back or put forward: a whole day, where the date line was moved."""


@functools.cache
def _names() -> dict[str, str]:
    here = {"localtime", "Factory"}  # another zone on each machine, or none
    return {name.casefold(): name for name in available_timezones() - here}


def zone_name(given: Timezone, shown: str | None = None) -> str:
    """The name of a time zone as the database of time zones writes it, whatever the case it was given in.

    Args:
        given: A name, or a ``ZoneInfo``.
        shown: What the error quotes; by default the zone itself.

    Raises:
        InvalidSchedule: There is no such zone.
    """
    named = _name_of(given)
    found = None if named is None else _names().get(named.casefold())
    if found is not None:
        return found
    near = difflib.get_close_matches((named or "").casefold(), _names(), n=1, cutoff=0.7)
    hint = f"Did you mean {_names()[near[0]]!r}?" if near else 'Use a name such as "Europe/Paris" or "UTC".'
    written = given if isinstance(given, str) else repr(given)
    if len(written) > LONGEST_NAME:
        written = written[:LONGEST_NAME] + "…"
    raise InvalidSchedule(
        shown or f"timezone={repr(written) if isinstance(given, str) else written}",
        f"there is no time zone {written!r} in the database of time zones",
        hint,
    )


def _name_of(given: object) -> str | None:
    if isinstance(given, str):
        return given.strip()
    if given is UTC:
        return "UTC"
    key = getattr(given, "key", None)  # of a ZoneInfo; an offset alone knows no changes, so it is no zone
    return key if isinstance(key, str) else None


@functools.cache
def zone(name: str) -> ZoneInfo:
    """The zone of that name, as :func:`zone_name` gave it."""
    return ZoneInfo(name)


def instants(local: datetime, in_zone: ZoneInfo) -> Sequence[datetime]:
    """The instants, in UTC, at which the zone's clocks show that time: one, or two in order, or none in a gap."""
    first = local.replace(tzinfo=in_zone, fold=0)
    second = local.replace(tzinfo=in_zone, fold=1)
    before, after = first.utcoffset(), second.utcoffset()
    if before == after:
        return (first.astimezone(UTC),)
    if before is not None and after is not None and before < after:
        return ()
    return (first.astimezone(UTC), second.astimezone(UTC))


def end_of_gap(local: datetime, in_zone: ZoneInfo) -> datetime:
    """The first instant, in UTC, after the gap that swallows that time."""
    late = local.replace(tzinfo=in_zone, fold=0).astimezone(UTC)
    early = local.replace(tzinfo=in_zone, fold=1).astimezone(UTC)
    after = late.astimezone(in_zone).utcoffset()
    while late - early > SECOND:  # the change is after `early`, and not after `late`
        middle = (early + (late - early) // 2).replace(microsecond=0)
        if middle.astimezone(in_zone).utcoffset() == after:
            late = middle
        else:
            early = middle
    return late


def wall(instant: datetime, in_zone: ZoneInfo) -> datetime:
    """What the zone's clocks show at an instant, without a zone."""
    return instant.astimezone(in_zone).replace(tzinfo=None)


def set_back_soon(instant: datetime, in_zone: ZoneInfo) -> timedelta:
    """By how much the zone's clocks are set back in the day after an instant: by so much they show times again."""
    return max(ZERO, _offset(instant, in_zone) - min(_near(instant, HOUR, in_zone)))


def set_back_lately(instant: datetime, in_zone: ZoneInfo) -> timedelta:
    """By how much the zone's clocks were set back in the day before an instant."""
    return max(ZERO, max(_near(instant, -HOUR, in_zone)) - _offset(instant, in_zone))


def _near(instant: datetime, step: timedelta, in_zone: ZoneInfo) -> Sequence[timedelta]:
    if in_zone.key == "UTC":
        return [ZERO]
    return [_offset(instant + hours * step, in_zone) for hours in range(1, LONGEST_CHANGE // HOUR + 1)]


def _offset(instant: datetime, in_zone: ZoneInfo) -> timedelta:
    return instant.astimezone(in_zone).utcoffset() or ZERO
