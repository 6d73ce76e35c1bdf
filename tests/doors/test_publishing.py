"""Knocks are sent by a thread that no caller waits for, whatever the broker does."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, signals
from kombu import Exchange, Producer, Queue

from think_celery import publishing
from think_celery.app import ThinkCelery
from think_celery.clock import SystemClock
from think_celery.protocols import Knock
from think_celery.publishing import Publisher
from think_celery.runtime import set_current
from think_celery.tasks import register
from think_celery.testing import FakeClock

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 20.0
FAR_LESS_THAN_HANGING = 60.0
"""Seconds: a socket here has ten times as many, and a busy machine needs fewer."""
UNKNOWN = Knock(task="think.no.such", task_id="x", kwargs={}, shows={})


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


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """The URL of a broker that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Gate:
    """A route that holds the sender at the knock ``id-0`` until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> None:
        if kwargs == {"submission_id": "id-0"}:
            self.reached.set()
            self.open.wait(PATIENCE)


class TestSending:
    def test_it_is_sent_soon(self) -> None:
        """With a broker that answers the message is there, with ids alone and the queue that the row names."""
        app = an_app()
        publisher = Publisher(app, SystemClock())

        publisher(knock(queue="sent-here"))

        assert publisher.flush(PATIENCE)
        [message] = received(app, "sent-here")
        assert message.headers["task"] == "think.submission.run"
        assert message.headers["id"] == "id-1"
        assert message.headers["kwargsrepr"] == "{'submission': 'id-1'}"
        assert message.content_type == "application/json"
        assert message.payload[1] == {"submission_id": "id-1"}

    def test_the_caller_does_not_wait(self) -> None:
        """What can't be sent yet keeps nobody: the calls return, and all is sent in order once it can be."""
        gate = Gate()
        app = an_app(task_routes=[gate])
        publisher = Publisher(app, SystemClock())

        for number in range(250):
            publisher(knock(number, queue="in-order"))
        assert gate.reached.wait(PATIENCE)
        assert not publisher.flush(0.01)
        gate.open.set()

        assert publisher.flush(PATIENCE)
        assert [message.headers["id"] for message in received(app, "in-order")] == [
            f"id-{n}" for n in range(250)
        ]

    def test_many_threads_share_one_connection(self) -> None:
        """Each of eighty calls sends its own, none is lost and none is sent twice; one thread does it."""
        app = an_app()
        publisher = Publisher(app, SystemClock())
        start = threading.Barrier(8)
        others = {thread.ident for thread in threading.enumerate()}

        def send(first: int) -> None:
            start.wait(10)
            for number in range(first, first + 10):
                publisher(knock(number, queue="of-many"))

        threads = [threading.Thread(target=send, args=(n * 10,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert publisher.flush(PATIENCE)
        ids = sorted(int(message.headers["id"][3:]) for message in received(app, "of-many"))
        assert ids == list(range(80))
        new = [thread for thread in threading.enumerate() if thread.ident not in others]
        assert [thread.name for thread in new] == ["think-publisher"]

    def test_whoever_is_faster_than_the_broker_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No more than some hundred knocks are kept; callers in a hurry are slowed down, and none is lost."""
        monkeypatch.setattr(
            publishing, "WAIT_SECONDS", PATIENCE
        )  # the machine may be busy, the broker is not
        app = an_app()
        publisher = Publisher(app, SystemClock())

        for number in range(4 * publishing.QUEUED):
            publisher(knock(number, queue="in-a-hurry"))
            assert publisher._sender is not None
            assert publisher._sender.queued() <= publishing.QUEUED + 1

        assert publisher.flush(PATIENCE)
        assert len(received(app, "in-a-hurry")) == 4 * publishing.QUEUED

    def test_a_chain_is_one_in_flower(self) -> None:
        """A knock of a workflow carries the root of its run."""
        app = an_app()
        chained = Knock(
            task="think.workflow.advance",
            task_id="id-2",
            kwargs={"workflow": "W", "workflow_id": "w"},
            queue="chain",
            root_id="id-0",
            shows={"workflow": "W"},
        )
        publisher = Publisher(app, SystemClock())
        publisher(chained)

        assert publisher.flush(PATIENCE)
        [message] = received(app, "chain")
        assert message.headers["root_id"] == "id-0"

    def test_what_no_task_sends_hangs_from_the_first_of_its_chain(self) -> None:
        """As what the tick has missed, or a client's event woke: without a parent it would stand beside the run."""
        app = an_app()
        app.finalize()
        chained = replace(knock(2, queue="tree"), root_id="id-0")
        publisher = Publisher(app, SystemClock())

        @app.task(name="own.sends", shared=False)
        def sends() -> None:
            publisher(replace(chained, task_id="id-3"))

        publisher(replace(chained, task_id="id-0"))
        publisher(chained)
        sends.apply(task_id="id-1")

        assert publisher.flush(PATIENCE)
        parents = [message.headers["parent_id"] for message in received(app, "tree")]
        assert parents == [None, "id-0", "id-1"]

    def test_what_is_queued_is_sent_when_it_is_closed(self) -> None:
        """Closing sends what waits and ends the thread; the next knock begins anew."""
        app = an_app()
        publisher = Publisher(app, SystemClock())
        for number in range(150):
            publisher(knock(number, queue="at-the-end"))
        assert publisher._sender is not None
        thread = publisher._sender

        publisher.close()

        assert len(received(app, "at-the-end")) == 150
        thread.join(PATIENCE)
        assert not thread.is_alive()
        publisher(knock(7, queue="at-the-end"))
        assert publisher.flush(PATIENCE)
        assert [m.headers["id"] for m in received(app, "at-the-end")] == ["id-7"]


class TestCelerysOwn:
    """What Celery promises of ``apply_async`` holds for a knock, though that is not what sends it."""

    def test_the_message_is_what_apply_async_sends(self) -> None:
        """Headers, properties and body are the same, but for what each message has of its own."""
        app = an_app()
        publisher = Publisher(app, SystemClock())

        publisher(knock(queue="ours"))
        app.tasks["think.submission.run"].apply_async(
            kwargs={"submission_id": "id-1"},
            task_id="id-1",
            queue="theirs",
            kwargsrepr="{'submission': 'id-1'}",
        )

        assert publisher.flush(PATIENCE)
        [ours], [theirs] = received(app, "ours"), received(app, "theirs")
        assert ours.headers == theirs.headers
        assert ours.payload == theirs.payload
        own = {"delivery_tag", "delivery_info", "reply_to", "kwargsrepr"}  # the last two nobody reads
        assert {k: v for k, v in ours.properties.items() if k not in own} == {
            k: v for k, v in theirs.properties.items() if k not in own
        }

    def test_an_older_kombu_sends_each_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without `Producer.batch` (before kombu 5.7) the same is sent, a little slower."""
        monkeypatch.delattr(Producer, "batch", raising=False)
        app = an_app()
        publisher = Publisher(app, SystemClock())

        for number in range(30):
            publisher(knock(number, queue="one-by-one"))

        assert publisher.flush(PATIENCE)
        assert [m.headers["id"] for m in received(app, "one-by-one")] == [f"id-{n}" for n in range(30)]

    def test_it_goes_where_the_routes_say(self) -> None:
        """`task_routes` choose queue and priority, by name or by a function of the arguments; a row's queue wins."""
        app = an_app(task_routes={"think.submission.*": {"queue": "routed", "priority": 3}})
        by_row = an_app(
            task_routes=[lambda name, args, kwargs, options, task=None, **_: f"to-{kwargs['submission_id']}"]
        )
        first, second = Publisher(app, SystemClock()), Publisher(by_row, SystemClock())

        first(knock(1))
        first(knock(2, queue="of-the-row"))
        second(knock(3))

        assert first.flush(PATIENCE)
        assert second.flush(PATIENCE)
        [routed], [own], [called] = (
            received(app, "routed"),
            received(app, "of-the-row"),
            received(by_row, "to-id-3"),
        )
        assert (routed.headers["id"], routed.properties["priority"]) == ("id-1", 3)
        assert own.headers["id"] == "id-2"
        assert called.headers["id"] == "id-3"

    def test_it_goes_through_the_exchange_of_its_queue(self) -> None:
        """A queue of `task_queues` that is bound to a topic exchange gets its knocks from there."""
        exchange = Exchange("knocks", type="topic")
        app = an_app(
            task_queues=[Queue("bound", exchange, routing_key="knock.#")], task_default_queue="bound"
        )
        app.conf.task_routes = {"think.*": {"queue": "bound", "routing_key": "knock.now"}}
        publisher = Publisher(app, SystemClock())

        publisher(knock(1))
        publisher(knock(2))

        assert publisher.flush(PATIENCE)
        found = received(app, "bound")
        assert [message.headers["id"] for message in found] == ["id-1", "id-2"]
        assert {message.delivery_info["exchange"] for message in found} == {"knocks"}
        assert {message.delivery_info["routing_key"] for message in found} == {"knock.now"}

    def test_signals_are_sent(self) -> None:
        """`before_task_publish` may still add a header, and `after_task_publish` is told; once for each knock."""
        app, told = an_app(), []

        def before(sender: str, headers: dict[str, Any], **_: Any) -> None:
            headers["of-the-host"] = "7"
            told.append(("before", sender))

        def after(sender: str, headers: dict[str, Any], **_: Any) -> None:
            told.append(("after", headers["id"]))

        signals.before_task_publish.connect(before)
        signals.after_task_publish.connect(after)
        try:
            publisher = Publisher(app, SystemClock())
            publisher(knock(queue="signalled"))
            assert publisher.flush(PATIENCE)
        finally:
            signals.before_task_publish.disconnect(before)
            signals.after_task_publish.disconnect(after)

        [message] = received(app, "signalled")
        assert message.headers["of-the-host"] == "7"
        assert told == [("before", "think.submission.run"), ("after", "id-1")]

    @pytest.mark.parametrize("on", [True, False])
    def test_flower_learns_of_what_is_sent(self, on: bool) -> None:
        """With `task_send_sent_event` a `task-sent` event goes with each knock, else none; with ids alone."""
        app = an_app(task_send_sent_event=on)
        seen: list[dict[str, Any]] = []
        with app.connection_for_read() as conn:
            receiver = app.events.Receiver(conn, handlers={"task-sent": seen.append})
            with receiver.consumer_context() as (events, _, _):
                publisher = Publisher(app, SystemClock())
                publisher(knock(queue="announced"))
                assert publisher.flush(PATIENCE)
                with contextlib.suppress(socket.timeout):
                    while not seen:
                        events.drain_events(timeout=2.0 if on else 0.05)

        assert len(received(app, "announced")) == 1
        assert [(event["uuid"], event["name"], event["kwargs"], event["queue"]) for event in seen] == [
            ("id-1", "think.submission.run", "{'submission': 'id-1'}", "announced")
        ] * on


class TestBrokersThatFail:
    @pytest.mark.parametrize("scheme", ["redis://{}/0", "amqp://guest:guest@{}//"])
    def test_one_that_never_answers_costs_half_a_second(
        self,
        scheme: str,
        silent_broker: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Apply_async hangs on a broker that accepts and never answers; the caller must not.

        A few knocks cost nothing, and however many there are, half a second is all that is waited for them.
        """
        waits: list[float] = []
        flush = publishing._Sender.flush
        monkeypatch.setattr(publishing, "SOCKET_SECONDS", 600.0)
        monkeypatch.setattr(
            publishing._Sender,
            "flush",
            lambda self, seconds: (waits.append(seconds), flush(self, seconds))[1],
        )
        publisher = Publisher(an_app(scheme.format(silent_broker)), SystemClock())

        began = time.monotonic()
        for number in range(publishing.QUEUED // 2):
            publisher(knock(number))
        few = list(waits)
        for number in range(publishing.QUEUED * 2):
            publisher(knock(number))
        many = time.monotonic() - began

        assert (few, waits) == ([], [publishing.WAIT_SECONDS])
        assert publishing.WAIT_SECONDS <= many < FAR_LESS_THAN_HANGING
        assert "publishing pauses for 5 s (the broker does not keep up)" in caplog.text

    def test_one_that_is_not_there_raises_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        """Its failure is logged by type, never raised, and the log holds no URL and no password."""
        publisher = Publisher(an_app(f"redis://:tulip@127.0.0.1:{free_port()}/0"), SystemClock())

        publisher(knock(1))
        assert publisher.flush(PATIENCE)
        publisher(knock(2))
        assert publisher.flush(PATIENCE)

        assert "a knock was not published" in caplog.text
        assert "publishing pauses for 5 s" in caplog.text
        assert "tulip" not in caplog.text

    def test_a_process_without_room_for_a_thread_goes_on(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor is that the caller's problem: what it submitted is stored."""

        def refuses(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        app = an_app()
        publisher = Publisher(app, SystemClock())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuses)
            publisher(knock(1, queue="no-room"))
        publisher(knock(2, queue="no-room"))

        assert publisher.flush(PATIENCE)
        assert [message.headers["id"] for message in received(app, "no-room")] == ["id-2"]
        assert "no knock can be published (can't start new thread)" in caplog.text

    def test_it_tries_again_after_five_seconds(self) -> None:
        """Two failures in a row stop it; a while later it goes on, over a new connection."""
        app, clock = an_app(f"redis://127.0.0.1:{free_port()}/0"), FakeClock()
        publisher = Publisher(app, clock)
        for number in (1, 2):
            publisher(knock(number))
            assert publisher.flush(PATIENCE)

        app.conf.broker_url = app.conf.broker_write_url = "memory://"
        publisher(knock(3, queue="after-the-pause"))
        assert publisher.flush(PATIENCE)
        assert received(app, "after-the-pause") == []  # it rests
        clock.sleep(publishing.PAUSE_SECONDS + 0.1)
        publisher(knock(4, queue="after-the-pause"))

        assert publisher.flush(PATIENCE)
        assert [m.headers["id"] for m in received(app, "after-the-pause")] == ["id-4"]

    def test_one_success_makes_a_failure_forgotten(self) -> None:
        """The breaker counts failures in a row: one now and one later do not stop it."""
        app = an_app()
        publisher = Publisher(app, SystemClock())

        for number in range(3):
            for each in (UNKNOWN, knock(number, queue="in-between")):
                publisher(each)
                assert publisher.flush(PATIENCE)

        assert len(received(app, "in-between")) == 3

    def test_one_that_can_not_be_sent_keeps_no_other(self) -> None:
        """Knocks that are written together don't share a fate: the others arrive, in order."""
        gate = Gate()
        app = an_app(task_routes=[gate])
        publisher = Publisher(app, SystemClock())

        publisher(knock(0, queue="together"))
        assert gate.reached.wait(PATIENCE)
        for each in (knock(1, queue="together"), UNKNOWN, knock(2, queue="together")):
            publisher(each)
        gate.open.set()

        assert publisher.flush(PATIENCE)
        ids = [message.headers["id"] for message in received(app, "together")]
        assert list(dict.fromkeys(ids)) == ["id-0", "id-1", "id-2"]  # one may come twice, which is harmless

    def test_a_thread_that_hangs_is_given_up(
        self, silent_broker: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name look-up has no timeout: after half a minute another thread does the work."""
        monkeypatch.setattr(publishing, "SOCKET_SECONDS", 60.0)
        app, clock = an_app(f"redis://{silent_broker}/0"), FakeClock()
        publisher = Publisher(app, clock)
        publisher(knock(1))
        assert not publisher.flush(0.3)

        app.conf.broker_url = app.conf.broker_write_url = "memory://"
        clock.sleep(publishing.STUCK_SECONDS + 1)
        publisher(knock(3, queue="given-up"))

        assert publisher.flush(PATIENCE)
        assert [m.headers["id"] for m in received(app, "given-up")] == ["id-3"]


class TestForks:
    def test_a_child_begins_anew(self) -> None:
        """A forked worker has no thread of its parent's, and nothing that was queued there: it sends its own.

        Also if the fork came while another thread held a lock.
        """
        gate = Gate()
        app = an_app(task_routes=[gate])
        publisher = Publisher(app, SystemClock())
        publisher(knock(0, queue="of-a-fork"))
        assert gate.reached.wait(PATIENCE)
        publisher(knock(1, queue="of-a-fork"))
        read, write = os.pipe()

        publisher._lock.acquire()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                publisher(knock(2, queue="of-a-fork"))
                publisher.flush(PATIENCE)
                ids = ",".join(message.headers["id"] for message in received(app, "of-a-fork"))
                os.write(write, ids.encode() or b"nothing")
            finally:
                os._exit(0)
        publisher._lock.release()
        os.close(write)
        gate.open.set()

        assert os.read(read, 100) == b"id-2"
        os.close(read)
        os.waitpid(child, 0)
        assert publisher.flush(PATIENCE)
        assert [message.headers["id"] for message in received(app, "of-a-fork")] == ["id-0", "id-1"]


class TestTheEndOfAnApp:
    def test_what_is_queued_is_sent_first(self, sqlite_url: str) -> None:
        """`ThinkCelery.close` returns when that is done, and leaves no thread behind."""
        gate = Gate()
        app = Celery("closing", broker="memory://", set_as_current=False)
        app.conf.update(task_routes=[gate], think_database_url=sqlite_url)
        before = set_current(None)
        think = ThinkCelery(app)
        for number in range(3):
            think.runtime.knock(knock(number, queue="of-an-app"))
        assert gate.reached.wait(PATIENCE)
        opening = threading.Timer(0.1, gate.open.set)
        opening.start()

        think.close()

        set_current(before)
        assert [message.headers["id"] for message in received(app, "of-an-app")] == ["id-0", "id-1", "id-2"]
        opening.join()


A_SCRIPT = """
import atexit, sys, time
atexit.register(lambda: print(time.monotonic()))  # the first one is called last
from tests.doors.test_publishing import an_app, knock
from think_celery import publishing
from think_celery.clock import SystemClock
from think_celery.publishing import Publisher

publishing.SOCKET_SECONDS = 600.0
publisher = Publisher(an_app(sys.argv[1]), SystemClock())
for number in range(20):
    publisher(knock(number, queue="of-a-script"))
print(time.monotonic())
"""


class TestTheEndOfAProcess:
    def run(self, broker: str) -> float:
        """Run a script that knocks and ends; how long it was kept at its end."""
        script = subprocess.run(
            [sys.executable, "-c", A_SCRIPT, broker],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert script.stderr == ""
        ended, kept = script.stdout.split()
        return float(kept) - float(ended)

    def test_what_is_queued_is_sent_first(self, redis_url: str) -> None:
        """A script that submits and ends has sent its knocks, without a word about it."""
        self.run(redis_url)

        with redis.Redis.from_url(redis_url) as server:
            assert server.llen("of-a-script") == 20

    def test_a_broker_that_never_answers_keeps_it_half_a_second(self, silent_broker: str) -> None:
        """Nobody's program hangs at its end because of a broker."""
        assert 0.4 <= self.run(f"redis://{silent_broker}/0") < FAR_LESS_THAN_HANGING


class TestEager:
    def test_knocks_made_meanwhile_are_drained_in_order(self) -> None:
        """With task_always_eager the work runs in the caller, one thing after the other, never nested."""
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
