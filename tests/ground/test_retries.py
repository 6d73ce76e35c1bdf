"""When to try again."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from think_celery.errors import InvalidDuration, InvalidValue
from think_celery.retries import Retry, doubled, jittered, knock_again_after, parse_retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class TestRetry:
    @pytest.mark.parametrize(
        ("retry", "seconds"),
        [
            (Retry(), [0, 10, 20, 40, 80, 160, 300, 300]),
            (Retry(backoff="linear", delay="1 minute"), [0, 60, 120, 180, 240, 300, 300]),
            (Retry(backoff="constant", delay=timedelta(seconds=7)), [0, 7, 7, 7]),
            (Retry(delay=0, max_delay=0), [0, 0, 0]),
            (Retry(delay=0.5, max_delay="PT1S"), [0, 0.5, 1, 1]),
        ],
    )
    def test_the_delay_before_each_attempt(self, retry, seconds):
        """None before the first; then the first delay doubled, added or kept, up to the longest."""
        delays = [retry.delay_before(attempt) for attempt in range(1, len(seconds) + 1)]

        assert delays == [timedelta(seconds=each) for each in seconds]

    def test_a_very_late_attempt_has_the_longest_delay(self):
        """No number of attempts makes the arithmetic overflow."""
        retry = Retry(max_attempts=10**6, max_delay="1 week")

        assert retry.delay_before(10**6) == timedelta(weeks=1)
        assert Retry(delay=0, max_delay=0).delay_before(10**6) == timedelta(0)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"max_attempts": 0}, "max_attempts=0.*1 or more"),
            ({"max_attempts": True}, "max_attempts=True"),
            ({"max_attempts": 2.0}, "max_attempts=2.0"),
            ({"max_attempts": "3"}, "max_attempts='3'"),
            ({"backoff": "random"}, "backoff='random'.*exponential"),
            ({"delay": 600}, "delay=600, max_delay=300.*max_delay=600"),
        ],
    )
    def test_unfit_values_are_refused_when_it_is_made(self, options, problem):
        """A mistake shows where it is written, not at the first failure in production."""
        with pytest.raises(InvalidValue, match=problem):
            Retry(**options)

    @pytest.mark.parametrize("options", [{"delay": "later"}, {"delay": -1}, {"max_delay": float("nan")}])
    def test_unfit_delays_are_refused(self, options):
        """A delay is a span of time."""
        with pytest.raises(InvalidDuration, match=next(iter(options))):
            Retry(**options)


def test_jitter_adds_up_to_a_quarter_and_never_takes_away():
    """FR-82: a server that asked for two seconds is not asked before."""
    rng = random.Random(1)

    delays = [jittered(2, rng) for _ in range(1000)]

    assert min(delays) >= 2
    assert 2.4 < max(delays) <= 2.5
    assert len(set(delays)) > 900


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("3600", 3600.0),
        ("Sun, 01 Mar 2026 12:00:03 GMT", 3.0),
        ("Sunday, 01-Mar-26 12:00:03 GMT", 3.0),
        ("Sun Mar  1 12:00:03 2026", 3.0),
        ("Sun, 01 Mar 2026 13:00:03 +0100", 3.0),
        ("Sun, 01 Mar 2026 12:00:03 -0000", 3.0),
        ("Sun, 01 Mar 2026 11:59:59 GMT", None),
        ("Sun, 01 Mar 2026 12:00:00 GMT", None),
        ("abc", None),
        ("", None),
        (None, None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("9" * 400, None),
        ("²", None),
        ("Sun, 99 Mar 2026 12:00:03 GMT", None),
        ("Sun, 01 Mar 99999 12:00:03 GMT", None),
        ("Sun, 01 Mar 2026 12:00:03 +9999", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(header, seconds):
    """FR-82: seconds and HTTP dates are honoured; a past date and garbage mean the normal backoff."""
    assert parse_retry_after(header, NOW) == seconds


@pytest.mark.parametrize(
    ("times", "seconds"), [(0, 2), (1, 4), (7, 256), (8, 300), (60, 300), (61, 300), (10**9, 300)]
)
def test_a_distance_doubles_up_to_the_longest(times, seconds):
    """What is tried for ever is tried at growing distances; no number of times is too large."""
    assert doubled(timedelta(seconds=2), times, timedelta(minutes=5)) == timedelta(seconds=seconds)
    assert knock_again_after(times) == timedelta(seconds=seconds)
    assert knock_again_after(times, watched=False) == timedelta(seconds=min(seconds, 60))
