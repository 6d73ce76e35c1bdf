"""Writes to the live log without ever making a turn wait.

Frames are handed to one thread of the process, which gathers them for a moment, merges deltas that follow
each other, and appends the rest in one go. A merged frame spans the numbers ``first`` to ``n``. So within
one message and token the numbers are without a gap, and a reader that meets one (``first`` is not its last
``n`` + 1) knows that frames were dropped, and takes a snapshot.

Frames are dropped while the log is slow or down: an append that fails or takes longer than its limit stops
the writing for some seconds. They are dropped too when more are waiting than fit into the queue.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from think_celery import forks, native
from think_celery.breaker import Breaker
from think_celery.cadence import CADENCE_SECONDS, until_next
from think_celery.clock import Clock, SystemClock
from think_celery.logs import trace_of
from think_celery.protocols import EventLog, Frame

logger = logging.getLogger("think_celery.events")

FIRST_SECONDS = 0.005
"""How long the first frame after a pause waits for those that follow it: a turn shows several things at once."""

AFTER_SECONDS = 0.01
"""How long after each instant of the cadence is written: so long those who read then have to put what they read."""

DELTAS = {"text-delta": "delta", "reasoning-delta": "delta", "tool-input-delta": "inputTextDelta"}
"""Events that may be merged, each with the field that holds its text."""


class Growing:
    """A delta of text or reasoning that takes those that follow it, until it is written. It is made by its writer."""

    __slots__ = ("_closed", "_frame", "_id", "_lock", "_n", "_texts", "_type")

    def __init__(self, frame: Frame) -> None:
        # Of a few instructions, and taken for each token: a lock of greenlets takes ten times as long.
        self._lock = native.lock()
        self._frame, self._n, self._closed = frame, frame.n, False
        self._type, self._id = frame.event["type"], frame.event.get("id")
        self._texts: list[str] = [frame.event["delta"]]

    def takes(self, event: dict[str, Any]) -> bool:
        """Add an event, with the next number, if it belongs to the same part; says whether it does."""
        if event.get("type") != self._type or event.get("id") != self._id:
            return False
        with self._lock:
            if self._closed:
                return False
            self._texts.append(event["delta"])
            self._n += 1
            return True

    def close(self) -> int:
        """From now on it takes nothing. Returns the number of the last delta in it."""
        with self._lock:
            self._closed = True
            return self._n

    def as_frame(self) -> Frame:
        """The frame, once it is closed."""
        return _spanning(self._frame, "delta", self._texts, self._n)


def _spanning(frame: Frame, field: str, texts: Sequence[str], n: int) -> Frame:
    """The first of some frames with the texts of them all, up to the number *n*."""
    if len(texts) == 1:
        return frame
    return replace(frame, n=n, event={**frame.event, field: "".join(texts)})


class LiveWriter:
    """The one way of a process to its live log. Thread-safe; after a fork the child begins empty."""

    def __init__(
        self,
        log: EventLog,
        *,
        synchronous: bool = False,
        gather_seconds: float = CADENCE_SECONDS,
        limit_seconds: float = 0.25,
        rest_seconds: float = 5.0,
        capacity: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        """With *synchronous*, each frame is appended at once, in the caller.

        *limit_seconds* is how long an append may take, *rest_seconds* how long nothing is written after
        one that failed or took longer, *capacity* how many frames may wait.
        """
        self._log, self._synchronous = log, synchronous
        self._gather_seconds, self._limit_seconds = gather_seconds, limit_seconds
        self._rest_seconds, self._capacity = rest_seconds, capacity
        self._clock: Clock = clock or SystemClock()
        self._breaker = Breaker(self._clock, rest_seconds=rest_seconds)
        self._begin_empty()
        forks.in_child(self._begin_empty)

    def _begin_empty(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Frame | Growing] = deque()
        self._thread: threading.Thread | None = None
        self._busy, self._gathering, self._hurry, self._closed = False, False, False, False

    def put(self, frame: Frame) -> None:
        """Let listeners see this. Never waits and never raises; the frame may be dropped."""
        if self._synchronous:
            self._append([frame])
        else:
            self._enqueue(frame)

    def grow(self, frame: Frame) -> Growing | None:
        """The same with a delta of text or reasoning; gives what takes those that follow it, until it is written.

        ``None`` if nothing waits to be written.
        """
        if self._synchronous:
            self.put(frame)
            return None
        growing = Growing(frame)
        return growing if self._enqueue(growing) else None

    def _enqueue(self, frame: Frame | Growing) -> bool:
        with self._changed:
            if self._closed or self._breaker.rests() or len(self._queue) >= self._capacity:
                return False
            if self._thread is None and not self._begin():
                return False
            self._queue.append(frame)
            if not (self._busy or self._gathering):
                self._changed.notify_all()
        return True

    def _begin(self) -> bool:
        thread = threading.Thread(target=self._run, name="think-live", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a process that ends, or may have no more threads
            self._stop_for_a_while("the live log can't be written", str(error))
            return False
        self._thread = thread
        return True

    def flush(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds until what was put is written or dropped, and say whether it is."""
        with self._changed:
            self._hurry = bool(self._queue)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout)

    def close(self, timeout: float = 1.0) -> bool:
        """Flush, end the thread, and drop what is put afterwards. Says whether all was written or dropped."""
        flushed = self.flush(timeout)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if flushed and self._thread is not None:
            self._thread.join(timeout)
        return flushed

    def _run(self) -> None:
        wrote_at = float("-inf")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                self._gathering = True
                left = until_write(wrote_at, self._clock.elapsed(), self._gather_seconds)
                self._changed.wait_for(lambda: self._hurry or self._closed, left)
                self._gathering = False
                frames = list(self._queue)
                self._queue.clear()
                self._busy, self._hurry = True, False
            wrote_at = self._clock.elapsed()
            self._append(frames)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _append(self, waiting: Sequence[Frame | Growing]) -> None:
        frames = []
        for each in waiting:
            if isinstance(each, Growing):
                each.close()
                each = each.as_frame()
            frames.append(each)
        if self._breaker.rests():
            return
        began = self._clock.elapsed()
        try:
            self._log.append(merged(frames))
        except Exception as error:
            # What the network says quotes no frame; other errors' texts may.
            why = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else trace_of(error)
            self._stop_for_a_while("the live log can't be written", why)
            return
        took = self._clock.elapsed() - began
        if took > self._limit_seconds:
            self._stop_for_a_while(f"the live log took {took:.1f} s for one write")
        elif self._breaker.succeeded():
            logger.info("the live log is written again")

    def _stop_for_a_while(self, problem: str, why: str = "") -> None:
        known = self._breaker.broken
        if self._breaker.failed() and not known:
            logger.warning(
                "%s; listeners get nothing for %g s, then from the database%s",
                problem,
                self._rest_seconds,
                f" ({why})" if why else "",
            )


def until_write(wrote_at: float, now: float, cadence: float = CADENCE_SECONDS) -> float:
    """How many seconds frames that wait *now* are left to gather others, after the last write at *wrote_at*."""
    if now - wrote_at >= cadence:
        return FIRST_SECONDS
    return until_next(now - AFTER_SECONDS, cadence)


class _Run:
    """Deltas that become one frame."""

    def __init__(self, frame: Frame, field: str) -> None:
        self.frame, self.field = frame, field
        self.n, self.texts = frame.n, [frame.event[field]]
        self._same = {name: value for name, value in frame.event.items() if name != field}

    def takes(self, frame: Frame) -> bool:
        """Add the frame if it goes on where this one ends, and say whether it does."""
        mine = self.frame
        if frame.first != self.n + 1 or frame.message_id != mine.message_id:
            return False
        if frame.token != mine.token or frame.submission_id != mine.submission_id:
            return False
        rest = dict(frame.event)
        text = rest.pop(self.field, None)
        if not isinstance(text, str) or rest != self._same:
            return False
        self.n = frame.n
        self.texts.append(text)
        return True

    def as_frame(self) -> Frame:
        return _spanning(self.frame, self.field, self.texts, self.n)


def merged(frames: Iterable[Frame]) -> list[Frame]:
    """The same frames with deltas that follow each other within one agent made one."""
    result: list[Frame | _Run] = []
    open_runs: dict[str, _Run] = {}  # the run that an agent's next frame may join
    for frame in frames:
        run = open_runs.get(frame.agent_id)
        if run is not None and run.takes(frame):
            continue
        field = DELTAS.get(str(frame.event.get("type")))
        if field is not None and isinstance(frame.event.get(field), str):
            run = open_runs[frame.agent_id] = _Run(frame, field)
            result.append(run)
        else:
            open_runs.pop(frame.agent_id, None)
            result.append(frame)
    return [entry.as_frame() if isinstance(entry, _Run) else entry for entry in result]
