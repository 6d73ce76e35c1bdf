"""Workflows looked up and resumed by their users, from any process."""

import pytest

from think_celery import Think, ThinkWorkflow, current
from think_celery.errors import AmbiguousWorkflow, WorkflowError, WorkflowNotFound
from think_celery.testing import think_test


class FrontDesk(Think):
    pass


class Tidy(ThinkWorkflow):
    asks = "first"

    def run(self, event, step):
        step.do(self.asks, lambda: None)
        step.wait_for_event("go", type="go")
        return {"tidied": event.payload["what"]}


class Sort(ThinkWorkflow):
    def run(self, event, step):
        raise KeyError("no shelf")


@pytest.fixture
def t(database_url):
    with think_test(database_url=database_url) as t:
        yield t


class TestLookingUp:
    def test_a_run_is_seen_as_it_stands_with_its_output_at_the_end(self, t):
        """Status and output are true at every moment, for whoever asks."""
        workflow_id = FrontDesk("desk").run_workflow(Tidy, {"what": "papers"}, metadata={"by": "ada"})
        t.run_until_idle()

        waiting = FrontDesk("other").get_workflow(workflow_id)
        FrontDesk("desk").send_workflow_event(Tidy, workflow_id, type="go")
        t.run_until_idle()
        complete = FrontDesk("desk").get_workflow(workflow_id)

        assert (waiting.status, waiting.agent.name, waiting.metadata) == ("waiting", "desk", {"by": "ada"})
        with pytest.raises(WorkflowError, match="is waiting, so it has no output"):
            waiting.output  # noqa: B018
        assert (complete.status, complete.output) == ("complete", {"tidied": "papers"})
        assert complete.created_at <= complete.started_at <= complete.completed_at

    def test_a_failed_run_says_why(self, t):
        """The error's type and text are those of what `run` raised."""
        workflow_id = FrontDesk("desk").run_workflow(Sort)
        t.run_until_idle()

        failed = FrontDesk("desk").get_workflow(workflow_id)

        assert (failed.status, failed.error_type, failed.error) == ("errored", "KeyError", "'no shelf'")
        with pytest.raises(WorkflowError, match="errored, so it has no output: KeyError: 'no shelf'"):
            failed.output  # noqa: B018

    def test_an_id_that_is_unknown_or_not_enough(self, t):
        """None of that id, or several: an error that names them; the class tells which is meant."""
        FrontDesk("desk").run_workflow(Tidy, {"what": "x"}, workflow_id="same")
        FrontDesk("desk").run_workflow(Sort, workflow_id="same")

        with pytest.raises(WorkflowNotFound, match="nope"):
            FrontDesk("desk").get_workflow("nope")
        with pytest.raises(AmbiguousWorkflow, match="Sort, Tidy"):
            FrontDesk("desk").get_workflow("same")
        assert FrontDesk("desk").get_workflow("same", workflow=Tidy).workflow == "Tidy"
        with pytest.raises(WorkflowNotFound, match="of Other"):
            FrontDesk("desk").get_workflow("same", workflow="Other")


class TestResuming:
    def test_a_run_that_stopped_goes_on_once_its_code_fits_again(self, t, monkeypatch):
        """Code that does not fit the journal pauses the run; the right code and `resume_workflow` take it on."""
        workflow_id = FrontDesk("desk").run_workflow(Tidy, {"what": "papers"})
        t.run_until_idle()
        monkeypatch.setattr(Tidy, "asks", "renamed")
        FrontDesk("desk").send_workflow_event(Tidy, workflow_id, type="go")
        t.run_until_idle()
        stopped = FrontDesk("desk").get_workflow(workflow_id)
        monkeypatch.undo()

        resumed = current().resume_workflow(workflow_id)
        t.run_until_idle()

        assert (stopped.status, stopped.error_type) == ("paused", "ReplayMismatch")
        assert resumed
        assert FrontDesk("desk").get_workflow(workflow_id).output == {"tidied": "papers"}
        assert not FrontDesk("desk").resume_workflow(workflow_id)
