"""A workflow that waits: what it keeps, in the database and in the worker that ran it."""

from collections.abc import Iterator

from benchmarks.figures import Row, Size, at_most
from benchmarks.place import Place, Scene, threads
from benchmarks.processes import resident_bytes
from benchmarks.wake import park

NOTHING = 1024
"""A megabyte more after a thousand workflows is what a process gains and loses by itself."""

_BYTES = """
    SELECT sum(pg_total_relation_size(it)) FROM unnest(ARRAY['think_workflows', 'think_steps', 'think_events']) it
"""


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Workflows started and parked by the engine, with their indexes and what updates left behind."""
    warm_up, count = size.pick(5, 300, 1000), size.pick(5, 300, 2000)
    with place.scene() as scene, scene.worker(threads(size)) as worker:
        park(scene, "first", warm_up)
        stored, resident = _bytes(scene), resident_bytes(worker.pid)
        park(scene, "more", count)
        rows, memory = (_bytes(scene) - stored) / count, (resident_bytes(worker.pid) - resident) / count
    yield Row(
        what="parked workflow: rows and indexes", unit="bytes", ours=[rows], budget=at_most(4096, "bytes")
    )
    yield Row(
        what="parked workflow: memory of the worker",
        unit="bytes",
        ours=[memory],
        budget=at_most(1024, "bytes"),
    )


def _bytes(scene: Scene) -> int:
    return int(scene.ask(_BYTES))
