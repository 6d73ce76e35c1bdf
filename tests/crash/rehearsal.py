"""What the workers of the crash tests do, done once before any of them is forked.

SQLAlchemy compiles a statement when it first meets it, which was a third of the processor time of these workers.
"""

import os
import tempfile
from pathlib import Path
from unittest import mock

from sqlalchemy import create_engine, text

from tests.crash import project
from tests.crash.project import Saga, Scribe
from think_celery.providers.scripted import answer, call, say
from think_celery.testing import ThinkTest, think_test


def rehearse(url: str | None) -> None:
    """Play a workflow, and a turn with a tool, on this migrated database, or on SQLite. Nothing of it stays open."""
    with tempfile.TemporaryDirectory(prefix="think-rehearsal-") as folder:
        effects = str(Path(folder) / "effects")
        with mock.patch.dict(os.environ, {project.EFFECTS: effects}), think_test(database_url=url) as t:
            _make_ledger(t)
            _play(t)


def _make_ledger(t: ThinkTest) -> None:
    engine = create_engine(t.rt.db.url)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE ledger (workflow_id TEXT NOT NULL)"))
    engine.dispose()


def _play(t: ThinkTest) -> None:
    for _ in range(2):  # what is met for the second time is prepared for the driver
        t.script(
            Scribe,
            call("note", {"what": "it"}),
            answer({"title": "A title", "labels": ["one"]}),
            call("post", {"what": "it"}),
            say("Done."),
        )
        agent = Scribe("rehearsal")
        saga = agent.run_workflow(Saga, {"prompt": "do: note"})
        t.run_until_idle()
        agent.send_workflow_event(Saga, saga, type="go", payload="on")
        t.run_until_idle()
        agent.submit_messages("do: post")
        t.run_until_idle()
        t.skip("30 seconds")
        assert agent.get_workflow_status(saga) == "complete"
