"""What an agent makes of an interrupted turn: it is asked, decides, and is never asked for ever."""

import json
import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.crowd import FORK, clerk, die, said, workers
from tests.domain.talk import (
    COMPLETED,
    ask,
    ask_structured,
    calls_of,
    crash_at_nth,
    kinds,
    now,
    row,
    shape,
    submit_structured,
    talker,
)
from tests.providers.transcripts import check
from think_celery import ChatAgent, Think
from think_celery.domain import recovery
from think_celery.domain.submissions import claims
from think_celery.domain.submissions.claimed import Claim
from think_celery.domain.submissions.submissions import INTENDED, Waiting
from think_celery.domain.turns.requests import GO_ON
from think_celery.domain.turns.takeover import NOT_RESUMED
from think_celery.errors import InvalidDuration, InvalidValue, ModelError
from think_celery.hooks.recoveries import Recovery, RecoveryContext, RecoveryLimits
from think_celery.messages import ToolPart
from think_celery.protocols import Finish, ModelRequest, TextDelta, ToolCallComplete, Usage
from think_celery.providers.scripted import FunctionModel, answer, call, fail, say
from think_celery.signals import AbortController
from think_celery.store import tables
from think_celery.tools import tool

HALF, REST = "Half of ", "the answer."


def cut(t: Any, agent: Any, *, times: int = 1) -> FunctionModel:
    """A model that says half of its answer; then its worker dies, that often. Asked to go on, it says the rest."""
    deaths = iter(range(times))

    def respond(request: ModelRequest) -> Any:
        goes_on = request.messages[-1].text == GO_ON
        if next(deaths, None) is not None:
            yield TextDelta(HALF)
            t.clock.sleep(1.5)
            yield TextDelta("")  # it is stored once a second, when something comes
            t.crash_at("turn:streaming")
            yield TextDelta("")
        yield TextDelta(REST if goes_on else HALF + REST)
        yield Finish("stop", None, Usage())

    model = FunctionModel(respond)
    t.use_model(model, agent)
    return model


def asked(*decisions: Any, **attributes: Any) -> tuple[Any, list[RecoveryContext]]:
    """An agent whose hook gives these answers, the last one again and again, and what the hook was told."""
    told: list[RecoveryContext] = []

    def on_chat_recovery(self: Any, ctx: RecoveryContext) -> Any:
        told.append(ctx)
        decision = decisions[min(len(told), len(decisions)) - 1] if decisions else None
        if isinstance(decision, Exception):
            raise decision
        return decision

    return talker(on_chat_recovery=on_chat_recovery, **attributes)("a"), told


class TestAsked:
    def test_what_it_is_told(self, t):
        """B17: the hook knows what there is of the answer, how often it was tried, and since when it got nowhere."""
        agent, told = asked()
        cut(t, agent)
        began = t.clock.now()

        done = ask(t, agent, metadata={"order": 7})

        (ctx,) = told
        assert (ctx.recovery_kind, ctx.attempt, ctx.max_attempts) == ("continue", 2, 5)
        assert (ctx.partial_text, [part.type for part in ctx.partial_parts]) == (HALF, ["step-start", "text"])
        assert ctx.submission_id == ctx.request_id == done.submission_id
        assert (ctx.message_id, ctx.metadata) == (done.message_id, {"order": 7})
        assert (ctx.kind, ctx.continuation, ctx.cancel_intent) == ("submit", False, None)
        assert ctx.created_at == ctx.started_at == ctx.progress_at == began
        assert HALF not in repr(ctx)

    def test_nothing_had_come_yet(self, t):
        """B17: interrupted before the first token, it is the same turn again, unless the agent says otherwise."""
        agent, told = asked()
        model = t.script(agent, say("Hi"))
        t.crash_at("turn:before-model")

        done = ask(t, agent)

        assert [(ctx.recovery_kind, ctx.partial_text, ctx.partial_parts) for ctx in told] == [
            ("retry", "", [])
        ]
        assert (done.status, done.message().text, len(model.requests)) == (COMPLETED, "Hi", 1)

    def test_a_turn_that_was_not_interrupted(self, t):
        """Nobody is asked: not at the first claim, nor after a wait that the provider asked for."""
        agent, told = asked()
        t.script(agent, fail(ModelError("busy", retryable=True, retry_after_seconds=40)), say("Hi"))
        done = ask(t, agent)
        t.skip(45)

        assert (now(agent, done).status, told) == (COMPLETED, [])

    def test_a_worker_that_stops_interrupts_too(self, t):
        """A deploy: the turn was handed over in order, and the one who takes it up asks."""
        agent, told = asked()

        def play(request: ModelRequest) -> Any:
            if request.messages[-1].text != GO_ON:
                yield TextDelta(HALF)
                t.rt.stopping.abort("the worker stops")
            yield TextDelta(REST)

        t.use_model(FunctionModel(play), agent)
        submission = agent.submit_messages("Go")
        assert claims.run(t.rt, submission.submission_id).word == "handed-over"
        t.rt.stopping = AbortController()
        t.run_until_idle()

        assert [(ctx.recovery_kind, ctx.partial_text, ctx.attempt) for ctx in told] == [("continue", HALF, 1)]
        assert now(agent, submission).message().text == HALF + REST

    def test_an_answer_that_was_whole_is_not_asked_about(self, t):
        """Nothing was cut: the turn just ends."""
        agent, told = asked(Recovery(resume=False))
        model = t.script(agent, say("All of it."))
        t.crash_at("turn:committed")

        assert (ask(t, agent).status, told, len(model.requests)) == (COMPLETED, [], 1)


class TestDecides:
    def test_by_default_it_goes_on_in_the_same_message(self, t):
        """FR-49: the partial is kept, and the rest is added to it."""
        agent, _ = asked(None)
        model = cut(t, agent)

        done = ask(t, agent)

        assert (done.status, done.message().text) == (COMPLETED, HALF + REST)
        assert [message.text for message in model.requests[1].messages] == ["Go", HALF, GO_ON]

    def test_without_the_partial(self, t):
        """``persist=False``: the step that was cut is asked for again, and the model never sees what is gone."""
        agent, _ = asked(Recovery(persist=False))
        model = cut(t, agent)

        done = ask(t, agent)

        assert (done.status, done.message().text) == (COMPLETED, HALF + REST)
        assert [message.text for message in model.requests[1].messages] == ["Go"]
        assert shape(done.message()) == ["|", HALF + REST]

    @pytest.mark.parametrize(("persist", "kept"), [(True, [HALF]), (False, [])])
    def test_it_may_end(self, t, persist, kept):
        """B17: ``resume=False``: aborted, with what there is or without it; no request is made; the next turn runs."""
        agent, _ = asked(Recovery(persist=persist, resume=False, reason="not worth it"))
        model = cut(t, agent)

        done = ask(t, agent)
        requests = len(model.requests)
        following = ask(t, agent, "Next")

        assert (done.status, done.error_type, done.error) == ("aborted", None, "not worth it")
        assert [m.text for m in agent.messages if m.role == "assistant"][:-1] == kept
        assert all(part.state == "done" for m in agent.messages for part in m.parts if part.type == "text")
        assert (requests, following.status) == (1, COMPLETED)
        assert kinds(t, agent).count("done") == 2

    def test_an_end_without_a_reason(self, t):
        """It says that the turn was not taken up again."""
        agent, _ = asked(Recovery(resume=False))
        cut(t, agent)

        assert ask(t, agent).error == NOT_RESUMED

    def test_before_anything_was_said(self, t):
        """B17: the unanswered message is not asked again, if the agent says so."""
        agent, _ = asked(Recovery(resume=False))
        model = t.script(agent)
        t.crash_at("turn:before-model")

        done = ask(t, agent)

        assert (done.status, done.message(), model.requests) == ("aborted", None, [])

    def test_a_workflow_learns_of_it(self, t):
        """The end is told like any other: the news is stored with it."""
        agent, _ = asked(Recovery(resume=False, reason="enough"))
        t.script(agent)
        t.crash_at("turn:before-model")
        waiting = Waiting(workflow_key="w", run=1, event_type="think-x")
        submit_structured(t.rt, agent, waiting=waiting)
        t.run_until_idle()
        t.skip(3)

        (stored,) = t.rt.db.read(lambda tx: list(tx.execute(tables.outbox.select())))
        assert t.crashes == ["turn:before-model"]
        assert stored.payload is None or json.loads(stored.payload)["status"] == "aborted"

    @pytest.mark.parametrize(
        ("decision", "said"),
        [(RuntimeError("secret words"), "RuntimeError"), ("no", "returned a str"), (True, "returned a bool")],
    )
    def test_a_hook_that_fails_changes_nothing(self, t, caplog, decision, said):
        """The default stands; the log says what happened, and none of the words."""
        agent, told = asked(decision)
        cut(t, agent)

        done = ask(t, agent)

        assert (done.status, done.message().text, len(told)) == (COMPLETED, HALF + REST, 1)
        assert said in caplog.text
        assert f"on_chat_recovery of submission {done.submission_id}" in caplog.text
        assert "secret words" not in caplog.text

    def test_what_it_does_to_the_parts_changes_nothing(self, t):
        """It is told of copies."""

        def on_chat_recovery(self: Any, ctx: RecoveryContext) -> None:
            ctx.partial_parts[1].text = "something else"
            ctx.partial_parts.clear()

        agent = talker(on_chat_recovery=on_chat_recovery)("a")
        cut(t, agent)

        assert ask(t, agent).message().text == HALF + REST

    @pytest.mark.parametrize("decision", [None, Recovery(persist=False), Recovery(resume=False)])
    def test_finished_steps_stay(self, t, decision):
        """Tools have run: whatever becomes of the cut step, they don't run again, and their results stay."""
        ran = []

        def add(a: int, b: int) -> int:
            ran.append(a + b)
            return a + b

        agent, told = asked(decision)
        type(agent).get_tools = lambda self: [add]

        def respond(request: ModelRequest) -> Any:
            last = request.messages[-1]
            if last.text == GO_ON or any(isinstance(part, ToolPart) for part in last.parts):
                yield TextDelta(HALF)
                if len(model.requests) == 2:
                    t.clock.sleep(1.5)
                    yield TextDelta("")
                    t.crash_at("turn:streaming")
                    yield TextDelta("")
                yield Finish("stop", None, Usage())
                return
            yield from FunctionModel(lambda _: call("add", {"a": 1, "b": 2})).stream(
                request, AbortController().signal
            )

        model = FunctionModel(respond)
        t.use_model(model, agent)

        done = ask(t, agent)

        assert t.crashes == ["turn:streaming"]
        assert [ctx.recovery_kind for ctx in told] == ["continue"]
        assert (ran, [part.output for part in calls_of(done.message())]) == ([3], [3])
        text = {None: HALF + HALF}.get(decision, HALF)
        assert (done.message().text, done.status) == (
            text,
            "aborted" if decision == Recovery(resume=False) else COMPLETED,
        )


class TestIntent:
    def test_it_is_stored_and_read(self, t):
        """B17: an intent to cancel outlives the process; by default the interrupted turn then ends."""
        agent, told = asked(None)
        model = cut(t, agent)
        submission = agent.submit_messages("Go")
        assert agent.cancel_submission(submission.submission_id, "the user left", if_interrupted=True)
        t.run_until_idle()

        done = now(agent, submission)
        assert (done.status, done.error, done.message().text) == ("aborted", "the user left", HALF)
        assert [ctx.cancel_intent for ctx in told] == ["the user left"]
        assert len(model.requests) == 1

    def test_without_a_hook(self, t):
        """The same for an agent that has none."""
        agent = talker()("a")
        cut(t, agent)
        submission = agent.submit_messages("Go")
        agent.cancel_submission(submission.submission_id, if_interrupted=True)
        t.run_until_idle()

        assert (now(agent, submission).status, now(agent, submission).error) == ("aborted", INTENDED)

    def test_the_agent_may_decide_otherwise(self, t):
        """The hook has the last word."""
        agent, _ = asked(Recovery())
        cut(t, agent)
        submission = agent.submit_messages("Go")
        agent.cancel_submission(submission.submission_id, if_interrupted=True)
        t.run_until_idle()

        assert now(agent, submission).status is COMPLETED

    def test_a_turn_that_is_not_interrupted_goes_on(self, t):
        """It is an intent, no cancel; too late or for nobody it is not stored."""
        agent = talker()("a")
        t.script(agent, say("Hi"))
        submission = agent.submit_messages("Go")
        stored = agent.cancel_submission(submission.submission_id, if_interrupted=True)
        t.run_until_idle()

        assert (stored, now(agent, submission).status) == (True, COMPLETED)
        assert not agent.cancel_submission(submission.submission_id, if_interrupted=True)
        assert not agent.cancel_submission("nobody", if_interrupted=True)

    def test_a_cancel_while_the_hook_decides(self, t):
        """A cancel that is none for later ends the turn, whatever the hook wants to become of it."""
        agent, told = asked(Recovery())
        cut(t, agent)
        submission = agent.submit_messages("Go")
        original = t.rt.failpoint

        def failpoint(point: str) -> None:
            if point == "turn:recovery-decided":
                agent.cancel_submission(submission.submission_id, "stop")
                t.rt.monitor.beat()
            original(point)

        t.rt.failpoint = failpoint
        t.run_until_idle()

        done = now(agent, submission)
        assert (done.status, done.error, done.message().text, len(told)) == ("aborted", "stop", HALF, 1)


class TestASignal:
    def test_it_dies_with_its_process(self, database_url, by_hand):
        """B17: who had the signal is gone, and so is the worker: recovery goes on without both."""
        with workers(database_url) as rt:

            def caller() -> None:
                with workers(database_url) as own:
                    clerk(own).save_messages("Hello", signal=AbortController().signal)

            child = FORK.Process(target=caller, daemon=True)
            child.start()
            while not (found := clerk(rt).list_submissions()):
                threading.Event().wait(0.005)
            submission_id = found[0].submission_id
            assert isinstance(claims.claim(rt, submission_id), Claim)
            child.kill()
            child.join(10)
            die(rt)
            recovery.sweep(rt)

            assert claims.run(rt, submission_id).word == "completed"
            assert said(clerk(rt), "assistant") == ["re: Hello"]


class TestCrashesInIt:
    @pytest.mark.parametrize("persist", [True, False])
    @pytest.mark.parametrize("resume", [True, False])
    def test_once_it_was_asked(self, t, persist, resume):
        """A worker dies with the decision in hand: the next one asks again, and one of them is carried out."""
        agent, told = asked(Recovery(persist=persist, resume=resume))
        model = cut(t, agent)
        t.crash_at("turn:recovery-decided")

        done = ask(t, agent)

        assert t.crashes == ["turn:streaming", "turn:recovery-decided"]
        assert [ctx.attempt for ctx in told] == [2, 3]
        assert done.status == ("completed" if resume else "aborted")
        kept = HALF + REST if resume else HALF if persist else None
        assert (done.message().text if done.message() else None) == kept
        assert len(model.requests) == (2 if resume else 1)

    def test_a_hook_that_kills_its_worker_is_poison(self, t):
        """It ends like any turn that kills its workers."""
        agent, told = asked()
        cut(t, agent)
        t.crash_at("turn:recovery-decided", times=9)

        done = ask(t, agent)
        t.skip(30)

        assert (now(agent, done).error_type, len(told)) == ("TooManyAttempts", 4)
        assert now(agent, done).message().text == HALF
        t._crash_points.clear()

    @pytest.mark.parametrize("point", ["turn:before-commit", "turn:committed"])
    def test_at_the_end_that_it_chose(self, t, point):
        """The end is one transaction: it is made once."""
        agent, told = asked(Recovery(resume=False))
        cut(t, agent)
        t.crash_at(point)

        done = ask(t, agent)

        assert (done.status, done.message().text) == ("aborted", HALF)
        assert len(told) == (2 if point == "turn:before-commit" else 1)


def eight_steps(t: Any, agent: Any) -> FunctionModel:
    """A model that asks for a tool eight times, one after the other."""

    def respond(request: ModelRequest) -> Any:
        made = sum(isinstance(part, ToolPart) for part in request.messages[-1].parts)
        return call("tick") if made < 8 else say("done")

    model = FunctionModel(respond)
    t.use_model(model, agent)
    return model


class TestLimits:
    def restarts(self, t: Any, agent: Any, submission: Any) -> int:
        """One worker after the other takes the turn up, until it has ended; how many there were."""
        workers = 0
        while now(agent, submission).status in ("pending", "running") and workers < 30:
            workers += 1
            claims.run(t.rt, submission.submission_id)
            t.rt.stopping = AbortController()
        return workers

    def test_only_attempts_without_progress_count(self, t):
        """FR-53: eight tools, a graceful restart after each of them, at most 3 attempts: it completes."""

        def tick() -> int:
            t.rt.stopping.abort("the worker stops")
            return 1

        agent = talker(tick, chat_recovery=RecoveryLimits(max_attempts=3))("a")
        eight_steps(t, agent)
        submission = agent.submit_messages("Go")

        workers = self.restarts(t, agent, submission)

        done = now(agent, submission)
        assert (done.status, workers, len(calls_of(done.message()))) == (COMPLETED, 9, 8)

    def test_restarts_without_progress_are_the_end(self, t):
        """FR-53: no progress: an error after 3 attempts, with what it had said, and nothing stays unfinished."""
        agent, told = asked(chat_recovery=RecoveryLimits(max_attempts=3))

        def respond(request: ModelRequest) -> Any:
            yield TextDelta("word ")
            t.rt.stopping.abort("the worker stops")
            yield TextDelta("never seen")

        t.use_model(FunctionModel(respond), agent)
        submission = agent.submit_messages("Go")

        workers = self.restarts(t, agent, submission)

        done = now(agent, submission)
        assert (done.status, done.error_type, workers) == ("error", "TooManyAttempts", 4)
        assert [(ctx.attempt, ctx.max_attempts) for ctx in told] == [(2, 3), (3, 3)]
        assert done.message().text == "word " * 3

    def test_deaths_count_as_before(self, t):
        """With the limit of the class, in the place of ``think_max_attempts``."""
        agent = talker(chat_recovery=RecoveryLimits(max_attempts=2))("a")
        t.script(agent, say("Hi"))
        t.crash_at("turn:before-model", times=2)

        done = ask(t, agent)
        t.skip(5)

        assert (now(agent, done).error_type, len(t.crashes)) == ("TooManyAttempts", 2)

    def test_waiting_for_a_provider_does_not_count(self, t):
        """Its wishes are none of the turn's attempts."""
        agent = talker(chat_recovery=RecoveryLimits(max_attempts=1, max_time=30))("a")
        busy = ModelError("busy", retryable=True, retry_after_seconds=40)
        t.script(agent, fail(busy), fail(busy), say("Hi"))

        done = ask(t, agent)
        t.skip(100)

        assert now(agent, done).status is COMPLETED

    @pytest.mark.parametrize(("away", "status"), [(50, "completed"), (70, "error")])
    def test_time_without_progress(self, t, away, status):
        """``max_time``: found interrupted that long after its last progress, a turn is given up."""
        agent = talker(chat_recovery=RecoveryLimits(max_time="1 minute"))("a")
        t.script(agent, say("Hi"))
        submission = agent.submit_messages("Go")
        t.rt.stopping.abort("the worker stops")
        assert claims.run(t.rt, submission.submission_id).word == "handed-over"
        t.rt.stopping = AbortController()

        t.clock.advance(timedelta(seconds=away))
        t.run_until_idle()

        done = now(agent, submission)
        assert (done.status, done.error_type) == (status, None if status == "completed" else "NoProgress")
        assert status == "completed" or f"lies {away} s back" in done.error

    def test_it_waits_for_its_turn_as_long_as_it_must(self, t):
        """Time spent in the queue is no time without progress."""
        agent = talker(chat_recovery=RecoveryLimits(max_time=1))("a")
        t.script(agent, say("Hi"))
        submission = agent.submit_messages("Go")
        t.clock.advance(timedelta(hours=1))

        t.run_until_idle()

        assert now(agent, submission).status is COMPLETED

    def test_what_they_must_be(self):
        """Errors that say what to write."""
        for wrong in (0, -1, True, 1.5, "3"):
            with pytest.raises(InvalidValue, match="max_attempts"):
                RecoveryLimits(max_attempts=wrong)
        for wrong in (0, timedelta(0)):
            with pytest.raises(InvalidValue, match="longer than nothing"):
                RecoveryLimits(stall=wrong)
        with pytest.raises(InvalidDuration):
            RecoveryLimits(max_time="soon")
        with pytest.raises(InvalidValue, match="chat_recovery is an int"):

            class Boundless(Think):
                chat_recovery = 3


class TestTheTranscriptAfterIt:
    @pytest.mark.parametrize("persist", [True, False])
    @pytest.mark.parametrize("resume", [True, False])
    @pytest.mark.parametrize(
        "point", ["turn:streaming", "turn:tool-marked", "turn:tool-ran", "turn:tool-stored"]
    )
    def test_is_valid_for_every_provider(self, t, persist, resume, point):
        """FR-55: whatever the agent decides, and wherever it was cut, the next requests break no provider's rules."""

        def post() -> str:
            return "posted"

        agent, told = asked(Recovery(persist=persist, resume=resume))
        type(agent).get_tools = lambda self: [post]

        def respond(request: ModelRequest) -> Any:
            last = request.messages[-1]
            if last.text == "Go":
                yield TextDelta("Let me ")
                t.clock.sleep(1.5)
                yield TextDelta("post.")
                yield ToolCallComplete(0, "c", "post", "{}")
            else:
                yield TextDelta("Done.")

        model = FunctionModel(respond)
        t.use_model(model, agent)
        crash_at_nth(t, point, 2 if point == "turn:streaming" else 1)

        done = ask(t, agent)
        following = ask(t, agent, "Next")

        assert (t.crashes, len(told)) == ([point], 1)
        assert (done.status, following.status) == ("completed" if resume else "aborted", COMPLETED)
        check(model.requests)

    def test_a_structured_turn(self, t):
        """A turn that owes an answer is asked about like any other, and keeps its final-answer tool."""

        @tool
        def look() -> str:
            """Look."""
            return "seen"

        agent, told = asked(None)
        type(agent).get_tools = lambda self: [look]
        model = t.script(agent, call("look"), answer({"label": "x"}))
        t.crash_at("turn:tool-stored")

        done = ask_structured(t, agent)

        assert (done.status, [ctx.recovery_kind for ctx in told]) == (COMPLETED, ["continue"])
        assert [spec.name for spec in model.requests[1].tools] == ["look", "think_final_answer"]
        assert row(t.rt, done).tries == 1


class TestTheHooks:
    """Giving up is an end like any other: who follows the agent's turns hears of it, once."""

    def follow(self, **attributes: Any) -> tuple[Any, list[Any]]:
        heard: list[Any] = []
        attributes["on_chat_response"] = lambda self, result: heard.append(result)
        return talker(**attributes)("a"), heard

    def test_too_many_attempts(self, t):
        """FR-53: given up after 3 attempts, the hook is told of the error, with what had been said."""
        agent, heard = self.follow(chat_recovery=RecoveryLimits(max_attempts=3))
        cut(t, agent, times=9)

        done = ask(t, agent)

        assert done.error_type == "TooManyAttempts"
        assert [(result.status, result.error_type) for result in heard] == [("error", "TooManyAttempts")]
        assert heard[0].message.text == HALF * 3
        assert heard[0].message.id == done.message_id

    def test_too_long_without_progress(self, t):
        """The same for the limit of time."""
        agent, heard = self.follow(chat_recovery=RecoveryLimits(max_time=1))
        t.script(agent, say("Hi"))
        submission = agent.submit_messages("Go")
        t.rt.stopping.abort("the worker stops")
        claims.run(t.rt, submission.submission_id)
        t.rt.stopping = AbortController()
        t.clock.advance(timedelta(seconds=5))

        t.run_until_idle()

        assert [result.error_type for result in heard] == ["NoProgress"]
        assert now(agent, submission).status == "error"

    def test_not_resumed(self, t):
        """B17: ``resume=False`` is an end that the hook is told of, too."""
        agent, heard = self.follow(on_chat_recovery=lambda self, ctx: Recovery(resume=False, reason="enough"))
        cut(t, agent)

        ask(t, agent)

        assert [(result.status, result.error, result.message.text) for result in heard] == [
            ("aborted", "enough", HALF)
        ]

    def test_a_stall_is_no_end(self, t):
        """A turn that is taken up again has not ended: the hook is told once, of its end."""
        agent, heard = self.follow(chat_recovery=RecoveryLimits(stall=60))
        stalls = iter([61, 0])

        def respond(request: ModelRequest) -> Any:
            yield TextDelta("word ")
            t.clock.sleep(next(stalls))
            t.rt.monitor.beat()
            yield TextDelta("more ")

        t.use_model(FunctionModel(respond), agent)

        assert ask(t, agent).status is COMPLETED
        assert [result.status for result in heard] == ["completed"]


class TestAnAnswerThatGoesOn:
    """A turn that continues an earlier answer: only what is its own is in question."""

    @pytest.mark.parametrize(
        ("decision", "text", "status"),
        [
            (None, "First. More and more.", COMPLETED),
            (Recovery(persist=False), "First. More and more.", COMPLETED),
            (Recovery(resume=False), "First. More ", "aborted"),
            (Recovery(persist=False, resume=False), "First. ", "aborted"),
        ],
    )
    def test_the_answer_before_stays(self, t, decision, text, status):
        """Whatever is decided, what an earlier turn had said is not touched, nor shown as this one's."""
        agent, told = asked(decision)
        t.script(agent, say("First. "))
        first = ask(t, agent)
        deaths = iter([1])

        def respond(request: ModelRequest) -> Any:
            if next(deaths, None) is None:
                yield TextDelta("and more." if request.messages[-1].text == GO_ON else "More and more.")
                return
            yield TextDelta("More ")
            t.clock.sleep(1.5)
            yield TextDelta("")
            t.crash_at("turn:streaming")
            yield TextDelta("")

        model = FunctionModel(respond)
        t.use_model(model, agent)

        result = agent.continue_last_turn()

        assert [(ctx.partial_text, ctx.continuation, ctx.kind) for ctx in told] == [
            ("More ", True, "continue")
        ]
        assert (result.status, result.message.text, result.message.id) == (status, text, first.message_id)
        assert len([m for m in agent.messages if m.role == "assistant"]) == 1
        check(model.requests)

    def test_nothing_of_it_had_come(self, t):
        """Interrupted before its first token it is the same again, though the message has parts."""
        agent, told = asked(None)
        model = t.script(agent, say("First. "), say("More."))
        ask(t, agent)
        crash_at_nth(t, "turn:before-model", 1)

        result = agent.continue_last_turn()

        assert [(ctx.recovery_kind, ctx.partial_text) for ctx in told] == [("retry", "")]
        assert (result.message.text, len(model.requests)) == ("First. More.", 2)


class TestALoopOfOnesOwn:
    """An agent that answers by itself is asked like any other."""

    def agent(self, t: Any, decision: Recovery | None) -> tuple[Any, list[RecoveryContext], list[Any]]:
        told: list[RecoveryContext] = []
        partials: list[Any] = []
        deaths = iter([1])

        class Monologist(ChatAgent, name="Monologist"):
            def on_chat_recovery(self, ctx: RecoveryContext) -> Recovery | None:
                told.append(ctx)
                return decision

            def on_chat_message(self, ctx: Any) -> Any:
                partials.append(None if ctx.partial is None else ctx.partial.text)
                yield HALF if ctx.partial is None else REST
                if next(deaths, None):
                    t.clock.sleep(1.5)
                    yield ""
                    t.crash_at("turn:streaming")
                    yield ""
                if ctx.partial is None:
                    yield REST

        return Monologist("a"), told, partials

    def test_it_goes_on(self, t):
        """By default with what there is."""
        agent, told, partials = self.agent(t, None)

        done = ask(t, agent)

        assert (done.status, done.message().text) == (COMPLETED, HALF + REST)
        assert [ctx.partial_text for ctx in told] == [HALF]
        assert partials == [None, HALF]

    def test_without_the_partial(self, t):
        """``persist=False``: its code begins again."""
        agent, _, partials = self.agent(t, Recovery(persist=False))

        assert ask(t, agent).message().text == HALF + REST
        assert partials == [None, None]

    def test_it_ends(self, t):
        """``resume=False``: its code is not called."""
        agent, _, partials = self.agent(t, Recovery(resume=False))

        done = ask(t, agent)

        assert (done.status, done.message().text, partials) == ("aborted", HALF, [None])
