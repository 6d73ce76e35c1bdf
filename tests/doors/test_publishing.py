"""Knocks are sent by a thread that no caller waits for, whatever the broker does."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from think_celery import publishing
from think_celery.clock import SystemClock
from think_celery.protocols import Knock
from think_celery.publishing import Publisher
from think_celery.tasks import register
from think_celery.testing import FakeClock


def an_app(broker: str = "memory://", **conf: Any) -> Celery:
    made = Celery("publishing", broker=broker, set_as_current=False)
    made.conf.update(conf)

    def never() -> Any:
        raise AssertionError("no task runs here")

    register(made, never)
    return made


def knock(number: int = 1, queue: str | None = None) -> Knock:
    return Knock(
        task="think.submission.run",
        task_id=f"id-{number}",
        kwargs={"submission_id": f"id-{number}"},
        queue=queue,
        shows={"submission": f"id-{number}"},
    )


def received(app: Celery, queue: str) -> list[Any]:
    """What lies in that queue."""
    messages = []
    with app.connection_for_read() as conn:
        with conn.SimpleQueue(queue) as simple:
            while len(simple):
                messages.append(simple.get(timeout=1))
    return messages


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """The URL of a broker that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class TestSending:
    def test_it_is_sent_when_the_call_returns(self) -> None:
        """With a broker that answers the message is there, with ids alone and the queue that the row names."""
        app = an_app()
        Publisher(app, SystemClock())(knock(queue="sent-here"))

        [message] = received(app, "sent-here")
        assert message.headers["task"] == "think.submission.run"
        assert message.headers["id"] == "id-1"
        assert message.headers["kwargsrepr"] == "{'submission': 'id-1'}"
        assert message.content_type == "application/json"
        assert message.payload[1] == {"submission_id": "id-1"}

    def test_many_threads_share_one_connection(self) -> None:
        """Each of eighty calls sends its own, none is lost and none is sent twice."""
        app = an_app()
        publisher = Publisher(app, SystemClock())
        start = threading.Barrier(8)

        def send(first: int) -> None:
            start.wait(10)
            for number in range(first, first + 10):
                publisher(knock(number, queue="of-many"))

        threads = [threading.Thread(target=send, args=(n * 10,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        ids = sorted(int(message.headers["id"][3:]) for message in received(app, "of-many"))
        assert ids == list(range(80))
        assert sum(thread.name == "think-publisher" for thread in threading.enumerate()) >= 1

    def test_a_chain_is_one_in_flower(self) -> None:
        """A knock of a workflow carries the root of its run (design §5)."""
        app = an_app()
        chained = Knock(
            task="think.workflow.advance",
            task_id="id-2",
            kwargs={"workflow": "W", "workflow_id": "w"},
            queue="chain",
            root_id="id-0",
            shows={"workflow": "W"},
        )
        Publisher(app, SystemClock())(chained)

        [message] = received(app, "chain")
        assert message.headers["root_id"] == "id-0"


class TestBrokersThatFail:
    @pytest.mark.parametrize("scheme", ["redis://{}/0", "amqp://guest:guest@{}//"])
    def test_one_that_never_answers_costs_half_a_second(self, scheme: str, silent_broker: str) -> None:
        """Engine rule (P12): apply_async hangs on a broker that accepts and never answers; the caller must not."""
        publisher = Publisher(an_app(scheme.format(silent_broker)), SystemClock())

        began = time.monotonic()
        publisher(knock(1))
        first = time.monotonic() - began
        publisher(knock(2))
        both = time.monotonic() - began
        publisher(knock(3))
        all_three = time.monotonic() - began

        assert 0.4 <= first <= 0.5 + 0.4
        assert both <= 1.0 + 0.6
        assert all_three - both <= 0.2  # the breaker: nothing is tried for five seconds

    def test_one_that_is_not_there_raises_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        """Its failure is logged by type, never raised, and the log holds no URL and no password."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        publisher = Publisher(an_app(f"redis://:tulip@127.0.0.1:{port}/0"), SystemClock())

        publisher(knock(1))
        publisher(knock(2))

        assert "a knock was not published" in caplog.text
        assert "publishing pauses for 5 s" in caplog.text
        assert "tulip" not in caplog.text

    def test_it_tries_again_after_five_seconds(self) -> None:
        """Two failures in a row stop it; a while later it goes on, over a new connection."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        app, clock = an_app(f"redis://127.0.0.1:{port}/0"), FakeClock()
        publisher = Publisher(app, clock)
        publisher(knock(1))
        publisher(knock(2))

        app.conf.broker_url = app.conf.broker_write_url = "memory://"
        publisher(knock(3, queue="after-the-pause"))
        assert received(app, "after-the-pause") == []  # it rests
        clock.sleep(publishing.PAUSE_SECONDS + 0.1)
        publisher(knock(4, queue="after-the-pause"))

        assert [m.headers["id"] for m in received(app, "after-the-pause")] == ["id-4"]

    def test_one_success_makes_a_failure_forgotten(self) -> None:
        """The breaker counts failures in a row: one now and one later do not stop it."""
        app = an_app()
        publisher = Publisher(app, SystemClock())
        broken = Knock(task="think.no.such", task_id="x", kwargs={}, shows={})

        for number in range(3):
            publisher(broken)
            publisher(knock(number, queue="in-between"))

        assert len(received(app, "in-between")) == 3

    def test_a_thread_that_hangs_is_given_up(
        self, silent_broker: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name look-up has no timeout: after half a minute another thread does the work."""
        monkeypatch.setattr(publishing, "SOCKET_SECONDS", 60.0)
        monkeypatch.setattr(publishing, "_LIMITS", {})
        app, clock = an_app(f"redis://{silent_broker}/0"), FakeClock()
        publisher = Publisher(app, clock)
        publisher(knock(1))
        publisher(knock(2))

        app.conf.broker_url = app.conf.broker_write_url = "memory://"
        clock.sleep(publishing.STUCK_SECONDS + 1)
        publisher(knock(3, queue="given-up"))

        assert [m.headers["id"] for m in received(app, "given-up")] == ["id-3"]


class TestForks:
    def test_a_child_begins_anew(self) -> None:
        """A forked worker has no thread of its parent's: it starts its own, and its first knock is sent."""
        app = an_app()
        publisher = Publisher(app, SystemClock())
        publisher(knock(1, queue="of-a-fork"))
        read, write = os.pipe()

        child = os.fork()
        if child == 0:
            try:
                publisher(knock(2, queue="of-a-child"))
                ids = ",".join(message.headers["id"] for message in received(app, "of-a-child"))
                os.write(write, ids.encode() or b"nothing")
            finally:
                os._exit(0)
        os.close(write)

        assert os.read(read, 100) == b"id-2"
        os.close(read)
        os.waitpid(child, 0)


class TestEager:
    def test_knocks_made_meanwhile_are_drained_in_order(self) -> None:
        """Engine §15: with task_always_eager the work runs in the caller, one thing after the other, never nested."""
        app = an_app(task_always_eager=True)
        order: list[str] = []
        publisher = Publisher(app, SystemClock())

        @app.task(name="own.run", shared=False)
        def run(submission_id: str) -> None:
            order.append(f"begin {submission_id}")
            if submission_id == "id-1":
                publisher(replace(knock(2), task="own.run"))
                publisher(replace(knock(3), task="own.run"))
            order.append(f"end {submission_id}")

        publisher(replace(knock(1), task="own.run"))

        assert order == [f"{what} id-{n}" for n in (1, 2, 3) for what in ("begin", "end")]

    def test_a_task_that_raises_does_not_keep_the_others_from_running(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With task_eager_propagates too each knock is run, in order; a failure is logged, by its type alone."""
        app = an_app(task_always_eager=True, task_eager_propagates=True)
        order: list[str] = []
        publisher = Publisher(app, SystemClock())

        @app.task(name="own.run", shared=False)
        def run(submission_id: str) -> None:
            order.append(submission_id)
            if submission_id == "id-1":
                publisher(replace(knock(2), task="own.run"))
                publisher(replace(knock(3), task="own.run"))
            if submission_id != "id-3":
                raise LookupError("tulip")

        publisher(replace(knock(1), task="own.run"))

        assert order == ["id-1", "id-2", "id-3"]
        ours = [record.getMessage() for record in caplog.records if record.name == publishing.logger.name]
        assert ours == ["an eager task raised LookupError; its row says how it stands"] * 2

    def test_what_a_task_raises_is_not_the_callers(self, caplog: pytest.LogCaptureFixture) -> None:
        """Not even with task_eager_propagates: the call that was accepted has succeeded."""
        app = an_app(task_always_eager=True, task_eager_propagates=True)

        Publisher(app, SystemClock())(knock(1))

        assert "an eager task raised AssertionError" in caplog.text
