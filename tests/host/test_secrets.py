"""Nothing secret travels: what was said, and every password, stand in rows and in the live log alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from celery.app.utils import HIDDEN_SETTINGS
from kombu import Queue

from tests.host.conftest import Place
from tests.host.flower import Flower
from tests.host.project import MARK
from tests.host.story import Story
from tests.host.world import Command, a_worker, everything_in
from think_celery.domain.knocks import RUN_SUBMISSION
from think_celery.settings import Settings

pytestmark = pytest.mark.services


@pytest.fixture
def found(place: Place) -> Any:
    """The secrets that are in a text."""
    pattern = "|".join(rf"{re.escape(secret)}[\w-]*" for secret in place.secrets)
    return lambda text: set(re.findall(pattern, text))


def test_they_are_where_they_belong(story: Story, found: Any) -> None:
    """So the other tests can fail: rows hold what was said."""
    said = repr([message.to_dict() for message in story.world.agent("a").messages])

    assert {f"{MARK}-prompt", f"{MARK}-tool-argument", f"{MARK}-tool-result", f"{MARK}-answer"} <= found(said)
    jobs = repr([(job, job.payload, job.output) for job in story.world.agent("j").list_jobs()])
    assert {f"{MARK}-payload", f"{MARK}-result-of-a-job", f"{MARK}-error-of-a-job"} <= found(jobs)


def test_not_in_the_broker(story: Story, found: Any) -> None:
    """Neither in a queue nor among the messages that a worker has in hand."""
    assert story.ids["elsewhere"] in story.broker
    assert re.search(rf"b'unacked', .*{story.ids['held']}", story.broker)

    assert found(story.broker) == set()
    assert found(everything_in(story.world.environ["HOST_BROKER"])) == set()


def test_not_in_events(story: Story, found: Any) -> None:
    """What `celery events`, Flower and every other monitor gets."""
    types = {event["type"] for event in list(story.world.events)}

    assert {"task-sent", "task-received", "task-started", "task-succeeded", "task-failed"} <= types
    assert found(repr(list(story.world.events))) == set()


def test_not_in_results(story: Story, found: Any) -> None:
    """Not even in the one that was asked for, an error with its traceback."""
    stored = everything_in(story.world.environ["HOST_RESULTS"])

    assert "ModelError" in stored
    assert found(stored) == set()


def test_not_in_the_log(story: Story, found: Any) -> None:
    """With --loglevel debug, which shows every message that Celery gets."""
    log = story.world.worker.output()

    assert "TaskPool: Apply" in log
    assert found(log) == set()


def test_not_in_the_log_of_a_worker_whose_servers_are_away(
    threads_story: Story, tmp_path: Path, found: Any
) -> None:
    """A database and a live log that can't be reached: who fails says where, and not with which password."""
    world = threads_story.world
    away = {
        "HOST_QUEUE": "away",
        "HOST_DATABASE": f"postgresql+psycopg://shop:{MARK}-database@127.0.0.1:1/shop",
        "HOST_LIVE": f"redis://:{MARK}-live@127.0.0.1:1/0",
    }
    worker = Command({**world.environ, **away}, tmp_path / "log", *a_worker("away"), "--loglevel", "debug")
    worker.says(" ready.")
    world.app.send_task(
        RUN_SUBMISSION, kwargs={"submission_id": "s"}, queue=Queue("away"), serializer="json", task_id="s"
    )

    worker.says("s could not be worked on: OperationalError")
    worker.says("a tick failed")
    worker.stop()

    assert found(worker.output()) == set()


def test_not_in_what_a_worker_answers(story: Story, found: Any) -> None:
    """`celery inspect conf`, `stats` and `report`, which Flower's pages show, too."""
    asked = story.world.app.control.inspect([story.world.name], timeout=10)
    conf, stats, report = asked.conf(with_defaults=True), asked.stats(), asked.report()

    [shown] = conf.values()
    assert shown["think_openai_base_url"] == story.world.environ["HOST_MODEL"]
    assert {"think_database_url", "think_live_database_url", "think_openai_api_key"} <= shown.keys()
    assert found(json.dumps([conf, stats, report])) == set()


def test_not_in_flower(threads_story: Story, flower: Flower, found: Any) -> None:
    """On no page, and in nothing that it answers to programs."""
    task = threads_story.ids["failed"]
    paths = ["/api/workers?refresh=1", "/api/tasks", f"/api/task/info/{task}", "/metrics"]
    paths += ["/workers", "/worker/threads@host", "/tasks", f"/task/{task}", "/broker"]

    pages = {path: flower.page(path) for path in paths}

    assert "think_database_url" in pages["/worker/threads@host"]
    assert task in pages[f"/task/{task}"]
    assert {path: found(page) for path, page in pages.items() if found(page)} == {}
    assert found(flower.output()) == set()


def test_settings_that_can_hold_a_password_are_masked_by_celery() -> None:
    """Celery hides settings by their names: a new one that is secret must have such a name."""
    fields = Settings.__dataclass_fields__.values()
    secret = [field.metadata["key"] for field in fields if field.metadata["secret"]]

    assert len(secret) >= 3
    assert [key for key in secret if not HIDDEN_SETTINGS.search(key)] == []
