"""Schedules as people write them: all forms, all errors, and the instants they name on ordinary days."""

import pickle
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from think_celery.errors import InvalidDuration, InvalidSchedule, InvalidValue
from think_celery.recurrence import parse


def at(text: str) -> datetime:
    """An instant, written without its UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def following(rule, instant: str, number: int, anchor: str | None = None) -> list[str]:
    """The next instants of a rule."""
    found, last = [], at(instant)
    for _ in range(number):
        last = rule.next_after(last, None if anchor is None else at(anchor))
        found.append(f"{last:%m-%d %H:%M}")
    return found


class TestForms:
    @pytest.mark.parametrize(
        ("schedule", "kind", "canonical"),
        [
            ("every minute", "interval", "interval:60000000"),
            ("every 1 minute", "interval", "interval:60000000"),
            ("every 15 minutes", "interval", "interval:900000000"),
            ("every hour", "interval", "interval:3600000000"),
            ("  Every   2 HOURS ", "interval", "interval:7200000000"),
            ("every 120 minutes", "interval", "interval:7200000000"),
            (90, "interval", "interval:90000000"),
            (1.5, "interval", "interval:1500000"),
            (timedelta(hours=2), "interval", "interval:7200000000"),
            ("every day at 09:00 in Europe/Paris", "wall", "wall:0123456:09:00:Europe/Paris"),
            ("every day at 09:00 in europe/paris", "wall", "wall:0123456:09:00:Europe/Paris"),
            ("every weekday at 23:59 in utc", "wall", "wall:01234:23:59:UTC"),
            ("every week on monday,friday at 00:00 in UTC", "wall", "wall:04:00:00:UTC"),
            ("Every week on Fri, mon  at 00:00 in UTC", "wall", "wall:04:00:00:UTC"),
            ("every week on sun at 07:30 in UTC", "wall", "wall:6:07:30:UTC"),
            ("0 9 * * 1-5", "cron", "cron:0 9 * * 1-5:UTC"),
            ("0  9 * * mon-fri in Asia/Kolkata", "cron", "cron:0 9 * * MON-FRI:Asia/Kolkata"),
            ("*/5 * * * *", "cron", "cron:*/5 * * * *:UTC"),
            ("@daily", "cron", "cron:0 0 * * *:UTC"),
            ("@Hourly", "cron", "cron:0 * * * *:UTC"),
        ],
    )
    def test_every_form_is_read(self, schedule, kind, canonical):
        """Words in any case and spacing, cron, nicknames and spans; one canonical text for all spellings of a rule."""
        rule = parse(schedule)

        assert (rule.kind, rule.canonical) == (kind, canonical)
        assert rule.text == str(schedule)

    def test_a_zone_comes_from_the_text_the_argument_or_the_default(self):
        """C4: inline, task, default, in this order; cron without any of them is in the app's zone, or in UTC."""
        daily, cron = "every day at 09:00", "0 9 * * *"

        assert parse(f"{daily} in Asia/Kolkata", default_timezone="UTC").timezone == "Asia/Kolkata"
        assert parse(daily, timezone="Asia/Kolkata", default_timezone="UTC").timezone == "Asia/Kolkata"
        assert parse(daily, timezone=ZoneInfo("Asia/Kolkata")).timezone == "Asia/Kolkata"
        assert parse(daily, timezone=UTC).timezone == "UTC"
        assert parse(f"{daily} in utc", timezone="UTC").timezone == "UTC"
        assert parse(daily, default_timezone="Asia/Kolkata", cron_timezone="UTC").timezone == "Asia/Kolkata"
        assert parse(cron, default_timezone="Asia/Kolkata", cron_timezone="UTC").timezone == "Asia/Kolkata"
        assert parse(cron, cron_timezone="Asia/Kolkata").timezone == "Asia/Kolkata"
        assert parse(cron).timezone == "UTC"

    def test_an_interval_has_no_zone_and_minds_no_default(self):
        """A class with a default zone may still declare intervals."""
        rule = parse("every 2 hours", default_timezone="Europe/Paris", cron_timezone="UTC")

        assert rule.timezone is None

    def test_equal_rules_are_equal(self):
        """A rule is a value."""
        assert parse("every hour") == parse("every hour")
        assert parse("0 9 * * *") == parse("0 9 * * *")
        assert parse("0 9 * * *") != parse("0 10 * * *")


class TestErrors:
    @pytest.mark.parametrize(
        ("schedule", "problem", "right"),
        [
            ("every 1 minutes", '"1 minutes" mixes one and many', '"every 1 minute"'),
            ("every 2 minute", '"2 minute" mixes one and many', '"every 2 minutes"'),
            ("every 1 hours", '"1 hours" mixes one and many', '"every 1 hour"'),
            ("every minutes", "does not say how many minutes", '"every 2 minutes"'),
            ("every 0 minutes", "'0' is no whole number above zero", '"every 2 minutes"'),
            ("every -3 hours", "'-3' is no whole number above zero", '"every 2 hours"'),
            ("every 1.5 hours", "'1.5' is no whole number above zero", '"every 2 hours"'),
            ("every ٣ hours", "'٣' is no whole number above zero", '"every 2 hours"'),
            ("every day at 25:00", "'25:00' is no time of day", '"every day at 09:00"'),
            ("every day at 9:00", "'9:00' is no time of day", '"every day at 09:00"'),
            ("every day at 09:60", "'09:60' is no time of day", '"every day at 09:00"'),
            ("every weekday at 9am", "'9am' is no time of day", '"every day at 09:00"'),
            ("every day at 09:00 sharp", "'09:00 sharp' is no time of day", '"every day at 09:00"'),
            ("every week on moonday at 09:00 in UTC", "'moonday' is no day of the week", '"monday"'),
            ("every week on monday, at 09:00 in UTC", "'' is no day of the week", '"monday"'),
            ("every week on monday,mon at 09:00 in UTC", "'mon' names a day twice", "each day once"),
            ("every day", "lacks the time of day", '"every day at 09:00"'),
            ("every week on monday", "lacks the time of day", '"every week on monday at 09:00"'),
            ("every day at 09:00", "needs a time zone", '"every day at 09:00 in Europe/Paris"'),
            ("every day at 09:00 in", "no time zone follows its `in`", "in Europe/Paris"),
            ("every day at 09:00 in Mars/Base", "there is no time zone 'Mars/Base'", '"Europe/Paris"'),
            ("every day at 09:00 in Europe/Pariss", "there is no time zone", "Did you mean 'Europe/Paris'?"),
            ("every day at 09:00 in ../etc/passwd", "there is no time zone", '"UTC"'),
            ("every 2 hours in UTC", "an interval has no time zone", "Leave the zone out"),
            ("10 minutes", "does not say that it comes again", '"every 10 minutes"'),
            ("every 30 seconds", "minutes and hours only", "pass seconds or a timedelta"),
            ("every 2 days", "minutes and hours only", '"every day at 09:00 in Europe/Paris"'),
            ("every 1 fortnight", "it can't be read", '"every 15 minutes"'),
            ("tomorrow", "it can't be read", '"every 15 minutes"'),
            ("", "it is empty", '"every 15 minutes"'),
            ("   ", "it is empty", '"every 15 minutes"'),
            ("0 9 * *", "it has 4 fields, and cron has five", '"0 9 * * 1-5"'),
            ("*/10 * * * * *", "it has 6 fields, and cron has five", "an interval of seconds"),
            ("61 9 * * *", "bad minute", '"0 9 * * 1-5"'),
            ("0 24 * * *", "bad hour", '"0 9 * * 1-5"'),
            ("0 9 * * 8", "bad day-of-week", '"0 9 * * 1-5"'),
            ("0 0 30 2 *", "bad day-of-month", '"0 9 * * 1-5"'),
            ("*/0 9 * * *", "bad minute", '"0 9 * * 1-5"'),
            ("@reboot", "'@reboot' is no known name", "@daily"),
            (0.5, "one second at least", '"every 15 minutes"'),
            (0, "one second at least", '"every 15 minutes"'),
        ],
    )
    def test_what_can_not_be_used_is_quoted_and_a_right_one_shown(self, schedule, problem, right):
        """C4: each error quotes the input, says the rule and shows a form that works. They survive pickle."""
        with pytest.raises(InvalidSchedule) as refused:
            parse(schedule)

        text = str(refused.value)
        assert text.startswith(f"schedule={schedule!r}: ")
        assert problem in text
        assert right in text
        assert str(pickle.loads(pickle.dumps(refused.value))) == text

    def test_two_zones_are_one_too_many(self):
        """C4: the zone in the text and the task's must be the same one."""
        with pytest.raises(InvalidSchedule, match="'UTC' is another than timezone='Europe/London'"):
            parse("every day at 09:00 in utc", timezone="Europe/London")

    @pytest.mark.parametrize("schedule", ["every 2 hours", 30, timedelta(minutes=1)])
    def test_a_zone_for_an_interval_is_refused(self, schedule):
        """C4: it would mean nothing, and who wrote it expected something."""
        with pytest.raises(
            InvalidSchedule, match="an interval has no time zone, and timezone='UTC' was given"
        ):
            parse(schedule, timezone="UTC")

    @pytest.mark.parametrize(
        "zone", ["Mars/Base", "", "localtime", "posix/UTC", timezone(timedelta(hours=1)), 7]
    )
    def test_an_unknown_zone_fails_when_it_is_declared(self, zone):
        """FR-24: zone 'Mars/Base' is an error at once, and a bare offset, which knows no changes, is no zone."""
        for name in ("timezone", "default_timezone"):
            with pytest.raises(InvalidSchedule, match="there is no time zone"):
                parse("every day at 09:00", **{name: zone})

    @pytest.mark.parametrize(
        "schedule", [-5, True, None, "every 99999999999 hours", f"every 1{'0' * 300} hours", b"x"]
    )
    def test_a_span_that_is_none(self, schedule):
        """Negative, endless and foreign values are refused as everywhere."""
        with pytest.raises(InvalidDuration):
            parse(schedule)

    def test_all_errors_are_values_that_can_not_be_used(self):
        """Who catches ``InvalidValue`` or ``ValueError`` catches them."""
        assert issubclass(InvalidSchedule, InvalidValue)
        assert issubclass(InvalidSchedule, ValueError)


class TestIntervals:
    def test_from_now(self):
        """The first instant is one span from now, not aligned to anything."""
        assert parse("every 15 minutes").next_after(at("2027-01-01T08:07:30")) == at("2027-01-01T08:22:30")

    def test_a_late_one_keeps_its_phase(self):
        """`every 1 hour`, anchored at 08:00, asked at 10:30: 11:00. Exactly at an instant, it is the next."""
        hourly = parse("every 1 hour")

        assert hourly.next_after(at("2027-01-01T10:30"), at("2027-01-01T08:00")) == at("2027-01-01T11:00")
        assert hourly.next_after(at("2027-01-01T11:00"), at("2027-01-01T08:00")) == at("2027-01-01T12:00")

    def test_before_its_anchor_the_first_one_is_a_span_after_it(self):
        """A clock that was set back makes no instant before the first."""
        hourly = parse("every hour")

        assert hourly.next_after(at("2027-01-01T05:30"), at("2027-01-01T08:00")) == at("2027-01-01T09:00")

    def test_the_latest_of_those_that_were_missed(self):
        """Of all in (after, until], the last; at its very instant it counts; the anchor itself never does."""
        hourly, anchor = parse("every hour"), at("2027-01-01T08:00")

        def latest(after: str, until: str) -> datetime | None:
            return hourly.latest_until(at(f"2027-01-01T{after}"), at(f"2027-01-01T{until}"), anchor)

        assert latest("08:00", "13:20") == at("2027-01-01T13:00")
        assert latest("12:00", "13:00") == at("2027-01-01T13:00")
        assert latest("13:00", "13:59") is None
        assert latest("07:00", "08:30") is None
        assert latest("07:00", "07:30") is None

    def test_microseconds_do_not_add_up(self):
        """A million instants later it is still exact."""
        rule, anchor = parse(1.1), at("2027-01-01")

        assert rule.next_after(anchor + timedelta(seconds=1_100_000), anchor) == anchor + timedelta(
            seconds=1_100_001.1
        )


class TestTimesOfTheDay:
    def test_every_day(self):
        """Exactly at its time it is the next day; a moment before, it is today."""
        daily = parse("every day at 09:00 in Asia/Kolkata")  # 03:30 in UTC

        assert following(daily, "2027-01-01T03:29:59", 2) == ["01-01 03:30", "01-02 03:30"]
        assert following(daily, "2027-01-01T03:30", 1) == ["01-02 03:30"]

    def test_every_weekday(self):
        """Monday to Friday, by the date of the zone: 2027-01-01 is a Friday."""
        assert following(parse("every weekday at 08:00 in Asia/Kolkata"), "2026-12-31T12:00", 3) == [
            "01-01 02:30",
            "01-04 02:30",
            "01-05 02:30",
        ]

    def test_every_week_on_some_days(self):
        """The days count where the zone is: Monday 00:30 in Kolkata is Sunday 19:00 in UTC."""
        rule = parse("every week on monday,friday at 00:30 in Asia/Kolkata")

        assert following(rule, "2027-01-01T00:00", 3) == ["01-03 19:00", "01-07 19:00", "01-10 19:00"]

    def test_the_latest_until(self):
        """Of all that were missed the last one; none where there was none; its own instant counts."""
        daily = parse("every day at 09:00 in UTC")

        assert daily.latest_until(at("2026-06-01"), at("2027-01-05T08:00")) == at("2027-01-04T09:00")
        assert daily.latest_until(at("2027-01-03"), at("2027-01-04T09:00")) == at("2027-01-04T09:00")
        assert daily.latest_until(at("2027-01-04T09:00"), at("2027-01-05T08:59:59.9")) is None

    def test_an_instant_may_be_in_any_zone_but_must_have_one(self):
        """A naive datetime names no instant."""
        daily = parse("every day at 09:00 in UTC")

        assert daily.next_after(datetime(2027, 1, 1, 14, tzinfo=ZoneInfo("Asia/Tokyo"))) == at(
            "2027-01-01T09:00"
        )
        with pytest.raises(ValueError, match="has no time zone"):
            daily.next_after(datetime(2027, 1, 1))
        with pytest.raises(ValueError, match="has no time zone"):
            daily.latest_until(at("2027-01-01"), datetime(2027, 1, 2))


class TestCron:
    @pytest.mark.parametrize(
        ("expression", "after", "expected"),
        [
            ("*/20 * * * *", "2027-01-01T00:00", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
            ("0 9 * * 1-5", "2027-01-01T10:00", ["01-04 09:00", "01-05 09:00", "01-06 09:00"]),
            ("0 0 1 * *", "2027-01-17T00:00", ["02-01 00:00", "03-01 00:00", "04-01 00:00"]),
            ("0 0 L * *", "2027-02-01T00:00", ["02-28 00:00", "03-31 00:00", "04-30 00:00"]),
            ("30 6 * * MON#1", "2027-01-01T00:00", ["01-04 06:30", "02-01 06:30", "03-01 06:30"]),
            ("0 0 1,15 * WED", "2027-01-01T00:00", ["01-06 00:00", "01-13 00:00", "01-15 00:00"]),
            ("0 12 29 2 *", "2027-01-01T00:00", ["02-29 12:00", "02-29 12:00", "02-29 12:00"]),
            ("@weekly", "2027-01-01T00:00", ["01-03 00:00", "01-10 00:00", "01-17 00:00"]),
            ("@yearly", "2027-01-01T00:00", ["01-01 00:00", "01-01 00:00", "01-01 00:00"]),
        ],
    )
    def test_times_in_utc(self, expression, after, expected):
        """Five fields, names, lists, steps, `L`, `#`; a day of the month or one of the week where both are named."""
        assert following(parse(expression), after, 3) == expected

    def test_in_a_zone(self):
        """FR-24: the 1st at 05:00 in Paris is 04:00 in UTC in winter, 03:00 in summer."""
        monthly = parse("0 5 1 * *", timezone="Europe/Paris")

        assert following(monthly, "2027-02-17T00:00", 3) == ["03-01 04:00", "04-01 03:00", "05-01 03:00"]

    def test_the_latest_until(self):
        """The last of those that were missed, however many they were; none where there was none."""
        rule = parse("*/5 * * * *")

        assert rule.latest_until(at("2020-01-01"), at("2027-01-01T10:04:59.9")) == at("2027-01-01T10:00")
        assert rule.latest_until(at("2020-01-01"), at("2027-01-01T10:05")) == at("2027-01-01T10:05")
        assert rule.latest_until(at("2027-01-01T10:05"), at("2027-01-01T10:09")) is None
        assert parse("0 9 * * 1-5").latest_until(at("2026-12-30"), at("2027-01-04T08:00")) == at(
            "2027-01-01T09:00"
        )

    def test_a_moment_before_is_before(self):
        """Parts of a second count: a microsecond before its time, that time is the next."""
        rule = parse("0 9 * * *")

        assert rule.next_after(at("2027-01-01T08:59:59.999999")) == at("2027-01-01T09:00")
        assert rule.next_after(at("2027-01-01T09:00:00.000001")) == at("2027-01-02T09:00")
