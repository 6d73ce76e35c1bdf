"""Send knocks to the broker without ever making a caller wait for it, or fail because of it."""

import logging
import queue
import threading
from collections import deque
from typing import Any

from celery import Celery, current_task
from kombu import Connection

from think_celery import forks
from think_celery.breaker import Breaker
from think_celery.clock import Clock
from think_celery.protocols import Knock

logger = logging.getLogger("think_celery.publishing")

WAIT_SECONDS = 0.5
FAILURES = 2
PAUSE_SECONDS = 5.0
WAITING = 10_000
"""Knocks that may wait for the thread; more are left to the tick."""

SOCKET_SECONDS = 2.0
STUCK_SECONDS = 30.0
"""A thread that hangs for that long, in a name look-up for instance, is given up for another."""

_LIMITS: dict[str, float] = {
    "socket_timeout": SOCKET_SECONDS,  # these two are Redis's words,
    "socket_connect_timeout": SOCKET_SECONDS,
    "read_timeout": SOCKET_SECONDS,  # these AMQP's; transports ignore what isn't theirs
    "write_timeout": SOCKET_SECONDS,
    "max_retries": 1,  # of connecting: the next broker of several, at once
    "interval_start": 0,
    "interval_step": 0,
}


class Publisher:
    """Publishes from one kept thread a process, because a broker that accepts and never answers hangs its caller.

    The caller waits half a second at most. After two failures in a row publishing pauses for five seconds:
    what is not sent then, the tick finds in the database. After a fork the child begins anew.

    With ``task_always_eager`` the task runs in the caller, before the call returns; knocks that are made
    meanwhile are queued and run after it, in order, whatever each of them raises.
    """

    def __init__(self, app: Celery, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._sender: _Sender | None = None
        self._breaker = Breaker(self._clock, failures=FAILURES, rest_seconds=PAUSE_SECONDS)
        self._eager = threading.local()

    def __call__(self, knock: Knock) -> None:
        """Publish, or leave it to the tick; never raises."""
        if self._app.conf.task_always_eager:
            self._run_eagerly(knock)
            return
        with self._lock:
            if self._breaker.rests():
                return
            sender = self._live_sender()
        sent = _Sent(knock, _parents())
        try:
            sender.waiting.put_nowait(sent)
        except queue.Full:
            return
        if not sent.done.wait(WAIT_SECONDS):
            self._note("the broker did not answer in time")
        elif sent.problem is not None:
            self._note(sent.problem)
        else:
            self._breaker.succeeded()

    def _live_sender(self) -> "_Sender":
        sender = self._sender
        if sender is None or not sender.is_alive() or sender.is_stuck():
            if sender is not None:
                sender.given_up = True
            sender = self._sender = _Sender(self._app, self._clock)
            sender.start()
        return sender

    def _note(self, problem: str) -> None:
        with self._lock:
            pauses = self._breaker.failed()
        if pauses:
            logger.warning("publishing pauses for %g s (%s); the tick does the work", PAUSE_SECONDS, problem)
        else:
            logger.warning("a knock was not published (%s); the tick finds its row", problem)

    def _run_eagerly(self, knock: Knock) -> None:
        waiting: deque[Knock] | None = getattr(self._eager, "waiting", None)
        if waiting is not None:
            waiting.append(knock)
            return
        self._eager.waiting = waiting = deque([knock])
        try:
            while waiting:
                try:
                    _apply(self._app, waiting.popleft(), {})
                except Exception as error:  # with task_eager_propagates: it is not the end of the others
                    logger.warning(
                        "an eager task raised %s; its row says how it stands", type(error).__name__
                    )
        finally:
            self._eager.waiting = None


class _Sent:
    """A knock on its way: ``problem`` says, once it is done, why it was not sent."""

    def __init__(self, knock: Knock, parents: dict[str, Any]) -> None:
        self.knock, self.parents = knock, parents
        self.problem: str | None = None
        self.done = threading.Event()


class _Sender(threading.Thread):
    """The thread, with a connection of its own that it keeps."""

    def __init__(self, app: Celery, clock: Clock) -> None:
        super().__init__(name="think-publisher", daemon=True)
        self.waiting: queue.Queue[_Sent] = queue.Queue(WAITING)
        self.given_up = False
        self._app, self._clock = app, clock
        self._connection: Connection | None = None
        self._busy_since: float | None = None

    def is_stuck(self) -> bool:
        """Whether it has been at one knock for too long."""
        since = self._busy_since
        return since is not None and self._clock.elapsed() - since > STUCK_SECONDS

    def run(self) -> None:
        while not self.given_up:
            sent = self.waiting.get()
            self._busy_since = self._clock.elapsed()
            try:
                self._send(sent)
            except Exception as error:
                sent.problem = type(error).__name__
            finally:
                sent.done.set()
                self._busy_since = None

    def _send(self, sent: _Sent) -> None:
        kept = self._connection is not None
        try:
            self._publish(sent)
        except Exception as error:
            self._drop_connection()
            if not kept or isinstance(error, TimeoutError):
                raise
            self._publish(sent)  # the broker closes connections that were idle for long

    def _publish(self, sent: _Sent) -> None:
        try:
            if self._connection is None:
                self._connection = self._app.connection_for_write(
                    connect_timeout=SOCKET_SECONDS,
                    transport_options={**self._app.conf.broker_transport_options, **_LIMITS},
                )
            with self._app.amqp.Producer(self._connection, auto_declare=False) as producer:
                _apply(self._app, sent.knock, {**sent.parents, "producer": producer})
        except Exception:
            self._drop_connection()
            raise

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                logger.debug("a broken connection did not close: %s", type(error).__name__)


def _apply(app: Celery, knock: Knock, options: dict[str, Any]) -> None:
    options = {**options, "kwargsrepr": repr(knock.shows), "retry": False}
    if knock.root_id is not None:
        options["root_id"] = knock.root_id
    if knock.queue is not None:
        options["queue"] = knock.queue
    app.tasks[knock.task].apply_async(kwargs=knock.kwargs, task_id=knock.task_id, **options)


def _parents() -> dict[str, Any]:
    """The chain that a message belongs to: that of the task which sends it."""
    if not current_task:
        return {}
    request = current_task.request
    return {"root_id": request.root_id or request.id, "parent_id": request.id}
