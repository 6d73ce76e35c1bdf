"""What is meant by `…_before` and `…_after`: one check for every public argument of that kind."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from think_celery import Think, ThinkClient
from think_celery.errors import InvalidValue, JobNotFound, SubmissionNotFound, WorkflowNotFound
from think_celery.testing import ThinkTest, think_test


class Preserver(Think):
    """Has old work."""

    model = None

    def file(self, _: object = None) -> None:
        """Does nothing."""


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


def deletes(t: ThinkTest) -> list[tuple[str, Callable[..., Any]]]:
    agent = Preserver("a")
    return [
        ("completed_before", agent.delete_submissions),
        ("completed_before", agent.delete_workflows),
        ("completed_before", ThinkClient().delete_workflows),
        ("completed_before", agent.delete_fibers),
        ("completed_before", agent.delete_jobs),
        ("completed_before", ThinkClient().delete_jobs),
    ]


def test_an_instant_or_how_long_ago(t: ThinkTest) -> None:
    """An aware datetime, words and a timedelta mean the same; what ended later stays."""
    agent = Preserver("a")
    for before in ("90 days", timedelta(days=90), datetime.now(UTC) - timedelta(days=90)):
        for name, delete in deletes(t):
            assert delete(**{name: before}) == 0
    fiber = agent.start_fiber(agent.file)
    t.run_until_idle()
    t.skip("2 hours")
    assert agent.delete_fibers(completed_before="3 hours") == 0
    assert agent.delete_fibers(completed_before=timedelta(hours=1)) == 1
    assert agent.inspect_fiber(fiber.fiber_id) is None


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (datetime(2026, 1, 1), InvalidValue, "has no time zone"),
        ("yesterday", InvalidValue, "aware datetime"),
        (timedelta(-1), InvalidValue, "aware datetime"),
        (1_700_000_000, TypeError, "how long ago"),
    ],
)
def test_what_is_none(t: ThinkTest, given: Any, error: type[Exception], told: str) -> None:
    """The error is a public one, and names the argument."""
    for name, delete in deletes(t):
        with pytest.raises(error, match=told) as refused:
            delete(**{name: given})
        assert str(refused.value).startswith(name)
    for name in ("due_before", "due_after"):  # of schedules that are still to come: no "ago" there
        with pytest.raises((InvalidValue, TypeError), match=name):
            Preserver("a").list_schedules(**{name: given})


def test_accepted_is_what_an_accepting_call_returns(t: ThinkTest) -> None:
    """Whoever looks at a row later can't know which call stored it: `None`, and left out of the receipt."""
    agent = Preserver("a")
    job = agent.queue(agent.file)
    fiber = agent.start_fiber(agent.file)
    schedule = agent.schedule("1 hour", agent.file)
    submission = agent.submit_messages("Hello")
    t.run_until_idle()

    assert [each.accepted for each in (job, fiber, schedule, submission)] == [True] * 4
    found: list[Any] = [
        agent.get_job(job.job_id),
        agent.inspect_fiber(fiber.fiber_id),
        agent.get_schedule(schedule.schedule_id),
        agent.inspect_submission(submission.submission_id),
        *agent.list_fibers(),
        *agent.list_submissions(),
    ]
    assert [each.accepted for each in found] == [None] * 6
    assert found[3].same_payload is None
    assert "accepted" not in found[0].to_dict()
    assert "accepted" not in found[3].to_dict()


def test_what_is_said_of_an_id_that_nothing_has(t: ThinkTest) -> None:
    """The table of docs/concepts.md: who must have it raises, who looks gets None, who ends or deletes gets False."""
    agent, client = Preserver("a"), ThinkClient()
    for call, error in (
        (client.get_workflow, WorkflowNotFound),
        (client.approve_workflow, WorkflowNotFound),
        (client.terminate_workflow, WorkflowNotFound),
        (client.wait_for_submission, SubmissionNotFound),
        (client.wait_for_job, JobNotFound),
        (client.retry_job, JobNotFound),
    ):
        with pytest.raises(error):
            call("nothing")
    looks = [agent.inspect_submission, agent.get_submission_by_key, agent.get_job, agent.inspect_fiber]
    assert [look("nothing") for look in (*looks, agent.get_schedule)] == [None] * 5
    ends = [agent.cancel_submission, agent.delete_submission, agent.cancel_job, agent.cancel_fiber]
    assert [bool(end("nothing")) for end in (*ends, agent.cancel_schedule)] == [False] * 5
    assert not agent.get_workflows()
    assert agent.list_slots("nothing") == []
