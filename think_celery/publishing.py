"""Send knocks to the broker without making a caller wait for it, or fail because of it."""

import atexit
import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from celery import Celery, current_task
from celery.exceptions import QueueNotFound
from celery.utils.nodenames import anon_nodename
from kombu import Connection

from think_celery import brokers, forks
from think_celery.breaker import Breaker
from think_celery.clock import Clock, SystemClock
from think_celery.protocols import Knock

logger = logging.getLogger("think_celery.publishing")

WAIT_SECONDS = 0.5
"""The longest that a caller waits, and how long what is queued gets when the process ends."""

QUEUED = 500
"""Knocks that may wait for the thread; with more than that, callers wait for it."""

AT_ONCE = 100
"""Knocks that are sent in one write, where the broker's transport can do that."""

FAILURES = 2
PAUSE_SECONDS = 5.0
SOCKET_SECONDS = 2.0
STUCK_SECONDS = 30.0
"""A thread that hangs for that long, in a name look-up for instance, is given up for another."""

_publishers: "WeakSet[Publisher]" = WeakSet()
_inherited: "list[_Sender | None]" = []  # a parent's, kept so that no finalizer in the child closes its sockets


class Publisher:
    """Publishes from one kept thread a process, because a broker that accepts and never answers hangs its caller.

    The caller queues its knock and goes on. Only where many are queued already does it wait, half a second at
    most. After two failures in a row publishing pauses for five seconds: what is not sent then, the tick finds
    in the database. What is queued is sent before the process ends, if half a second is enough; after a fork
    the child begins anew, with nothing queued.

    With ``task_always_eager`` the task runs in the caller, before the call returns; knocks that are made
    meanwhile are queued and run after it, in order, whatever each of them raises.
    """

    def __init__(self, app: Celery, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._sender: _Sender | None = None
        self._begin()
        forks.in_child(self._begin)
        _publishers.add(self)

    def _begin(self) -> None:
        _inherited.append(self._sender)
        self._lock = threading.Lock()
        self._sender = None
        self._breaker = Breaker(self._clock, failures=FAILURES, rest_seconds=PAUSE_SECONDS)
        self._eager = threading.local()

    def __call__(self, knock: Knock) -> None:
        """Publish soon, or leave it to the tick; never raises."""
        if self._app.conf.task_always_eager:
            self._run_eagerly(knock)
            return
        if self._breaker.rests():
            return
        try:
            sender = self._live_sender()
        except RuntimeError as error:  # a process that ends, or may have no more threads
            logger.warning("no knock can be published (%s); the tick finds the rows", error)
            return
        if sender.queued() >= QUEUED and not sender.flush(WAIT_SECONDS):
            sender.pause("the broker does not keep up")
            return
        sender.put(knock, _parents())

    def flush(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until what is queued now was sent or given up, for so many seconds at most; whether that was enough."""
        sender = self._sender
        return sender is None or sender.flush(seconds)

    def close(self) -> None:
        """Send what is queued, as in :meth:`flush`, and give back thread and connection. The next use begins anew."""
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.flush(WAIT_SECONDS)
            sender.give_up()

    def _live_sender(self) -> "_Sender":
        sender = self._sender
        if sender is not None and sender.serves():
            return sender
        with self._lock:
            sender = self._sender
            if sender is None or not sender.serves():
                if sender is not None:
                    sender.give_up()
                brokers.load_transport(self._app)
                sender = self._sender = _Sender(self._app, self._clock, self._breaker)
                sender.start()
            return sender

    def _run_eagerly(self, knock: Knock) -> None:
        waiting: deque[Knock] | None = getattr(self._eager, "waiting", None)
        if waiting is not None:
            waiting.append(knock)
            return
        self._eager.waiting = waiting = deque([knock])
        try:
            while waiting:
                try:
                    _apply(self._app, waiting.popleft())
                except Exception as error:  # with task_eager_propagates: it is not the end of the others
                    logger.warning(
                        "an eager task raised %s; its row says how it stands", type(error).__name__
                    )
        finally:
            self._eager.waiting = None


@atexit.register
def _flush_all() -> None:
    clock = SystemClock()
    until = clock.elapsed() + WAIT_SECONDS
    for publisher in list(_publishers):
        publisher.flush(max(0.0, until - clock.elapsed()))


Queued = tuple[Knock, dict[str, Any]]
"""A knock, and the ids of the chain that it belongs to."""


class _Sender(threading.Thread):
    """The thread, with a connection of its own that it keeps."""

    def __init__(self, app: Celery, clock: Clock, breaker: Breaker) -> None:
        super().__init__(name="think-publisher", daemon=True)
        self._given_up = False
        self._app, self._clock, self._breaker = app, clock, breaker
        self._waiting: queue.SimpleQueue[Queued | threading.Event] = queue.SimpleQueue()
        self._connection: _BrokerConnection | None = None
        self._busy_since: float | None = None

    def serves(self) -> bool:
        """Whether it lives, and has not been at one thing for too long."""
        since = self._busy_since
        stuck = since is not None and self._clock.elapsed() - since > STUCK_SECONDS
        return self.is_alive() and not stuck

    def queued(self) -> int:
        """About how many knocks wait for it."""
        return self._waiting.qsize()

    def put(self, knock: Knock, parents: dict[str, Any]) -> None:
        """Queue a knock."""
        self._waiting.put((knock, parents))

    def flush(self, seconds: float) -> bool:
        """Whether all that is queued now is dealt with within so many seconds."""
        if not self.is_alive():
            return True
        done = threading.Event()
        self._waiting.put(done)
        return done.wait(seconds)

    def give_up(self) -> None:
        """Let it end as soon as it can; what is queued then is left to the tick."""
        self._given_up = True
        self._waiting.put(threading.Event())

    def pause(self, problem: str) -> None:
        """Let nothing be sent for a while."""
        while not self._note(problem):
            pass

    def run(self) -> None:
        while not self._given_up:
            items = list(self._taken())
            self._send([item for item in items if isinstance(item, tuple)])
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
        self._hang_up()

    def _taken(self) -> "Iterator[Queued | threading.Event]":
        yield self._waiting.get()
        for _ in range(AT_ONCE - 1):
            try:
                yield self._waiting.get_nowait()
            except queue.Empty:
                return

    def _send(self, knocks: list[Queued]) -> None:
        if not knocks or self._breaker.rests():
            return
        is_new = self._connection is None
        problem = self._sent(knocks)
        if problem is None:
            self._breaker.succeeded()
        elif is_new and len(knocks) == 1:
            self._note(problem)
        else:  # brokers close connections that were idle for long; or one of the knocks can't be sent at all
            self._send_each(knocks)

    def _send_each(self, knocks: list[Queued]) -> None:
        for knock in knocks:
            if self._breaker.rests():
                return
            problem = self._sent([knock])
            if problem is None:
                self._breaker.succeeded()
            else:
                self._note(problem)

    def _sent(self, knocks: list[Queued]) -> str | None:
        """Send them all, in order; what went wrong, if something did."""
        self._busy_since = self._clock.elapsed()
        try:
            if self._connection is None:
                with forks.uncut():
                    self._connection = _BrokerConnection(self._app)
            for knock, parents in knocks:
                self._connection.send(knock, parents)
            self._connection.flush()
        except Exception as error:
            self._hang_up()
            return type(error.__cause__ or error).__name__
        finally:
            self._busy_since = None
        return None

    def _note(self, problem: str) -> bool:
        pauses = self._breaker.failed()
        if pauses:
            logger.warning("publishing pauses for %g s (%s); the tick does the work", PAUSE_SECONDS, problem)
        else:
            logger.warning("a knock was not published (%s); the tick finds its row", problem)
        return pauses

    def _hang_up(self) -> None:
        held, self._connection = self._connection, None
        if held is not None:
            brokers.release(held.connection)


class _BrokerConnection:
    """A connection to the broker. Used by one thread, and thrown away after an error.

    It does what ``apply_async`` does with our tasks, in less than a third of the time: Celery's own message, routes,
    signals and events; but it declares each queue once, and keeps what needs no renewal.
    """

    def __init__(self, app: Celery) -> None:
        self._app, self._amqp = app, app.amqp
        self._origin, self._announced = anon_nodename(), app.conf.task_send_sent_event
        self._declared: set[str] = set()
        self.connection: Connection = brokers.connection(app, SOCKET_SECONDS)
        self._producer = app.amqp.Producer(self.connection, auto_declare=False)
        # Held open for as long as the connection: kombu makes a new client for each message without it.
        self._batch: Any = self._producer.batch(AT_ONCE) if hasattr(self._producer, "batch") else None
        if self._batch is not None:
            self._batch.__enter__()

    def send(self, knock: Knock, parents: dict[str, Any]) -> None:
        """Send a knock, or have it sent by the next :meth:`flush`."""
        task: Any = self._app.tasks[knock.task]
        chosen: dict[str, Any] = {} if knock.queue is None else {"queue": knock.queue}
        try:
            options = self._amqp.router.route(chosen, knock.task, (), knock.kwargs, task)
        except QueueNotFound as error:  # its row waits until somebody acts; all others go their way
            logger.error(
                "%s of %s was not sent: %s. Add it to task_queues, set task_create_missing_queues, or give the class "
                "another queue.",
                knock.task,
                knock.task_id,
                error.args[0],
            )
            return
        message = self._amqp.create_task_message(
            knock.task_id,
            knock.task,
            (),
            knock.kwargs,
            argsrepr="()",
            kwargsrepr=repr(knock.shows),
            root_id=knock.root_id or parents.get("root_id"),
            parent_id=parents.get("parent_id") or _first_of(knock),
            create_sent_event=self._announced,
            ignore_result=True,
            origin=self._origin,
        )
        queue_name = getattr(options.get("queue"), "name", "")
        if queue_name in self._declared:
            options["declare"] = []
        options.update(serializer=task.serializer, retry=False)  # a host's routes may say otherwise
        self._amqp.send_task_message(self._producer, knock.task, message, **options)
        self._declared.add(queue_name)

    def flush(self) -> None:
        """Have everything sent."""
        if self._batch is not None:
            self._batch.flush()


def queue_of(app: Celery, knock: Knock) -> str | None:
    """The name of the queue that a message goes to; ``None`` if the app has no such queue."""
    chosen: dict[str, Any] = {} if knock.queue is None else {"queue": knock.queue}
    try:
        task: Any = app.tasks[knock.task]
        options = app.amqp.router.route(chosen, knock.task, (), knock.kwargs, task)
    except QueueNotFound:
        return None
    return getattr(options.get("queue"), "name", None)


def _apply(app: Celery, knock: Knock) -> None:
    options: dict[str, Any] = {"kwargsrepr": repr(knock.shows)}
    if knock.root_id is not None:
        options["root_id"] = knock.root_id
    if knock.queue is not None:
        options["queue"] = knock.queue
    app.tasks[knock.task].apply_async(kwargs=knock.kwargs, task_id=knock.task_id, **options)


def _first_of(knock: Knock) -> str | None:
    """The first task of the chain that a message belongs to, unless it is that one.

    It stands for who has sent it where no task has: the tick, that found it missing, or a client.
    """
    return None if knock.root_id == knock.task_id else knock.root_id


def _parents() -> dict[str, Any]:
    """The chain that a message belongs to: that of the task which sends it."""
    if not current_task:
        return {}
    request = current_task.request
    return {"root_id": request.root_id or request.id, "parent_id": request.id}
