"""The demo as a process of its own: started, killed at a named point or at any moment, and counted."""

import itertools
import json
import os
import signal
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.nursery import Nursery, Process
from think_celery.cli import main

FINAL = "think_final_answer"
SECONDS = 60.0


def run() -> None:
    """The process: ``think-celery`` with the arguments in ``CRASH_DO``; it dies at ``CRASH_KILL_AT``, if set."""
    if place := os.environ.get("CRASH_KILL_AT"):
        die_at(*place.split("#"))
    main(json.loads(os.environ["CRASH_DO"]), prog_name="think-celery")


def die_at(point: str, nth: str) -> None:
    """Let the demo kill itself when it reaches this failpoint for the nth time."""
    from think_celery.demo import run as module  # not at the top: its classes are the demo's alone

    reached = itertools.count(1)

    def failpoint(name: str) -> None:
        if name == point and next(reached) == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

    class Killed(module.Demo):
        def __init__(self, rt: Any, *rest: Any) -> None:
            rt.failpoint = failpoint
            super().__init__(rt, *rest)

    module.Demo = Killed  # type: ignore[misc]


@dataclass
class Demo:
    """One state folder, and the processes that worked on it. *children* is where they come from."""

    children: Nursery
    state: Path
    reports: list[dict[str, str]]
    arguments: list[str] = field(default_factory=list)
    starts: int = 0

    @property
    def command(self) -> list[str]:
        """The arguments of ``think-celery``."""
        source = self.state.parent / "given.jsonl"
        source.write_text("".join(json.dumps(report) + "\n" for report in self.reports))
        return ["demo", str(source), "--state", str(self.state), *self.arguments]

    def start(self, *, killed_at: tuple[str, int] | None = None) -> Process:
        """Start it; with *killed_at* it kills itself at that failpoint."""
        given = {"CRASH_KIND": "demo", "CRASH_DO": json.dumps(self.command)}
        if killed_at is not None:
            given["CRASH_KILL_AT"] = f"{killed_at[0]}#{killed_at[1]}"
        self.starts += 1
        return self.children.start(given, self.state.parent / f"{self.starts}-demo.log")

    def run_until_killed(self, point: str, nth: int) -> None:
        """Run it until it kills itself."""
        process = self.start(killed_at=(point, nth))
        status = process.wait(SECONDS)
        assert status == -signal.SIGKILL, f"{point} was not reached {nth} times\n{process.output()}"

    def run_to_end(self) -> str:
        """Run it to its end, and return what it said."""
        process = self.start()
        assert process.wait(SECONDS) == 0, process.output()
        return process.output()

    # --- what is there ----------------------------------------------------------------------------

    def requests(self) -> list[str]:
        """The keys of all requests to the model so far, in order."""
        log = self.state / "requests.jsonl"
        return [json.loads(line)["request"] for line in log.read_text().splitlines()] if log.exists() else []

    def results(self) -> dict[str, tuple[int, str]]:
        """Inode and content of each result file."""
        files = sorted((self.state / "results").glob("*.json"))
        return {path.stem: (path.stat().st_ino, path.read_text()) for path in files}

    def leftovers(self) -> list[str]:
        """Files that a killed writer left half-written."""
        return [path.name for path in self.state.rglob("*.partial")]

    def stored_answers(self) -> set[str]:
        """The requests whose whole answer is stored."""
        database = self.state / "think.db"
        if not database.exists():
            return set()
        with sqlite3.connect(database) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'think_messages'").fetchone():
                return set()
            messages = connection.execute(
                "SELECT a.name, m.parts FROM think_messages m JOIN think_agents a ON a.id = m.agent_id "
                "WHERE m.role = 'assistant'"
            ).fetchall()
            ended = connection.execute(
                "SELECT agent_name FROM think_submissions WHERE status = 'completed'"
            ).fetchall()
        searched = {f"{name}#1" for name, parts in messages if _has_whole_call(json.loads(parts))}
        return searched | {f"{name}#{step}" for (name,) in ended for step in (1, 2)}

    def ends(self) -> Counter[str]:
        """How often each status of a submission and of a workflow occurs."""
        with sqlite3.connect(self.state / "think.db") as connection:
            rows = connection.execute(
                "SELECT 'turn ' || status FROM think_submissions "
                "UNION ALL SELECT 'workflow ' || status FROM think_workflows"
            )
            return Counter(status for (status,) in rows)

    def look(self) -> "Look":
        """What a kill left behind."""
        return Look(requests=self.requests(), results=self.results(), stored=self.stored_answers())


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was there right after a kill."""

    requests: list[str]
    results: dict[str, tuple[int, str]]
    stored: set[str]

    @property
    def in_flight(self) -> set[str]:
        """Requests that were made and whose answers were not stored: each may be made once more."""
        return set(self.requests) - self.stored


def _has_whole_call(parts: list[dict[str, Any]]) -> bool:
    calls = [part for part in parts if str(part.get("type", "")).startswith("tool-")]
    return any(call.get("state") != "input-streaming" for call in calls)


def check(demo: Demo, kills: list[Look]) -> None:
    """Nothing was asked for twice that was stored, nothing applied twice, and everything is done."""
    requests, results = demo.requests(), demo.results()
    for number, kill in enumerate(kills):
        until = len(kills[number + 1].requests) if number + 1 < len(kills) else len(requests)
        asked_since = requests[len(kill.requests) : until]
        assert not kill.stored & set(asked_since), "a stored answer was asked for again"
        again = Counter(asked_since)
        assert all(again[key] <= 1 for key in again), f"asked for twice without a kill between: {again}"
        assert {name: results[name] for name in kill.results} == kill.results, "a result was written again"
    wanted = {f"{report['id']}#{step}" for report in demo.reports for step in (1, 2)}
    assert set(requests) == wanted
    repeated = Counter(requests) - Counter(wanted)
    allowed = sum((Counter(kill.in_flight) for kill in kills), Counter[str]())
    assert not repeated - allowed, f"repeated without being in flight at a kill: {repeated - allowed}"
    assert set(results) == {report["id"] for report in demo.reports}
    for name, (_, content) in results.items():
        result = json.loads(content)
        assert result["outcome"] == "applied", name
        assert result["labels"]
        assert len(result["labels"]) == len(set(result["labels"]))
    assert demo.leftovers() == []
    count = len(demo.reports)
    assert demo.ends() == {"turn completed": count, "workflow complete": count}
