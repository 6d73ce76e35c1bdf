"""The database ends all sessions, as at its restart: callers and workers go on, and nobody sees an error."""

from typing import Any

import psycopg
import pytest

from tests.crash.model import FINAL
from tests.crash.stage import BOUND, TICK, Stage
from tests.faults.conftest import StageOn
from tests.servers import plain_url
from think_celery.store import tables

pytestmark = pytest.mark.services


def end_sessions(stage: Stage) -> int:
    """End every session of the stage's database; how many there were."""
    with psycopg.connect(plain_url(stage.db.url), autocommit=True) as conn:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}"
        return len(conn.execute(query.encode()).fetchall())


def ended(stage: Stage, submission: Any) -> Any:
    """Wait for a turn's end, and return it."""
    agent = stage.agent.__class__._bound_to(stage.rt, "other")

    def completed() -> bool:
        found = agent.inspect_submission(submission.submission_id)
        return found is not None and found.status == "completed"

    stage.until(completed, BOUND, what="completed")
    return agent.inspect_submission(submission.submission_id)


def test_turns_and_workflows_go_on(stage_on: StageOn, postgres_url: str) -> None:
    """FR-13: sessions end while a step runs, while a workflow is parked, between two turns, and while one streams.

    Nothing is taken over and nothing is done again: a lost session is no death of a worker.
    """
    stage = stage_on(postgres_url)
    worker = stage.start("threads", hold_at="step:fetch:ran")
    worker.marked("ready")
    other = stage.agent.__class__._bound_to(stage.rt, "other")

    stage.start_saga("do: note")
    worker.marked("held")  # its effect is done, and not stored yet
    assert end_sessions(stage) >= 2
    worker.go()
    stage.until(stage.saga_waits, BOUND, what="waiting")

    end_sessions(stage)
    stage.send_go()
    stage.until(stage.saga_ended, BOUND, what="ended")
    stage.check_saga("do: note", None)
    assert stage.counts() == {"fetch": 1, "note": 1, "send": 1}

    end_sessions(stage)
    first = ended(stage, other.submit_messages("do:"))
    end_sessions(stage)
    second = other.submit_messages("do: slowly")
    stage.until(lambda: len(other.messages[-1].text) > 10, BOUND, what="streaming")
    end_sessions(stage)
    ended(stage, second)

    assert first.status == "completed"
    assert [message.text for message in other.messages if message.role == "assistant"] == [FINAL, FINAL]
    assert {row.takeovers for row in stage.rows(tables.submissions)} == {1}
    assert len(stage.requests()) == 2 + 2
    assert worker.running
    assert not [row for row in stage.processes() if row.dead]


def test_a_due_wait_ends_after_it(stage_on: StageOn, postgres_url: str) -> None:
    """FR-13: the tick goes on, too: a workflow whose wait is over while all sessions end wakes up."""
    stage = stage_on(postgres_url)
    stage.start("threads").marked("ready")
    run = stage.agent.run_workflow("Patient", {"seconds": 2}, workflow_id="patient-1")
    for _ in range(3):
        stage.until(lambda: end_sessions(stage) > 0, BOUND, what="connected")

    def complete() -> bool:
        return [(row.workflow_id, row.status) for row in stage.rows(tables.workflows)] == [(run, "complete")]

    stage.until(complete, 2 + BOUND + TICK, what="complete")
