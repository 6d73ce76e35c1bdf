"""Names and ids that no database can hold: refused where they are made, not found where they are looked for."""

from typing import Any

import pytest

from tests.domain.flows import worker
from think_celery.agents.think import Think
from think_celery.errors import InvalidValue, SubmissionNotFound, WorkflowNotFound
from think_celery.runtime import agent_classes, workflow_classes
from think_celery.workflow import ThinkWorkflow

UNFIT = ["\x00", "a\x00b", "\ud800", "x" * 5000, "two\nlines", " ", ""]


class Registrar(Think):
    """The agent of these tests."""


@pytest.fixture
def clerk(database_url):
    with worker(database_url) as rt:
        yield Registrar._bound_to(rt, "c")


class TestClasses:
    @pytest.mark.parametrize("name", [*UNFIT, "x" * 201])
    def test_an_agents_name(self, name):
        """PostgreSQL would refuse it in the first submission; the class itself is refused, and not registered."""
        with pytest.raises(InvalidValue, match=r"The agent class's name=.*1 to 200 printable"):
            type("Bad", (Think,), {}, name=name)
        assert name not in agent_classes._classes

    @pytest.mark.parametrize("base", [Think, ThinkWorkflow])
    @pytest.mark.parametrize("queue", [*UNFIT, 5, ["q"]])
    def test_a_queue(self, base: Any, queue: Any):
        """It is stored with each row, too."""
        with pytest.raises(InvalidValue, match=r"WithQueue\.queue="):
            type("WithQueue", (base,), {"queue": queue})
        assert "WithQueue" not in agent_classes._classes
        assert "WithQueue" not in workflow_classes._classes


class TestLooking:
    @pytest.mark.parametrize("unfit", [*UNFIT, 5])
    def test_there_is_none_of_that_id(self, clerk, unfit):
        """What can't be stored is not there: the same answer as for any other unknown id, on both databases."""
        assert clerk.get_message(unfit) is None
        assert clerk.inspect_submission(unfit) is None
        with pytest.raises(SubmissionNotFound):
            clerk.listen(unfit)
        for ask in (clerk.get_workflow, clerk.resume_workflow):
            with pytest.raises(WorkflowNotFound):
                ask(unfit)
            with pytest.raises(WorkflowNotFound):
                ask("w", workflow=str(unfit))

    @pytest.mark.parametrize("unfit", UNFIT)
    def test_an_event_for_a_workflow_that_can_not_be(self, clerk, unfit):
        """An event is kept for a workflow to come; for one of that name or id none ever will."""
        with pytest.raises(InvalidValue, match=r"workflow="):
            clerk.send_workflow_event(unfit, "w", type="go")
        with pytest.raises(InvalidValue, match=r"workflow_id="):
            clerk.send_workflow_event("W", unfit, type="go")


class TestLists:
    @pytest.mark.parametrize("limit", [True, 1.5, "7", None, 0, 1001])
    def test_a_limit_that_is_none(self, clerk, limit):
        """The error shows it, and says what would do."""
        with pytest.raises(
            InvalidValue, match=f"limit={limit!r}: it must be a whole number between 1 and 1000"
        ):
            clerk.list_submissions(limit=limit)

    @pytest.mark.parametrize("status", [5, True, [5], "done", ["pending", "done"], object()])
    def test_a_status_that_is_none(self, clerk, status):
        """It names those that there are."""
        with pytest.raises(InvalidValue, match=r"status=.*pending, running"):
            clerk.list_submissions(status=status)
        with pytest.raises(InvalidValue, match=r"status=.*pending, running"):
            clerk.delete_submissions(status=status)
