"""What a busy worker holds of the database: few connections, and none in a transaction while it waits."""

import json
import time

import psycopg
import pytest

from tests.crash.stage import BOUND
from tests.faults.conftest import StageOn
from tests.servers import plain_url

pytestmark = pytest.mark.services

CHILDREN = 8
LEAST, MOST = 1 + CHILDREN, 3 + 2 * CHILDREN
"""Sessions of a worker on the prefork pool: of the parent, which has its monitor and two threads that tick, and of
the children, each with its monitor and its turn."""
IDLE_SECONDS = 0.2
SAMPLE = """
SELECT pid, state LIKE 'idle in transaction%', EXTRACT(epoch FROM clock_timestamp() - state_change)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def test_none_is_held_while_models_answer(stage_on: StageOn, postgres_url: str, redis_url: str) -> None:
    """FR-34: eight children stream, for seconds: no session is idle in a transaction, two a process are open."""
    stage = stage_on(postgres_url)
    agents = [stage.agent.__class__._bound_to(stage.rt, f"agent-{number}") for number in range(CHILDREN)]
    turns = [agent.submit_messages("do: note slowest") for agent in agents]
    stage.rt.db.dispose()  # so that all sessions are the worker's
    began = time.monotonic()
    conf = json.dumps({"worker_concurrency": CHILDREN})
    stage.start("prefork", broker=redis_url, queue="connections", conf=conf).marked("ready")
    most, longest = 0, 0.0
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as conn:
        ended = b"SELECT count(*) FROM think_submissions WHERE status = 'completed'"
        while conn.execute(ended).fetchone() != (len(turns),):
            assert stage.took(began, time.monotonic()) < 4 * BOUND, stage.report()
            sessions = conn.execute(SAMPLE.encode()).fetchall()
            most = max(most, len(sessions))
            longest = max(longest, *(float(since) for _, idle, since in sessions if idle), 0.0)
            time.sleep(0.05)

    assert len(stage.requests()) == 2 * len(turns)
    assert LEAST <= most <= MOST
    stretched = (time.monotonic() - began) / stage.took(began, time.monotonic())
    assert longest <= IDLE_SECONDS * stretched
