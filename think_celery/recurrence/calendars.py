"""Rules of the calendar: from the times that a clock on the wall shows to instants.

A rule names times of a calendar without zones. On two nights a year a zone's clock shows some times twice, or never:

* a time that it shows twice counts once, at the first, unless the rule *repeats*: rules such as every ten minutes, or
  at half past every hour, go on through the repeated hour;
* a time that it never shows counts at the first instant after the gap, unless the rule names *every hour*: then the
  next one comes soon enough by itself. Several such times of one gap are one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Protocol, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from think_celery.recurrence import zones

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)


class Calendar(Protocol):
    """The times that a rule names, without a zone."""

    @property
    def repeats(self) -> bool:
        """Whether a time that the clock shows twice counts twice."""

    @property
    def every_hour(self) -> bool:
        """Whether times that the clock never shows are passed over."""

    def following(self, local: datetime) -> Iterator[datetime]:
        """The times after that one, in order."""

    def preceding(self, local: datetime) -> Iterator[datetime]:
        """The times until that one, itself among them, the latest first."""


@dataclass(frozen=True, slots=True)
class DaysAt:
    """A time on certain days of the week; Monday is 0."""

    at: time
    days: frozenset[int]
    repeats: bool = False
    every_hour: bool = False

    def following(self, local: datetime) -> Iterator[datetime]:
        """The times after that one, in order."""
        return (found for found in self._walk(local, DAY) if found > local)

    def preceding(self, local: datetime) -> Iterator[datetime]:
        """The times until that one, itself among them, the latest first."""
        return (found for found in self._walk(local, -DAY) if found <= local)

    def _walk(self, local: datetime, step: timedelta) -> Iterator[datetime]:
        day = local.date()
        while True:
            if day.weekday() in self.days:
                yield datetime.combine(day, self.at)
            day += step


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The times of a cron expression of five fields.

    As in Debian's cron, a minute or an hour that begins with ``*`` makes a rule that repeats; here one that names all
    24 hours in another way does, too.
    """

    expression: str
    repeats: bool
    every_hour: bool

    @classmethod
    def read(cls, expression: str) -> Self:
        """Read five fields in capitals.

        Raises:
            CronSimError: They are wrong, or no time fits them.
        """
        read = CronSim(expression, datetime(2000, 1, 1))
        minute, hour = expression.split()[:2]
        every_hour = len(read.hours) == 24
        if next(read, None) is None:
            raise CronSimError("no day fits")
        repeats = every_hour or minute.startswith("*") or hour.startswith("*")
        return cls(expression=expression, repeats=repeats, every_hour=every_hour)

    def following(self, local: datetime) -> Iterator[datetime]:
        """The times after that one, in order."""
        return CronSim(self.expression, local)

    def preceding(self, local: datetime) -> Iterator[datetime]:
        """The times until that one, itself among them, the latest first."""
        return CronSim(self.expression, local.replace(microsecond=0) + SECOND, reverse=True)


def first_after(calendar: Calendar, zone: ZoneInfo, instant: datetime) -> datetime:
    """The first instant of a rule after that one.

    The times are looked at in the order of the clock. The first instant of each never goes back from one to the next,
    so the first that is late enough ends the search; what was seen twice before it may be earlier still.

    Raises:
        OverflowError: There is none that a date could hold, or none for 50 years.
    """
    best: datetime | None = None
    begin = zones.wall(instant, zone)
    if calendar.repeats:
        begin -= zones.set_back_soon(instant, zone)
    for local in calendar.following(begin):
        found = _instants(calendar, zone, local)
        late = [each for each in found if each > instant]
        if late and (best is None or late[0] < best):
            best = late[0]
        if found and found[0] > instant:
            break
    if best is None:
        raise OverflowError(f"no time of {calendar} comes after {instant}")
    return best


def last_until(calendar: Calendar, zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """The last instant of a rule in (after, until]; ``None`` if there is none."""
    best: datetime | None = None
    begin = zones.wall(until, zone) + zones.set_back_lately(until, zone)
    for local in calendar.preceding(begin):
        found = _instants(calendar, zone, local)
        early = [each for each in found if each <= until]
        if early and (best is None or early[-1] > best):
            best = early[-1]
        if found and found[-1] <= until:
            break
    return best if best is not None and best > after else None


def _instants(calendar: Calendar, zone: ZoneInfo, local: datetime) -> Sequence[datetime]:
    if zone.key == "UTC":
        return (local.replace(tzinfo=UTC),)
    found = zones.instants(local, zone)
    if found:
        return found if calendar.repeats else found[:1]
    return () if calendar.every_hour else (zones.end_of_gap(local, zone),)
