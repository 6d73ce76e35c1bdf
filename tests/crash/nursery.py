"""Starts the processes of the crash tests: a parent that has imported everything forks them in milliseconds.

The parent is ``python -m tests.crash.nursery``, a process with one thread and no connection of any kind, so
that a child is what a fresh start would be. Every child dies with it, and it dies with pytest, however that ends.
Workers on the gevent pool come from one of their own, which is patched before it imports anything.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


class Process:
    """A process that runs or has run. ``status`` is as ``subprocess`` gives it: -9 for SIGKILL."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log = pid, log
        self.status: int | None = None
        self.ended_at = 0.0
        self._ended = threading.Event()

    def ended(self, status: int) -> None:
        """Note its end."""
        self.status, self.ended_at = status, time.monotonic()
        self._ended.set()

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return not self._ended.is_set()

    def wait(self, seconds: float) -> int:
        """Its status at its end, which must come within *seconds*."""
        assert self._ended.wait(seconds), f"process {self.pid} still runs after {seconds} s\n{self.output()}"
        assert self.status is not None
        return self.status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it where it is, and return once every thread of it has stopped."""
        self.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        while any(_state(thread) not in "Tt" for thread in tasks.iterdir()):
            time.sleep(0.002)

    def thaw(self) -> None:
        """Let it run again."""
        self.signal(signal.SIGCONT)

    def marked(self, name: str, seconds: float = 60.0) -> float:
        """When it set that mark (by ``time.monotonic``), which must come within *seconds*."""
        mark = Path(f"{self.log}.{name}")
        until = time.monotonic() + seconds
        while not mark.exists():
            assert self.running, f"it ended with {self.status} before it was {name}\n{self.output()}"
            assert time.monotonic() < until, f"it was not {name} after {seconds} s\n{self.output()}"
            time.sleep(0.005)
        return float(mark.read_text())

    def go(self) -> None:
        """Let it go on from where it holds."""
        Path(f"{self.log}.go").touch()

    def output(self) -> str:
        """What it wrote."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:  # it has ended
        return "T"


class Nursery:
    """The parent, from the test's side. Thread-safe."""

    def __init__(self, *, patched: bool = False) -> None:
        """*patched* says that its children are gevent's; one that is not keeps one that is for those."""
        self.is_patched = patched
        self._patched: Nursery | None = None
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery", *(["gevent"] if patched else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
        )
        self._lock = threading.Lock()
        self._known = threading.Condition()
        self._by_pid: dict[int, Process] = {}
        self._born: dict[int, int] = {}
        self._count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, environment: Mapping[str, str], log: Path, main: str = "tests.crash.worker") -> Process:
        """Start one with this environment beside the test's own; it runs ``main`` of that module."""
        if environment.get("CRASH_KIND") == "gevent" and not self.is_patched:
            with self._lock:
                self._patched = self._patched or Nursery(patched=True)
            return self._patched.start(environment, log, main)
        with self._lock:
            self._count += 1
            number = self._count
            self._order({"number": number, "environment": dict(environment), "log": str(log), "main": main})
        with self._known:
            assert self._known.wait_for(lambda: number in self._born, 100), "the nursery does not answer"
            process = self._by_pid[self._born[number]]
            process.log = log
        return process

    def rehearse(self, url: str | None = None) -> None:
        """Let the parent do once what its children do, on this migrated database or on SQLite: see ``rehearsal``."""
        with self._lock:
            self._order({"rehearse": url})

    def _order(self, order: dict[str, Any]) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()

    def _read(self) -> None:
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            news = json.loads(line)
            with self._known:
                if "number" in news:
                    self._born[news["number"]] = news["pid"]
                    self._by_pid[news["pid"]] = Process(news["pid"], Path())
                else:
                    self._by_pid[news["pid"]].ended(news["status"])
                self._known.notify_all()

    def close(self) -> None:
        """End all of them."""
        if self._patched is not None:
            self._patched.close()
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(20)
        self._reader.join(5)


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    """A nursery, and the end of all that was born there."""
    made = Nursery()
    made.rehearse()
    try:
        yield made
    finally:
        made.close()


# --- the parent's side ----------------------------------------------------------------------------

WHAT_A_WORKER_IMPORTS = (
    "celery.bin.celery",  # with all commands, those of plugins (Flower) too
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.app.routes",
    "celery.fixups.django",
    "celery.worker.consumer",
    "celery.worker.control",
    "celery.worker.strategy",
    "httpcore",
    "kombu.transport.memory",
    "kombu.transport.redis",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "rich.live",
    "rich.table",
    "tests.crash.worker",
    "think_celery.providers.openai",
)
"""Nearly all of the processor time that a worker's start takes goes into these."""


# What waits and forks here is the system's own: gevent's loop must not begin before a child does.
_fork, _waitpid, _select = os.fork, os.waitpid, select.select


def serve() -> None:
    """Fork what is ordered on standard input and tell of births and deaths, until the input ends."""
    _import_everything()
    children: dict[int, int] = {}  # by the descriptor that says when one has ended
    buffer = b""
    while True:
        ready = _select([0, *children], [], [])[0]
        for descriptor in ready:
            if descriptor:
                _bury(children, descriptor)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *orders, buffer = (buffer + data).split(b"\n")
            for order in map(json.loads, orders):
                if "rehearse" in order:
                    _rehearse(order["rehearse"])
                    continue
                pid = _bear(order, children)
                children[os.pidfd_open(pid)] = pid
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
    while children:
        _bury(children, _select(list(children), [], [])[0][0])


def _import_everything() -> None:
    """So that no child has to."""
    pools = ["prefork", "thread", "solo"]
    if "gevent" in sys.argv:
        from gevent import monkey

        monkey.patch_all()
        pools = ["gevent"]
    for module in (*(f"celery.concurrency.{pool}" for pool in pools), *WHAT_A_WORKER_IMPORTS):
        import_module(module)
    gc.collect()
    gc.freeze()  # a child's collector leaves these objects, and so their pages, alone


def _rehearse(url: str | None) -> None:
    from tests.crash.rehearsal import rehearse

    rehearse(url)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


def _bear(order: dict[str, Any], siblings: Iterable[int]) -> int:
    pid = _fork()
    if pid:
        _tell({"number": order["number"], "pid": pid})
        return pid
    try:
        for descriptor in siblings:
            os.close(descriptor)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(order["environment"])
        os.environ["CRASH_LOG"] = order["log"]
        import_module(order["main"]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _bury(children: dict[int, int], descriptor: int) -> None:
    pid = children.pop(descriptor)
    os.close(descriptor)
    status = _waitpid(pid, 0)[1]
    _tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(news: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(news).encode() + b"\n")


if __name__ == "__main__":
    serve()
