"""kill -9 at every point where a job or a fiber can die, in Celery's prefork and threads pools, with Redis."""

from collections import Counter

import pytest

from tests.crash.stage import Stage
from tests.crash.test_every_pool import Series

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]  # on a machine that is busy

DEATHS = (
    "job:claimed",
    "job:before-call",
    "job:called",
    "job:before-end",
    "job:ended",
    "fiber:stashed",
    "fiber:recovery-decided",
)

MADE = ("job:called", "job:before-end")
"""Where the job that a worker dies in may have made its effect, and its end is not stored."""


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
class TestJobs:
    def test_queued_calls_and_a_fiber(self, stage: Stage, redis_url: str, pool: str) -> None:
        """B21, B22: seven deaths: all is done in the end, in order, and only what was not stored is done again."""
        queued = [stage.agent.queue("haul", what).job_id for what in ("a", "b", "c")]
        fiber = stage.agent.start_fiber("trek", "far").fiber_id

        def ended() -> bool:
            left = stage.agent.list_jobs(status=["pending", "running", "interrupted"])
            return not left

        series = Series(stage=stage, pool=pool, deaths=DEATHS, broker=redis_url)
        series.play(ended)

        found = {job.job_id: (job.status, job.output) for job in stage.agent.list_jobs()}
        assert found == {
            **{job_id: ("completed", f"{what} done") for job_id, what in zip(queued, "abc", strict=True)},
            fiber: ("completed", "far done"),
        }
        hauled = [effect["what"] for effect in stage.effects() if effect["key"] == "haul"]
        assert hauled == sorted(hauled)
        check_repeats(stage, pool, series.died())


def check_repeats(stage: Stage, pool: str, died: dict[str, int]) -> None:
    """An effect is repeated where the worker that made it died before the end of its job was stored; else never.

    Calls of one agent run one at a time, so a worker has one of them in hand at most, and the one fiber. In prefork
    it has only what it dies in. That one has made its effect after its call, and before that not yet.
    """
    made = [(effect["what"], effect["pid"]) for effect in stage.effects()]
    assert len(set(made)) == len(made), f"a worker has made an effect twice: {made}"
    last = dict(made)
    repeated = Counter(pid for what, pid in made if last[what] != pid)
    for pid, times in repeated.items():
        points = [point for point, dead in died.items() if dead == pid]
        assert points, f"{pid} has not died, and what it made was repeated: {made}"
        allowed = max(at_most(point, pool) for point in points)
        assert times <= allowed, f"{times} repeated after a death at {points}: {made}"


def at_most(point: str, pool: str) -> int:
    """How many effects are repeated after a death at that point."""
    if pool == "prefork":
        return 1 if point in MADE else 0
    # At the end of a call, the next one may be in hand already.
    return 2 if point in (*MADE, "job:ended") else 1
