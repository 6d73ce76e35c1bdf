"""Spans of time: seconds, `timedelta`, words, ISO 8601."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from think_celery.durations import as_timedelta
from think_celery.errors import InvalidDuration
from think_celery.wording import shown


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0),
        (30, 30),
        (1.5, 1.5),
        (timedelta(minutes=2), 120),
        ("10 seconds", 10),
        ("3 days", 3 * 86400),
        (" 1 week ", 7 * 86400),
        ("1h30m", 5400),
        ("2 days, 3 hours", 183600),
        ("500ms", 0.5),
        ("45", 45),
        ("P3D", 3 * 86400),
        ("PT1H30M", 5400),
        ("p1dT2h", 93600),
    ],
)
def test_a_span_is_read_from_all_its_spellings(given, seconds):
    """Durations everywhere: seconds, `timedelta`, or words; ISO 8601 too."""
    assert as_timedelta(given) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "given",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        "-3 days",
        "-P3D",
        "P-3D",
        float("nan"),
        float("inf"),
        "99999999999999999999 days",
        "P99999999999999999999D",
        True,
        None,
        "",
        "  ",
        "soon",
        "3 fortnights of days",
        "P",
        "PX",
        b"3 days",
        [3],
    ],
)
def test_what_is_no_span_is_refused(given):
    """Negative, endless and unreadable spans, and a bool, which is surely a slip, are errors that show a right one."""
    with pytest.raises(InvalidDuration) as refused:
        as_timedelta(given, "timeout")

    assert f"timeout={given!r} is no span of time" in str(refused.value)
    assert '"3 days"' in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        1e300,
        10**400,
        timedelta.max,
        timedelta(days=999_999_999),
        timedelta(days=250 * 365, microseconds=1),
        "10000000 days",
        "251 years",
        "P999999999D",
    ],
)
def test_what_no_date_could_hold_is_refused(given):
    """A span that would overflow a date or a thread's wait later is refused at once; the error says the limit."""
    with pytest.raises(InvalidDuration) as refused:
        as_timedelta(given, "timeout")

    assert f"timeout={shown(given)} is too long a span of time: 250 years is the most" in str(refused.value)


def test_the_longest_span():
    """As long as that, a date and a wait can still be made of it."""
    longest = as_timedelta("250 years")

    assert datetime(2100, 1, 1, tzinfo=UTC) + longest
    assert longest.total_seconds() < threading.TIMEOUT_MAX


def test_a_negative_span_is_told_what_is_wrong():
    """-1 means "for ever" elsewhere; here it is refused, and the text says that it must not be negative."""
    with pytest.raises(InvalidDuration, match=r"timeout=-1 is no span of time.*never negative"):
        as_timedelta(-1, "timeout")
