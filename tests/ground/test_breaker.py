"""The circuit breaker that the publisher, the live log's writer and its readers share."""

from datetime import timedelta

from think_celery.breaker import Breaker
from think_celery.testing import FakeClock


def later(clock: FakeClock, seconds: float) -> None:
    clock.advance(timedelta(seconds=seconds))


def test_it_rests_after_failures_in_a_row() -> None:
    """The second of two failures in a row begins the rest; a success between them makes the first forgotten."""
    clock = FakeClock()
    breaker = Breaker(clock, rest_seconds=5, failures=2)

    assert (breaker.failed(), breaker.succeeded(), breaker.failed()) == (False, False, False)
    assert not breaker.rests()
    assert breaker.failed()
    assert breaker.rests()


def test_the_rest_ends() -> None:
    """After its time the next try is made; what fails then counts from the beginning."""
    clock = FakeClock()
    breaker = Breaker(clock, rest_seconds=5, failures=2)
    breaker.failed()
    breaker.failed()

    later(clock, 4.9)
    still = breaker.rests()
    later(clock, 0.2)

    assert (still, breaker.rests()) == (True, False)
    assert (breaker.failed(), breaker.rests()) == (False, False)
    assert (breaker.failed(), breaker.rests()) == (True, True)


def test_it_says_what_is_news() -> None:
    """An outage is told once, however often it rests meanwhile, and so is its end."""
    clock = FakeClock()
    breaker = Breaker(clock, rest_seconds=1)
    seen = []
    for _ in range(3):
        seen.append(breaker.broken)
        breaker.failed()
        later(clock, 1.5)

    assert seen == [False, True, True]
    assert (breaker.succeeded(), breaker.succeeded()) == (True, False)
