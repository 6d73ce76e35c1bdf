"""When something comes again: schedules in words, as cron, or as a span; pure functions of instants.

:func:`parse` reads one, a :class:`Recurrence` computes. Instants are aware datetimes in UTC. How a rule of the calendar
meets the nights on which clocks change: :mod:`think_celery.recurrence.calendars`.
"""

from think_celery.recurrence.rules import Cron, Interval, Recurrence, Wall
from think_celery.recurrence.words import FORMS, LONGEST_TEXT, SHORTEST, ScheduleSpec, parse
from think_celery.recurrence.zones import Timezone, zone_name

__all__ = [
    "FORMS",
    "LONGEST_TEXT",
    "SHORTEST",
    "Cron",
    "Interval",
    "Recurrence",
    "ScheduleSpec",
    "Timezone",
    "Wall",
    "parse",
    "zone_name",
]
