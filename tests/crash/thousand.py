"""A thousand workflows of twenty steps, whose workers are killed at random all the time.

    python -m tests.crash.thousand --workflows 1000 --database postgresql

Then every one must be complete, what a step counted inside ``step.transaction`` must be there once, and what was done
elsewhere more than once must carry one idempotency key. The same ``--seed`` throws the same dice.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import create_engine, select, text

from tests import servers
from tests.crash.chaos import Slot, children_of, send_signal
from tests.crash.nursery import Nursery, nursery
from tests.crash.project import EFFECTS, LINGER, STEPS, Journey, Scribe, effects, step_name
from think_celery import serialization
from think_celery.app import ThinkCelery
from think_celery.runtime import set_current
from think_celery.states import WorkflowStatus, is_terminal
from think_celery.store import tables
from think_celery.store.database import Database
from think_celery.store.migrate import upgrade

POOLS = {"postgresql": ("prefork", "threads", "threads", "gevent"), "sqlite": ("prefork", "threads")}
"""The workers of each database: SQLite has one writer, and more would only wait."""

LEASE = 3
PATIENCE = 90.0
"""Seconds in which at least one more step must be recorded; how many there are at once is the machine's affair."""

AGENTS = 50


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many workflows; ``every`` is how many steps are recorded between two kills, from … to.

    By steps, not by time: a slow machine that only started workers and killed them would show nothing.
    """

    workflows: int
    seed: int = 1
    every: tuple[int, int] = (40, 160)

    @property
    def ids(self) -> list[str]:
        """Of the workflows."""
        return [f"journey-{number}" for number in range(self.workflows)]


# --- what must be true ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that is there when it is over."""

    outputs: Mapping[str, Any]
    """Of each workflow that is complete; of another its status."""

    steps: Sequence[tuple[str, int, str, str]]
    """Workflow, position, key and status of each entry."""

    counted: Sequence[str]
    done: Sequence[Mapping[str, Any]]
    held: int

    def judge(self, ids: Sequence[str]) -> list[str]:
        """The promises that were broken."""
        return [*self._ended(ids), *self._recorded(ids), *self._counted(ids), *self._elsewhere(ids)]

    def _ended(self, ids: Sequence[str]) -> Iterator[str]:
        if set(self.outputs) != set(ids):
            yield "workflows are lost or invented"
        wrong = {it: output for it, output in self.outputs.items() if output != STEPS}
        if wrong:
            yield f"not complete, or with another output: {wrong}"
        if self.held:
            yield f"{self.held} leases or knocks are left"

    def _recorded(self, ids: Sequence[str]) -> Iterator[str]:
        wanted = [(it, at, step_name(at), "done") for it in ids for at in range(STEPS)]
        if sorted(self.steps) != sorted(wanted):
            yield f"the journals are others: {sorted(set(self.steps) ^ set(wanted))[:10]}"

    def _counted(self, ids: Sequence[str]) -> Iterator[str]:
        wanted = Counter(here for here in places(ids, "count"))
        if Counter(self.counted) != wanted:
            difference = [*(Counter(self.counted) - wanted), *(wanted - Counter(self.counted))]
            yield f"counted inside step.transaction not exactly once: {difference[:10]}"

    def _elsewhere(self, ids: Sequence[str]) -> Iterator[str]:
        keys: dict[str, set[str]] = defaultdict(set)
        for line in self.done:
            keys[line["what"]].add(line["key"])
        if set(keys) != set(places(ids, "do")):
            yield f"never done, or invented: {sorted(set(keys) ^ set(places(ids, 'do')))[:10]}"
        several = [what for what, found in keys.items() if len(found) > 1]
        if several:
            yield f"done again under another idempotency key: {several[:10]}"
        if len(set().union(*keys.values())) < len(keys):
            yield "two effects have one idempotency key"

    @property
    def repeated(self) -> int:
        """How many effects elsewhere were done once more."""
        return len(self.done) - len({line["what"] for line in self.done})


def places(ids: Sequence[str], kind: str) -> Iterator[str]:
    """The steps of that kind, of all workflows."""
    names = [name for name in map(step_name, range(STEPS)) if name.startswith(kind)]
    return (f"{it}/{name}" for it in ids for name in names)


# --- how it goes ----------------------------------------------------------------------------------


@dataclass
class Thousand:
    """One such run: its workers, what befalls them, and what was found."""

    size: Size
    url: str
    broker: str
    folder: Path
    parent: Nursery
    queue: str = "thousand"
    figures: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Seen:
        """Start all workflows and kill workers until they have ended; what is there then."""
        self._dice, self.killed = random.Random(self.size.seed), Counter[str]()
        kind = "sqlite" if self.url.startswith("sqlite") else "postgresql"
        engine = create_engine(self.url)
        with engine.begin() as conn:
            conn.execute(text("CREATE TABLE counted (what TEXT NOT NULL)"))
        engine.dispose()
        began = time.monotonic()
        with self._client() as think:
            self.slots = [
                Slot(f"{pool}-{number}", pool, self._start(f"{pool}-{number}", pool, 1))
                for number, pool in enumerate(POOLS[kind])
            ]
            starts = threading.Thread(target=self._start_all, args=(think,))
            starts.start()
            try:
                self._kill_until_all_have_ended(think.runtime.db, starts)
            finally:
                starts.join()
                self._stop()
            self.figures |= {"killed": dict(self.killed), "seconds": round(time.monotonic() - began, 1)}
            seen = self._look(think.runtime.db)
        self.figures |= {"effects elsewhere": len(seen.done), "of these once more": seen.repeated}
        return seen

    @contextmanager
    def _client(self) -> Iterator[ThinkCelery]:
        app = Celery("thousand", broker=self.broker, set_as_current=False)
        app.conf.update(task_default_queue=self.queue, think_database_url=self.url)
        think = ThinkCelery(app)
        try:
            yield think
        finally:
            think.close()
            set_current(None)

    def _start_all(self, think: ThinkCelery) -> None:
        for number, it in enumerate(self.size.ids):
            agent = Scribe._bound_to(think.runtime, f"agent-{number % AGENTS}")
            agent.run_workflow(Journey, workflow_id=it)

    def _start(self, name: str, pool: str, life: int) -> Any:
        environment = {
            "THINK_DATABASE_URL": self.url,
            "THINK_LEASE": str(LEASE),
            "THINK_MAX_ATTEMPTS": "50",  # whoever is killed this often without a step is no poison
            "CRASH_BROKER": self.broker,
            "CRASH_QUEUE": self.queue,
            "CRASH_KIND": pool,
            EFFECTS: str(self.folder / "effects"),
            LINGER: "0.01",
        }
        return self.parent.start(environment, self.folder / f"{name}-{life}.log")

    def _kill_until_all_have_ended(self, db: Database, starts: threading.Thread) -> None:
        live = [status.value for status in WorkflowStatus if not is_terminal(status)]
        left = text("SELECT count(*) FROM think_workflows WHERE status IN ('" + "', '".join(live) + "')")
        recorded, next_at = text("SELECT count(*) FROM think_steps"), self.size.every[1]
        done, until = -1, time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self._mend(time.monotonic())
            before, done = done, db.read(lambda tx: tx.execute(recorded).scalar_one())
            if done > before:
                until = time.monotonic() + PATIENCE
            if done >= next_at and self._kill(time.monotonic()):
                next_at = done + self._dice.randint(*self.size.every)
            if not starts.is_alive() and not db.read(lambda tx: tx.execute(left).scalar()):
                break
            time.sleep(self._dice.uniform(0.01, 0.05))
        self._mend(float("inf"))

    def _mend(self, now: float) -> None:
        for slot in self.slots:
            if slot.back_at is None and not slot.process.running:  # its pool was given up, with a child
                self.killed[f"{slot.pool} ended by itself"] += 1
                slot.back_at = now
            if slot.back_at is not None and now >= slot.back_at:
                slot.lives, slot.back_at = slot.lives + 1, None
                slot.process = self._start(slot.name, slot.pool, slot.lives)

    def _kill(self, now: float) -> bool:
        """kill -9 of a worker, or of one child of the prefork pool; False if none serves just now."""
        settled = [slot for slot in self.slots if slot.back_at is None and self._serves(slot)]
        if not settled:
            return False
        slot = self._dice.choice(settled)
        children = children_of(slot.process.pid) if slot.pool == "prefork" else []
        if children and slot.settled and self._dice.random() < 0.5:
            send_signal(self._dice.choice(children), signal.SIGKILL)
            self.killed["child"] += 1
            return True
        for pid in children:
            send_signal(pid, signal.SIGKILL)
        slot.process.signal(signal.SIGKILL)
        slot.back_at = now + self._dice.uniform(0, 1)
        self.killed[slot.pool] += 1
        return True

    def _serves(self, slot: Slot) -> bool:
        return Path(f"{slot.process.log}.ready").exists()

    def _stop(self) -> None:
        for slot in self.slots:
            slot.process.signal(signal.SIGTERM)
        for slot in self.slots:
            slot.process.wait(60)

    def _look(self, db: Database) -> Seen:
        runs, entries = tables.workflows.c, tables.steps.c
        found = db.read(lambda tx: tx.execute(select(tables.workflows)).all())
        names = {row.key: row.workflow_id for row in found}
        steps = db.read(
            lambda tx: tx.execute(
                select(entries.workflow_key, entries.position, entries.step, entries.status)
            ).all()
        )
        counted = db.read(lambda tx: tx.execute(text("SELECT what FROM counted")).all())
        left = select(runs.key).where(runs.process_id.is_not(None) | runs.knock_at.is_not(None))
        return Seen(
            outputs={
                row.workflow_id: serialization.loads(row.output) if row.output else str(row.status)
                for row in found
            },
            steps=[(names[row.workflow_key], row.position, row.step, str(row.status)) for row in steps],
            counted=[row.what for row in counted],
            done=effects(self.folder / "effects"),
            held=len(db.read(lambda tx: tx.execute(left).all())),
        )


def main() -> int:
    """Run one, and say what came out."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.thousand", description=__doc__)
    parser.add_argument("--workflows", type=int, default=1000)
    parser.add_argument("--database", choices=sorted(POOLS), default="postgresql")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    size, folder = Size(workflows=given.workflows, seed=given.seed), Path(tempfile.mkdtemp(prefix="think-"))
    with ExitStack() as stack:
        if given.database == "sqlite":
            url = f"sqlite:///{folder / 'think.db'}"
            upgrade(url)
        else:
            url = stack.enter_context(servers.postgres(upgrade)).migrated()
        broker = stack.enter_context(servers.redis_server()).flushed()
        thousand = Thousand(size, url, broker, folder, stack.enter_context(nursery()))
        faults = thousand.run().judge(size.ids)
    print(json.dumps(thousand.figures, indent=2))
    print(f"logs: {folder}")
    for fault in faults:
        print(f"BROKEN: {fault}")
    print("broken promises:", len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
