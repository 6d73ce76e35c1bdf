"""What the command line shows of jobs, and does to them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doors.commands import as_json, own_runtime, run
from tests.doors.test_checks import GIVEN, NOBODY, one, only
from think_celery import Retry, Think
from think_celery.cli import checks, jobchecks
from think_celery.testing import ThinkTest, think_test


class Postman(Think):
    """An agent for these tests."""

    def bring(self, payload: Any) -> Any:
        """What is queued."""
        if payload == "fail":
            raise ValueError("no such house")
        return payload

    def walk(self, fiber: Any) -> None:
        """What a fiber does."""
        fiber.stash({"street": 7})


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


@pytest.fixture(autouse=True)
def own_default() -> Iterator[None]:
    with own_runtime():
        yield


class Clockwork(Postman):
    """One whose declared task has a handler: any callable, which is stored nowhere."""

    def get_scheduled_tasks(self) -> dict[str, Any]:
        """What it does each hour."""
        return {"tidy-up": {"schedule": "every hour", "handler": lambda context: context.task_id}}


class TestJobs:
    def test_the_list_says_what_each_calls(self, t: ThinkTest, sqlite_url: str) -> None:
        """C2: a method by its name; a handler, which may be any callable, by that of its task."""
        Clockwork("a").start()
        t.run_until_idle()
        Clockwork("a").queue("bring", 1)
        t.skip("61 minutes")

        rows = run("jobs", "list", "--database-url", sqlite_url).stdout.splitlines()
        (tidied,) = Clockwork("a").list_jobs(method=None, kind="scheduled")
        again = run("jobs", "retry", tidied.job_id, "--yes", "--database-url", sqlite_url)
        assert (again.exit_code, "can't be begun again" in again.output) == (1, True)
        listed = as_json("jobs", "list", "--json", "--database-url", sqlite_url)

        assert re.split(r"\s{2,}", rows[0].strip())[3] == "calls"
        calls = [re.split(r"\s{2,}", row.strip())[3] for row in rows[1:3]]
        assert calls == ["task tidy-up", "bring()"]
        assert [(job["method"], job["task_id"]) for job in listed] == [(None, "tidy-up"), ("bring", None)]

    def test_they_are_listed_and_shown(self, t: ThinkTest, sqlite_url: str) -> None:
        """B21: with filters, for people and for programs; payload, snapshot and output are in the details only."""
        postman, at = Postman("a"), ("--database-url", sqlite_url)
        done = postman.queue(postman.bring, {"letter": 1})
        failed = postman.queue(postman.bring, "fail", retry=Retry(max_attempts=1))
        fiber = postman.start_fiber(postman.walk)
        t.run_until_idle()
        waiting = postman.queue(postman.bring, 2)

        listed = as_json("jobs", "list", "--json", *at)
        assert [(job["job_id"], job["kind"], job["status"]) for job in listed] == [
            (waiting.job_id, "queue", "pending"),
            (fiber.fiber_id, "fiber", "completed"),
            (failed.job_id, "queue", "error"),
            (done.job_id, "queue", "completed"),
        ]
        some = as_json(
            "jobs", "list", "--status", "error", "--kind", "queue", "--agent", "Postman:a", "--json", *at
        )
        assert [job["job_id"] for job in some] == [failed.job_id]
        assert as_json("jobs", "list", "--method", "walk", "--agent", "Postman:b", "--json", *at) == []
        assert as_json("jobs", "show", fiber.fiber_id, "--json", *at)["snapshot"] == {"street": 7}
        assert as_json("jobs", "show", done.job_id, "--json", *at)["output"] == {"letter": 1}
        assert "no such house" in run("jobs", "show", failed.job_id, *at).output
        assert run("jobs", "show", "nobody", *at).exit_code != 0

    def test_they_are_listed_in_pages(self, t: ThinkTest, sqlite_url: str) -> None:
        """As all lists: where there is a further page, standard error tells a program how to ask for it."""
        postman, at = Postman("a"), ("--limit", "2", "--json", "--database-url", sqlite_url)
        jobs = [postman.queue(postman.bring, number) for number in range(3)]

        first = run("jobs", "list", *at)
        assert [job["job_id"] for job in json.loads(first.stdout)] == [jobs[2].job_id, jobs[1].job_id]
        rest = run("jobs", "list", "--cursor", first.stderr.split()[-1], *at)
        assert [job["job_id"] for job in json.loads(rest.stdout)] == [jobs[0].job_id]
        assert rest.stderr == ""
        assert run("jobs", "list", "--cursor", "x", *at).exit_code == 2

    def test_they_are_cancelled_begun_again_and_deleted(self, t: ThinkTest, sqlite_url: str) -> None:
        """B21: each says what it did, and exits with 1 where there was nothing to do."""
        postman, at = Postman("a"), ("--database-url", sqlite_url)
        job = postman.queue(postman.bring, 1)
        assert run("jobs", "cancel", job.job_id, "--reason", "no need", *at).exit_code == 0
        assert run("jobs", "cancel", job.job_id, *at).exit_code == 1
        assert "queued as" in run("jobs", "retry", job.job_id, *at).output
        assert len(postman.list_jobs()) == 2
        assert run("jobs", "delete", job.job_id, "--yes", *at).exit_code == 0
        assert postman.get_job(job.job_id) is None


def test_the_doctor_tells_of_jobs_and_fibers(t: ThinkTest) -> None:
    """Calls that wait in vain, and fibers that nobody decides on, with what to do."""
    postman = Postman("a")
    assert jobchecks.interrupted(t.rt.db, GIVEN)[0].level == "ok"
    postman.queue(postman.bring, 1)
    t.lose_messages()
    assert checks.waiting(t.rt.db, one(agents=frozenset({"Postman"})), GIVEN)[0].level == "ok"
    lacks = only(checks.waiting(t.rt.db, one(), GIVEN))
    assert (lacks.level, "1 call of Postman.bring" in lacks.text) == ("problem", True)
    assert only(checks.waiting(t.rt.db, NOBODY, GIVEN)).level == "problem"

    t.crash_at("fiber:stashed")
    fiber = postman.start_fiber(postman.walk)
    t.run_until_idle()
    found = only(jobchecks.interrupted(t.rt.db, GIVEN))
    assert (found.level, f"jobs retry {fiber.fiber_id}" in found.text) == ("warning", True)
