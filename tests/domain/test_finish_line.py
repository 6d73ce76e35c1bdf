"""Around the finish line: whoever ends a turn, from whatever process, everything tells the same story.

That is the answer of the call, the row's status, what ``on_chat_response`` was told, the news, and the workflow that
waits for it. No row ever leaves an end: the database itself writes each change of status down. ``THINK_ROUNDS`` is how
often each race is run.
"""

import os
import random
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import text

from tests.domain.crowd import at_once, die, drain, in_processes
from tests.domain.flows import Handle, flow, worker
from think_celery import AbortController, Think, tool
from think_celery.domain import outbox, recovery
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.turns import afterwards, turns
from think_celery.domain.workflows import workflows
from think_celery.errors import ModelError
from think_celery.ids import WorkflowRef
from think_celery.messages import ToolPart
from think_celery.providers.scripted import FunctionModel, ScriptedModel, answer, call, fail
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal

ROUNDS = int(os.environ.get("THINK_ROUNDS", "10"))
ENDED = {str(status) for status in SubmissionStatus if is_terminal(status)}
MOMENTS = (
    *("turn:claimed", "turn:before-model", "turn:streaming", "turn:tool-stored", "turn:before-commit"),
    "turn:committed",  # too late: so both ends are seen, however few the rounds
)


class Verdict(BaseModel):
    label: str


class Judge(Think):
    """An agent that workflows ask. It writes into the database what it is told of the end."""

    @tool
    def look(self) -> str:
        """Look."""
        return "seen"

    def on_chat_response(self, result: Any) -> None:
        """Write it down, for other processes to see."""
        told = {"id": result.submission_id, "status": str(result.status), "error": result.error}
        insert = text("INSERT INTO told VALUES (:id, :status, :error)")
        self._rt.db.transact(lambda tx: tx.conn.execute(insert, told))


def judge(request: Any) -> Any:
    """Looks once, then answers."""
    looked = any(isinstance(part, ToolPart) for message in request.messages for part in message.parts)
    return answer({"label": "x"}) if looked else call("look")


def trial(event: Any, step: Any) -> Any:
    """The workflow of each round."""
    return step.prompt("ask", prompt="Well?", output=Verdict).label


def rows(rt: Runtime, query: str) -> list[Any]:
    """What a query finds."""
    return rt.db.read(lambda tx: list(tx.conn.execute(text(query))))


@contextmanager
def court(url: str) -> Iterator[tuple[Runtime, deque[Any]]]:
    """A worker's runtime, and the messages that are under way."""
    model = FunctionModel(judge)
    with worker(url) as rt:
        knocks: deque[Any] = deque()
        rt.stand_in, rt.knock = lambda _: model, knocks.append
        yield rt, knocks


@contextmanager
def history(rt: Runtime) -> Iterator[None]:
    """The database writes down each change of a submission's status; at the end none has left an end."""
    note = "INSERT INTO moves VALUES (NEW.id, OLD.status, NEW.status);"
    make = [
        "CREATE TABLE moves (id TEXT, was TEXT, became TEXT)",
        "CREATE TABLE told (id TEXT, status TEXT, error TEXT)",
    ]
    drop = ["DROP TABLE moves", "DROP TABLE told"]
    trigger = "CREATE TRIGGER note AFTER UPDATE OF status ON think_submissions"
    if rt.db.engine.dialect.name == "postgresql":
        body = f"$$ BEGIN {note} RETURN NEW; END $$"
        make.append(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS {body}")
        make.append(f"{trigger} FOR EACH ROW EXECUTE FUNCTION note()")
        drop = ["DROP TRIGGER note ON think_submissions", "DROP FUNCTION note", *drop]
    else:
        make.append(f"{trigger} BEGIN {note} END")
        drop = ["DROP TRIGGER note", *drop]
    _do(rt, make)
    try:
        yield
        moves = rows(rt, "SELECT id, was, became FROM moves")
        assert moves
        assert [move for move in moves if move.was in ENDED] == []
    finally:
        _do(rt, drop)


def _do(rt: Runtime, statements: list[str]) -> None:
    rt.db.transact(lambda tx: [tx.conn.exec_driver_sql(statement) for statement in statements])


class Trial:
    """One workflow that waits for a turn, which somebody ends while it ends by itself."""

    def __init__(self, rt: Runtime, knocks: deque[Any], number: int) -> None:
        self.rt, self.knocks, self.begun = rt, knocks, threading.Event()
        self.agent = Judge._bound_to(rt, f"a{number}")
        flow(trial, name="Trial")
        workflows.start(rt, self.agent._ref, "Trial", None, workflow_id=f"w{number}")
        self.flow = Handle(rt, WorkflowRef("Trial", f"w{number}"))
        knocks.clear()
        self.flow.advance()
        self.id = self.agent.list_submissions()[0].submission_id

    def race(self, moment: str, end: Any) -> Any:
        """Run its turn, and call *end* when it has come to that moment; what *end* returned."""
        there = threading.Event()

        def failpoint(point: str) -> None:
            if point == "turn:claimed":
                self.begun.set()
            if point == moment:
                there.set()
                threading.Event().wait(random.random() * 0.004)

        def act(who: int) -> Any:
            if not who:
                drain(self.rt, self.knocks)
                there.set()
                return None
            there.wait(30)
            threading.Event().wait(random.random() * 0.004)
            return end()

        self.rt.failpoint = failpoint
        return at_once(2, act)[1]

    def deliver(self) -> None:
        """Let the workflow hear of the end, as the tick would if nobody else did."""
        for news in rows(self.rt, f"SELECT id FROM think_outbox WHERE submission_id = '{self.id}'"):
            outbox.deliver(self.rt, news.id)
        while self.knocks:
            drain(self.rt, self.knocks)
        if self.flow.status == "queued":  # another process delivered it, and its message went nowhere
            self.flow.advance()

    def check(self, ended: bool, reason: str | None, *, told: bool) -> str:
        """Everything agrees on whether it was ended from outside; returns the status."""
        status, error = ("aborted", reason) if ended else ("completed", None)
        self.agrees(status, error, told=told)
        return status

    def agrees(self, status: str, error: str | None, *, told: bool) -> None:
        """Row, hook, news, workflow, transcript and line tell of this end."""
        self.deliver()
        row = submissions.get(self.rt, self.id)
        heard = rows(self.rt, f"SELECT status, error FROM told WHERE id = '{self.id}'")
        news = rows(self.rt, f"SELECT status FROM think_outbox WHERE submission_id = '{self.id}'")
        assert (row.status, row.error) == (status, error)
        assert [tuple(each) for each in heard] == ([(status, error)] if told else [])
        assert [each.status for each in news] == ["delivered"]
        assert self.flow.status == ("complete" if status == "completed" else "errored")
        assert self.flow.row.error_type == HEARD_BY_WORKFLOWS[status]
        parts = [part for message in self.agent.messages for part in message.parts]
        assert all(getattr(part, "state", "done") != "streaming" for part in parts)
        line = f"SELECT process_id FROM think_lines WHERE agent_id = '{self.agent._ref.id}'"
        assert [each.process_id for each in rows(self.rt, line)] in ([None], [])


class TestThreads:
    def test_a_cancel_and_the_end(self, database_url):
        """B5, B6: of a cancel and an end at one moment one wins, and nobody tells another story."""
        seen = set()
        with court(database_url) as (rt, knocks), history(rt):
            for number in range(ROUNDS):
                one = Trial(rt, knocks, number)
                end = one.agent.cancel_submission
                cancelled = one.race(
                    MOMENTS[number % len(MOMENTS)], lambda end=end, one=one: end(one.id, "stop")
                )
                seen.add(one.check(cancelled, "stop", told=one.begun.is_set()))

        assert seen == {"aborted", "completed"}

    def test_a_reset_and_the_end(self, database_url):
        """A reset ends the turn without a hook, or comes after its end; the workflow learns which."""
        seen = set()
        with court(database_url) as (rt, knocks), history(rt):
            for number in range(ROUNDS):
                one = Trial(rt, knocks, number)
                moment = MOMENTS[number % len(MOMENTS)]
                ended = one.race(moment, lambda one=one: conversation.reset(rt, one.agent._ref))
                seen.add(one.check(bool(ended), None, told=not ended))
                assert not ended or one.agent.messages == []

        assert seen == {"aborted", "completed"}


class TestProcesses:
    def test_a_cancel_from_another_process(self, database_url):
        """B6: the same between two processes, which share nothing but the database."""
        with court(database_url) as (rt, knocks), history(rt):
            trials = [Trial(rt, knocks, number) for number in range(ROUNDS)]

            def child(number: int, ready: Any) -> list[Any]:
                rng = random.Random(number)
                with court(database_url) as (own, _):
                    ready()
                    if not number:
                        return [claims.run(own, one.id).word for one in trials]
                    answers = []
                    for at, one in enumerate(trials):
                        _until_it_runs(own, one.id)
                        threading.Event().wait(rng.random() * 0.05)
                        agent = Judge._bound_to(own, f"a{at}")
                        answers.append(agent.cancel_submission(one.id, "stop"))
                    return answers

            words, cancels = in_processes(2, child)
            for one, word, cancelled in zip(trials, words, cancels, strict=True):
                assert (word == "completed") == (not cancelled)
                one.check(cancelled, "stop", told=word != "ended-before")

    @pytest.mark.parametrize("how", ["cancel", "reset"])
    def test_in_every_state(self, database_url, by_hand, how):
        """B6, B28: wherever a turn has come to, another process ends it, or is told that it has ended already."""
        with court(database_url) as (rt, knocks), history(rt):
            trials = {state: Trial(rt, knocks, number) for number, state in enumerate(STATES)}
            held = {state: bring(rt, one, state) for state, one in trials.items()}
            before = {state: submissions.get(rt, one.id) for state, one in trials.items()}

            def child(number: int, ready: Any) -> list[bool]:
                with court(database_url) as (own, _):
                    agents = [Judge._bound_to(own, f"a{at}") for at in range(len(STATES))]
                    if how == "reset":
                        return [conversation.reset(own, agent._ref) == 1 for agent in agents]
                    ids = [one.id for one in trials.values()]
                    return [
                        agent.cancel_submission(id, "stop") for agent, id in zip(agents, ids, strict=True)
                    ]

            (answers,) = in_processes(1, child)

            assert dict(zip(STATES, answers, strict=True)) == {state: state in UNFINISHED for state in STATES}
            outcome = turns.run(rt, held["claimed"])
            assert outcome.word == ("aborted" if how == "cancel" else "lease-lost")
            if outcome.after is not None:
                afterwards.call_hooks(rt, outcome.after, claims.claim_next)
            recovery.sweep(rt)
            for state, one in trials.items():
                assert claims.run(rt, one.id).word == "ended-before"
                if state not in UNFINISHED:
                    assert submissions.get(rt, one.id) == before[state]
                    one.agrees(str(before[state].status), before[state].error, told=state in HEARD_BY_HOOKS)
                elif how == "cancel":
                    one.agrees("aborted", "stop", told=state == "claimed")
                elif before[state].status == "running":
                    one.agrees("aborted", None, told=False)
                else:
                    one.agrees("skipped", conversation.SKIPPED_BY_RESET, told=False)

    def test_a_reset_from_another_process(self, database_url):
        """B28: a reset and an end at one moment, in two processes."""
        with court(database_url) as (rt, knocks), history(rt):
            trials = [Trial(rt, knocks, number) for number in range(ROUNDS)]

            def child(number: int, ready: Any) -> list[Any]:
                rng = random.Random(number)
                with court(database_url) as (own, _):
                    ready()
                    if not number:
                        return [claims.run(own, one.id).word for one in trials]
                    answers = []
                    for at, one in enumerate(trials):
                        _until_it_runs(own, one.id)
                        threading.Event().wait(rng.random() * 0.05)
                        answers.append(conversation.reset(own, Judge._bound_to(own, f"a{at}")._ref))
                    return answers

            words, resets = in_processes(2, child)
            for one, word, ended in zip(trials, words, resets, strict=True):
                assert (word == "completed") == (not ended)
                one.check(bool(ended), None, told=not ended)
                assert one.agent.messages == []


UNFINISHED = ("its worker is dead", "pending", "claimed", "handed over", "put off")
HEARD_BY_HOOKS = ("completed", "error")
STATES = (*UNFINISHED, *HEARD_BY_HOOKS, "aborted", "skipped")
HEARD_BY_WORKFLOWS = {
    "completed": None,
    "error": "ThinkPromptError",
    "aborted": "ThinkPromptAbortedError",
    "skipped": "ThinkPromptSkippedError",
}


def bring(rt: Runtime, one: Trial, state: str) -> Any:
    """Bring its turn there; what the worker holds that has it in hand, if one has."""
    kept = rt.stand_in, rt.failpoint
    held = None
    match state:
        case "claimed" | "its worker is dead":
            held = claims.claim(rt, one.id)
            if state != "claimed":
                die(rt)
        case "handed over":
            rt.failpoint = lambda point: (
                rt.stopping.abort("a deploy") if point == "turn:tool-stored" else None
            )
            assert claims.run(rt, one.id).word == "handed-over"
            rt.stopping = AbortController()
        case "put off" | "error":
            wish = 3600 if state == "put off" else None
            refusal = ModelError("busy", retryable=wish is not None, retry_after_seconds=wish)
            rt.stand_in = lambda _: ScriptedModel(fail(refusal))
            claims.run(rt, one.id)
        case "completed":
            claims.run(rt, one.id)
        case "aborted":
            assert one.agent.cancel_submission(one.id, "before")
        case "skipped":
            assert conversation.reset(rt, one.agent._ref) == 1
    rt.stand_in, rt.failpoint = kept
    return held


def _until_it_runs(rt: Runtime, submission_id: str) -> None:
    for _ in range(20_000):
        if submissions.get(rt, submission_id).status != "pending":
            return
        threading.Event().wait(0.001)
