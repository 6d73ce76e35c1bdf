"""Record the runs of ``flows.py`` anew: ``python -m tests.journals.record NAME``, only for a new kind of step.

What is recorded already stays as it is: it stands for the runs that wait in users' databases.
"""

import sys
from pathlib import Path

from tests.journals.flows import (
    JournalAgent,
    JournalFailures,
    JournalParams,
    JournalReports,
    JournalReviewer,
    JournalSeveral,
    JournalWorkflow,
)
from think_celery.errors import ModelError
from think_celery.providers.scripted import answer, fail, say
from think_celery.testing import ThinkTest, think_test

HERE = Path(__file__).parent


def every_kind(t: ThinkTest) -> str:
    """A run with a step of each kind, complete."""
    workflow_id = waiting(t)
    agent = JournalAgent("a")
    agent.send_workflow_event(JournalWorkflow, workflow_id, type="hint", payload=["x", 1])
    agent.approve_workflow(workflow_id, metadata={"by": "Ada"})
    t.run_until_idle()
    return workflow_id


def waiting(t: ThinkTest) -> str:
    """The same, where it waits for an event."""
    t.script(JournalAgent, answer({"good": True, "because": "it works"}))
    workflow_id = JournalAgent("a").run_workflow(
        JournalWorkflow, JournalParams(item="lamp"), workflow_id="journal-1"
    )
    t.skip("2 hours")
    return workflow_id


def failures(t: ThinkTest) -> str:
    """A run with steps that failed."""
    t.script(JournalAgent, say("It is good."))
    workflow_id = JournalAgent("a").run_workflow(
        JournalFailures, JournalParams(item="lamp"), workflow_id="journal-2"
    )
    t.skip("2 hours")
    return workflow_id


def several(t: ThinkTest) -> str:
    """A run of several things at once, where it waits for the first of two."""
    busy = fail(ModelError("busy", retryable=True, retry_after_seconds=86_400))
    t.script(JournalAgent, answer({"good": True, "because": "it works"}), busy)
    t.script(JournalReviewer, answer({"good": False, "because": "it is dear"}))
    workflow_id = JournalAgent("a").run_workflow(
        JournalSeveral, JournalParams(item="lamp"), workflow_id="journal-3"
    )
    t.skip("25 hours")
    return workflow_id


def first_of_several(t: ThinkTest) -> str:
    """The same, complete: an event was the first."""
    workflow_id = several(t)
    t.send_event(JournalSeveral, workflow_id, type="hint", payload=1)
    t.run_until_idle()
    return workflow_id


def reports(t: ThinkTest) -> str:
    """A run that tells its agent how it goes."""
    workflow_id = JournalAgent("a").run_workflow(
        JournalReports, JournalParams(item="lamp"), workflow_id="journal-4"
    )
    t.run_until_idle()
    return workflow_id


RUNS = {
    "every-kind": every_kind,
    "waiting": waiting,
    "failures": failures,
    "several": several,
    "first-of-several": first_of_several,
    "reports": reports,
}


def main() -> None:
    """Record the named ones."""
    for name in sys.argv[1:]:
        with think_test() as t:
            t.record(RUNS[name](t), HERE / f"{name}.json")


if __name__ == "__main__":
    main()
