"""Answers in the making, stored for all turns of a process together.

While a model writes, its turn's message is stored once a second. Each by itself, those of many turns would be as many
commits on as many connections, and each turn would read on late, for it would wait for its own. So a thread gathers
them for a moment, and stores them by one statement in which each is under its turn's fence.

What that has not stored (somebody has locked a row, the lease is lost, the database is away) is left to its turn, which
then stores its message by itself and finds out why.
"""

import logging
import math
import random
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from think_celery import forks
from think_celery.clock import SystemClock
from think_celery.logs import trace_of
from think_celery.store import messages as message_rows
from think_celery.store.database import Tx, is_away, is_locked
from think_celery.store.leases import Lease

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.turns")

STORE_SECONDS = 1.0
"""How often the message so far is stored while the model writes."""

GATHER_SECONDS = 0.05
"""How long the first one waits for those of the other turns."""

LOCK_WAIT = timedelta(milliseconds=100)
"""How long one that somebody has locked may hold up the others."""

HANGS_SECONDS = 5.0
"""How long the statement may take before the turns go on without it: its connection can be dead, and theirs alive."""


class Snapshot:
    """A turn's message as it was at one moment, on its way into the database."""

    __slots__ = ("failed", "row", "withdrawn")

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.failed = False
        """Whether it could not be stored with the others: its turn stores it by itself."""
        self.withdrawn = False
        """Whether its turn waits for it no longer: it must not be committed any more."""


class _Withdrawn(Exception):
    """A turn has gone on without the statement, which is undone: it may have come after what the turn stored since."""


class Snapshots:
    """Stores those of a process. Thread-safe; after a fork the child begins empty."""

    def __init__(self, rt: "Runtime") -> None:
        self._rt, self._clock = rt, SystemClock()  # a database's time, whatever a test's clock says
        self._phase = random.random() * STORE_SECONDS  # the processes of a machine need not all store at once
        self._begin_empty()
        forks.in_child(self._begin_empty)

    def _begin_empty(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Snapshot] = []
        self._writing: list[Snapshot] = []
        self._hangs_at = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def together(self) -> bool:
        """Whether the turns of this process store theirs together. SQLite has no server that would be spared."""
        return self._rt.threads and self._rt.db.on_postgres and not self._closed and not self._hangs

    def next_after(self, stored_at: float) -> float:
        """When a turn that stored its message at this instant does so again: at the same instant as the others."""
        if not self.together:
            return stored_at + STORE_SECONDS
        since = (stored_at - self._phase) % STORE_SECONDS
        return stored_at - since + STORE_SECONDS

    def put(self, lease: Lease, message: dict[str, Any]) -> Snapshot:
        """Let this be stored within a moment. Never waits."""
        snapshot = Snapshot(message_rows.as_given(lease, message))
        with self._changed:
            if self._thread is None and not self._start_thread():
                snapshot.failed = True
                return snapshot
            self._waiting.append(snapshot)
            if len(self._waiting) == 1:
                self._changed.notify_all()
        return snapshot

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._run, name="think-snapshots", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a process that ends, or may have no more threads
            return False
        self._thread = thread
        return True

    def is_open(self, snapshot: Snapshot) -> bool:
        """Whether it is still to be stored."""
        return snapshot in self._waiting or snapshot in self._writing

    @property
    def _hangs(self) -> bool:
        return self._clock.elapsed() > self._hangs_at

    def settle(self, snapshot: Snapshot) -> None:
        """From now on it is not written any more: what its turn stores next must not be followed by it.

        A statement that hangs is not waited for. If it has come to the database by now, it has the line locked until
        it is committed, or undone: what the turn stores next comes after that. Else it finds that it was withdrawn.
        """
        with self._changed:
            if snapshot in self._waiting:
                self._waiting.remove(snapshot)
            seconds = max(0.0, min(HANGS_SECONDS, self._hangs_at - self._clock.elapsed()))
            snapshot.withdrawn = not self._changed.wait_for(lambda: snapshot not in self._writing, seconds)

    def close(self) -> None:
        """End the thread; what waits is stored by its turns."""
        with self._changed:
            self._closed = True
            for each in self._waiting:
                each.failed = True
            self._waiting = []
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
            self._clock.sleep(GATHER_SECONDS)
            with self._changed:
                self._writing, self._waiting = self._waiting, []
                self._hangs_at = self._clock.elapsed() + HANGS_SECONDS
            stored = self._store(self._writing)
            with self._changed:
                for each in self._writing:
                    each.failed = each.row["agent"] not in stored
                self._writing, self._hangs_at = [], math.inf
                self._changed.notify_all()

    def _store(self, snapshots: list[Snapshot]) -> set[str]:
        """Store them, and give the agents whose they are."""
        if len(snapshots) < 2:
            return set()  # its turn does that by a statement that commits by itself

        def work(tx: Tx) -> set[str]:
            tx.wait_at_most(LOCK_WAIT)
            stored = message_rows.store_all_unfinished_fenced(tx, [each.row for each in snapshots])
            if any(each.withdrawn for each in snapshots):
                raise _Withdrawn
            return stored

        try:
            return self._rt.db.transact(work)
        except _Withdrawn:
            return set()
        except Exception as error:
            # Of a lock, or a database that is away, each turn finds out for itself, and says so.
            if not (is_locked(error) or is_away(error)):
                logger.error("answers in the making could not be stored together: %s", trace_of(error))
            return set()
