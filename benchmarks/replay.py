"""One pass of a workflow's code over a long journal: claim, replay, park. And what each recorded step adds to it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks import fill
from benchmarks.figures import Row, Size, check, p50, ratio_at_most, sampled
from benchmarks.place import Place, Scene, threads
from tests.servers import plain_url
from think_celery.domain.workflows import advance
from think_celery.ids import WorkflowRef

READ = "the same rows, read by psycopg"
LINEAR = ratio_at_most(1.3)

_ROWS = b"SELECT * FROM think_steps WHERE workflow_key = %s AND run = 1 ORDER BY position"
_WAKE = (
    "UPDATE think_workflows SET status = 'queued', wakes = wakes + 1 WHERE key = %s AND status = 'waiting'"
)
_STATUS = "SELECT status FROM think_workflows WHERE key = %s"


@dataclass(kw_only=True)
class Journal:
    """A run that has recorded so many steps and waits for an event; what CPU its passes took, in µs."""

    scene: Scene
    reader: "psycopg.Connection[Any]"
    ref: WorkflowRef
    length: int
    cpu: list[float] = field(default_factory=list)

    def read(self, _: str) -> float:
        """Milliseconds of reading its rows, as a driver gives them."""
        began = time.perf_counter()
        rows = self.reader.execute(_ROWS, (self.ref.key,)).fetchall()
        took = time.perf_counter() - began
        check(len(rows) == self.length + 1, f"{len(rows)} rows of {self.length} steps and a wait")
        return took * 1000

    def replay(self, _: str) -> float:
        """Milliseconds of a pass that was woken for nothing: all is recorded, and the event has not come."""
        self.scene.run(_WAKE, self.ref.key)
        began, cpu = time.perf_counter(), time.process_time()
        outcome = advance.advance(self.scene.rt, self.ref.workflow, self.ref.workflow_id)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        check(outcome.word == "parked", f"the pass ended with {outcome.word}")
        check(self.scene.ask(_STATUS, self.ref.key) == "waiting", "it does not wait")
        self.cpu.append(used * 1e6)
        return took * 1000


def measure(place: Place, size: Size) -> Iterator[Row]:
    """In this process, which plays the worker: nothing else runs in it, so its CPU time is the pass's own."""
    lengths = (10, 100, 1000, 5000) if size.name != "tiny" else (10, 20, 40, 80)
    each = size.pick(1, 5, 10)
    with place.scene() as scene, psycopg.connect(plain_url(scene.url), autocommit=True) as reader:
        with scene.worker(threads(size)):
            refs = {length: fill.recorded(scene, length) for length in lengths}
        journals = [
            Journal(scene=scene, reader=reader, ref=ref, length=length) for length, ref in refs.items()
        ]
        taken = sampled(size, each, *(way for it in journals for way in (it.read, it.replay)))
    for at, length in enumerate(lengths):
        yield Row(
            what=f"a pass over {length:,} recorded steps: p50",
            unit="ms",
            ours=p50(taken[2 * at + 1]),
            floor=p50(taken[2 * at]),
            floor_name=READ,
        )
    few, some, many = journals[-3:]
    yield Row(
        what=f"CPU of each recorded step, from {some.length:,} to {many.length:,}",
        unit="µs",
        ours=_each(some, many, each),
        floor=_each(few, some, each),
        floor_name=f"from {few.length:,} to {some.length:,}",
        budget=LINEAR,
    )


def _each(shorter: Journal, longer: Journal, each: int) -> list[float]:
    """What one more step costs, in each round: of its passes, those that nothing else has disturbed."""
    more = longer.length - shorter.length
    rounds = range(0, len(longer.cpu), each)
    found = [(min(longer.cpu[at : at + each]) - min(shorter.cpu[at : at + each])) / more for at in rounds]
    return [max(figure, 0.0) for figure in found[1:] or found]  # the first one warms up
