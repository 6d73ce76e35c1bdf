"""Tool calls: what a model gets to see of each, and that each runs once."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from tests.domain.flows import worker
from tests.domain.talk import COMPLETED, ask, calls_of, crash_at_nth, shape, talker
from think_celery.domain import recovery
from think_celery.domain.submissions import claims, submissions
from think_celery.errors import LeaseLost
from think_celery.protocols import Finish, ToolCallComplete, Usage
from think_celery.providers.scripted import FunctionModel, Scripted, call, say
from think_celery.runtime import Runtime
from think_celery.store import processes
from think_celery.store import submissions as rows
from think_celery.testing import ThinkTest
from think_celery.tools import ToolContext, tool


def results(t: ThinkTest, *calls: Any, tools: tuple[Callable[..., Any], ...]) -> list[Any]:
    """What the calls of one step came to, in the order in which the model is told."""
    agent = talker(*tools)("a")
    model = t.script(agent, list(calls), say("Done"))
    done = ask(t, agent)
    assert done.status is COMPLETED
    told = [outcome for _, _, outcome in shape(model.requests[-1].messages[-1])[1:]]
    assert told == [outcome for _, _, outcome in shape(done.message())[1:-2]]
    return told


class TestOutcomes:
    def test_a_tool_that_raises(self, quick):
        """The model is told the exception's text, and the turn goes on."""

        def boom() -> str:
            raise RuntimeError("boom from tool")

        assert results(quick, call("boom"), tools=(boom,)) == ["boom from tool"]

    def test_an_exception_without_text(self, quick):
        """The model is told its type then."""

        def silent() -> str:
            raise NotImplementedError

        assert results(quick, call("silent"), tools=(silent,)) == ["NotImplementedError"]

    @pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError("gone")])
    def test_base_exceptions_of_a_tool_are_its_failure(self, quick, error):
        """`sys.exit()` in a tool, or a cancelled asyncio task, ends neither the turn nor the worker."""

        def leave() -> str:
            raise error

        told = results(quick, call("leave"), tools=(leave,))

        assert told == [str(error) or type(error).__name__]

    def test_our_own_errors_out_of_a_tool_are_its_failure(self, quick):
        """A tool that works on other rows may lose another's lease: that is not the turn's own."""

        def other() -> str:
            raise LeaseLost("turn of another")

        (told,) = results(quick, call("other"), tools=(other,))

        assert "turn of another" in told

    def test_ctrl_c_is_not_a_tools_failure(self, quick):
        """An interrupt from outside hands the turn over in order, and goes on to whoever sent it."""

        def interrupted() -> str:
            raise KeyboardInterrupt

        agent = talker(interrupted)("a")
        quick.script(agent, call("interrupted"))
        submission = agent.submit_messages("Go")

        with pytest.raises(KeyboardInterrupt):
            claims.run(quick.rt, submission.submission_id)

        row = submissions.get(quick.rt, submission.submission_id)
        assert (row.status, row.attempts) == ("pending", 0)

    def test_calls_that_cannot_be_made(self, quick):
        """Unknown tool, unfit arguments and broken JSON are told to the model; nothing is called."""
        made = []

        def add(a: int, b: int) -> int:
            made.append((a, b))
            return a + b

        unknown, unfit, broken, array = results(
            quick,
            call("ad", {"a": 1, "b": 2}),
            call("add", {"a": "x", "c": 1}),
            call("add", '{"a": 1,'),
            call("add", "[1, 2]"),
            tools=(add,),
        )

        assert unknown == "There is no tool 'ad'. Available tools: add."
        assert all(path in unfit for path in ("a:", "b:", "c:"))
        assert "not valid JSON" in broken
        assert "JSON object" in array
        assert made == []

    @pytest.mark.parametrize("arguments", ["", " ", "{}"])
    def test_no_arguments(self, quick, arguments):
        """FR-73: empty arguments mean {}, and {} is what is stored and echoed."""

        def ping() -> str:
            return "pong"

        agent = talker(ping)("a")
        quick.script(agent, call("ping", arguments), say("ok"))

        done = ask(quick, agent)

        assert shape(done.message())[1] == ("ping", {}, "pong")

    def test_decimals_keep_their_digits(self, quick):
        """A number for a `Decimal` parameter reaches the tool with all its digits."""
        paid = []

        def pay(amount: Decimal) -> str:
            paid.append(amount)
            return "paid"

        results(quick, call("pay", '{"amount": 1234567890.12345678901}'), tools=(pay,))

        assert paid == [Decimal("1234567890.12345678901")]

    def test_a_result_without_a_json_form(self, quick):
        """The model is told what was wrong with the result; anything that pydantic can dump is fine."""

        def odd() -> Any:
            return object()

        def fine() -> Any:
            return {"when": b"x", "many": {1}, "no": float("nan")}

        told = results(quick, call("odd"), call("fine"), tools=(odd, fine))

        assert "has no JSON form" in told[0]
        assert told[1] == {"when": "eA==", "many": [1], "no": "NaN"}

    def test_a_result_beyond_the_limit(self, quick):
        """A huge result is not stored: the model is told how large it was."""
        limit = quick.rt.settings.max_payload

        def dump() -> str:
            return "x" * limit

        (told,) = results(quick, call("dump"), tools=(dump,))

        assert f"{limit + 2:,}" in told
        assert len(told) < 300

    def test_the_same_provider_ids_again_and_again(self, quick):
        """FR-70: ids repeated within a response or in a later round are made unique; every call runs."""
        ran = []

        def note(n: int) -> int:
            ran.append(n)
            return n

        def stream(request: Any) -> Any:
            rounds = sum(part.type == "step-start" for part in request.messages[-1].parts)
            if rounds == 2:
                yield from [Finish("stop", None, Usage())]
            for index in range(2):
                yield ToolCallComplete(index, "call_0", "note", json.dumps({"n": 2 * rounds + index}))
            yield Finish("tool-calls", None, Usage())

        agent = talker(note)("a")
        model = FunctionModel(stream)
        quick.use_model(model, agent)

        done = ask(quick, agent)

        assert ran == [0, 1, 2, 3]
        ids = [part.tool_call_id for part in calls_of(model.requests[-1].messages[-1])]
        assert len(set(ids)) == 4
        assert ids[0] == "call_0"
        assert [part.output for part in calls_of(done.message())] == ran


class TestContext:
    def test_keys_survive_a_crash_and_differ_between_calls(self, t):
        """FR-54: a repeated call has its first key, wherever in its step the others stand."""
        seen: list[tuple[int, str, int]] = []

        @tool(idempotent=True)
        def post(n: int, context: ToolContext) -> int:
            seen.append((n, context.idempotency_key, context.attempt))
            return n

        agent = talker(post)("a")
        step = [call("post", {"n": n}) for n in range(3)]
        t.use_model(FunctionModel(lambda r: step if len(r.messages) == 1 else say("ok")), agent)
        crash_at_nth(t, "turn:tool-ran", 2)  # the first result is stored; the worker dies at the second

        done = ask(t, agent)

        assert t.crashes == ["turn:tool-ran"]
        assert [n for n, _, _ in seen] == [0, 1, 1, 2]
        assert len({key for _, key, _ in seen}) == 3
        assert seen[1][1] == seen[2][1]
        assert [attempt for _, _, attempt in seen] == [1, 1, 2, 2]
        assert [part.output for part in calls_of(done.message())] == [0, 1, 2]

    def test_what_a_tool_may_know(self, quick):
        """The context names agent, submission, message and call."""
        seen: list[ToolContext] = []

        def look(context: ToolContext) -> None:
            seen.append(context)

        agent = talker(look)("issue-42")
        quick.script(agent, [call("look"), call("look")], say("ok"))

        done = ask(quick, agent)

        first, second = seen
        assert (first.agent_name, first.submission_id) == ("issue-42", done.submission_id)
        assert first.message_id == done.message_id
        assert [first.tool_call_id, second.tool_call_id] == [p.tool_call_id for p in calls_of(done.message())]
        assert first.idempotency_key != second.idempotency_key
        assert not first.signal.aborted


class TestAtOnce:
    """With the helper threads of a real worker."""

    def run(self, rt: Runtime, tools: tuple[Any, ...], *answers: Scripted) -> Any:
        script = iter(answers)
        agent = talker(*tools, model=FunctionModel(lambda request: next(script)))("a")
        row, _, _ = submissions.submit(rt, agent._ref, "Go")
        outcome = claims.run(rt, row.id)
        found = agent._bound_to(rt, "a").inspect_submission(row.id)
        return outcome, found

    def test_results_come_in_the_order_of_the_calls(self, live):
        """FR-64: calls of one step run at once, and are told in call order, whoever ended first."""
        gates = [threading.Event() for _ in range(3)]
        all_run = threading.Barrier(3)

        def wait(n: int) -> int:
            all_run.wait(5)
            if n < 2:
                assert gates[n + 1].wait(5)  # the last call ends first
            gates[n].set()
            return n

        outcome, done = self.run(live, (wait,), [call("wait", {"n": n}) for n in range(3)], say("ok"))

        assert outcome.word == "completed"
        assert [part.output for part in calls_of(done.message())] == [0, 1, 2]

    def test_each_result_is_stored_while_others_still_run(self, live):
        """A result is in the database as soon as its tool has returned."""
        stored: list[list[Any]] = []
        agent = talker()("a")._bound_to(live, "a")

        def quick() -> str:
            return "quick"

        def slow() -> str:
            for _ in range(500):
                message = agent.messages[-1]
                if message.role == "assistant" and calls_of(message)[0].settled:
                    stored.append(shape(message)[1:])
                    break
                threading.Event().wait(0.01)
            return "slow"

        _, done = self.run(live, (quick, slow), [call("quick"), call("slow")], say("ok"))

        assert stored == [[("quick", {}, "quick"), ("slow", {}, None)]]
        assert [part.output for part in calls_of(done.message())] == ["quick", "slow"]

    def test_a_tool_that_overruns_its_timeout(self, live):
        """The model is told, and the turn goes on; what the tool returns later is nobody's."""
        release = threading.Event()

        @tool(timeout=0.05)
        def slow() -> str:
            release.wait(10)
            return "too late"

        outcome, done = self.run(live, (slow,), call("slow"), say("ok"))
        release.set()

        assert outcome.word == "completed"
        assert "did not return within 0.05 s" in calls_of(done.message())[0].error_text

    def test_many_results_at_once(self, live):
        """Storing from many threads loses no result, and numbers every live frame once."""

        def echo(n: int) -> int:
            return n

        frames: list[int] = []
        put = live.live.put
        live.live.put = lambda frame: (frames.append(frame.n), put(frame))[1]  # type: ignore[method-assign]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            _, done = self.run(live, (echo,), [call("echo", {"n": n}) for n in range(20)], say("ok"))
        finally:
            sys.setswitchinterval(interval)

        assert [part.output for part in calls_of(done.message())] == list(range(20))
        assert frames == list(range(1, len(frames) + 1))

    def test_cancelled_before_they_begin(self, live):
        """A tool that was never called is not said to have been started."""

        def never() -> str:
            raise AssertionError("it was called")

        def failpoint(point: str) -> None:
            if point == "turn:tool-marked":
                (hold,) = live.monitor._holds
                live.db.transact(lambda tx: submissions.cancel(live, tx, hold.submission_id))
                hold.cancel()

        live.failpoint = failpoint
        outcome, done = self.run(live, (never,), call("never"), say("ok"))

        assert outcome.word == "aborted"
        assert done.status == "aborted"
        assert calls_of(done.message())[0].started is False


class TestTakenOver:
    def test_what_ended_first_stays_ended(self, database_url):
        """FR-64: the last of three calls ends first, and the worker is lost: who takes over runs the others alone."""
        ran: list[int] = []
        release = threading.Event()

        @tool(idempotent=True)
        def wait(n: int) -> int:
            ran.append(n)
            if n < 2:
                release.wait(10)
            return n

        def answer(request: Any) -> Any:
            told = [part for message in request.messages for part in calls_of(message)]
            return say("ok") if told else [call("wait", {"n": n}) for n in range(3)]

        def stored() -> list[bool]:
            return [part.settled for message in agent.messages[-1:] for part in calls_of(message)]

        with worker(database_url) as first, worker(database_url) as second, ThreadPoolExecutor(1) as pool:
            agent = talker(wait, model=FunctionModel(answer))._bound_to(second, "a")
            submission = agent.submit_messages("Go")
            running = pool.submit(claims.run, first, submission.submission_id)
            until(lambda: stored() == [False, False, True])
            until(lambda: sorted(ran) == [0, 1, 2])
            dead = first.monitor.process_id()
            second.db.transact(lambda tx: processes.declare_dead(tx, dead, known=True))
            recovery.sweep(second)
            first.monitor.beat()
            release.set()
            assert running.result(10).word == "lease-lost"

            assert claims.run(second, submission.submission_id).word == "completed"
            assert sorted(ran) == [0, 0, 1, 1, 2]
            assert [part.output for part in calls_of(agent.messages[-1])] == [0, 1, 2]
            assert agent.messages[-1].text == "ok"


def until(true: Callable[[], bool]) -> None:
    """Wait for it."""
    for _ in range(1000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to that")


class TestProgress:
    def test_a_result_is_progress_and_being_asked_for_is_none(self, t):
        """FR-53: a tool that kills its worker each time ends the turn at the cap."""

        @tool(idempotent=True)
        def killer() -> str:
            t.crash_at("turn:tool-ran")
            return "never stored"

        agent = talker(killer)("a")
        model = FunctionModel(lambda request: call("killer"))
        t.use_model(model, agent)

        done = ask(t, agent)

        cap = t.rt.settings.max_attempts
        assert (done.status, done.error_type) == ("error", "TooManyAttempts")
        assert (len(t.crashes), len(model.requests)) == (cap, 1)

    def test_deaths_with_progress_in_between_do_not_count(self, t):
        """FR-53: a worker that dies after every stored result never uses the attempts up."""

        def step(n: int) -> int:
            return n

        agent = talker(step, max_steps=20)("a")
        rounds = 2 * t.rt.settings.max_attempts

        def answer(request: Any) -> Any:
            done = sum(part.type == "tool-step" for part in request.messages[-1].parts)
            return call("step", {"n": done}) if done < rounds else say("ok")

        t.use_model(FunctionModel(answer), agent)
        t.crash_at("turn:tool-stored", times=rounds)

        submission = ask(t, agent)

        assert (submission.status, len(t.crashes)) == (COMPLETED, rounds)
        assert [part.output for part in calls_of(submission.message())] == list(range(rounds))
        row = t.rt.db.read(lambda tx: rows.get(tx, submission.submission_id))
        assert row.takeovers == rounds + 1
        assert row.attempts <= 2
