"""A turn that runs and gets nowhere is interrupted, and taken up again or ended."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.domain.flows import worker
from tests.domain.talk import COMPLETED, PATIENCE, Running, calls_of, now, shape, talker
from tests.domain.test_endings import short_grace
from think_celery.domain import leases
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME
from think_celery.domain.submissions import claims
from think_celery.errors import ModelError
from think_celery.hooks.recoveries import RecoveryLimits
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, ScriptedModel, call, fail, say, silence

SOON = RecoveryLimits(stall=0.3, max_attempts=2)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


class TestAStall:
    def test_of_a_model(self, live, pool):
        """A model that says nothing more is left; what it had said is kept, and another request goes on there."""
        model = ScriptedModel([say("Half "), silence()], say("and the rest."))
        running = Running(live, pool, talker(model=model, chat_recovery=SOON))

        word = running.outcome.result(PATIENCE).word
        waiting = now(running.agent, running.submission)
        outcome = claims.run(live, running.submission.submission_id)

        assert (word, waiting.status, outcome.word) == ("handed-over", "pending", "completed")
        assert now(running.agent, running.submission).message().text == "Half and the rest."

    def test_again_and_again(self, live, pool):
        """Stalls count as attempts: a turn that always stalls ends in error."""
        model = ScriptedModel(*[[silence()]] * 9)
        running = Running(live, pool, talker(model=model, chat_recovery=SOON))
        running.outcome.result(PATIENCE)

        words = [claims.run(live, running.submission.submission_id).word for _ in range(2)]

        done = now(running.agent, running.submission)
        assert (words, done.error_type) == (["handed-over", "error"], "TooManyAttempts")
        assert len(model.requests) == 2

    def test_it_counts_without_a_limit_of_attempts(self, t):
        """``think_max_attempts`` bounds stalls, as it bounds deaths."""
        agent = talker(chat_recovery=RecoveryLimits(stall=60))("a")

        def respond(request: Any) -> Any:
            yield TextDelta("")
            t.clock.sleep(61)
            t.rt.monitor.beat()
            yield TextDelta("too late")

        model = FunctionModel(respond)
        t.use_model(model, agent)
        submission = agent.submit_messages("Go")

        t.run_until_idle()

        assert now(agent, submission).error_type == "TooManyAttempts"
        assert len(model.requests) == t.rt.settings.max_attempts

    def test_of_a_tool(self, live, pool, monkeypatch):
        """A tool that does not come back is given up; the model is told that its outcome is unknown."""
        release = threading.Event()

        def deaf() -> str:
            release.wait(PATIENCE)
            return "too late"

        with short_grace(monkeypatch):
            model = ScriptedModel(call("deaf"), say("Never mind."))
            running = Running(live, pool, talker(deaf, model=model, chat_recovery=SOON))
            word = running.outcome.result(PATIENCE).word
            claims.run(live, running.submission.submission_id)
            release.set()

        done = now(running.agent, running.submission)
        assert word == "handed-over"
        assert shape(done.message()) == ["|", ("deaf", {}, UNKNOWN_OUTCOME), "|", "Never mind."]

    def test_a_slow_answer_that_goes_on(self, t):
        """Each token begins the time anew."""
        agent = talker(chat_recovery=RecoveryLimits(stall=60))("a")

        def respond(request: Any) -> Any:
            for _ in range(20):
                yield TextDelta("word ")
                t.clock.sleep(50)
                t.rt.monitor.beat()

        t.use_model(FunctionModel(respond), agent)
        submission = agent.submit_messages("Go")

        t.run_until_idle()

        assert now(agent, submission).status is COMPLETED

    def test_one_tool_after_the_other(self, t):
        """Each stored result begins the time anew."""

        def slow() -> str:
            t.clock.sleep(50)
            t.rt.monitor.beat()
            return "done"

        agent = talker(slow, chat_recovery=RecoveryLimits(stall=60))("a")
        t.script(agent, call("slow"), call("slow"), call("slow"), say("ok"))
        submission = agent.submit_messages("Go")

        t.run_until_idle()

        done = now(agent, submission)
        assert (done.status, len(calls_of(done.message()))) == (COMPLETED, 3)

    def test_waiting_for_a_provider(self, t):
        """A wait before a failed request is made again is none."""
        agent = talker(chat_recovery=RecoveryLimits(stall=5))("a")
        busy = ModelError("busy", retryable=True, retry_after_seconds=20)
        t.script(agent, fail(busy), fail(busy), say("ok"))
        original = t.clock.sleep

        def sleep(seconds: float, signal: Any = None) -> None:
            original(seconds, signal)
            t.rt.monitor.beat()

        t.clock.sleep = sleep
        submission = agent.submit_messages("Go")

        t.run_until_idle()

        assert now(agent, submission).status is COMPLETED

    def test_code_that_does_not_stop(self, live, pool, monkeypatch):
        """A loop of the user's own that hears no signal: its lease is given up, and another worker goes on."""
        monkeypatch.setattr(leases, "LET_GO_SECONDS", 0.5)
        release = threading.Event()

        def respond(request: Any) -> Any:
            if len(model.requests) > 1:
                yield TextDelta("Here.")
                return
            yield TextDelta("")
            release.wait(PATIENCE)
            yield TextDelta("too late")

        model = FunctionModel(respond)
        running = Running(live, pool, talker(model=model, chat_recovery=RecoveryLimits(stall=0.3)))
        running.until(lambda: bool(model.requests))
        running.until(lambda: claims.run(live, running.submission.submission_id).word == "completed")
        release.set()

        assert running.outcome.result(PATIENCE).word == "lease-lost"
        assert now(running.agent, running.submission).message().text == "Here."

    def test_without_a_limit_nothing_stalls(self, t):
        """Only the deadlines of model, tools and turn hold then."""
        agent = talker()("a")

        def respond(request: Any) -> Any:
            yield TextDelta("")
            t.clock.sleep(3000)
            t.rt.monitor.beat()
            yield TextDelta("at last")

        t.use_model(FunctionModel(respond), agent)
        submission = agent.submit_messages("Go")

        t.run_until_idle()

        assert now(agent, submission).message().text == "at last"

    def test_the_deadline_of_the_turn_comes_first(self, sqlite_url, pool):
        """A turn that is past both ends in error, and is not taken up again."""
        with worker(sqlite_url, turn_timeout_seconds=0.2) as rt:
            agent = talker(model=ScriptedModel([silence()]), chat_recovery=RecoveryLimits(stall=0.2))

            assert Running(rt, pool, agent).end().error_type == "TurnTimeout"

    def test_a_cancel_comes_first(self, live, pool):
        """A stalled turn that was cancelled meanwhile is aborted."""
        agent = talker(model=ScriptedModel([silence()]), chat_recovery=RecoveryLimits(stall=60))
        running = Running(live, pool, agent)
        running.until(lambda: live.monitor._holds)
        running.hold.stalled = True

        running.cancel()

        assert running.end().status == "aborted"
