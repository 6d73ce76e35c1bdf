"""Hold a lease while working: renewal, and learning that the work is cancelled, overdue or another's.

One native thread a process renews the process's row once a second, and in the same beat asks once for all
the work in hand whether it was cancelled or taken away. It is native in every pool: among greenlets, one that
computes would let the lease lapse. So it shares nothing of theirs: it has a connection and a lock of its own,
and what it has to tell them is handed to their thread.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from think_celery import forks, native
from think_celery.domain import recovery
from think_celery.domain.liveness import host_facts
from think_celery.errors import LeaseLost, TurnCancelled
from think_celery.ids import new_id
from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.signals import AbortController, AbortSignal
from think_celery.states import JobStatus, SubmissionStatus
from think_celery.store import jobs, leases, processes, submissions
from think_celery.store.database import Database
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.leases")

RENEW_SECONDS = 1.0
LET_GO_SECONDS = 30.0
"""How long code that ignores its deadline keeps the lease."""

UNHELD_SECONDS = 2.0
"""How long a lease may be this process's in the database without anybody here who works under it."""

_NOT_OURS = (SubmissionStatus.ABORTED, SubmissionStatus.PENDING)
"""What a submission is that should be running here, and is not."""


@dataclass(eq=False)
class Hold:
    """Work in hand under a lease. ``signal`` comes when it should end, whatever the reason.

    What *outlives* its lease is not told to end when that is lost; it may only write nothing more.
    """

    lease: Lease
    monitor: "Monitor"
    submission_id: str | None
    deadline: float
    outlives: bool = False
    controller: AbortController = field(default_factory=AbortController)
    stall_seconds: float | None = None
    stalls_at: float = math.inf
    lost: bool = False
    cancelled: bool = False
    overdue: bool = False
    stalled: bool = False

    @property
    def signal(self) -> AbortSignal:
        """Comes when the work should end."""
        return self.controller.signal

    def check(self) -> None:
        """Make sure, before an effect, that the work is still ours to do.

        Raises:
            LeaseLost: It is another worker's.
            TurnCancelled: It was cancelled.
        """
        if not self.lost and self.monitor.is_stale():
            self.monitor.beat()
            if not self.lost and not self.monitor.foreground_db.read(
                lambda tx: leases.is_held(tx, self.lease)
            ):
                self.lose()
        if self.lost:
            raise LeaseLost(str(self.lease))
        if self.cancelled:
            raise TurnCancelled("cancelled")

    def lose(self) -> None:
        """Note that the lease is gone."""
        self.lost = True
        if not self.outlives:
            self.controller.abort("lease lost")

    def cancel(self) -> None:
        """Note that the submission was cancelled."""
        self.cancelled = True
        self.controller.abort("cancelled")

    def expire(self) -> None:
        """Note that the deadline has passed."""
        self.overdue = True
        self.controller.abort("deadline")

    def stall(self) -> None:
        """Note that nothing has been heard from the work for too long."""
        self.stalled = True
        self.controller.abort("stalled")

    def heard(self, pause: float = 0.0, now: float | None = None) -> None:
        """Note that the work gets on; it will now be silent for *pause* seconds, and that is no stall."""
        if self.stall_seconds is not None and not self.stalled:
            now = self.monitor.rt.clock.elapsed() if now is None else now
            self.stalls_at = now + pause + self.stall_seconds

    def extend(self, seconds: float) -> None:
        """Move the deadline to that many seconds from now."""
        self.deadline = self.monitor.rt.clock.elapsed() + seconds


class Monitor:
    """This process in the database: its row, its beat, and the work that it has in hand."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        # Its own connections: when all others wait for a caller's slow transaction, renewal must not.
        self.db = rt.db
        if rt.threads:
            self.db = Database(rt.db.url, rt.clock, busy_timeout=rt.settings.busy_timeout)
        self._reset()
        forks.in_child(self._after_fork_in_child)

    def _reset(self) -> None:
        self._lock = native.lock()  # also the thread's: nothing waits under it
        self._registering = threading.Lock()
        self._holds: list[Hold] = []
        self._unheld: dict[Lease, float] = {}
        self._releasing: set[Lease] = set()
        self._process_id: str | None = None
        self._renewed = 0.0
        self._thread: native.Running | None = None
        self._stop = native.Alarm()

    def _after_fork_in_child(self) -> None:
        for hold in self._holds:  # the parent's work, which goes on there
            hold.lost = True
        self._reset()

    @property
    def lease(self) -> timedelta:
        """How long the process lives without a renewal."""
        return timedelta(seconds=self.rt.settings.lease_seconds)

    @property
    def foreground_db(self) -> Database:
        """The connections for whoever else beats: a greenlet would hold up all others in the thread's own."""
        return self.rt.db if native.has_greenlets() else self.db

    def process_id(self) -> str:
        """The id of this process's row, which is made at the first use and after a death."""
        with self._registering:
            process_id = self._process_id
            if process_id is None:
                process_id, started = new_id(), self.rt.clock.elapsed()
                facts = host_facts()
                self.foreground_db.transact(lambda tx: processes.register(tx, process_id, facts, self.lease))
                self._process_id, self._renewed = process_id, started
            if self._thread is None and self.rt.threads:
                stop, tell = self._stop, native.thread_safe_caller()
                self._thread = native.start(lambda: self._run(stop, tell), "think-monitor")
            return process_id

    def _run(self, stop: native.Alarm, tell: Callable[[native.Call], None]) -> None:
        while not stop.sleep(RENEW_SECONDS):
            try:
                for news in self._beat(self.db):
                    tell(partial(_tell, news))
            except Exception as error:
                # The database may be away. The lease runs on; if it runs out, the fence holds.
                tell(
                    partial(logger.warning, "could not renew this process's lease: %s", type(error).__name__)
                )

    def is_stale(self) -> bool:
        """Whether the last renewal is so old that the database must be asked before an effect."""
        return self.rt.clock.elapsed() - self._renewed > self.lease.total_seconds() * 2 / 3

    def beat(self) -> None:
        """Renew this process, and look after the work in hand."""
        for news in self._beat(self.foreground_db):
            _tell(news)

    def _beat(self, db: Database) -> Iterator[native.Call]:
        """One beat. What it finds comes as calls that tell it, to be made where the work is done."""
        with self._lock:
            process_id, holds = self._process_id, list(self._holds)
        if process_id is None:
            return
        started = self.rt.clock.elapsed()
        if not db.transact(lambda tx: processes.renew(tx, process_id, self.lease)):
            yield from self._die(process_id)
            return
        self._renewed = max(self._renewed, started)
        yield from self._look_at_deadlines(holds)
        yield from self._look_for_cancels(db, holds)
        yield from self._look_for_cancelled_jobs(db, holds)
        yield from self._compare(db, process_id, holds)

    def _look_for_cancels(self, db: Database, holds: list[Hold]) -> Iterator[native.Call]:
        watched = {hold.submission_id: hold for hold in holds if hold.submission_id}
        if not watched:
            return
        statuses = db.read(lambda tx: submissions.running_of(tx, list(watched)))
        for submission_id, hold in watched.items():
            # One that is not there any more was cancelled, and then deleted. One that is pending was put back
            # just now; or it was deleted, too, and another was accepted under its key, and so with its id.
            if statuses.get(submission_id, SubmissionStatus.ABORTED) in _NOT_OURS:
                yield hold.cancel

    def _look_for_cancelled_jobs(self, db: Database, holds: list[Hold]) -> Iterator[native.Call]:
        watched = {hold.lease.key: hold for hold in holds if hold.lease.kind == "job" and not hold.cancelled}
        if watched:
            found = db.read(lambda tx: jobs.statuses_of(tx, watched))
            yield from (watched[each].cancel for each, status in found.items() if status == JobStatus.ABORTED)

    def _compare(self, db: Database, process_id: str, holds: list[Hold]) -> Iterator[native.Call]:
        """Compare what this process holds by its own account with what the database says.

        A lease that was taken away is lost. One that nobody here works under is given up as if its worker
        had died: giving it back had failed, or the claim was committed and the answer got lost.
        """
        held = db.read(lambda tx: leases.held_by(tx, process_id))
        with self._lock:
            here = list(self._holds)
        for hold in holds:
            # One that is no longer among the holds has given its lease back by itself meanwhile.
            if hold.lease not in held and hold in here:
                yield hold.lose
        now = self.rt.clock.elapsed()
        unheld = held - {hold.lease for hold in here}
        self._unheld = {lease: self._unheld.get(lease, now) for lease in unheld}
        for lease, since in self._unheld.items():
            if now - since >= UNHELD_SECONDS:
                yield partial(self._release, lease, recovery.hand_back, "nobody here works under it")

    def _look_at_deadlines(self, holds: list[Hold]) -> Iterator[native.Call]:
        now = self.rt.clock.elapsed()
        for hold in holds:
            if now >= hold.deadline and (hold.overdue or hold.outlives or not hold.lost):
                yield hold.expire
                if now >= hold.deadline + LET_GO_SECONDS:
                    yield partial(self._let_go, hold)
            elif now >= hold.stalls_at and (hold.stalled or not hold.lost):
                yield hold.stall
                if now >= hold.stalls_at + LET_GO_SECONDS:
                    yield partial(self._leave, hold)

    def _let_go(self, hold: Hold) -> None:
        if not hold.lost:
            logger.error("%s ignored its deadline; its lease is given up", hold.lease)
        hold.lose()
        self._release(hold.lease, recovery.let_go)

    def _leave(self, hold: Hold) -> None:
        """Let others take up work that stalled here and does not even answer its signal."""
        if not hold.lost:
            logger.error("%s stalled and does not stop; its lease is given up", hold.lease)
        hold.lose()
        self._release(hold.lease, recovery.hand_back)

    def _release(self, lease: Lease, how: "Callable[[Runtime, Lease], None]", why: str = "") -> None:
        """Give up a lease beside the beat, which must not wait for anybody's lock. The next beat tries again."""
        with self._lock:
            if lease in self._releasing:
                return
            self._releasing.add(lease)

        def work() -> None:
            try:
                if why and self._is_worked_under(lease):
                    return  # begun since the beat: greenlets may be told of that long after it
                if why:
                    logger.warning("the lease on %s is given up: %s", lease, why)
                how(self.rt, lease)
            except Exception as error:
                logger.warning("could not give up the lease on %s yet: %s", lease, type(error).__name__)
            finally:
                with self._lock:
                    self._releasing.discard(lease)

        if not self.rt.threads:
            work()
            return
        try:
            threading.Thread(target=work, name="think-release", daemon=True).start()
        except RuntimeError as error:  # a process may have no more threads
            with self._lock:
                self._releasing.discard(lease)
            logger.warning("could not give up the lease on %s yet: %s", lease, error)

    def _is_worked_under(self, lease: Lease) -> bool:
        with self._lock:
            return any(hold.lease == lease for hold in self._holds)

    def _die(self, process_id: str) -> Iterator[native.Call]:
        with self._lock:
            if self._process_id == process_id:
                self._process_id = None
            holds = list(self._holds)
        yield partial(logger.warning, "process %s was declared dead; its leases are gone", process_id)
        for hold in holds:
            if hold.lease.process_id == process_id:
                yield hold.lose

    @contextlib.contextmanager
    def hold(
        self,
        lease: Lease,
        *,
        submission_id: str | None = None,
        seconds: float,
        stall: float | None = None,
        outlives: bool = False,
    ) -> Iterator[Hold]:
        """Watch over a lease that was just taken, until the block ends.

        *seconds* is its deadline; *stall* how long nothing may be heard from the work (see ``Hold.heard``).
        """
        deadline = self.rt.clock.elapsed() + seconds
        held = Hold(
            lease=lease,
            monitor=self,
            submission_id=submission_id,
            deadline=deadline,
            outlives=outlives,
            stall_seconds=stall,
        )
        held.heard()
        with self._lock:
            self._holds.append(held)
        try:
            yield held
        finally:
            with self._lock:
                if held in self._holds:  # not so in a fork of this process
                    self._holds.remove(held)

    def wait_until_free(self, seconds: float) -> None:
        """Wait until nothing is in hand, for that long at most."""
        until, pause = self.rt.clock.elapsed() + seconds, threading.Event()
        while self._holds and self.rt.clock.elapsed() < until:
            pause.wait(0.02)

    def forget_process(self) -> str | None:
        """Go on as another process, and return the id of the one before."""
        with self._lock:
            process_id, self._process_id = self._process_id, None
            self._unheld = {}
        return process_id

    def stop(self) -> None:
        """End the thread. The process's row is declared dead, so that nobody has to wait for its lease."""
        with self._lock:
            self._stop.ring()
            thread, self._thread, self._stop = self._thread, None, native.Alarm()
        if thread is not None:
            thread.join(timeout=5)
        process_id = self.forget_process()
        if process_id is not None and not self._holds:
            try:
                self.foreground_db.transact(lambda tx: processes.declare_dead(tx, process_id, known=True))
            except Exception as error:
                logger.warning("could not sign this process off: %s", type(error).__name__)
        if self.db is not self.rt.db:
            self.db.dispose()


def _tell(news: native.Call) -> None:
    """Tell one work what was found. It may have callbacks of users on its signal: those fail for themselves alone."""
    try:
        news()
    except Exception as error:
        logger.error("work that was told to end failed at it: %s", trace_of(error))
