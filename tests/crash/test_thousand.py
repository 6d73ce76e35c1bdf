"""A thousand workflows whose workers are killed, in small: see ``thousand.py``; the whole is run by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.nursery import Nursery
from tests.crash.project import STEPS
from tests.crash.thousand import Seen, Size, Thousand

SIZE = Size(workflows=16, seed=4, every=(15, 60))


def other_key(seen: Seen) -> Seen:
    again = {**seen.done[0], "key": "another"}
    return replace(seen, done=[*seen.done, again])


HARM: dict[str, Callable[[Seen], Seen]] = {
    "lost or invented": lambda seen: replace(seen, outputs=dict([*seen.outputs.items()][1:])),
    "another output": lambda seen: replace(seen, outputs={**seen.outputs, "journey-0": "running"}),
    "leases or knocks": lambda seen: replace(seen, held=1),
    "the journals": lambda seen: replace(seen, steps=seen.steps[1:]),
    "not exactly once": lambda seen: replace(seen, counted=[*seen.counted, seen.counted[0]]),
    "never done": lambda seen: replace(
        seen, done=[line for line in seen.done if line["what"] != seen.done[0]["what"]]
    ),
    "under another idempotency key": other_key,
    "have one idempotency key": lambda seen: replace(seen, done=[{**it, "key": "k"} for it in seen.done]),
}
"""How it is told that something has happened, and how to make it happen."""


@pytest.mark.services
@pytest.mark.once
@pytest.mark.timeout(300)
def test_each_step_once_whoever_dies(
    postgres_url: str, redis_url: str, children: Nursery, tmp_path: Path
) -> None:
    """Workers are killed at random: all runs complete, transactions count once, doubled effects have one key."""
    thousand = Thousand(SIZE, postgres_url, redis_url, tmp_path, children, queue="thousand")

    seen = thousand.run()

    assert seen.judge(SIZE.ids) == [], thousand.figures
    assert sum(thousand.killed.values()) >= 3, thousand.figures
    assert len(seen.steps) == SIZE.workflows * STEPS
    for said, harm in HARM.items():
        assert any(said in fault for fault in harm(seen).judge(SIZE.ids)), said
