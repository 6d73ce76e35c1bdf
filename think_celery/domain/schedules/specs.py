"""What callers write for the time of a schedule, and the rule that it means."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from think_celery.clock import can_be_told
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import InvalidDuration, InvalidSchedule, InvalidValue
from think_celery.recurrence import LONGEST_TEXT, SHORTEST, Recurrence, Timezone, parse
from think_celery.wording import shown

When = datetime | timedelta | float | int | str

_UNITS = {"second", "sec", "minute", "min", "hour", "hr", "day", "week", "month", "year", "and"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """When a call is due: once, at an instant or after a delay, or again and again by a rule."""

    kind: str
    at: datetime | None = None
    delay: timedelta | None = None
    recurrence: Recurrence | None = None
    spec: str | float | None = None

    @property
    def key(self) -> str:
        """What two calls have in common that mean the same time, whatever the zone."""
        if self.recurrence is not None:
            return self.recurrence.canonical.removesuffix(f":{self.recurrence.timezone}")
        return str(self.delay) if self.at is None else self.at.astimezone(UTC).isoformat()


def read_when(
    when: When,
    timezone: Timezone | None = None,
    *,
    default_timezone: Timezone | None = None,
    cron_timezone: Timezone | None = None,
) -> Rule:
    """The rule that *when* means. The zones are those of ``recurrence.parse``.

    Raises:
        InvalidSchedule: It recurs, and can't be read or lacks its zone; or it is a text of more than 1,000 characters.
        InvalidValue: It means none; the error shows what can be written.
    """
    if isinstance(when, str) and (len(when) > LONGEST_TEXT or _recurs(when)):
        zones = {"default_timezone": default_timezone, "cron_timezone": cron_timezone}
        return _recurring(parse(when, timezone=timezone, **zones), when)
    if timezone is not None:
        raise InvalidValue(
            f"timezone={shown(timezone)}: only a cron text or schedule words have a time zone, and "
            f"when={shown(when)} names an instant or a delay. Leave timezone out."
        )
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidValue(
                f"when={when!r} has no time zone, so it names no instant. Pass an aware datetime, such as "
                "datetime.now(timezone.utc) + timedelta(hours=1)."
            )
        if not can_be_told(when):
            raise InvalidValue(
                f"when={when!r}: in UTC it is before the year 1 or after the year 9999; dates end with these."
            )
        return Rule(kind="scheduled", at=when)
    try:
        return Rule(kind="delayed", delay=as_timedelta(when, "when"))
    except InvalidDuration as error:
        raise InvalidValue(
            f'{error} Or pass an aware datetime, a cron text such as "0 9 * * mon-fri", or schedule words such as '
            '"every day at 09:00 in Europe/Paris".'
        ) from None


def _recurs(text: str) -> bool:
    """Whether a text is schedule words or a cron text; else it is a delay, or nothing."""
    fields = text.lower().split()
    if not fields or fields[0] == "every" or fields[0].startswith("@"):
        return bool(fields)
    return len(fields) >= 5 and not any(field.rstrip("s") in _UNITS for field in fields)


def _recurring(rule: Recurrence, spec: str | float) -> Rule:
    return Rule(kind=rule.kind, recurrence=rule, spec=spec)


def every(interval: Duration) -> Rule:
    """The rule of a call that comes again after each *interval*.

    Raises:
        InvalidSchedule, InvalidDuration: It is no span of time, or shorter than a second.
    """
    span = as_timedelta(interval, "interval")
    if span < SHORTEST:
        raise InvalidSchedule(
            f"interval={interval!r}",
            "it is one second at least",
            'Pass seconds, a timedelta, or words such as "10 minutes".',
        )
    seconds = span.total_seconds()
    return _recurring(parse(seconds), seconds)
