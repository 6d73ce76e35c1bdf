"""Two other engines on the same database, in the same run: DBOS Transact and Absurd.

Each is installed from PyPI, in the version below, into a virtual environment of its own under ``build/peers``, and
measured in a process of its own, worker and caller together, as its documentation starts it.
"""

import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import Row, Size, in_turn, p50, sampled
from benchmarks.floors import COMMIT_AND_PUBLISH, EIGHT_THREADS, ONE_CLIENT, START, Floors, start
from benchmarks.place import ROOT, Place
from tests.servers import plain_url

PEERS = {
    "DBOS": ("dbos_peer.py", ("dbos==3.4.0", "psycopg[binary]==3.3.9")),
    "Absurd": ("absurd_peer.py", ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9")),
}


def measure(place: Place, size: Size) -> Iterator[Row]:
    """What can be compared: accepting (they have no broker), steps, and waking; each beside the floors of ours."""
    for name, (script, packages) in PEERS.items():
        with _started(_installed(name, packages), script, place) as peer:
            for what, unit, ours, floor, floor_name in _taken(place, size, peer):
                yield Row(what=f"{name}: {what}", unit=unit, ours=ours, floor=floor, floor_name=floor_name)


def _taken(
    place: Place, size: Size, peer: "_Peer"
) -> Iterator[tuple[str, str, list[float], list[float], str]]:
    count, each = size.pick(16, 400, 2000), size.pick(2, 10, 40)
    with place.scene() as scene:
        floors = Floors(scene)
        published, single, crowd, accept, one, many = in_turn(
            size,
            lambda _: floors.commits_and_publishes(count),
            lambda _: floors.commits(count),
            lambda _: floors.commits(count, 8),
            lambda _: peer.figure("accept", size.pick(16, 200, 1000)),
            lambda _: peer.figure("one", size.pick(5, 100, 400)),
            lambda _: peer.figure("many", size.pick(2, 20, 40)),
        )
    yield "accept, one client", "/s", accept, published, COMMIT_AND_PUBLISH
    yield "no-op step, one run", "/s", one, single, ONE_CLIENT
    yield "no-op step, 20 runs at once", "/s", many, crowd, EIGHT_THREADS
    with place.scene() as scene, scene.worker() as worker:
        floor, wake = sampled(size, each, lambda _: start(scene, worker), lambda _: peer.figure("wake", 1))
    yield "event → workflow goes on: p50", "ms", p50(wake), p50(floor), START


class _Peer:
    """A peer's process, which measures what it is told."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log
        self._answer()

    def figure(self, what: str, count: int) -> float:
        """Its figure."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, "count": count}) + "\n")
        self._process.stdin.flush()
        (figure,) = self._answer()
        return figure

    def _answer(self) -> list[float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended:\n{self._log.read_text(errors='replace')[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return list(answer["figures"])


@contextmanager
def _started(python: Path, script: str, place: Place) -> Iterator[_Peer]:
    log = place.folder / f"{script}.log"
    url = plain_url(place.empty_database())
    with log.open("w") as errors:
        process = subprocess.Popen(
            [python, Path(__file__).with_name(script), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield _Peer(process, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _installed(name: str, packages: tuple[str, ...]) -> Path:
    """The Python of the peer's own virtual environment."""
    folder = ROOT / "build" / "peers" / name.lower()
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    done = folder / "installed"
    if not done.exists() or done.read_text() != " ".join(packages):
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", *packages]
        made = subprocess.run(pip, capture_output=True, text=True)
        if made.returncode:
            raise RuntimeError(f"{name} could not be installed:\n{made.stderr}")
        done.write_text(" ".join(packages))
    return python
