"""The demo is killed with SIGKILL, started again, and goes on where it was."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.crash.demo import Demo, Look, check
from tests.crash.nursery import Nursery

pytestmark = [pytest.mark.services, pytest.mark.once]  # its database is SQLite, its broker in memory

REPORTS = [
    {
        "id": "A-1",
        "title": "Export crashes",
        "text": "The export to PDF crashes with a discount, every time.",
    },
    {
        "id": "A-2",
        "title": "Crash in the PDF export",
        "text": "Export to PDF crashes when there is a discount.",
    },
    {
        "id": "A-3",
        "text": "Half of my time entries are gone after the sync. They were all there yesterday evening.",
    },
    {
        "id": "A-4",
        "text": "How can I invite my tax adviser? She should read all invoices and change nothing.",
    },
]

POINTS = [
    ("workflow:started", 1),
    ("workflow:started", 4),
    ("step:triage:submit:before-commit", 2),
    ("step:triage:submit:committed", 2),
    ("workflow:before-park", 1),
    ("turn:claimed", 2),
    ("turn:before-model", 3),
    ("turn:streaming", 5),
    ("turn:tool-marked", 1),
    ("turn:tool-ran", 1),
    ("turn:tool-stored", 2),
    ("turn:before-commit", 1),
    ("turn:committed", 2),
    ("outbox:before-delivery", 1),
    ("outbox:delivered", 2),
    ("event:before-commit", 1),
    ("step:apply-labels:before", 1),
    ("step:apply-labels:ran", 1),
    ("step:apply-labels:before-commit", 2),
    ("step:apply-labels:committed", 4),
]


@pytest.mark.parametrize(("point", "nth"), POINTS, ids=[f"{point} ({nth})" for point, nth in POINTS])
def test_killed_at_each_point_it_goes_on_where_it_was(
    children: Nursery, point: str, nth: int, tmp_path: Path
) -> None:
    """A stored answer is not asked for again, one in flight once at most; no label is applied twice (A3, A18)."""
    demo = Demo(children, tmp_path / "state", REPORTS, ["--pace", "0.002", "--concurrency", "2"])

    demo.run_until_killed(point, nth)
    killed = demo.look()
    demo.run_to_end()

    check(demo, [killed])


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_at_any_moment_it_ends_right(
    children: Nursery, seed: int, tmp_path: Path
) -> None:
    """Four kills at random moments, of the start and of the recovery from the kill before, change nothing."""
    moments = random.Random(seed)
    demo = Demo(children, tmp_path / "state", REPORTS, ["--pace", "0.02", "--concurrency", "2"])
    kills: list[Look] = []

    for _ in range(4):
        process = demo.start()
        end_at = time.monotonic() + moments.uniform(0.1, 2.5)
        while process.running and time.monotonic() < end_at:
            time.sleep(0.01)
        process.signal(signal.SIGKILL)
        process.wait(30)
        kills.append(demo.look())
    said = demo.run_to_end()

    check(demo, kills)
    assert "4 applied" in said


def test_started_again_when_all_is_done_it_shows_the_table_and_asks_nothing(
    children: Nursery, tmp_path: Path
) -> None:
    """A second start with everything done makes no request, writes no result and shows the same table."""
    demo = Demo(children, tmp_path / "state", REPORTS, ["--pace", "0", "--concurrency", "2"])
    first = demo.run_to_end()
    before = demo.look()

    second = demo.run_to_end()

    assert demo.look() == before
    assert second.splitlines()[-8:] == first.splitlines()[-8:]
    assert "Export crashes" in second
