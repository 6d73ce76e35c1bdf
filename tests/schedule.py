"""How the tests are shared out over the processes of pytest-xdist: in which pieces, and in which order.

Most tests of whole workers wait most of the time, and the other tests compute. So there are more processes than
processors, and each has at any time whichever comes next: the longest first, so that no process is left with one
at the end, and then one kind among the other. The longest wait most; one process of three begins with the others,
so that the processors have something to do meanwhile.
"""

import zlib
from typing import Any

from xdist.scheduler import LoadScopeScheduling

APART = (
    "tests/brokers/",
    "tests/crash/",
    "tests/doors/test_cli.py",
    "tests/doors/test_demo.py",
    "tests/examples/",
    "tests/faults/",
    "tests/pools/",
    "tests/waits/",
)
"""Where each test is a piece of its own: it makes all that it needs, and takes seconds. Not so races in the domain:
several of them at a time take more connections than a PostgreSQL usually has."""

TOGETHER = ("tests/host/",)
"""Rooms whose tests share workers: each is one piece. Elsewhere a piece is a file."""

LONGEST = (
    "tests/crash/test_soak.py",
    "tests/host/",
    "tests/doors/test_doctor.py",
    "tests/crash/test_every_pool.py",
    "tests/test_benchmarks.py",
    "tests/crash/test_lost_messages.py",
    "tests/beat/",
    "tests/examples/",
    "tests/pools/",
)
"""What begins first, in this order; in one process of three, what comes last, in the opposite one."""


class Schedule(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process that has nothing left the next piece."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(APART):
            return nodeid
        return next((room for room in TOGETHER if nodeid.startswith(room)), nodeid.partition("::")[0])

    def _assign_work_unit(self, node: Any) -> None:
        comes_next = max if self.nodes.index(node) % 3 == 2 else min
        self.workqueue.move_to_end(comes_next(self.workqueue, key=turn), last=False)
        super()._assign_work_unit(node)


def turn(piece: str) -> tuple[int, int]:
    """When it is a piece's turn: the longest first, the others mixed; the same at each run."""
    rank = next((number for number, start in enumerate(LONGEST) if piece.startswith(start)), len(LONGEST))
    return rank, zlib.crc32(piece.encode())
