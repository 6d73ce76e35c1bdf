"""The soak, short: see ``soak.py``; the long one is run by hand."""

from pathlib import Path

import pytest

from tests.crash.load import plan
from tests.crash.soak import Soak, sized

MINUTES = 0.3


@pytest.mark.services
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_whatever_dies(tmp_path: Path) -> None:
    """Workers, their children, Redis and the database's sessions are killed or frozen at random, all the time."""
    soak = Soak(sized(MINUTES, seed=3), tmp_path)

    broken = soak.run()

    assert broken == [], soak.figures
    assert sum(soak.figures["what happened"].values()) >= 5
    assert soak.figures["turns"]["completed"] >= 100


def test_a_seed_makes_one_plan() -> None:
    """A soak that has found something can be run again."""
    assert plan(1, 60, 50, 10) == plan(1, 60, 50, 10) != plan(2, 60, 50, 10)
    calls = plan(1, 60, 200, 50)
    assert {op.do for op in calls} == {"submit", "cancel", "start", "send"}
    assert len({op.key for op in calls}) == 250
