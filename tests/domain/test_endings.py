"""The ways in which a turn is ended or handed over from outside: cancel, deadline, a stopping worker, a lost lease."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.domain.flows import worker
from tests.domain.talk import (
    COMPLETED,
    PATIENCE,
    Running,
    ask,
    calls_of,
    kinds,
    now,
    roles,
    row,
    shape,
    talker,
)
from think_celery.domain import calls, leases
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.turns.requests import GO_ON
from think_celery.errors import ModelAborted, ModelError
from think_celery.protocols import Finish, TextDelta, Usage
from think_celery.providers.scripted import FunctionModel, ScriptedModel, call, fail, say, silence
from think_celery.runtime import Runtime
from think_celery.signals import AbortController
from think_celery.store import lines
from think_celery.tools import ToolContext


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@contextmanager
def short_grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give tools up after 50 ms instead of 5 s."""
    assert calls.call_all.__kwdefaults__["grace"] == calls.GRACE_SECONDS == 5
    with monkeypatch.context() as patch:
        patch.setitem(calls.call_all.__kwdefaults__, "grace", 0.05)
        yield


class TestCancel:
    def test_while_the_model_writes(self, live, pool):
        """The connection to the model is closed, the partial text is kept, the line is free."""
        model = ScriptedModel([say("Hello"), silence()], say("next"))
        running = Running(live, pool, talker(model=model))
        running.until(lambda: running.shown == "Hello")

        running.cancel()
        done = running.end()

        assert (done.status, done.error, running.outcome.result().word) == ("aborted", "enough", "aborted")
        assert [m.text for m in running.agent.messages] == ["Go", "Hello"]
        assert done.message().parts[-1].state == "streaming"
        assert kinds(running, running.agent)[-1] == "done"
        following = Running(live, pool, talker(model=model)).end()
        assert following.status is COMPLETED

    def test_before_the_first_token(self, live, pool):
        """Nothing came: nothing is stored."""
        model = ScriptedModel([silence()])
        running = Running(live, pool, talker(model=model))
        running.until(lambda: model.requests)

        running.cancel()
        done = running.end()

        assert (done.status, done.message(), len(running.agent.messages)) == ("aborted", None, 1)

    def test_the_monitor_sees_it_by_itself(self, live, pool):
        """Within a second, whoever cancelled it."""
        model = ScriptedModel([silence()])
        running = Running(live, pool, talker(model=model))
        running.until(lambda: model.requests)

        assert submissions.cancel_by_id(live, running.submission.submission_id)

        assert running.outcome.result(3).word == "aborted"

    def test_while_a_tool_runs(self, live, pool):
        """The tool's signal comes, and the turn ends when the tool has answered it."""

        def wait(context: ToolContext) -> str:
            return "told to stop" if context.signal.wait(PATIENCE) else "never told"

        running = Running(live, pool, talker(wait, model=ScriptedModel(call("wait"))))
        running.until(lambda: len(live.monitor._holds) and calls_of(running.agent.messages[-1:][0]))

        running.cancel()
        done = running.end()

        assert (done.status, shape(done.message())) == ("aborted", ["|", ("wait", {}, None)])

    def test_a_tool_that_ignores_it(self, live, pool, monkeypatch, caplog):
        """It is given up after 5 s; its late result is dropped, and said so in the log."""
        release, begun, ended = threading.Event(), threading.Event(), threading.Event()

        def deaf() -> str:
            begun.set()
            release.wait(PATIENCE)
            return "too late"

        live.failpoint = lambda point: ended.set() if point == "turn:tool-ran" else None
        with short_grace(monkeypatch), caplog.at_level("WARNING"):
            running = Running(live, pool, talker(deaf, model=ScriptedModel(call("deaf"))))
            begun.wait(PATIENCE)
            running.cancel()
            done = running.end()
            before = shape(done.message())
            release.set()
            running.until(lambda: "dropped" in caplog.text)

        assert (done.status, before) == ("aborted", ["|", ("deaf", {}, None)])
        assert shape(now(running.agent, running.submission).message()) == before
        assert "was given up" in caplog.text
        assert "too late" not in caplog.text

    def test_at_the_finish_line(self, t):
        """A cancel that comes when the answer is whole: the status is the canceller's, the answer is kept."""
        agent = talker()("a")

        def respond(request: Any) -> Any:
            yield TextDelta("All of it.")
            assert agent.cancel_submission("s")
            yield Finish("stop", None, Usage())

        t.use_model(FunctionModel(respond), agent)

        done = ask(t, agent, submission_id="s")

        assert (done.status, done.message().text) == ("aborted", "All of it.")
        assert kinds(t, agent)[-1] == "done"


class TestDeadline:
    @pytest.fixture
    def impatient(self, sqlite_url: str) -> Iterator[Runtime]:
        with worker(sqlite_url, turn_timeout_seconds=0.2) as rt:
            yield rt

    def test_of_a_model_that_is_silent(self, impatient, pool):
        """FR-12: the whole turn has a deadline of its own, in every pool."""
        model = ScriptedModel([say("Half"), silence()])
        done = Running(impatient, pool, talker(model=model)).end()

        assert (done.status, done.error_type) == ("error", "TurnTimeout")
        assert "think_turn_timeout (0.2 s)" in done.error

    def test_of_a_tool(self, impatient, pool, monkeypatch):
        """A tool past the deadline is told to stop and then given up; results that were stored are kept."""
        release = threading.Event()

        def deaf() -> str:
            release.wait(PATIENCE)
            return "too late"

        def quick() -> str:
            return "quick"

        with short_grace(monkeypatch):
            model = ScriptedModel([call("quick"), call("deaf")])
            done = Running(impatient, pool, talker(quick, deaf, model=model)).end()
            release.set()

        assert done.error_type == "TurnTimeout"
        assert shape(done.message()) == ["|", ("quick", {}, "quick"), ("deaf", {}, None)]

    def test_of_a_tool_that_ends_while_the_agent_is_told(self, impatient, pool, monkeypatch, caplog):
        """Its result is dropped: the line is held for the hook, but the answer has its place by then."""
        release, stored = threading.Event(), threading.Event()

        def deaf() -> str:
            release.wait(PATIENCE)
            return "too late"

        def on_chat_response(agent: Any, result: Any) -> None:
            release.set()
            running.until(lambda: stored.is_set() or "dropped" in caplog.text)

        impatient.failpoint = lambda point: stored.set() if point == "turn:tool-stored" else None
        with short_grace(monkeypatch):
            model = ScriptedModel(call("deaf"))
            running = Running(impatient, pool, talker(deaf, model=model, on_chat_response=on_chat_response))
            done = running.end()

        assert "dropped" in caplog.text
        assert shape(done.message()) == ["|", ("deaf", {}, None)]
        assert len(conversation.history(impatient, running.agent._ref, finished_only=True)) == 2

    def test_of_code_that_hears_nothing(self, sqlite_url, pool, monkeypatch):
        """FR-53: given up, the turn ends in error, the hook is told once, and the next turn runs; the rest is void."""
        monkeypatch.setattr(leases, "LET_GO_SECONDS", 0.3)
        release, heard = threading.Event(), []

        def respond(request: Any) -> Any:
            if len(model.requests) > 1:
                yield TextDelta("Hi")
                return
            yield TextDelta("Half")
            release.wait(PATIENCE)
            yield TextDelta("too late")

        model = FunctionModel(respond)
        agent = talker(model=model, on_chat_response=lambda self, result: heard.append(result))
        with worker(sqlite_url, turn_timeout_seconds=0.2) as rt:
            running = Running(rt, pool, agent)
            running.until(lambda: heard)
            following = running.agent.submit_messages("Next")
            running.until(lambda: claims.run(rt, following.submission_id).ended)
            release.set()
            word = running.outcome.result(PATIENCE).word

        assert [(result.status, result.error_type) for result in heard] == [
            ("error", "TurnTimeout"),
            ("completed", None),
        ]
        assert heard[0].message.role == "assistant"
        assert word == "lease-lost"

    def test_that_passes_between_two_steps(self, quick):
        """No further request is made once the deadline has passed."""

        def slow() -> str:
            quick.clock.sleep(7200)
            return "done"

        agent = talker(slow)("a")
        model = quick.script(agent, call("slow"), say("never asked for"))

        done = ask(quick, agent)

        assert (done.error_type, len(model.requests)) == ("TurnTimeout", 1)
        assert shape(done.message()) == ["|", ("slow", {}, "done")]


class SoftTimeLimitExceeded(Exception):
    """As Celery raises it, known by its name."""


class TestHandOver:
    def test_in_the_middle_of_a_stream(self, live, pool, database_url):
        """FR-07: a stopping worker stores the partial and gives the line back; the next one goes on there."""
        running = Running(live, pool, talker(model=ScriptedModel([say("Hello"), silence()])))
        running.until(lambda: running.shown == "Hello")

        live.stopping.abort("the worker is shutting down")
        handed = running.end()
        waiting = row(live, handed)

        assert running.outcome.result().word == "handed-over"
        assert (waiting.status, waiting.attempts, waiting.takeovers) == ("pending", 0, 1)
        with worker(database_url) as other:
            model = ScriptedModel(say(" there."))
            talker(model=model)
            assert claims.run(other, waiting.id).word == "completed"
        assert [m.text for m in model.requests[0].messages] == ["Go", "Hello", GO_ON]
        assert [m.text for m in running.agent.messages] == ["Go", "Hello there."]
        assert running.agent.messages[1].id == waiting.message_id

    def test_after_every_tool(self, t):
        """FR-53: a deploy after each of 8 tools; nothing runs twice, and no attempt is used up."""
        ran: list[int] = []

        def step(n: int) -> int:
            ran.append(n)
            t.rt.stopping.abort("deploy")
            return n

        def answer(request: Any) -> Any:
            done = sum(part.type == "tool-step" for part in request.messages[-1].parts)
            return call("step", {"n": done}) if done < 8 else say("ok")

        agent = talker(step)("a")
        t.use_model(FunctionModel(answer), agent)
        submission = agent.submit_messages("Go", submission_id="s")

        words = []
        for _ in range(9):
            t.rt.stopping = AbortController()
            words.append(claims.run(t.rt, "s").word)

        assert words == ["handed-over"] * 8 + ["completed"]
        assert ran == list(range(8))
        assert [part.output for part in calls_of(now(agent, submission).message())] == ran

    def test_celerys_soft_time_limit(self, t):
        """`SoftTimeLimitExceeded` counts as SIGTERM: store, hand over."""

        def respond(request: Any) -> Any:
            if len(request.messages) == 1:
                yield TextDelta("Hel")
                raise SoftTimeLimitExceeded
            yield TextDelta("lo")

        agent = talker()("a")
        model = FunctionModel(respond)
        t.use_model(model, agent)
        agent.submit_messages("Go", submission_id="s")

        assert claims.run(t.rt, "s").word == "handed-over"
        assert row(t.rt, agent.inspect_submission("s")).attempts == 0
        assert claims.run(t.rt, "s").word == "completed"
        assert agent.messages[1].text == "Hello"

    def test_of_a_turn_that_is_cancelled_just_then(self, t):
        """The partial takes its place in the transcript: nobody goes on with it."""
        agent = talker()("a")

        def respond(request: Any) -> Any:
            yield TextDelta("Hel")
            agent.cancel_submission("s")
            raise SoftTimeLimitExceeded

        t.use_model(FunctionModel(respond), agent)
        agent.submit_messages("Go", submission_id="s")
        outcome = claims.run(t.rt, "s")
        t.script(agent, say("next"))

        ask(t, agent, "More")

        assert outcome.word == "aborted"
        assert [m.text for m in agent.messages] == ["Go", "Hel", "More", "next"]

    def test_an_answer_that_was_whole_is_not_asked_for_again(self, t):
        """A hand-over after the last step ends the turn from what is stored, without a request."""
        agent = talker()("a")

        def put(frame: Any, original: Any = t.rt.live.put) -> None:
            original(frame)
            if frame.event["type"] == "finish-step" and len(model.requests) == 1:
                t.rt.live.put = original
                raise SoftTimeLimitExceeded

        model = t.script(agent, say("Whole."))
        t.rt.live.put = put
        agent.submit_messages("Go", submission_id="s")

        assert claims.run(t.rt, "s").word == "handed-over"
        assert claims.run(t.rt, "s").word == "completed"
        assert [roles(request) for request in model.requests] == [["user"]]
        assert agent.messages[1].text == "Whole."


class TestLostLease:
    def test_nothing_is_written_and_nothing_announced(self, t):
        """A worker that lost its lease can't write a byte; only the next one ends the turn."""
        agent = talker()("a")
        answers = iter(["theirs", "ours"])

        def respond(request: Any) -> Any:
            text = next(answers)
            yield TextDelta(text)
            if text == "theirs":
                t.rt.db.transact(lambda tx: lines.seize_line(tx, agent._ref.id))
                t.clock.sleep(1.5)
                yield TextDelta(" more")
            yield Finish("stop", None, Usage())

        t.use_model(FunctionModel(respond), agent)
        agent.submit_messages("Go", submission_id="s")

        outcome = claims.run(t.rt, "s")

        assert (outcome.word, outcome.ended) == ("lease-lost", False)
        assert [m.role for m in agent.messages] == ["user"]
        assert "done" not in kinds(t, agent)
        assert claims.run(t.rt, "s").word == "completed"
        assert agent.messages[1].text == "ours"

    def test_a_late_tool_result(self, t):
        """The same for a tool that returns after the takeover."""
        agent = talker()("a")

        def slow() -> str:
            t.rt.db.transact(lambda tx: lines.seize_line(tx, agent._ref.id))
            return "late"

        talker(slow)
        t.script(agent, call("slow"))
        agent.submit_messages("Go", submission_id="s")

        assert claims.run(t.rt, "s").word == "lease-lost"
        assert shape(agent.messages[1]) == ["|", ("slow", {}, None)]

    def test_no_request_is_made_without_the_lease(self, quick):
        """A holder that was not renewed for long asks the database before an effect."""
        agent = talker()("a")
        model = quick.script(agent, say("never asked for"))

        def failpoint(point: str) -> None:
            if point == "turn:claimed":
                quick.rt.db.transact(lambda tx: lines.seize_line(tx, agent._ref.id))
                quick.clock.sleep(quick.rt.settings.lease_seconds)

        quick.rt.failpoint = failpoint
        agent.submit_messages("Go", submission_id="s")

        assert claims.run(quick.rt, "s").word == "lease-lost"
        assert model.requests == []

    def test_nor_is_a_failed_one_repeated(self, quick):
        """The same before each further attempt: much may have happened while it waited."""
        agent = talker()("a")
        busy = fail(ModelError("busy", retryable=True, retry_after_seconds=20))
        model = quick.script(agent, busy, say("never asked for"))

        def sleep(seconds: float, signal: Any = None, original: Any = quick.clock.sleep) -> None:
            original(seconds, signal)
            quick.rt.db.transact(lambda tx: lines.seize_line(tx, agent._ref.id))

        quick.clock.sleep = sleep
        agent.submit_messages("Go", submission_id="s")

        assert claims.run(quick.rt, "s").word == "lease-lost"
        assert len(model.requests) == 1


def test_a_model_that_gives_up_by_itself(quick):
    """`ModelAborted` without anybody having asked for it is the turn's error, and not repeated."""

    def respond(request: Any) -> Any:
        raise ModelAborted("the connection was shut down")

    agent = talker()("a")
    quick.use_model(FunctionModel(respond), agent)

    done = ask(quick, agent)

    assert (done.status, done.error_type) == ("error", "ModelAborted")
