"""A soak: turns and workflows go through while workers, Redis and the database's sessions are killed at random.

    python -m tests.crash.soak --minutes 15

Then it looks whether everything has ended, and whether nothing is lost, doubled or left behind. The same
``--seed`` makes the same calls and lets the same things happen, as far as time allows.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import create_engine, text

from tests import servers
from tests.crash import load
from tests.crash.chaos import Broker, Chaos, memory_of
from tests.crash.model import answer
from tests.crash.nursery import Nursery, Process, nursery
from tests.crash.project import EFFECTS, LINGER
from tests.crash.verdict import Verdict
from tests.providers.server import ModelServer
from think_celery.clock import SystemClock
from think_celery.states import SubmissionStatus, WorkflowStatus, is_terminal
from think_celery.store.database import Database
from think_celery.store.migrate import upgrade

LEASE = 3
QUEUE = "soak"
SUBMITTERS = 2
SHORT_MINUTES = 3.0
"""A shorter soak says nothing about memory: in its first third everything is still being loaded."""

MEMORY_GROWTH, MEMORY_MB = 1.1, 8.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much goes through, and for how long; ``every`` is the time between two faults, from … to."""

    seconds: float
    turns: int
    workflows: int
    every: tuple[float, float]
    seed: int


@dataclass
class Memory:
    """What some processes have in memory, sampled. One that was replaced begins anew."""

    processes: dict[str, Callable[[], Process]]
    samples: dict[str, list[float]] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)
    _next_at: float = 0.0

    def sample(self) -> None:
        """Look, once a second."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + 1
        for name, look in self.processes.items():
            process = look()
            if self._pids.setdefault(name, process.pid) != process.pid:
                self._pids[name], self.samples[name] = process.pid, []
            with suppress(OSError):  # it has just ended
                self.samples.setdefault(name, []).append(memory_of(process.pid))

    def thirds(self) -> Iterator[tuple[str, float, float]]:
        """Each process with its greatest need in the second third (the first one loads) and in the last."""
        for name, found in self.samples.items():
            if not found:
                continue
            third = max(1, len(found) // 3)
            yield name, max(found[third : 2 * third] or found), max(found[-third:])


class Soak:
    """One soak, from its servers to its verdict."""

    def __init__(self, size: Size, folder: Path) -> None:
        self.size, self.folder = size, folder
        self.ops = load.plan(size.seed, size.seconds, size.turns, size.workflows)
        self.logs = [folder / f"calls-{number}.jsonl" for number in range(SUBMITTERS)]
        self.figures: dict[str, Any] = {}

    def run(self) -> list[str]:
        """Let it all happen; the promises that were broken."""
        with ExitStack() as stack:
            self.url = stack.enter_context(servers.own_postgres()).url
            upgrade(self.url)
            engine = create_engine(self.url)
            with engine.begin() as conn:
                conn.execute(text("CREATE TABLE ledger (workflow_id TEXT NOT NULL)"))
            engine.dispose()
            model = stack.enter_context(ModelServer())
            model.respond = answer
            broker = Broker()
            stack.callback(broker.close)
            parent = stack.enter_context(nursery())
            environment = self._environment(model.base_url, broker.url)
            chaos = Chaos(parent, broker, self.url, environment, self.folder, self.size.seed, self.size.every)
            stack.callback(chaos.close)
            self.db = Database(self.url, SystemClock())
            stack.callback(self.db.dispose)
            faults = self._play(parent, chaos, environment)
            faults += self._end(chaos, broker.url)
            self.figures["model requests"] = len(model.requests)
            return faults

    def _environment(self, model_url: str, broker_url: str) -> dict[str, str]:
        return {
            "THINK_DATABASE_URL": self.url,
            "THINK_LEASE": str(LEASE),
            "THINK_MAX_ATTEMPTS": "50",
            "THINK_MODEL": "openai/soak",
            "THINK_OPENAI_API_KEY": "sk-soak",
            "THINK_OPENAI_BASE_URL": model_url,
            "CRASH_BROKER": broker_url,
            "CRASH_QUEUE": QUEUE,
            EFFECTS: str(self.folder / "effects"),
            LINGER: "0.3",
        }

    # --- while it goes on -------------------------------------------------------------------------

    def _play(self, parent: Nursery, chaos: Chaos, environment: dict[str, str]) -> list[str]:
        submitters = self._submitters(parent, environment)
        steady = next(slot for slot in chaos.slots if slot.steady)
        looks = {name: lambda process=process: process for name, process in submitters.items()}
        memory = Memory({"steady worker": lambda: steady.process, **looks})
        began = time.monotonic()
        while any(process.running for process in submitters.values()):
            chaos.step()
            memory.sample()
            time.sleep(0.02)
        chaos.calm()
        faults = [
            f"{name} ended with {process.status}\n{process.output()[-2000:]}"
            for name, process in submitters.items()
            if process.status
        ]
        calls_ended = time.monotonic()
        patience = min(330.0, 60.0 + self.size.seconds)
        while (left := self._unfinished()) and time.monotonic() - calls_ended < patience:
            chaos.calm()
            memory.sample()
            time.sleep(0.1)
        self.figures |= {
            "what happened": dict(chaos.happened),
            "seconds of calls": round(calls_ended - began),
            "seconds until all had ended": round(time.monotonic() - calls_ended, 1),
        }
        if left:
            faults.append(f"{left} rows have not ended")
        for name, middle, last in memory.thirds():
            self.figures[f"memory of {name}, MB"] = (round(middle, 1), round(last, 1))
            grown = last > middle * MEMORY_GROWTH + MEMORY_MB
            if grown and self.size.seconds >= SHORT_MINUTES * 60:
                faults.append(f"the memory of {name} grew from {middle} to {last} MB")
        return faults

    def _submitters(self, parent: Nursery, environment: dict[str, str]) -> dict[str, Process]:
        started, began = {}, time.monotonic() + 3
        for number, log in enumerate(self.logs):
            log.touch()
            do = {
                "seed": self.size.seed,
                "seconds": self.size.seconds,
                "turns": self.size.turns,
                "sagas": self.size.workflows,
                "number": number,
                "of": SUBMITTERS,
                "began": began,
                "log": str(log),
            }
            given = {**environment, "CRASH_KIND": "submitter", "CRASH_DO": json.dumps(do)}
            started[f"submitter {number}"] = parent.start(given, self.folder / f"submitter-{number}.log")
        return started

    def _unfinished(self) -> int:
        turns = [status.value for status in SubmissionStatus if not is_terminal(status)]
        runs = [status.value for status in WorkflowStatus if not is_terminal(status)]
        return int(
            self.db.read(
                lambda tx: tx.execute(
                    text(
                        "SELECT (SELECT count(*) FROM think_submissions WHERE status = ANY(:turns))"
                        " + (SELECT count(*) FROM think_workflows WHERE status = ANY(:runs))"
                        " + (SELECT count(*) FROM think_lines WHERE process_id IS NOT NULL)"
                    ),
                    {"turns": turns, "runs": runs},
                ).scalar()
            )
            or 0
        )

    # --- when it is over --------------------------------------------------------------------------

    def _end(self, chaos: Chaos, broker_url: str) -> list[str]:
        faults = list(chaos.faults)
        with redis.Redis.from_url(broker_url) as client:
            until = time.monotonic() + 10
            while (length := int(client.llen(QUEUE))) and time.monotonic() < until:  # type: ignore[arg-type]
                time.sleep(0.1)
            if length:
                faults.append(f"{length} messages are left in the broker")
            self.figures["messages that killed workers had taken"] = client.hlen("unacked")
        statuses = chaos.stop()
        if any(statuses.values()):
            faults.append(f"workers that were told to stop ended with {statuses}")
        if orphans := chaos.still_there():
            faults.append(f"children of killed pools still run: {orphans}")
        self.verdict = Verdict(self.db, self.ops, self.logs, self.folder / "effects")
        self.verdict.read()
        faults += self.verdict.judge()
        self.figures |= self.verdict.figures
        return faults


def sized(minutes: float, seed: int) -> Size:
    """The size of a soak of that many minutes: 2,000 turns and 500 workflows in 15, and not too few in a short one."""
    share = max(minutes / 15, 0.06)
    every = (1.0, 2.5) if minutes < SHORT_MINUTES else (2.0, 6.0)
    return Size(
        seconds=minutes * 60,
        turns=round(2000 * share),
        workflows=round(500 * share),
        every=every,
        seed=seed,
    )


def main() -> int:
    """Run one, and say what came out."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="think-soak-"))
    soak = Soak(sized(given.minutes, given.seed), folder)
    faults = soak.run()
    for name, value in soak.figures.items():
        print(f"{name}: {value}")
    print(f"logs: {folder}")
    for fault in faults:
        print(f"BROKEN: {fault}")
    print("broken promises:", len(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
