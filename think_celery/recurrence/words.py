"""Schedules as people write them."""

import difflib
import functools
import re
from datetime import time, timedelta
from typing import NoReturn

from cronsim import CronSimError

from think_celery.durations import as_timedelta
from think_celery.errors import InvalidSchedule
from think_celery.recurrence.calendars import CronTimes, DaysAt
from think_celery.recurrence.rules import Cron, Interval, Recurrence, Wall
from think_celery.recurrence.zones import Timezone, zone_name

ScheduleSpec = str | float | int | timedelta
"""A schedule as it is written: in words, as cron, or a span (seconds or a ``timedelta``), which is an interval."""

FORMS = (
    '"every 15 minutes", "every 2 hours", "every day at 09:00 in Europe/Paris", "every weekday at 09:00 in UTC", '
    '"every week on monday,friday at 09:00 in UTC", or cron such as "0 9 * * 1-5"'
)
"""What can be written, for errors."""

LONGEST_TEXT = 1000
"""Characters of a schedule's text."""

SHORTEST = timedelta(seconds=1)
LONGEST_NUMBER = 100  # digits; what has more is too long a span, as what has so many is

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_ZONE = re.compile(r"(?P<rest>.*\S) in(?: (?P<zone>\S.*))?", re.I)
_INTERVAL = re.compile(r"every (?:(?P<count>\S+) )?(?P<unit>minutes?|hours?)", re.I)
_WALL = re.compile(r"every (?:(?P<days>day|weekday)|week on (?P<named>\S.*?)) at (?P<at>\S.*)", re.I)
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_CRON = re.compile(r"[*0-9][0-9*,/-]*( [*0-9]\S*)( \S+)*|@\S*")


def parse(
    schedule: ScheduleSpec,
    *,
    timezone: Timezone | None = None,
    default_timezone: Timezone | None = None,
    cron_timezone: Timezone | None = None,
) -> Recurrence:
    """Read a schedule.

    Words, in any case: ``every minute``, ``every 15 minutes``, ``every hour``, ``every 2 hours``, ``every day at
    09:00``, ``every weekday at 09:00``, ``every week on monday,friday at 09:00``. Cron: five fields, or ``@daily`` and
    the like. A span (seconds, a ``timedelta``) is an interval, of a second at least.

    Args:
        schedule: What was written.
        timezone: Whose time of day it is. It may stand in the text, too: ``every day at 09:00 in Europe/Paris``.
        default_timezone: The same, where neither says so. Words with a time of day need one of the three.
        cron_timezone: The zone of cron that has none of these; by default UTC.

    Raises:
        InvalidSchedule: It can't be read, is too long, lacks its zone, or names two. The text shows a right one.
        InvalidDuration: It is no span of time, or one that is too long.
    """
    if isinstance(schedule, str):
        if len(schedule) > LONGEST_TEXT:
            raise InvalidSchedule(
                f"schedule={schedule[:60] + '…'!r}",
                f"it has {len(schedule):,} characters, and {LONGEST_TEXT:,} are allowed",
                f"Write {FORMS}.",
            )
        zones = (timezone, default_timezone, cron_timezone)
        return _read(schedule, *(None if given is None else zone_name(given) for given in zones))
    shown = f"schedule={schedule!r}"
    if timezone is not None:
        _refuse_zone(shown, f"timezone={timezone!r}")
    return _interval(shown, str(schedule), as_timedelta(schedule, "schedule"))


@functools.lru_cache(maxsize=4096)
def _read(given: str, chosen: str | None, default: str | None, of_cron: str | None) -> Recurrence:
    shown, text, named = f"schedule={given!r}", " ".join(given.split()), None
    if (zoned := _ZONE.fullmatch(text)) is not None:
        if zoned["zone"] is None:
            raise InvalidSchedule(shown, "no time zone follows its `in`", 'Write "… in Europe/Paris".')
        text, named = zoned["rest"], zone_name(zoned["zone"], shown)
    if (interval := _INTERVAL.fullmatch(text)) is not None:
        if named or chosen:
            _refuse_zone(shown, repr(named) if named else f"timezone={chosen!r}")
        return _interval(shown, given, _span(shown, interval["count"], interval["unit"].lower()))
    if (words := _WALL.fullmatch(text)) is not None:
        times = DaysAt(at=_time(shown, words["at"]), days=_days(shown, words["days"], words["named"]))
        place = _zone(shown, named, chosen) or default
        if place is None:
            raise InvalidSchedule(
                shown,
                "a time of day needs a time zone, and there is none",
                f'Write "{text} in Europe/Paris", pass timezone=, or define get_default_timezone().',
            )
        return Wall(text=given, timezone=place, times=times)
    if _CRON.fullmatch(text) is not None:
        place = _zone(shown, named, chosen) or default or of_cron or "UTC"
        return Cron(text=given, timezone=place, times=_cron(shown, text))
    raise _unreadable(shown, text.lower())


def _zone(shown: str, named: str | None, chosen: str | None) -> str | None:
    if named is not None and chosen is not None and named != chosen:
        raise InvalidSchedule(
            shown, f"its time zone {named!r} is another than timezone={chosen!r}", "Keep one of the two."
        )
    return named or chosen


def _refuse_zone(shown: str, zone: str) -> NoReturn:
    raise InvalidSchedule(
        shown,
        f"an interval has no time zone, and {zone} was given",
        'Leave the zone out; or name a time of day: "every day at 09:00 in Europe/Paris".',
    )


# --- intervals ------------------------------------------------------------------------------------


def _span(shown: str, count: str | None, unit: str) -> timedelta:
    one = unit.rstrip("s")
    if count is None:
        if unit != one:
            raise InvalidSchedule(
                shown, f"it does not say how many {unit}", f'Write "every {one}" or "every 2 {unit}".'
            )
        number = 1
    elif not (count.isascii() and count.isdigit() and int(count[:LONGEST_NUMBER]) > 0):
        raise InvalidSchedule(
            shown, f"{count!r} is no whole number above zero", f'Write "every {one}" or "every 2 {one}s".'
        )
    else:
        number = int(count[:LONGEST_NUMBER])
    if (number == 1) != (unit == one):
        right = f"1 {one}" if number == 1 else f"{number} {one}s"
        raise InvalidSchedule(shown, f'"{number} {unit}" mixes one and many', f'Write "every {right}".')
    return as_timedelta(number * (60 if one == "minute" else 3600), "schedule")


def _interval(shown: str, given: str, every: timedelta) -> Interval:
    if every < SHORTEST:
        raise InvalidSchedule(shown, "an interval is one second at least", f"Write {FORMS}.")
    return Interval(text=given, every=every)


# --- times of the day -----------------------------------------------------------------------------


def _time(shown: str, written: str) -> time:
    found = _TIME.fullmatch(written)
    if found is None:
        raise InvalidSchedule(
            shown,
            f"{written!r} is no time of day",
            'Write hours and minutes with two digits each, from 00:00 to 23:59: "every day at 09:00".',
        )
    return time(int(found[1]), int(found[2]))


def _days(shown: str, days: str | None, named: str | None) -> frozenset[int]:
    if named is None:
        return frozenset(range(5 if days is not None and days.lower() == "weekday" else 7))
    found: list[int] = []
    for name in (each.strip() for each in named.lower().split(",")):
        number = next((n for n, day in enumerate(DAYS) if name in (day, day[:3])), None)
        if number is None:
            near = difflib.get_close_matches(name, DAYS, n=1) or ["monday"]
            raise InvalidSchedule(
                shown,
                f"{name!r} is no day of the week",
                f'Write days such as "{near[0]}", with commas between them.',
            )
        if number in found:
            raise InvalidSchedule(shown, f"{name!r} names a day twice", "Write each day once.")
        found.append(number)
    return frozenset(found)


# --- cron, and what can't be read -----------------------------------------------------------------


def _cron(shown: str, text: str) -> CronTimes:
    expression = NICKNAMES.get(text.lower(), text.upper())
    fields = len(expression.split())
    if expression.startswith("@"):
        raise InvalidSchedule(shown, f"{text!r} is no known name", f"Write one of {', '.join(NICKNAMES)}.")
    if fields != 5:
        raise InvalidSchedule(
            shown,
            f"it has {fields} fields, and cron has five: minute, hour, day of the month, month, day of the week",
            'Write "0 9 * * 1-5"; for less than a minute, use an interval of seconds.',
        )
    try:
        return CronTimes.read(expression)
    except CronSimError as error:
        problem = str(error)
    raise InvalidSchedule(
        shown,
        f"it is no cron expression that ever fits ({problem[:1].lower()}{problem[1:]})",
        'Write minute, hour, day of the month, month and day of the week: "0 9 * * 1-5".',
    )


def _unreadable(shown: str, lower: str) -> InvalidSchedule:
    if not lower:
        return InvalidSchedule(shown, "it is empty", f"Write {FORMS}.")
    if re.fullmatch(r"[0-9]+ (minutes?|hours?)", lower):
        return InvalidSchedule(shown, "it does not say that it comes again", f'Write "every {lower}".')
    if re.fullmatch(r"every (day|weekday|week on \S+)", lower):
        return InvalidSchedule(shown, "it lacks the time of day", f'Write "{lower} at 09:00".')
    if re.fullmatch(r"every ([0-9]+ )?(seconds?|days?|weeks?|months?|years?)( .*)?", lower):
        return InvalidSchedule(
            shown,
            "words know intervals of minutes and hours only",
            f"Write {FORMS}; or pass seconds or a timedelta.",
        )
    return InvalidSchedule(shown, "it can't be read", f"Write {FORMS}.")
