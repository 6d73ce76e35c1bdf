"""One look for all who wait: a process asks the database once for all of them, and none holds a connection.

Whoever has just begun to wait is looked after every 20 ms, later at longer and longer distances, up to half a second.
What is heard of the live log brings the next look forward.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from think_celery import forks
from think_celery.store import waiting

if TYPE_CHECKING:
    from think_celery.protocols import Ears
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.waiting")

FIRST_SECONDS, LONGEST_SECONDS = 0.02, 0.5
IDLE_SECONDS = 5.0
"""How long the thread stays when nobody waits."""


def distance(age: float) -> float:
    """How long after a look the next one comes, for whoever has waited *age* seconds."""
    return min(max(age / 10, FIRST_SECONDS), LONGEST_SECONDS)


HEAR_AFTER_SECONDS = 0.2
"""Whoever has waited for so long is looked after less often, and the live log is listened to for him."""

HEAR_SECONDS, DEAF_SECONDS = 0.25, 1.0


class Watch:
    """Somebody who waits for the end of a submission, or for all turns of an agent.

    ``for_line``: the line being free is of interest, too, for whoever would run its head. ``holds_line``: the line is
    held for whoever waits, so that is no work of others.
    """

    def __init__(
        self, agent_id: str, submission_id: str | None, *, for_line: bool, holds_line: bool, began: float
    ) -> None:
        self.agent_id, self.submission_id, self.for_line = agent_id, submission_id, for_line
        self.looks_at_line = not holds_line and (for_line or submission_id is None)
        self.began, self.due = began, began
        self._bell = threading.Event()

    def ring(self) -> None:
        """Let whoever waits look: something may have happened."""
        self._bell.set()

    def rest(self, seconds: float | None) -> None:
        """Wait until it rings, that long at most."""
        self._bell.wait(seconds)
        self._bell.clear()

    def concerns(self, found: waiting.Standing) -> bool:
        """Whether what was found is what it waits for."""
        held = self.looks_at_line and self.agent_id in found.held
        if self.for_line and self.looks_at_line and not held:
            return True
        if self.submission_id is None:
            return self.agent_id not in found.busy and not held
        return self.submission_id not in found.unfinished


class Poller:
    """This process's look for all who wait in it. Thread-safe; a forked child begins with nobody."""

    def __init__(self, rt: "Runtime") -> None:
        self._rt = rt
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._hearing: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watching(
        self, agent_id: str, submission_id: str | None, *, for_line: bool, holds_line: bool = False
    ) -> Iterator[Watch]:
        """Somebody who waits until the block ends."""
        began = self._rt.clock.elapsed()
        watch = Watch(agent_id, submission_id, for_line=for_line, holds_line=holds_line, began=began)
        if not self._rt.threads:  # whoever waits has the one thread there is
            yield watch
            return
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="think-waiting", daemon=True)
                thread.start()  # before anybody counts on it: a process may have no more threads
                self._thread = thread
            self._watches.add(watch)
            self._changed.notify_all()
        try:
            yield watch
        finally:
            with self._changed:
                self._watches.discard(watch)

    def hint(self, agent_id: str) -> None:
        """Something happened to this agent: who waits for it is looked after at once."""
        if not self._watches:
            return
        with self._changed:
            for watch in self._watches:
                if watch.agent_id == agent_id:
                    watch.due = float("-inf")
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread. Who waits still looks at its own deadline."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        self._closed = False

    # --- what is heard ----------------------------------------------------------------------------

    def _begin_to_hear(self) -> None:
        """Listen to the live log for those who have waited for a while, where it can be listened to."""
        ears = self._rt.events.ears()
        if ears is None:
            return
        thread = threading.Thread(target=self._hear, args=(ears,), name="think-hearing", daemon=True)
        with suppress(RuntimeError):  # no more threads now; it is tried again at the next look
            thread.start()
            self._hearing = thread

    def _hear(self, ears: "Ears") -> None:
        while agent_ids := self._patient_ones():
            try:
                for agent_id in ears.listen(agent_ids, HEAR_SECONDS):
                    self.hint(agent_id)
            except Exception:
                # The log says by itself when it can't be reached; who waits is looked after all the same.
                self._rt.clock.sleep(DEAF_SECONDS)
        ears.close()

    def _patient_ones(self) -> set[str]:
        """The agents of those who have waited for a while; none when the thread is to end."""
        with self._changed:
            since = self._rt.clock.elapsed() - HEAR_AFTER_SECONDS
            found = {watch.agent_id for watch in self._watches if watch.began <= since}
            if not found or self._closed:
                self._hearing = None
                return set()
            return found

    # --- the look ---------------------------------------------------------------------------------

    def _run(self) -> None:
        told = False
        while (watches := self._due()) is not None:
            try:
                self._look(watches)
                told = False
            except Exception as error:
                if not told:
                    logger.warning("who waits can't be looked after now (%s)", type(error).__name__)
                told = True

    def _due(self) -> list[Watch] | None:
        """Everybody who waits, as soon as one of them is due; ``None`` when nobody waits any more."""
        clock = self._rt.clock
        with self._changed:
            while not self._closed:
                if not self._watches:
                    if not self._changed.wait(IDLE_SECONDS) and not self._watches:
                        break
                    continue
                now = clock.elapsed()
                left = min(watch.due for watch in self._watches) - now
                if left > 0:
                    self._changed.wait(left)
                    continue
                oldest = min(watch.began for watch in self._watches)
                if self._hearing is None and now - oldest >= HEAR_AFTER_SECONDS:
                    self._begin_to_hear()
                for watch in self._watches:
                    watch.due = now + distance(now - watch.began)
                return list(self._watches)
            self._thread = None
            return None

    def _look(self, watches: list[Watch]) -> None:
        found = self._rt.db.read(
            lambda tx: waiting.standing(
                tx,
                {watch.submission_id for watch in watches if watch.submission_id is not None},
                {watch.agent_id for watch in watches if watch.submission_id is None},
                {watch.agent_id for watch in watches if watch.looks_at_line},
            )
        )
        for watch in watches:
            if watch.concerns(found):
                watch.ring()
