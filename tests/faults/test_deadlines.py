"""A deadline is kept through restarts of everybody."""

import time
from datetime import timedelta

import pytest

from tests.crash.stage import BOUND, TICK
from tests.faults.conftest import StageOn
from think_celery.store import tables

SECONDS = 6


@pytest.mark.parametrize("kind", ["plain", "threads"])
def test_a_wait_does_not_begin_again(stage_on: StageOn, database_url: str, kind: str) -> None:
    """FR-60: wait(6 s); the worker is killed and started again at 2 s and at 4 s: it ends 6 s after the first pass."""
    stage = stage_on(database_url)
    stage.agent.run_workflow("Patient", {"seconds": SECONDS}, workflow_id="patient-1")
    stage.start(kind).marked("ready")
    stage.until(lambda: stage.entry("never") is not None, BOUND, what="waiting")
    waits_since = time.monotonic()
    for at in (2, 4):
        time.sleep(max(0.0, waits_since + at - time.monotonic()))
        stage.workers[-1].signal(9)  # type: ignore[arg-type]
        assert stage.workers[-1].wait(10) == -9
        stage.start(kind).marked("ready")
        stage.agent.send_workflow_event(
            "Patient", "patient-1", type="other"
        )  # wakes it: it looks, and waits on

    (run,) = stage.rows(tables.workflows)
    assert run.status in ("queued", "running", "waiting")
    stage.until(
        lambda: stage.rows(tables.workflows)[0].status == "complete", SECONDS + BOUND, what="complete"
    )
    (run,) = stage.rows(tables.workflows)
    (entry,) = stage.rows(tables.steps)
    took = run.completed_at - entry.created_at
    late = (took - timedelta(seconds=SECONDS)).total_seconds()
    pace = (time.monotonic() - waits_since) / stage.took(waits_since, time.monotonic())
    assert 0 <= late <= 3 * TICK * pace  # two passes of the tick, and a worker that has just been started
