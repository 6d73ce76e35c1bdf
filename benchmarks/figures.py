"""Figures, their budgets, and how two things are measured so that they can be compared."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done. A floor's loop and ours are run *rounds* times in turn, after a round that is not counted."""

    name: str
    rounds: int

    def pick(self, tiny: int, quick: int, full: int) -> int:
        """The number for this size."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.name]


SIZES = {
    "tiny": Size(name="tiny", rounds=1),
    "quick": Size(name="quick", rounds=3),
    "full": Size(name="full", rounds=5),
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a figure must keep: its ratio to the floor, or the figure itself, at least or at most this."""

    limit: float
    of_ratio: bool
    at_least: bool
    unit: str = ""

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g} ×" if self.of_ratio else f"{sign} {self.limit:g} {self.unit}".strip()

    def met_by(self, row: "Row") -> bool | None:
        """Whether the row keeps it; ``None`` where it can't be told."""
        value = row.ratio if self.of_ratio else row.median
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


def ratio_at_least(limit: float) -> Budget:
    """For rates."""
    return Budget(limit=limit, of_ratio=True, at_least=True)


def ratio_at_most(limit: float) -> Budget:
    """For times."""
    return Budget(limit=limit, of_ratio=True, at_least=False)


def at_most(limit: float, unit: str) -> Budget:
    """For a figure that has a limit of its own."""
    return Budget(limit=limit, of_ratio=False, at_least=False, unit=unit)


def at_least(limit: float, unit: str) -> Budget:
    """For a figure that has a limit of its own."""
    return Budget(limit=limit, of_ratio=False, at_least=True, unit=unit)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. ``ours`` and ``floor`` hold one figure for each round."""

    what: str
    unit: str
    ours: Sequence[float]
    floor: Sequence[float] = ()
    floor_name: str = ""
    budget: Budget | None = None
    measurement: str = ""

    @property
    def median(self) -> float:
        """Our figure."""
        return statistics.median(self.ours)

    @property
    def floor_median(self) -> float | None:
        """The floor's figure."""
        return statistics.median(self.floor) if self.floor else None

    @property
    def ratio(self) -> float | None:
        """Ours to the floor's: of the medians."""
        floor = self.floor_median
        return self.median / floor if floor else None

    @property
    def ratio_spread(self) -> tuple[float, float] | None:
        """The lowest and the highest ratio of one round."""
        if len(self.ours) != len(self.floor) or len(self.ours) < 2:
            return None
        ratios = [ours / floor for ours, floor in zip(self.ours, self.floor, strict=True)]
        return min(ratios), max(ratios)

    @property
    def met(self) -> bool | None:
        """Whether the budget is kept; ``None`` without one."""
        return None if self.budget is None else self.budget.met_by(self)


def in_turn(size: Size, *measures: Callable[[int], float]) -> list[list[float]]:
    """Take the measures one after another, over and over: a machine that slows down slows all of them.

    Each is called with the number of the round; round 0 warms up and is not counted (and at the tiny size not made).
    """
    taken: list[list[float]] = [[] for _ in measures]
    for number in _rounds(size):
        for figures, measure in zip(taken, measures, strict=True):
            figure = measure(number)
            if number:
                figures.append(figure)
    return taken


Samples = list[list[float]]
"""What one thing took each time, in each round."""


def sampled(size: Size, each: int, *measures: Callable[[str], float]) -> list[Samples]:
    """Take single measures one after another, *each* times in a round; the first round is not counted.

    Each is called with a name that no other call gets.
    """
    taken: list[Samples] = [[] for _ in measures]
    for number in _rounds(size):
        samples = [
            [measure(f"{at}-{number}-{n}") for at, measure in enumerate(measures)] for n in range(each)
        ]
        if number:
            for rounds, mine in zip(taken, zip(*samples, strict=True), strict=True):
                rounds.append(list(mine))
    return taken


def p50(samples: Samples) -> list[float]:
    """Of each round."""
    return [percentile(part, 50) for part in samples]


def p99(samples: Samples) -> list[float]:
    """Of all rounds together: one is too short for it."""
    return [percentile([sample for part in samples for sample in part], 99)]


def _rounds(size: Size) -> range:
    return range(1 if size.name == "tiny" else 0, size.rounds + 1)


def per_second(count: int, work: Callable[[], object]) -> float:
    """How many a second: *work* does *count* of them."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which that many percent lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def check(true: bool, what: str) -> None:
    """Refuse a figure of work that did not happen."""
    if not true:
        raise RuntimeError(f"The work was not done as it should: {what}")


def until(true: Callable[[], object], seconds: float, what: str, *, every: float = 0.01) -> float:
    """Wait until *true*, and return the time then (by ``time.perf_counter``)."""
    give_up_at = time.perf_counter() + seconds
    while not true():
        if time.perf_counter() > give_up_at:
            raise RuntimeError(f"not within {seconds:g} s: {what}")
        time.sleep(every)
    return time.perf_counter()
