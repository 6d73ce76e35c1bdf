"""What must be true when the soak is over: everything has ended, and nothing is lost or doubled."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select, text

from tests.crash.load import Op
from tests.crash.model import FINAL
from tests.crash.project import SAGA, effects
from think_celery import serialization
from think_celery.messages import TextPart, ToolPart, UIMessage, as_messages
from think_celery.store import messages as stored
from think_celery.store import tables
from think_celery.store.database import Database

REPEATABLE = ("fetch", "send", "note")


@dataclass
class Verdict:
    """Looks at all that is there; ``faults`` are the promises that were broken, ``figures`` what was counted."""

    db: Database
    ops: list[Op]
    logs: list[Path]
    effects: Path
    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def judge(self) -> list[str]:
        """Look at all that was read; the promises that were broken."""
        self.faults = []
        self._accepted()
        self._ended()
        for agent in sorted(self.messages):
            self._transcript(agent)
        self._workflows()
        self._done()
        self._leases()
        return self.faults

    def read(self) -> None:
        """Read everything, after the end."""
        self.rows = {table.name: self._rows(table) for table in tables.metadata.sorted_tables}
        self.turns, self.runs = self.rows["think_submissions"], self.rows["think_workflows"]
        ledger = text("SELECT workflow_id FROM ledger")
        self.ledger = self.db.read(lambda tx: list(tx.execute(ledger).scalars()))
        self.done = effects(self.effects)
        self.calls = [json.loads(line) for log in self.logs for line in log.read_text().splitlines()]
        self.messages: dict[str, list[UIMessage]] = {}
        for agent in self.rows["think_agents"]:
            rows = self.db.read(lambda tx, agent=agent: stored.of(tx, agent.id))  # type: ignore[misc]
            given = [{"id": row.message_id, "role": row.role, "parts": row.parts} for row in rows]
            self.messages[agent.name] = as_messages(given)

    def _rows(self, table: Any) -> list[Any]:
        return self.db.read(lambda tx: list(tx.execute(select(table).order_by(*table.primary_key))))

    def _must(self, true: object, what: str) -> None:
        if not true:
            self.faults.append(what)

    # --- accepting --------------------------------------------------------------------------------

    def _accepted(self) -> None:
        """Every call was made, each key is one row, and one caller was told that the row is new."""
        self.by_call: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for call in self.calls:
            self.by_call[call["do"], call["key"]].append(call)
        made = Counter((call["do"], call["key"]) for call in self.calls)
        self._must(made == Counter((op.do, op.key) for op in self.ops), "calls were not made, or made twice")
        rows = Counter(row.idempotency_key for row in self.turns if row.workflow_key is None)
        self._must(set(rows.values()) <= {1}, "a key has two rows")
        wanted = {op.key for op in self.ops if op.do == "submit"}
        self._must(set(rows) == wanted, f"lost or invented turns: {sorted(set(rows) ^ wanted)}")
        for (do, key), calls in self.by_call.items():
            if do != "submit":
                continue
            self._must(len({call["id"] for call in calls}) == 1, f"{key} was accepted under several ids")
            told, raised = sum(call["accepted"] for call in calls), any(call["raised"] for call in calls)
            self._must(told == 1 or (told == 0 and raised), f"{told} callers were told that {key} is new")
        self.figures["calls"] = len(self.calls)
        self.figures["calls that raised and were repeated"] = sum(call["raised"] > 0 for call in self.calls)
        self.figures["longest call, s"] = round(max(c["ended"] - c["began"] for c in self.calls), 2)

    def _ended(self) -> None:
        """Every turn has ended, and a cancel that won has aborted its turn."""
        self.figures["turns"] = dict(Counter(row.status for row in self.turns))
        for row in self.turns:
            won = [
                call for call in self.by_call["cancel", row.idempotency_key] if call["won"] or call["raised"]
            ]
            if row.status == "aborted":
                self._must(won, f"{row.idempotency_key} is aborted, and nobody has cancelled it")
            else:
                self._must(row.status == "completed", f"{row.idempotency_key}: {row.status} {row.error_type}")
                self._must(not any(call["won"] for call in won), f"{row.idempotency_key} outlived its cancel")

    # --- conversations ----------------------------------------------------------------------------

    def _transcript(self, agent: str) -> None:
        """Turns stand in the order in which they were accepted, each once, each with its whole answer."""
        messages = self.messages[agent]
        at = {
            message.text.rpartition("#")[2]: i for i, message in enumerate(messages) if message.role == "user"
        }
        users = sum(message.role == "user" for message in messages)
        self._must(len(at) == users, f"{agent} was told something twice")
        latest = float("-inf")
        for key in sorted(at, key=at.__getitem__):
            calls = self.by_call["submit", key]
            if calls:
                first_end, first_begin = min(c["ended"] for c in calls), min(c["began"] for c in calls)
                self._must(first_end >= latest, f"{key} ran after a turn of {agent} that was accepted later")
                latest = max(latest, first_begin)
        answers = Counter(message.id for message in messages if message.role == "assistant")
        self._must(set(answers.values()) <= {1}, f"{agent} has an answer twice")
        rows = [row for row in self.turns if row.agent_name == agent]
        self._must(set(answers) <= {row.message_id for row in rows}, f"{agent} has an answer of no turn")
        for row in rows:
            if row.status == "completed":
                self._answer(row, messages, at)

    def _answer(self, row: Any, messages: list[UIMessage], at: dict[str, int]) -> None:
        key = row.idempotency_key if row.workflow_key is None else row.idempotency_key.split(":")[2]
        place = at.get(key)
        self._must(place is not None, f"what {key} was told is not in the conversation")
        if place is None:
            return
        answer = messages[place + 1] if place + 1 < len(messages) else None
        if answer is None or answer.id != row.message_id:
            self.faults.append(f"the answer to {key} does not follow it")
            return
        said = "".join(part.text for part in answer.parts if isinstance(part, TextPart))
        whole = "" if row.workflow_key is not None else FINAL
        self._must(said == whole, f"the answer to {key} is {said!r}")
        self._must(
            all(part.settled for part in answer.parts if isinstance(part, ToolPart)),
            f"{key} has an open call",
        )

    # --- workflows and effects --------------------------------------------------------------------

    def _workflows(self) -> None:
        """Every run is complete, has its one row in the ledger, and has taken its news and its event."""
        self.figures["workflows"] = dict(Counter(row.status for row in self.runs))
        wanted = {op.key for op in self.ops if op.do == "start"}
        self._must({row.workflow_id for row in self.runs} == wanted, "workflows are lost or invented")
        for row in self.runs:
            self._must(row.status == "complete", f"{row.workflow_id}: {row.status} {row.error_type}")
            if row.status == "complete":
                self._must(
                    serialization.loads(row.output) == SAGA, f"{row.workflow_id} returned something else"
                )
        self._must(Counter(self.ledger) == Counter(wanted), "the ledger has rows too many or too few")
        news = Counter(row.status for row in self.rows["think_outbox"])
        self._must(news == {"delivered": len(wanted)}, f"news: {dict(news)}")
        events = Counter(bool(row.consumed_by) for row in self.rows["think_events"])
        self._must(events == {True: 2 * len(wanted)}, f"events (taken or not): {dict(events)}")

    def _done(self) -> None:
        """Each effect was done, under one key; only what may be repeated was done twice."""
        done: dict[str, Counter[str]] = defaultdict(Counter)
        for line in self.done:
            done[line["what"]][line["key"]] += 1
        runs = len(self.runs)
        for what in ("fetch", "send"):
            self._must(len(done[what]) == runs, f"{what} has {len(done[what])} keys for {runs} workflows")
        told = Counter(
            part.tool_name
            for messages in self.messages.values()
            for message in messages
            for part in message.parts
            if isinstance(part, ToolPart) and part.state == "output-available"
        )
        aborted = sum(row.status == "aborted" for row in self.turns)
        notes = len(done["note"])
        self._must(
            told["note"] <= notes <= told["note"] + aborted, f"{notes} notes, {told['note']} in answers"
        )
        twice = [key for key, count in done["post"].items() if count > 1]
        self._must(not twice, f"a tool that must not be repeated was: {twice}")
        self._must(len(done["post"]) >= told["post"], "posts are told that were not made")
        self.figures["effects"] = {what: sum(keys.values()) for what, keys in done.items()}
        self.figures["repeated"] = {
            what: sum(keys.values()) - len(keys) for what, keys in done.items() if what in REPEATABLE
        }

    def _leases(self) -> None:
        """Nobody holds anything any more, and nothing is expected."""
        for name in ("think_lines", "think_workflows"):
            held = sum(row.process_id is not None for row in self.rows[name])
            self._must(not held, f"{held} leases are left in {name}")
        for name in ("think_submissions", "think_workflows", "think_outbox"):
            expected = sum(row.knock_at is not None for row in self.rows[name])
            self._must(not expected, f"{expected} knocks are expected in {name}")
