"""Workers that die or stop in the middle of a turn: how soon another goes on."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.figures import Row, Size, at_most, until
from benchmarks.place import PREFORK, Place, Scene, Worker, threads
from benchmarks.processes import children
from benchmarks.project import Streams

LEASE = 15.0
SHORT_LEASE = 3.0
TICKS = 4.0

_CLAIMS = "SELECT takeovers FROM think_submissions WHERE id = %s"
_STATUS = "SELECT status FROM think_submissions WHERE id = %s"

End = Callable[[Worker, int], None]
"""Ends a worker, or the process of it that runs the turn."""


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Each time a turn that streams, and two workers: one has it, the other is there."""
    times = size.pick(1, 1, 3)
    with place.scene() as scene:
        with _pair(scene, threads(size)) as pair:
            figures = [pair.goes_on_after(_kill) for _ in range(times)]
            yield _row("takeover after SIGKILL, by a worker of the machine", figures, LEASE, LEASE + TICKS)
            if size.name == "tiny":
                return
            figures = [pair.goes_on_after(_tell) for _ in range(times)]
            yield _row("SIGTERM → the next worker goes on, threads", figures, None, 1.0)
        with _pair(scene, PREFORK) as pair:
            figures = [pair.goes_on_after(_kill_child) for _ in range(times)]
            yield _row("takeover after SIGKILL of a prefork child", figures, LEASE, 1.0)
            figures = [pair.goes_on_after(_tell) for _ in range(times)]
            yield _row("SIGTERM → the next worker goes on, prefork", figures, None, 1.0)
        elsewhere = {"BENCH_ELSEWHERE": "1", "THINK_LEASE": str(SHORT_LEASE)}
        with _pair(scene, threads(size), **elsewhere) as pair:
            figures = [pair.goes_on_after(_kill) for _ in range(times)]
            limit = SHORT_LEASE + TICKS
            yield _row("takeover after SIGKILL, by a worker of another machine", figures, SHORT_LEASE, limit)


def _row(what: str, seconds: Sequence[float], lease: float | None, limit: float) -> Row:
    return Row(
        what=what,
        unit="s",
        ours=seconds,
        floor=[] if lease is None else [lease],
        floor_name="" if lease is None else "its lease",
        budget=at_most(limit, "s"),
    )


def _kill(worker: Worker, pid: int) -> None:
    worker.kill()


def _kill_child(worker: Worker, pid: int) -> None:
    if pid == worker.pid:
        raise RuntimeError("the turn does not run in a child")
    os.kill(pid, signal.SIGKILL)


def _tell(worker: Worker, pid: int) -> None:
    worker.tell_to_stop()


class _Pair:
    """Two workers of one kind; one that has ended is replaced before the next turn."""

    def __init__(self, scene: Scene, start: Callable[[], Worker]) -> None:
        self._scene, self._start = scene, start
        self.workers: list[Worker] = []

    def goes_on_after(self, end: End) -> float:
        """Seconds from the end of whoever streams a turn until somebody else has claimed it."""
        self._complete()
        name = f"streams-{time.monotonic_ns()}"
        agent = self._scene.agent(Streams, name)
        submission_id = agent.submit_messages("Take your time.").submission_id
        asked = self._scene.folder / f"asked-{name}"
        until(lambda: asked.exists() and asked.read_text(), 30, "a turn that streams")
        pid = int(asked.read_text())
        holder = next(it for it in self.workers if pid in (it.pid, *children(it.pid)))
        began = time.perf_counter()
        end(holder, pid)
        over = until(lambda: self._scene.ask(_CLAIMS, submission_id) >= 2, 60, "a takeover", every=0.002)
        until(lambda: self._scene.ask(_STATUS, submission_id) == "completed", 60, "the end of the turn")
        if end is _tell:
            holder.process.wait(60)
        return over - began

    def _complete(self) -> None:
        self.workers = [worker for worker in self.workers if worker.process.poll() is None]
        while len(self.workers) < 2:
            self.workers.append(self._start())
        for worker in self.workers:
            worker.await_ready()


@contextlib.contextmanager
def _pair(scene: Scene, pool: Sequence[str], **environment: str) -> Iterator[_Pair]:
    pair = _Pair(scene, lambda: scene.start_worker(pool, **environment))
    try:
        yield pair
    finally:
        for worker in pair.workers:
            worker.kill()
