"""Rules of the calendar against a clock on the wall that is read minute by minute, in zones and on nights at random."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from think_celery.recurrence import Recurrence, parse

SEEDS = range(int(os.environ.get("WALKS", "12")))
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
WALK = 3 * DAY
NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True)
class Spelled:
    """A rule, with the times that it names written out, so that nothing of the package is needed to know them."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] = frozenset(range(7))
    repeats: bool = False

    def names(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and local.weekday() in self.days


def any_field(rng: random.Random, top: int) -> tuple[str, frozenset[int]]:
    kind = rng.choice(["one", "one", "some", "range", "step", "all", "steps of a range"])
    low, high = sorted(rng.sample(range(top), 2))
    step = rng.choice([2, 3, 5, 10, 15])
    if kind == "one":
        return str(low), frozenset([low])
    if kind == "some":
        return f"{low},{high}", frozenset([low, high])
    if kind == "range":
        return f"{low}-{high}", frozenset(range(low, high + 1))
    if kind == "step":
        return f"*/{step}", frozenset(range(0, top, step))
    if kind == "all":
        return "*", frozenset(range(top))
    return f"{low}-{high}/{step}", frozenset(range(low, high + 1, step))


def any_rule(rng: random.Random) -> Spelled:
    """Words or cron, mostly at night, when clocks change."""
    if rng.random() < 0.4:
        minute, hour = rng.randrange(60), rng.choice([0, 1, 2, 3, 23, rng.randrange(24)])
        days = sorted(rng.sample(range(7), rng.randrange(1, 7)))
        at = f"at {hour:02}:{minute:02}"
        words, on = rng.choice(
            [
                ("every day", range(7)),
                ("every weekday", range(5)),
                (f"every week on {','.join(NAMES[day] for day in days)}", days),
            ]
        )
        return Spelled(f"{words} {at}", frozenset([minute]), frozenset([hour]), frozenset(on))
    minute_text, minutes = any_field(rng, 60)
    hour_text, hours = any_field(rng, 24)
    days = sorted(rng.sample(range(7), 3)) if rng.random() < 0.3 else list(range(7))
    week = "*" if len(days) == 7 else ",".join(NAMES[day] for day in days)
    repeats = minute_text.startswith("*") or hour_text.startswith("*") or len(hours) == 24
    return Spelled(f"{minute_text} {hour_text} * * {week}", minutes, hours, frozenset(days), repeats)


def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """The hours of a year after which a zone's clocks have been changed."""
    hours = [datetime(year, 1, 1, tzinfo=UTC) + n * HOUR for n in range(365 * 24)]
    offsets = [each.astimezone(zone).utcoffset() for each in hours]
    return [hours[n] for n in range(1, len(hours)) if offsets[n] != offsets[n - 1]]


def read_the_clock(rule: Spelled, zone: ZoneInfo, begin: datetime) -> Iterator[datetime]:
    """Every instant at which the rule is due, found by looking at the clock each minute."""
    shown = (begin - MINUTE).astimezone(zone).replace(tzinfo=None)
    for number in range(WALK // MINUTE):
        now = begin + number * MINUTE
        there = now.astimezone(zone)
        local = there.replace(tzinfo=None, fold=0)
        missing = []
        while shown + MINUTE < local:  # the clock has jumped
            shown += MINUTE
            missing.append(shown)
        shown = local
        first = rule.names(local) and (rule.repeats or not there.fold)
        instead = len(rule.hours) < 24 and any(rule.names(each) for each in missing)
        if first or instead:
            yield now


def slots(rule: Recurrence, begin: datetime) -> Iterator[datetime]:
    last = begin - timedelta(microseconds=1)
    while (last := rule.next_after(last)) < begin + WALK:
        yield last


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rule_names_what_the_clock_shows(seed):
    """C4, FR-17: forwards and backwards, before, in and after a change of clocks, rule and clock agree."""
    rng = random.Random(seed)
    while True:
        name, year = rng.choice(sorted(available_timezones() - {"localtime"})), rng.randrange(1975, 2036)
        found = changes(ZoneInfo(name), year)
        if found:
            break
    zone = ZoneInfo(name)
    for _ in range(3):
        begin = rng.choice(found) - rng.randrange(0, 60 * 36) * MINUTE
        spelled = any_rule(rng)
        rule = parse(spelled.text, timezone=name)
        right = list(read_the_clock(spelled, zone, begin))

        assert list(slots(rule, begin)) == right, (name, spelled.text, begin)
        for _ in range(20):
            after = begin + rng.randrange(WALK // MINUTE * 60) * timedelta(seconds=1)
            until = after + rng.randrange(1, 3000) * timedelta(seconds=60)
            if until < begin + WALK:
                last = max((slot for slot in right if after < slot <= until), default=None)
                assert rule.latest_until(after, until) == last, (name, spelled.text, after, until)
                following = next((slot for slot in right if slot > after), None)
                if following is not None:
                    assert rule.next_after(after) == following, (name, spelled.text, after)
