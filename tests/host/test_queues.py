"""Queues that a host allows, and one that it has forgotten."""

import logging
from dataclasses import replace

import pytest
from celery import Celery
from kombu import Queue

from tests.host.project import HOSTILE
from think_celery import publishing
from think_celery.clock import SystemClock
from think_celery.domain.knocks import RUN_SUBMISSION
from think_celery.protocols import Knock
from think_celery.publishing import Publisher
from think_celery.tasks import register

KNOCK = Knock(task=RUN_SUBMISSION, task_id="s-1", kwargs={"submission_id": "s-1"})


def test_a_queue_that_does_not_exist_holds_up_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """With task_create_missing_queues off. It is no failure of the broker, so publishing goes on without a pause."""
    app = Celery("queues", broker="memory://", set_as_current=False)
    app.conf.update(HOSTILE, task_queues=[Queue("known")], task_default_queue="known")
    register(app, lambda: pytest.fail("nothing runs here"))
    publisher = Publisher(app, SystemClock())

    with caplog.at_level(logging.WARNING, publishing.logger.name):
        for _ in range(3):
            publisher(replace(KNOCK, task_id="s-0", queue="forgotten"))
            assert publisher.flush(10)
        publisher(KNOCK)
        assert publisher.flush(10)
    publisher.close()

    with app.connection_for_read() as connection:
        message = app.amqp.queues["known"](connection.default_channel).get(no_ack=True)
    assert message is not None
    assert message.headers["id"] == "s-1"
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "of s-0 was not sent: Queue 'forgotten' missing from task_queues. Add it" in caplog.text
