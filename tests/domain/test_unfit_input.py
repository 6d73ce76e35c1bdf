"""What callers may get wrong about jobs and schedules: an error that says so on both databases, or a text kept."""

import random
import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from sqlalchemy import update

from tests.domain.crowd import change, count
from tests.domain.flows import flow
from tests.domain.porter import Hauler, porter, row
from tests.domain.ringing import Ringer, ringer
from think_celery import Retry, current
from think_celery.domain.workflows.control import count_ended
from think_celery.errors import (
    InvalidDuration,
    InvalidMethod,
    InvalidSchedule,
    InvalidType,
    InvalidValue,
    JobNotFound,
    ThinkError,
)
from think_celery.hooks.fibers import FiberRecovery
from think_celery.names import MAX_KEY
from think_celery.scheduled import read_tasks
from think_celery.store import tables
from think_celery.store.schedule_tables import schedules
from think_celery.store.tables import submissions
from think_celery.testing import ThinkTest

NO_TEXT = "a\0b\ud800c"
KEPT = "a\N{SYMBOL FOR NULL}b\N{REPLACEMENT CHARACTER}c"


class Weaver(Hauler):
    """Runs fibers, too."""

    def weave(self, fiber, payload=None):
        """What a fiber runs."""
        return payload


setattr(Weaver, "s" * 300, lambda agent, payload=None: payload)


def test_a_reason_that_no_database_takes_is_kept_readable(t: ThinkTest):
    """A cancellation is not refused for a NUL or half a character in its reason."""
    agent = Weaver._bound_to(t.rt, "a")
    job, fiber = agent.queue("carry", 1), agent.start_fiber("weave", 1)
    assert agent.cancel_job(job.job_id, NO_TEXT)
    assert agent.cancel_fiber(fiber.fiber_id, NO_TEXT)
    again = agent.start_fiber("weave", 2)
    change(t.rt, update(tables.jobs).where(tables.jobs.c.id == again.fiber_id).values(status="interrupted"))
    assert agent.resolve_fiber(again.fiber_id, FiberRecovery(status="error", error=NO_TEXT))

    assert [row(t.rt, id).error for id in (job.job_id, fiber.fiber_id, again.fiber_id)] == [KEPT] * 3


@pytest.mark.parametrize("unfit", [3, {}, [], b"x", "\ud800", "a\0b", "x" * 1000])
def test_an_id_that_is_none_is_found_nowhere(t: ThinkTest, unfit):
    """The database is not asked for it."""
    with pytest.raises(JobNotFound):
        porter(t.rt).retry_job(unfit)


@pytest.mark.parametrize("unfit", [3, b"x", object()])
def test_a_kind_that_is_none(quick: ThinkTest, unfit):
    """It is refused as another word is."""
    with pytest.raises(InvalidValue, match="kind="):
        porter(quick.rt).list_jobs(kind=unfit)


@pytest.mark.parametrize("unfit", [77, b"x", ["x"]])
def test_what_is_no_text_or_no_dict_is_an_unfit_value(quick: ThinkTest, unfit: Any):
    """What is of a wrong type is refused by one error, which is a ValueError and a TypeError."""
    agent, walker, Flow = Ringer._bound_to(quick.rt, "a"), porter(quick.rt), flow(lambda event, step: None)
    for call in (
        lambda: agent.submit_messages("x", idempotency_key=unfit),
        lambda: agent.submit_messages("x", submission_id=unfit),
        lambda: agent.submit_messages("x", metadata=unfit),
        lambda: agent.save_messages("x", idempotency_key=unfit),
        lambda: agent.save_messages("x", metadata=unfit),
        lambda: agent.save_messages("x", signal=unfit),
        lambda: agent.receive_messages("x", idempotency_key=unfit),
        lambda: agent.schedule("1 hour", "ring", metadata=unfit),
        lambda: agent.schedule("1 hour", "ring", retry=unfit),
        lambda: agent.delete_submissions(completed_before=unfit),
        lambda: agent.list_schedules(due_after=unfit),
        lambda: agent.broadcast(unfit),
        lambda: walker.queue(walker.carry, idempotency_key=unfit),
        lambda: walker.queue(walker.carry, metadata=unfit),
        lambda: agent.run_workflow(Flow, {}, workflow_id=unfit),
        lambda: agent.run_workflow(Flow, {}, metadata=unfit),
        lambda: agent.send_workflow_event(Flow, "x", type=unfit),
        lambda: agent.send_workflow_event(Flow, "x", type="go", idempotency_key=unfit),
        lambda: Ringer(unfit),
        lambda: current().list_schedules(agent_class=unfit),
    ):
        with pytest.raises(InvalidType) as refused:
            call()
        assert isinstance(refused.value, InvalidValue)
        assert isinstance(refused.value, TypeError)
    assert count(quick.rt, submissions) == 0


@pytest.mark.parametrize("unfit", ["2027-01-01", 3, b"x"])
def test_an_instant_that_is_none(quick: ThinkTest, unfit):
    """The error names the argument, and what to pass."""
    agent = Ringer._bound_to(quick.rt, "a")
    for name in ("due_after", "due_before"):
        with pytest.raises(TypeError, match=rf"{name} is an? .*pass an aware datetime"):
            agent.list_schedules(**{name: unfit})


@pytest.mark.parametrize("unfit", [3, {"max_attempts": 3}, Retry, True])
def test_retries_that_are_none(quick: ThinkTest, unfit):
    """Nothing is stored, as of a queued call."""
    agent = ringer(quick.rt)
    for call in (agent.schedule, agent.schedule_every):
        with pytest.raises(TypeError, match="pass Retry"):
            call("1 hour", "ring", retry=unfit)
    assert count(quick.rt, schedules) == 0


def test_a_call_may_be_tried_more_often_than_workers_may_die(quick: ThinkTest):
    """Claims that ended in a failed attempt are bounded by its ``Retry`` alone."""
    Ringer.rung = []
    agent = ringer(quick.rt)
    job = agent.queue("fail", retry=Retry(max_attempts=120, delay=0))
    quick.run_until_idle()

    assert len(Ringer.rung) == 120
    assert (row(quick.rt, job.job_id).error_type, row(quick.rt, job.job_id).failures) == ("RuntimeError", 120)


@pytest.mark.parametrize("unfit", ["soon", -1, float("nan"), True])
def test_how_long_to_wait_is_looked_at_before_a_fiber_is_stored(quick: ThinkTest, unfit):
    """A caller that is refused has started nothing."""
    with pytest.raises(InvalidDuration, match="timeout="):
        Weaver._bound_to(quick.rt, "a").start_fiber("weave", 1, wait_for_completion=True, timeout=unfit)
    assert count(quick.rt, tables.jobs) == 0


@pytest.mark.parametrize("unfit", ["a\0b", "\ud800"])
def test_a_prompt_that_no_database_takes(unfit):
    """A declared task says so when it is read, on each database, not when it is stored."""
    with pytest.raises(InvalidSchedule, match="half a character"):
        read_tasks(
            {"a": {"schedule": "every hour", "prompt": unfit}},
            "Ringer('a')",
            default_timezone=None,
            cron_timezone=None,
            limit=1000,
        )


LONG = "x" * 5_000


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda agent: agent.schedule_every(f"1 second{' ' * 5_000}", "carry"), "interval='1 second"),
        (lambda agent: agent.schedule(f"5 minutes{' ' * 5_000}", "carry"), "5 minutes"),
        (lambda agent: agent.schedule(LONG, "carry"), "xxx"),
        (lambda agent: agent.schedule("@daily", "carry", timezone=LONG), "timezone='xxx"),
        (lambda agent: agent.schedule("1 hour", LONG), "xxx"),
        (lambda agent: agent.queue(LONG), "xxx"),
        (lambda agent: agent.queue("s" * 300), "more than 200 characters"),
        (lambda agent: agent.queue("carry", idempotency_key=LONG), "idempotency_key='xxx"),
        (lambda agent: agent.queue("carry", time_limit=f"1 second{' ' * 5_000}"), "time_limit='1 second"),
        (lambda agent: agent.queue("carry", retry=Retry(delay=LONG)), "delay='xxx"),
        (lambda agent: agent.start_fiber("weave", idempotency_key=LONG), "idempotency_key='xxx"),
        (lambda agent: agent.submit_messages("hi", idempotency_key=LONG), "idempotency_key='xxx"),
        (lambda agent: agent.submit_messages("hi", submission_id=LONG), "submission_id='xxx"),
        (lambda agent: Weaver._bound_to(agent._rt, LONG), "name='xxx"),
        (lambda agent: agent.send_workflow_event("W", LONG, type="x"), "workflow_id='xxx"),
        (lambda agent: agent.send_workflow_event("W", "w", type=LONG), "type='xxx"),
        (lambda agent: agent.send_workflow_event("W", "w", type="x", idempotency_key=LONG), "key='xxx"),
    ],
)
def test_a_text_that_is_too_long(t: ThinkTest, call: Any, named: str):
    """It is refused before any database has to, and the error shows where it begins."""
    agent = Weaver._bound_to(t.rt, "a")
    with pytest.raises((InvalidValue, InvalidMethod), match=re.escape(named)) as refused:
        call(agent)
    assert len(str(refused.value)) < 600
    assert [count(t.rt, table) for table in (tables.jobs, schedules, tables.submissions)] == [0, 0, 0]


def test_the_longest_key_fits(t: ThinkTest):
    """With characters of four bytes each, too, and in an order that no index can press together."""
    chance, agent = random.Random(7), Weaver._bound_to(t.rt, "a")
    key = "".join(chr(chance.randrange(0x20000, 0x2A000)) for _ in range(MAX_KEY))
    for accept in (
        lambda: agent.queue("carry", idempotency_key=key),
        lambda: agent.start_fiber("weave", idempotency_key=key),
        lambda: agent.submit_messages("hi", idempotency_key=key),
    ):
        assert [accept().accepted, accept().accepted] == [True, False]


@pytest.mark.parametrize("unfit", [5, b"x", ["late"], True])
def test_a_reason_that_is_no_text(quick: ThinkTest, unfit: Any):
    """Each call that takes a reason says so, of what is there and of what is not, and nothing is changed."""
    agent = Weaver._bound_to(quick.rt, "a")
    client = current()
    turn, job, fiber = agent.submit_messages("hi"), agent.queue("carry", 1), agent.start_fiber("weave", 1)
    for call in (
        lambda: agent.cancel_submission(turn.submission_id, unfit),
        lambda: agent.cancel_submission(turn.submission_id, unfit, if_interrupted=True),
        lambda: agent.cancel_submission("nowhere", reason=unfit),
        lambda: agent.cancel_job(job.job_id, unfit),
        lambda: agent.cancel_job("nowhere", unfit),
        lambda: agent.cancel_fiber(fiber.fiber_id, unfit),
        lambda: agent.cancel_fiber("nowhere", unfit),
        lambda: agent.cancel_fiber_by_key("nowhere", unfit),
        lambda: agent.approve_tool_call("nowhere", unfit),
        lambda: agent.reject_tool_call("nowhere", unfit),
        lambda: agent.approve_workflow("nowhere", unfit),
        lambda: agent.reject_workflow("nowhere", unfit),
        lambda: client.cancel_submission(turn.submission_id, unfit),
        lambda: client.cancel_submission(turn.submission_id, unfit, if_interrupted=True),
        lambda: client.cancel_job(job.job_id, unfit),
        lambda: client.cancel_fiber(fiber.fiber_id, unfit),
        lambda: client.approve_tool_call("nowhere", unfit),
        lambda: client.reject_tool_call("nowhere", unfit),
        lambda: client.approve_workflow("nowhere", unfit),
        lambda: client.reject_workflow("nowhere", unfit),
    ):
        with pytest.raises(TypeError, match=r"reason is an? \w+; pass a text"):
            call()
    found = agent.inspect_submission(turn.submission_id)
    assert found is not None
    assert (found.status, found.error) == ("pending", None)
    assert [row(quick.rt, each).status for each in (job.job_id, fiber.fiber_id)] == ["pending"] * 2


def test_a_declared_prompt_that_no_turn_could_take(quick: ThinkTest):
    """It is refused when it is declared, with all that its message takes, and no slot of it ends in an error."""
    limit = quick.rt.settings.max_payload
    declared = {"a": {"schedule": "every hour", "prompt": "x" * (limit - 10)}}
    zones: dict[str, Any] = {"default_timezone": None, "cron_timezone": None}
    with pytest.raises(InvalidSchedule, match="think_max_payload") as refused:
        read_tasks(declared, "Ringer('a')", limit=limit, **zones)
    assert len(str(refused.value)) < 300

    fits = {"a": {"schedule": "every hour", "prompt": "x" * (limit - 300)}}
    assert read_tasks(fits, "Ringer('a')", limit=limit, **zones)


@pytest.mark.parametrize(
    "unfit", ["every " + "x" * 1000, "0 " * 600, "x" * 2000, "0 9 * * " + "1," * 500 + "2"]
)
def test_a_schedule_of_a_thousand_characters(quick: ThinkTest, unfit: str):
    """It is refused with a text that can be read, and nothing is stored."""
    with pytest.raises(InvalidSchedule, match="1,000 are allowed") as refused:
        ringer(quick.rt).schedule(unfit, "ring")
    assert len(str(refused.value)) < 500
    with pytest.raises(InvalidSchedule, match=r"scheduled task 'a'.*1,000 are allowed"):
        read_tasks(
            {"a": {"schedule": unfit, "prompt": "hi"}},
            "Ringer('a')",
            default_timezone=None,
            cron_timezone=None,
            limit=1000,
        )
    assert count(quick.rt, schedules) == 0


LONGER = "x" * 100_000


class Unending(tzinfo):
    """A time zone that says no offset."""

    def utcoffset(self, moment):
        return None


@pytest.mark.parametrize("unfit", [NO_TEXT, "\ud800", LONGER, 2**70, ["a"]])
def test_a_job_that_nobody_can_wait_for(t: ThinkTest, unfit: Any):
    """It is found nowhere, as everywhere else; the databases had said each in its way that they can't look for it."""
    with pytest.raises(JobNotFound) as caught:
        current().wait_for_job(unfit, timeout=0)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("unfit", [NO_TEXT, "\ud800", LONGER])
def test_workflows_of_a_name_that_none_has(t: ThinkTest, unfit: str):
    """There are none to delete."""
    assert Weaver("a").delete_workflows(workflow=unfit) == 0
    assert current().delete_workflows(workflow=unfit) == 0
    assert count_ended(t.rt, None, workflow=unfit) == 0


@pytest.mark.parametrize(
    "unfit",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        datetime(2027, 1, 1, tzinfo=Unending()),
    ],
)
def test_an_instant_that_no_clock_can_tell(t: ThinkTest, unfit: datetime):
    """It is refused before it is stored: reading it back would raise, and with it every list of the schedules."""
    agent = Weaver("a")

    with pytest.raises(InvalidValue, match=r"year 1 |no time zone"):
        agent.schedule(unfit, "carry")

    assert list(agent.list_schedules()) == []
    if unfit.utcoffset() is None:
        with pytest.raises(InvalidValue, match="no time zone"):
            agent.delete_jobs(completed_before=unfit)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Weaver("a").list_jobs(limit=LONGER),
        lambda: Weaver("a").list_jobs(limit=10**5000),
        lambda: Weaver("a").list_jobs(status=LONGER),
        lambda: Weaver("a").list_jobs(status=[LONGER]),
        lambda: Weaver("a").list_jobs(cursor=LONGER),
        lambda: Weaver("a").delete_jobs(completed_before=[LONGER] * 100),
        lambda: Weaver("a").wait_for_submission(LONGER, timeout=0),
        lambda: Weaver("a").wait_for_submission("a", timeout=[LONGER]),
        lambda: Weaver("a").approve_tool_call(LONGER),
        lambda: current().approve_tool_call(LONGER),
        lambda: current().get_workflow(LONGER),
        lambda: current().get_workflow("a", workflow=LONGER),
        lambda: current().get_workflow("a", workflow=[LONGER]),
        lambda: Weaver([LONGER]),
    ],
)
def test_what_was_given_is_shown_in_part_where_it_is_long(quick: ThinkTest, call: Any):
    """An error goes into logs, and to people: all of a text of megabytes helps nobody."""
    with pytest.raises((ValueError, TypeError, LookupError, ThinkError)) as caught:
        call()

    assert type(caught.value).__module__.startswith("think_celery") or "pass" in str(caught.value)
    assert len(str(caught.value)) < 500
