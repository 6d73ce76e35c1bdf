"""One database and one broker with their beats and workers, seen from outside: slots, and what was done."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select, text

from tests.beat.agents import EFFECTS, VERSION, Pulse
from tests.beat.service import ARGUMENTS, CLOCK
from tests.crash.nursery import Nursery, Process
from think_celery.clock import SystemClock
from think_celery.domain.schedules import schedules as domain
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.runtime import Runtime
from think_celery.settings import Settings
from think_celery.store.database import Database
from think_celery.store.schedule_tables import schedules, slots

PATIENCE = 60.0
THINK_BEAT = "think_celery.beat:ThinkScheduler"


class Stand:
    """A place for beats and workers, which this process looks at as a client."""

    def __init__(self, database_url: str, broker: str, folder: Path, children: Nursery) -> None:
        self.folder, self._children, self._count = folder, children, 0
        self.processes: list[Process] = []
        self.environment = {
            "THINK_DATABASE_URL": database_url,
            "THINK_LEASE": "3",
            "BEAT_BROKER": broker,
            "BEAT_QUEUE": f"beat-{folder.name}",
            EFFECTS: str(folder / "effects"),
            "C_FORCE_ROOT": "1",
        }
        clock = SystemClock()
        self.db = Database(database_url, clock)
        log = SqlEventLog(self.db)
        self.rt = Runtime(
            settings=Settings.from_mapping({}, self.environment),
            clock=clock,
            db=self.db,
            events=log,
            live=LiveWriter(log),
            knock=lambda knock: None,
        )

    def close(self) -> None:
        """End all, and let go of the database."""
        for process in self.processes:
            process.signal(signal.SIGKILL)
            process.wait(10)
        self.rt.close()

    # --- processes --------------------------------------------------------------------------------

    def start(
        self, *arguments: str, ready: str, environment: dict[str, str] | None = None, **conf: Any
    ) -> Process:
        """Run ``celery`` with these arguments; *ready* is what it logs once it has begun."""
        self._count += 1
        given = {ARGUMENTS: json.dumps(["-A", "tests.beat.app", *arguments]), "BEAT_CONF": json.dumps(conf)}
        log = self.folder / f"{self._count}-{arguments[0]}.log"
        process = self._children.start(
            {**self.environment, **given, **(environment or {})}, log, main="tests.beat.service"
        )
        self.processes.append(process)
        self.until(lambda: ready in process.output() or not process.running, what=f"{arguments[0]} ready")
        assert process.running, process.output()
        return process

    def worker(self, **conf: Any) -> Process:
        """Start a worker."""
        options = "--pool threads --concurrency 4 --without-mingle --without-gossip --loglevel info"
        return self.start("worker", *options.split(), ready=" ready.", **conf)

    def beat(
        self,
        scheduler: str = THINK_BEAT,
        *,
        clock: Path | None = None,
        version: str | None = None,
        environment: dict[str, str] | None = None,
        **conf: Any,
    ) -> Process:
        """Start a beat with a file of its own for the app's entries."""
        more = dict(environment or {})
        if clock is not None:
            more[CLOCK] = str(clock)
        if version is not None:
            more[VERSION] = version
        file = str(self.folder / f"entries-{self._count}")
        arguments = ("beat", "-S", scheduler, "-s", file, "--loglevel", "info")
        return self.start(*arguments, ready="beat: Starting...", environment=more, **conf)

    def wrong_clock(self, seconds: float) -> Path:
        """A file for a process whose clock is wrong by that much."""
        file = self.folder / f"clock-{self._count}"
        file.write_text(str(seconds))
        return file

    def end(self, *processes: Process, by: signal.Signals = signal.SIGTERM) -> None:
        """End them, and wait for it."""
        for process in processes:
            process.signal(by)
        for process in processes:
            process.wait(PATIENCE)

    # --- the database -----------------------------------------------------------------------------

    @property
    def on_postgres(self) -> bool:
        """Whether it is PostgreSQL, whose clock is its own; else SQLite."""
        return self.db.url.get_backend_name() == "postgresql"

    @contextmanager
    def away(self) -> Iterator[dict[str, str]]:
        """In the block the database can't be reached by a process that starts in this environment."""
        if not self.on_postgres:
            link, later = self.folder / "link.db", self.folder / "later"
            link.symlink_to(later / "think.db")
            yield {"THINK_DATABASE_URL": f"sqlite:///{link}"}
            later.symlink_to(self.folder)
            return
        self._allow_connections("false")
        try:
            yield {}
        finally:
            self._allow_connections("true")

    def end_sessions(self) -> None:
        """End every session of PostgreSQL in this database but the one that does it."""
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        ended = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {others}"
        assert self.db.read(lambda tx: tx.execute(text(ended)).scalar())

    def _allow_connections(self, allowed: str) -> None:
        admin = create_engine(self.db.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
        with admin.connect() as conn:
            conn.execute(text(f'ALTER DATABASE "{self.db.url.database}" ALLOW_CONNECTIONS {allowed}'))
        admin.dispose()

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, true: Callable[[], Any], *, what: str) -> Any:
        """What *true* gives once it gives something."""
        end = time.monotonic() + PATIENCE
        while not (found := true()):
            assert time.monotonic() < end, f"not {what}\n{self.report()}"
            time.sleep(0.05)
        return found

    @staticmethod
    def nap(seconds: float) -> None:
        """Let the world go on."""
        time.sleep(seconds)

    # --- what is there ----------------------------------------------------------------------------

    def pulse(self, name: str) -> Pulse:
        """An agent, as a client has it."""
        return Pulse._bound_to(self.rt, name)

    def schedules(self, agent_class: str | None = None) -> list[Any]:
        """The rows of all schedules, or of those of one class."""
        rows = self.db.read(lambda tx: list(tx.execute(select(schedules))))
        return [row for row in rows if agent_class in (None, row.agent_class)]

    def slots(self, agent: str) -> list[Any]:
        """The slots of an agent's schedules, in order."""
        of = select(schedules.c.id).where(schedules.c.agent_name == agent)
        found = select(slots).where(slots.c.schedule_id.in_(of)).order_by(slots.c.scheduled_for)
        return self.db.read(lambda tx: list(tx.execute(found)))

    def statuses(self, agent: str) -> Counter[str]:
        """How many of them are in which status."""
        return Counter(row.status for row in self.slots(agent))

    def effects(self, what: str) -> list[dict[str, Any]]:
        """What was done of that kind."""
        file = Path(self.environment[EFFECTS])
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in map(json.loads, lines) if line["what"] == what]

    def settled(self, agent: str) -> list[Any]:
        """The slots of an agent, once none is open. Its schedules are over then."""
        found = list(self.until(lambda: self._settled(agent), what=f"every slot of {agent} settled"))
        for row in domain.find(self.rt, self.pulse(agent)._ref):
            domain.cancel(self.rt, row.id)
        return found

    def _settled(self, agent: str) -> list[Any] | None:
        found = self.slots(agent)
        return found if found and all(row.status != "open" for row in found) else None

    def report(self) -> str:
        """All that helps to understand a failure."""
        parts = [f"schedule: {row}" for row in self.schedules()]
        parts += [f"slot: {row}" for row in self.db.read(lambda tx: list(tx.execute(select(slots))))]
        for process in self.processes:
            parts += [
                f"--- {process.log.name} pid {process.pid} status {process.status}",
                process.output()[-5000:],
            ]
        return "\n".join(parts)


def gaps(found: Sequence[Any], every: timedelta) -> list[datetime]:
    """The instants of an interval, from its first slot to its last, that no slot stands for."""
    covered: set[datetime] = set()
    for row in found:
        instant = row.missed_from or row.scheduled_for
        while instant <= row.scheduled_for:
            covered.add(instant)
            instant += every
    first, last = found[0].scheduled_for, found[-1].scheduled_for
    return [first + n * every for n in range((last - first) // every) if first + n * every not in covered]


def torment(stand: Stand, beats: list[Callable[[], Process]], seconds: float, chance: random.Random) -> int:
    """End and start beats at random for so long, one of them running at any time; says how often."""
    running = {number: start() for number, start in enumerate(beats)}
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        stand.nap(chance.uniform(0.1, 0.6))
        number = chance.randrange(len(beats))
        if number in running and len(running) > 1:
            stand.end(running.pop(number), by=chance.choice([signal.SIGKILL, signal.SIGTERM]))
            count += 1
        elif number not in running:
            running[number] = beats[number]()
    stand.end(*running.values())
    return count
