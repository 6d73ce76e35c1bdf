"""One database with its workers, seen from outside: what is stored, what the model was asked, what was done."""

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select, text

from tests.crash.model import FINAL
from tests.crash.nursery import Nursery, Process
from tests.crash.pace import Pace
from tests.crash.project import EFFECTS, SAGA, Saga, Scribe, effects
from tests.providers.server import ModelServer
from think_celery.clock import SystemClock
from think_celery.domain.workflows import runs, workflows
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.messages import TextPart, ToolPart, UIMessage
from think_celery.protocols import Knock
from think_celery.runtime import Runtime
from think_celery.settings import Settings
from think_celery.store import tables
from think_celery.store.database import Database

LEASE = 3.0
TICK = 1.0
BOUND = LEASE + 4 * TICK
"""How long after a worker is ready all that a dead one left must have ended."""

AGENT, SAGA_ID, KEY = "ada", "saga-1", "key-1"


class Stage:
    """A place for one scenario. Its ``name`` is also its model's, so that its requests are known by it."""

    def __init__(
        self, name: str, database_url: str, folder: Path, model: ModelServer, children: Nursery, pace: Pace
    ) -> None:
        self.name, self.folder, self._pace = name, folder, pace
        pace.begin()
        self._model, self._children = model, children
        self.environment = {
            "THINK_DATABASE_URL": database_url,
            "THINK_LEASE": str(LEASE),
            "THINK_MODEL": f"openai/{name}",
            "THINK_OPENAI_API_KEY": "sk-crash",
            "THINK_OPENAI_BASE_URL": model.base_url,
            "THINK_CONNECT_TIMEOUT": "5",
            "THINK_FIRST_TOKEN_TIMEOUT": "10",
            "THINK_TOKEN_GAP_TIMEOUT": "10",
            EFFECTS: str(folder / "effects"),
        }
        clock = SystemClock()
        self.db = Database(database_url, clock)
        log = SqlEventLog(self.db)
        settings = Settings.from_mapping({}, self.environment)
        self.rt = Runtime(
            settings=settings,
            clock=clock,
            db=self.db,
            events=log,
            live=LiveWriter(log),
            knock=lambda knock: None,
        )
        self.agent = Scribe._bound_to(self.rt, AGENT)
        self.workers: list[Process] = []
        self._make_ledger(database_url)

    def _make_ledger(self, url: str) -> None:
        engine = create_engine(url)
        with engine.begin() as conn:
            conn.execute(text("CREATE TABLE ledger (workflow_id TEXT NOT NULL)"))
        engine.dispose()

    def close(self) -> None:
        """Kill what still runs, and let go of the database."""
        self._pace.end()
        for worker in self.workers:
            worker.signal(9)  # type: ignore[arg-type]
            worker.wait(10)
        self.rt.close()

    # --- processes --------------------------------------------------------------------------------

    def start(self, kind: str, **options: str) -> Process:
        """Start a process: ``kill_at``, ``hold_at``, ``deaf``, ``elsewhere``, ``do``, ``broker``."""
        log = self.folder / f"{len(self.workers)}-{kind}.log"
        given = {f"CRASH_{name.upper()}": value for name, value in options.items()}
        process = self._children.start({**self.environment, "CRASH_KIND": kind, **given}, log)
        self.workers.append(process)
        return process

    def client(self, call: Mapping[str, Any], **options: str) -> Process:
        """Start a process that makes one accepting call."""
        return self.start("client", do=json.dumps({"agent": AGENT, **call}), **options)

    def knock_through(self, knock: Callable[[Knock], None]) -> None:
        """Let this process, as a client, knock from now on; else nobody learns of what it stores but the tick."""
        self.rt.knock = knock

    # --- what the world does ----------------------------------------------------------------------

    def submit(self, prompt: str) -> Any:
        """Submit a turn."""
        return self.agent.submit_messages(prompt, idempotency_key=KEY)

    def start_saga(self, prompt: str, **params: Any) -> str:
        """Start the saga."""
        return self.agent.run_workflow(Saga, {"prompt": prompt, **params}, workflow_id=SAGA_ID)

    def send_go(self) -> None:
        """Send what the saga waits for; twice is once."""
        self.agent.send_workflow_event(Saga, SAGA_ID, type="go", payload=SAGA["go"], idempotency_key="go")

    def feed(self) -> None:
        """Send it as soon as the saga waits for it."""
        if self.saga_waits():
            self.send_go()

    def until(
        self,
        true: Callable[[], Any],
        seconds: float,
        *,
        what: str,
        feed: bool = False,
        every: float = 0.05,
    ) -> float:
        """Wait until *true*, and return the time then. That many seconds of a free machine are allowed."""
        began = time.monotonic()
        while not true():
            if self.took(began, time.monotonic()) > seconds:
                raise AssertionError(f"not {what} after {seconds} s\n{self.report()}")
            if feed:
                self.feed()
            time.sleep(every)
        return time.monotonic()

    def took(self, began: float, ended: float) -> float:
        """How many seconds that would have been on a free machine."""
        return (ended - began) / self._pace.stretch(began)

    # --- what is there ----------------------------------------------------------------------------

    def rows(self, table: Any) -> list[Any]:
        """All rows of a table."""
        return self.db.read(lambda tx: list(tx.execute(select(table).order_by(*table.primary_key))))

    def submission(self) -> Any:
        """The row of the one submission, or ``None``."""
        found = [row for row in self.rows(tables.submissions) if row.agent_name == AGENT]
        assert len(found) <= 1
        return found[0] if found else None

    def processes(self) -> list[Any]:
        """The workers that the database knows."""
        return self.rows(tables.processes)

    def saga(self) -> Any:
        """The row of the saga, or ``None``."""
        return workflows.get(self.rt, workflows.reference(Saga, SAGA_ID))

    def entry(self, key: str) -> Any:
        """A journal entry, or ``None``."""
        found = [row for row in self.rows(tables.steps) if row.step == key]
        return found[0] if found else None

    def messages(self) -> list[UIMessage]:
        """The conversation."""
        return self.agent.messages

    def requests(self) -> list[Any]:
        """What the model was asked."""
        return [body for body in self._model.requests if body["model"] == self.name]

    def refused_requests(self) -> list[Any]:
        """What the model that refuses everything was asked."""
        return [body for body in self._model.requests if body["model"] == f"poor-{self.name}"]

    def effects(self) -> list[dict[str, Any]]:
        """What was done."""
        return effects(self.folder / "effects")

    def counts(self) -> dict[str, int]:
        """How often each effect was done; all times with one key."""
        done = self.effects()
        for what in {line["what"] for line in done}:
            keys = {line["key"] for line in done if line["what"] == what}
            assert len(keys) == 1, f"{what} was done under {len(keys)} keys: {keys}"
        return dict(Counter(line["what"] for line in done))

    def ledger(self) -> int:
        """How many rows ``step.transaction`` has written."""
        return int(self.db.read(lambda tx: tx.execute(text("SELECT count(*) FROM ledger")).scalar()) or 0)

    def report(self) -> str:
        """All that helps to understand a failure."""
        submission = self.submission()
        parts = [f"stage {self.name} in {self.folder}", f"submission: {submission}", f"saga: {self.saga()}"]
        parts += [f"step: {row.step} {row.status}" for row in self.rows(tables.steps)]
        parts += [f"process: {row}" for row in self.rows(tables.processes)]
        parts += [f"line: {row}" for row in self.rows(tables.lines)]
        parts += [f"outbox: {row}" for row in self.rows(tables.outbox)]
        parts += [f"effects: {self.effects()}", f"requests: {len(self.requests())}"]
        for worker in self.workers:
            parts += [f"--- {worker.log.name} pid {worker.pid} status {worker.status}", worker.output()]
        return "\n".join(parts)

    def can_write(self) -> bool:
        """Whether SQLite's one writer is free now."""
        if self.db.engine.dialect.name != "sqlite":
            return True
        with sqlite3.connect(str(self.db.engine.url.database), timeout=0.5, isolation_level=None) as conn:
            try:
                conn.execute("BEGIN IMMEDIATE")
                conn.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True

    def stored(self) -> dict[str, list[Any]]:
        """Every row that a worker's work leaves, but not who lives and who ticks."""
        return {
            table.name: self.rows(table)
            for table in (
                tables.messages,
                tables.submissions,
                tables.lines,
                tables.workflows,
                tables.steps,
                tables.events,
                tables.outbox,
            )
        }

    def taken_over(self) -> bool:
        """Whether a second worker has claimed the turn."""
        row = self.submission()
        return row is not None and row.takeovers >= 2

    # --- what must be there -----------------------------------------------------------------------

    def turn_ended(self) -> bool:
        """Whether the turn has ended."""
        row = self.submission()
        return row is not None and row.status in ("completed", "error", "aborted", "skipped")

    def saga_waits(self) -> bool:
        """Whether the saga has parked where it waits for its event."""
        row = self.saga()
        return row is not None and row.status == "waiting" and self.entry("go") is not None

    def saga_ended(self) -> bool:
        """Whether the saga has ended, or has stopped for good."""
        row = self.saga()
        return row is not None and row.status in ("complete", "errored", "terminated", "paused")

    def check_transcript(self, prompt: str, message_id: str | None) -> list[Any]:
        """One message of the user, one answer (with the id that it had), and the answer's parts."""
        messages = self.messages()
        assert [message.role for message in messages] == ["user", "assistant"], self.report()
        assert messages[0].text == prompt
        row = self.submission()
        assert (row.status, row.error_type) == ("completed", None), self.report()
        assert messages[1].id == row.message_id
        if message_id is not None:
            assert row.message_id == message_id
        return list(messages[1].parts)

    def check_answer(self, prompt: str, message_id: str | None) -> dict[str, ToolPart]:
        """Its text is whole and there once; returns the tool calls, of which each was made once."""
        parts = self.check_transcript(prompt, message_id)
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == FINAL, self.report()
        return self._calls(parts)

    def check_saga(self, prompt: str, message_id: str | None) -> dict[str, ToolPart]:
        """Everything of the saga happened once, in order; returns the tool calls of its prompt."""
        assert runs.look_up(self.rt, SAGA_ID, Saga).output == SAGA, self.report()
        entries = sorted(self.rows(tables.steps), key=lambda row: row.position)
        assert [row.step for row in entries] == ["fetch", "ask:submit", "ask:wait", "go", "book", "send"]
        assert {row.status for row in entries} == {"done"}
        assert self.ledger() == 1
        assert [row.status for row in self.rows(tables.outbox)] == ["delivered"]
        assert all(row.consumed_by for row in self.rows(tables.events))
        assert len(self.rows(tables.events)) == 2
        return self._calls(self.check_transcript(prompt, message_id))

    @staticmethod
    def _calls(parts: list[Any]) -> dict[str, ToolPart]:
        calls = [part for part in parts if isinstance(part, ToolPart)]
        names = [call.tool_name for call in calls]
        assert len(set(names)) == len(names), names
        assert all(call.settled for call in calls)
        return {call.tool_name: call for call in calls}
