"""What a schedule is once it was read: an interval, a time on the wall, or a cron expression."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal

from think_celery.clock import to_microseconds
from think_celery.recurrence.calendars import Calendar, CronTimes, DaysAt, first_after, last_until
from think_celery.recurrence.zones import zone

Kind = Literal["interval", "wall", "cron"]


@dataclass(frozen=True, kw_only=True)
class Recurrence(ABC):
    """A rule that names instants without an end.

    ``text`` is what was written, ``timezone`` the zone that its times are of: ``None`` for an interval, which needs
    none.
    """

    kind: ClassVar[Kind]
    text: str
    timezone: str | None = None

    @property
    @abstractmethod
    def canonical(self) -> str:
        """The same text for all spellings of one rule, and another for each other rule."""

    @abstractmethod
    def next_after(self, instant: datetime, anchor: datetime | None = None) -> datetime:
        """The first instant of the rule after that one, in UTC.

        Args:
            instant: An aware datetime.
            anchor: What an interval counts from; by default *instant*. Other rules don't ask.
        """

    @abstractmethod
    def latest_until(
        self, after: datetime, until: datetime, anchor: datetime | None = None
    ) -> datetime | None:
        """The last instant of the rule later than *after* and no later than *until*; ``None`` if there is none."""


@dataclass(frozen=True, kw_only=True)
class Interval(Recurrence):
    """Again and again after a span of time. The first instant is one span after the anchor."""

    kind = "interval"
    every: timedelta

    @property
    def canonical(self) -> str:
        """``interval:`` and the microseconds."""
        return f"interval:{self.every // timedelta(microseconds=1)}"

    def next_after(self, instant: datetime, anchor: datetime | None = None) -> datetime:
        """The first instant after that one: so many spans after the anchor."""
        begin = _utc(instant if anchor is None else anchor)
        return begin + max(1, (_utc(instant) - begin) // self.every + 1) * self.every

    def latest_until(
        self, after: datetime, until: datetime, anchor: datetime | None = None
    ) -> datetime | None:
        """The last instant in (after, until]; ``None`` if there is none."""
        begin = _utc(after if anchor is None else anchor)
        spans = (_utc(until) - begin) // self.every
        found = begin + spans * self.every
        return found if spans > 0 and found > _utc(after) else None


@dataclass(frozen=True, kw_only=True)
class _OfTheCalendar(Recurrence):
    timezone: str
    times: Calendar

    def next_after(self, instant: datetime, anchor: datetime | None = None) -> datetime:
        """The first instant after that one."""
        return first_after(self.times, zone(self.timezone), _utc(instant))

    def latest_until(
        self, after: datetime, until: datetime, anchor: datetime | None = None
    ) -> datetime | None:
        """The last instant in (after, until]; ``None`` if there is none."""
        return last_until(self.times, zone(self.timezone), _utc(after), _utc(until))


@dataclass(frozen=True, kw_only=True)
class Wall(_OfTheCalendar):
    """A time of the day, on certain days of the week."""

    kind = "wall"
    times: DaysAt

    @property
    def canonical(self) -> str:
        """``wall:``, the days (Monday is 0), the time and the zone."""
        days = "".join(map(str, sorted(self.times.days)))
        return f"wall:{days}:{self.times.at:%H:%M}:{self.timezone}"


@dataclass(frozen=True, kw_only=True)
class Cron(_OfTheCalendar):
    """A cron expression of five fields."""

    kind = "cron"
    times: CronTimes

    @property
    def canonical(self) -> str:
        """``cron:``, the fields and the zone."""
        return f"cron:{self.times.expression}:{self.timezone}"


def _utc(instant: datetime) -> datetime:
    to_microseconds(instant)  # refuses what has no zone, and so names no instant
    return instant.astimezone(UTC)
