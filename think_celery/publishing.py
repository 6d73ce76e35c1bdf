"""Send knocks to the broker without ever making a caller wait for it, or fail because of it."""

import logging
import os
import queue
import threading
from typing import Any

from celery import Celery, current_task

from think_celery.clock import Clock
from think_celery.protocols import Knock

logger = logging.getLogger("think_celery.publishing")

WAIT_SECONDS = 0.5
FAILURES = 2
PAUSE_SECONDS = 5.0
WAITING = 10_000
"""Knocks that may wait for the thread; more are left to the tick."""


class Publisher:
    """Publishes from one kept thread a process, because a broker that accepts and never answers hangs its caller.

    The caller waits half a second at most. After two failures in a row publishing pauses for five seconds:
    what is not sent then, the tick finds in the database.
    """

    def __init__(self, app: Celery, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._queue: queue.Queue[tuple[Knock, dict[str, Any], threading.Event]] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failures, self._paused_until = 0, 0.0

    def __call__(self, knock: Knock) -> None:
        """Publish, or leave it to the tick; never raises."""
        if self._clock.elapsed() < self._paused_until:
            return
        self._ensure_thread()
        sent = threading.Event()
        try:
            self._queue.put_nowait((knock, _parents(), sent))
        except queue.Full:
            return
        if not sent.wait(WAIT_SECONDS):
            self._failed("the broker did not answer in time")

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="think-publisher", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        waiting = self._queue
        while True:
            knock, parents, sent = waiting.get()
            try:
                if self._clock.elapsed() >= self._paused_until:
                    self._send(knock, parents)
                    self._failures = 0
            except Exception as error:
                self._failed(type(error).__name__)
            finally:
                sent.set()

    def _send(self, knock: Knock, parents: dict[str, Any]) -> None:
        options: dict[str, Any] = dict(parents)
        if knock.root_id is not None:
            options["root_id"] = knock.root_id
        if knock.queue is not None:
            options["queue"] = knock.queue
        options |= {"kwargsrepr": repr(knock.shows), "retry": False}
        self._app.tasks[knock.task].apply_async(kwargs=knock.kwargs, task_id=knock.task_id, **options)

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            self._failures = 0
            self._paused_until = self._clock.elapsed() + PAUSE_SECONDS
            logger.warning("publishing pauses for %g s (%s); the tick does the work", PAUSE_SECONDS, why)
        else:
            logger.warning("a knock was not published (%s); the tick finds its row", why)


def _parents() -> dict[str, Any]:
    """The chain that a message belongs to: that of the task which sends it."""
    if not current_task:
        return {}
    request = current_task.request
    return {"root_id": request.root_id or request.id, "parent_id": request.id}
