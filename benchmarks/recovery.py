"""Workers that die or stop in the middle of a turn: how soon another goes on."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Row, Size, at_most, check, until
from benchmarks.place import PREFORK, THREADS, Place, Scene, Worker
from benchmarks.project import Patient

LEASE = 15.0
SHORT_LEASE = 3.0
TICKS = 4.0

_CLAIMS = "SELECT takeovers FROM think_submissions WHERE id = %s"


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Each time a turn that streams, its worker, and another worker beside it."""
    times = size.pick(1, 1, 3)
    elsewhere = {"BENCH_ELSEWHERE": "1", "THINK_LEASE": str(SHORT_LEASE)}
    with place.scene() as scene:
        yield _row(
            "takeover after SIGKILL, another worker of the machine",
            [taken_over(scene, THREADS, _kill) for _ in range(times)],
            LEASE,
            LEASE + TICKS,
        )
        yield _row(
            "takeover after SIGKILL, a worker of another machine",
            [taken_over(scene, THREADS, _kill, **elsewhere) for _ in range(times)],
            SHORT_LEASE,
            SHORT_LEASE + TICKS,
        )
        yield _row(
            "takeover after SIGKILL of a prefork child",
            [child_taken_over(scene) for _ in range(times)],
            LEASE,
            1.0,
        )
        for name, pool in (("threads", THREADS), ("prefork", PREFORK)):
            yield _row(
                f"SIGTERM → the next worker goes on, {name}",
                [taken_over(scene, pool, Worker.tell_to_stop) for _ in range(times)],
                None,
                1.0,
            )


def _row(what: str, seconds: Sequence[float], lease: float | None, limit: float) -> Row:
    return Row(
        what=what,
        unit="s",
        ours=seconds,
        floor=[] if lease is None else [lease],
        floor_name="" if lease is None else "its lease",
        budget=at_most(limit, "s"),
    )


def _kill(worker: Worker) -> None:
    worker.kill()


def taken_over(scene: Scene, pool: Sequence[str], end: Callable[[Worker], None], **environment: str) -> float:
    """Seconds from the end of the worker that streams until another has claimed its turn."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(scene.worker(pool, **environment))
        submission_id, _ = _stream(scene)
        stack.enter_context(scene.worker(pool, **environment))
        return _until_taken_over(scene, submission_id, lambda: end(first))


def child_taken_over(scene: Scene) -> float:
    """The same for a child of the prefork pool, whose siblings go on."""
    with scene.worker(PREFORK) as worker:
        submission_id, pid = _stream(scene)
        check(pid != worker.pid, "the turn does not run in a child")
        return _until_taken_over(scene, submission_id, lambda: os.kill(pid, signal.SIGKILL))


def _stream(scene: Scene) -> tuple[str, int]:
    """Submit a turn that goes on until its worker ends; its id, and the process that runs it."""
    name = f"patient-{time.monotonic_ns()}"
    submission_id = scene.agent(Patient, name).submit_messages("Take your time.").submission_id
    asked = Path(os.environ["BENCH_FOLDER"], f"asked-{name}")
    until(lambda: asked.exists() and asked.read_text(), 30, "a turn that streams")
    return submission_id, int(asked.read_text())


def _until_taken_over(scene: Scene, submission_id: str, end: Callable[[], None]) -> float:
    began = time.perf_counter()
    end()
    over = until(lambda: scene.ask(_CLAIMS, submission_id) >= 2, 60, "a takeover", every=0.002)
    until(
        lambda: scene.ask("SELECT status FROM think_submissions WHERE id = %s", submission_id) == "completed",
        30,
        "the end of the turn",
    )
    return over - began
