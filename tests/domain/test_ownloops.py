"""Agents that bring a loop of their own: what they yield is streamed, stored, recovered and cancelled. (B20)"""

import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.domain.flows import flow, worker
from tests.domain.talk import (
    ABORTED,
    COMPLETED,
    ERROR,
    Running,
    ask,
    ask_structured,
    calls_of,
    crash_at_nth,
    events,
    kinds,
    now,
    row,
    shape,
)
from think_celery import ChatAgent, Finish, ReasoningDelta, TextDelta, ToolCallComplete, ToolResult, Usage
from think_celery.cli import doctor
from think_celery.domain.turns.requests import GO_ON
from think_celery.protocols import ToolCallDelta
from think_celery.settings import Settings
from think_celery.testing import ThinkTest

WORD = "open sesame"


@dataclass
class Label:
    """What a prompt asks for."""

    label: str


DONE = Finish("stop", "end_turn", Usage(1, 2, 3))


class Short(BaseModel):
    v: str

    @field_validator("v")
    @classmethod
    def short(cls, v: str) -> str:
        if len(v) > 3:
            raise ValueError("longer than 3")
        return v


def chatter(answer: Any, **attributes: Any) -> type[ChatAgent]:
    """An agent class with this as its `on_chat_message`; it replaces the one before it."""

    class Chatter(ChatAgent, name="Chatter"):
        def on_chat_message(self, ctx):
            return answer(ctx) if callable(answer) else answer

    for name, value in attributes.items():
        setattr(Chatter, name, value)
    return Chatter


class TestAnswers:
    @pytest.mark.parametrize(
        "given",
        [
            "Hello",
            ["Hel", "lo"],
            lambda ctx: (piece for piece in ("Hel", "lo")),
            [TextDelta("Hel"), "lo", DONE],
        ],
        ids=["text", "list", "generator", "events"],
    )
    def test_forms(self, t: ThinkTest, given: Any) -> None:
        """B20: a text, an iterable or a generator, of texts or events: one assistant message with one step."""
        agent = chatter(given)("a")

        done = ask(t, agent)

        assert (done.status, shape(done.message())) == (COMPLETED, ["|", "Hello"])
        assert done.message().parts[1].state == "done"
        assert [each.role for each in agent.messages] == ["user", "assistant"]
        assert row(t.rt, done).completed_at is not None

    def test_nothing(self, quick: ThinkTest) -> None:
        """`None` is an answer that says nothing."""
        done = ask(quick, chatter(None)("a"))

        assert (done.status, done.message()) == (COMPLETED, None)

    def test_it_streams_like_a_model_s(self, quick: ThinkTest) -> None:
        """Listeners see start, steps, deltas and done."""
        agent = chatter([ReasoningDelta("Hm"), "Hel", "lo", DONE])("a")

        ask(quick, agent)

        assert kinds(quick, agent) == [
            "start",
            "start-step",
            "reasoning-start",
            "reasoning-delta",
            "text-start",
            "text-delta",
            "text-delta",
            "finish-step",
            "done",
        ]

    def test_steps_with_calls_of_its_own(self, t: ThinkTest) -> None:
        """Calls and their results are parts; a Finish ends a step; usage adds up."""
        pieces = [
            ToolCallDelta(0, "c", "look", ""),
            ToolCallComplete(0, "c", "look", '{"at": "x"}'),
            ToolCallComplete(1, "d", "look", ""),
            ToolResult("c", output={"n": 1}),
            Finish("tool-calls", None, Usage(1, 2, 3)),
            ToolResult("d", error="not found"),
            "One. ",
            "Done.",
            DONE,
        ]
        steps: list[Any] = []
        agent = chatter(pieces, on_step_finish=lambda self, result: steps.append(result))("a")

        done = ask(t, agent)

        assert shape(done.message()) == [
            "|",
            ("look", {"at": "x"}, {"n": 1}),
            ("look", {}, "not found"),
            "|",
            "One. Done.",
        ]
        assert done.message().metadata["usage"]["total_tokens"] == 6
        assert [(step.step, step.finish_reason, step.text) for step in steps] == [
            (0, "tool-calls", ""),
            (1, "stop", "One. Done."),
        ]

    def test_ids_that_repeat(self, quick: ThinkTest) -> None:
        """A library that numbers its calls anew in each step: each result goes to its own call."""
        one = [ToolCallComplete(0, "c", "look", "{}"), ToolResult("c", output=1), DONE]
        two = [ToolCallComplete(0, "c", "look", "{}"), ToolResult("c", output=2), DONE]
        agent = chatter([*one, *two])("a")

        first, second = calls_of(ask(quick, agent).message())

        assert (first.output, second.output) == (1, 2)
        assert first.tool_call_id != second.tool_call_id

    def test_a_call_without_a_result(self, quick: ThinkTest) -> None:
        """Gets an error when the turn ends, so that the conversation stays one that a provider accepts."""
        agent = chatter([ToolCallComplete(0, "c", "look", "{}"), DONE, "Never mind"])("a")

        (made,) = calls_of(ask(quick, agent).message())

        assert made.error_text == "The agent ended its turn without a result of this call."

    def test_the_conversation_is_what_it_answers(self, t: ThinkTest) -> None:
        """The next turn sees what was said; so does one of an agent with the loop given."""
        asked: list[Any] = []
        agent = chatter(lambda ctx: asked.append([m.text for m in ctx.messages]) or f"answer {len(asked)}")(
            "a"
        )

        ask(t, agent, "One")
        ask(t, agent, "Two")

        assert asked == [["One"], ["One", "answer 1", "Two"]]

    def test_a_class_without_an_answer_is_refused(self) -> None:
        """When it is made, with the remedy; an abstract base is not."""
        with pytest.raises(TypeError, match=r"Mute can't be used: it has no on_chat_message\(self, ctx\)"):
            type("Mute", (ChatAgent,), {})

        class ChatterBase(ChatAgent, abstract=True):
            pass

        with pytest.raises(TypeError, match="ChatterBase is no agent by itself"):
            ChatterBase("a")

    def test_structured_turns(self, quick: ThinkTest) -> None:
        """The tool to offer is in the context; its call is the answer and appears nowhere else."""
        seen: list[Any] = []

        def reply(ctx: Any) -> Any:
            seen.append(ctx.final_answer.name)
            return ["Thinking.", ToolCallComplete(0, "c", ctx.final_answer.name, '{"label": "x"}'), DONE]

        agent = chatter(reply, on_chat_response=lambda self, result: seen.append(result.output))("a")
        done = ask_structured(quick, agent)
        without = ask_structured(quick, chatter("Just text")("b"))

        assert (done.status, seen) == (COMPLETED, ["think_final_answer", {"label": "x"}])
        assert calls_of(done.message()) == []
        assert (without.status, without.error_type) == (ERROR, "NoFinalAnswer")


class TestPrompts:
    """A workflow asks an agent that has a loop of its own."""

    def test_its_answer_is_the_step_s_value(self, t: ThinkTest) -> None:
        """As any agent's is, checked against the type."""
        agent = chatter(
            lambda ctx: [ToolCallComplete(0, "c", ctx.final_answer.name, '{"label": "x"}'), DONE]
        )("a")

        def run(event: Any, step: Any) -> str:
            return str(step.prompt("p", prompt="Label it", output=Label).label)

        workflow_id = agent.run_workflow(flow(run), {})
        t.run_until_idle()

        assert agent.get_workflow(workflow_id).output == "x"

    def test_an_answer_that_only_the_type_refuses(self, quick: ThinkTest) -> None:
        """Is refused in the turn; of retries, which such a loop has none of, nothing is said."""
        agent = chatter(lambda ctx: [ToolCallComplete(0, "c", ctx.final_answer.name, '{"v": "long"}'), DONE])(
            "a"
        )

        def run(event: Any, step: Any) -> str:
            return str(step.prompt("p", prompt="Label it", output=Short).v)

        workflow_id = agent.run_workflow(flow(run), {})
        quick.run_until_idle()
        (turn,) = agent.list_submissions()

        assert (turn.status, turn.error_type) == (ERROR, "InvalidFinalAnswer")
        assert "does not fit the output type: v: Value error, longer than 3." in str(turn.error)
        assert agent.get_workflow(workflow_id).error_type == "ThinkPromptValidationError"

    def test_it_is_asked_once(self, quick: ThinkTest) -> None:
        """Answers that are given again are the loop's own business; the step says so before anything is asked."""
        agent = chatter("never asked for")("a")

        def run(event: Any, step: Any) -> None:
            step.prompt("p", prompt="Label it", output=Label, output_retries=1)

        workflow_id = agent.run_workflow(flow(run), {})
        quick.run_until_idle()

        found = agent.get_workflow(workflow_id)
        assert found.error_type == "StepMisuse"
        assert "a loop of its own" in found.error


class TestErrors:
    def test_what_it_raises_ends_the_turn(self, t: ThinkTest) -> None:
        """In error, once; finished steps stay, the cut text goes; hooks are told."""
        told: list[Any] = []

        def reply(ctx: Any) -> Iterator[Any]:
            yield "A whole step."
            yield DONE
            yield "Half a"
            raise ConnectionError("the SDK lost its connection")

        agent = chatter(
            reply,
            on_chat_error=lambda self, error, ctx: told.append(type(error).__name__),
            on_chat_response=lambda self, result: told.append(result.status),
        )("a")

        done = ask(t, agent)

        assert (done.status, done.error_type) == (ERROR, "ConnectionError")
        assert shape(done.message()) == ["|", "A whole step."]
        assert told == ["ConnectionError", ERROR]

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (42, "returned an int"),
            (b"bytes", "returned a bytes"),
            ({"text": "x"}, "returned a dict"),
            ([{"text": "x"}], "yielded a dict"),
            ([ToolResult("nobody", output=1)], "a call that it did not yield"),
        ],
    )
    def test_what_is_no_answer(self, quick: ThinkTest, given: Any, says: str) -> None:
        """The error says what came, and what may."""
        done = ask(quick, chatter(given)("a"))

        assert done.status == ERROR
        assert says in done.error

    def test_async_generators(self, quick: ThinkTest) -> None:
        """One that is returned can't be told from the definition; it is refused with the remedy all the same."""

        async def stream() -> Any:
            yield "x"

        done = ask(quick, chatter(lambda ctx: stream())("a"))

        assert (done.status, done.error_type) == (ERROR, "AsyncNotSupported")

    def test_a_result_that_is_too_large(self, quick: ThinkTest) -> None:
        """As a tool's would be."""
        pieces = [ToolCallComplete(0, "c", "look", "{}"), ToolResult("c", output="x" * 2_000_000)]

        assert ask(quick, chatter(pieces)("a")).error_type == "PayloadTooLarge"


class TestCrashes:
    def test_before_anything_was_said(self, t: ThinkTest) -> None:
        """The same turn again, with the same messages."""
        asked: list[Any] = []
        agent = chatter(lambda ctx: asked.append((ctx.partial, [m.text for m in ctx.messages])) or "Hello")(
            "a"
        )
        t.crash_at("turn:before-model")

        done = ask(t, agent)

        assert (done.status, shape(done.message())) == (COMPLETED, ["|", "Hello"])
        assert asked == [(None, ["Go"])]

    def test_in_the_middle_of_a_text(self, t: ThinkTest) -> None:
        """B20: it is asked to go on exactly there, as a model is, in the same message."""
        asked: list[Any] = []

        def reply(ctx: Any) -> Iterator[str]:
            asked.append([m.text for m in ctx.messages])
            if ctx.partial is None:
                yield "Hel"
                t.clock.sleep(2)
                yield "lo"
            else:
                yield f"{'Hello World'[len(ctx.partial.text) :]}"

        agent = chatter(reply)("a")
        crash_at_nth(t, "turn:streaming", 2)

        done = ask(t, agent)

        assert t.crashes == ["turn:streaming"]
        assert (done.status, done.message().text) == (COMPLETED, "Hello World")
        assert asked[1][0] == "Go"
        assert "Hello World".startswith(asked[1][1])
        assert asked[1][2] == GO_ON
        assert len(agent.messages) == 2

    def test_after_a_whole_step(self, t: ThinkTest) -> None:
        """What a Finish has stored is not made again."""

        def reply(ctx: Any) -> Iterator[Any]:
            if ctx.partial is None:
                yield ToolCallComplete(0, "c", "pay", "{}")
                yield ToolResult("c", output="paid")
                yield DONE
            yield "Paid."

        agent = chatter(reply)("a")
        crash_at_nth(t, "turn:streaming", 2)

        assert shape(ask(t, agent).message()) == ["|", ("pay", {}, "paid"), "|", "Paid."]

    def test_a_call_whose_outcome_is_unknown(self, t: ThinkTest) -> None:
        """It is settled as such for the next one who reads the conversation."""

        def reply(ctx: Any) -> Iterator[Any]:
            if ctx.partial is None:
                yield ToolCallComplete(0, "c", "pay", "{}")
                yield DONE
                yield "never stored"
            else:
                yield "Hm"

        agent = chatter(reply)("a")
        crash_at_nth(t, "turn:streaming", 2)

        (made,) = calls_of(ask(t, agent).message())
        assert made.error_text.startswith("The tool call was interrupted")

    def test_too_many(self, t: ThinkTest) -> None:
        """Poison ends, here too."""
        agent = chatter("Hello")("a")
        t.crash_at("turn:before-model", times=5)

        assert ask(t, agent).error_type == "TooManyAttempts"


class TestStops:
    def test_a_cancel_while_it_streams(self, live: Any) -> None:
        """The signal comes, the generator is closed in its own thread, its partial text is kept."""
        seen: dict[str, Any] = {}

        def reply(ctx: Any) -> Iterator[str]:
            seen["thread"] = threading.current_thread()
            try:
                yield "Hello"
                seen["signalled"] = ctx.signal.wait(10)
                yield " never"
            finally:
                seen["closed in"] = threading.current_thread()

        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, chatter(reply))
            turn.until(lambda: turn.shown == "Hello")
            turn.cancel()
            done = turn.end()

        assert (done.status, done.message().text) == (ABORTED, "Hello")
        assert seen["signalled"]
        assert seen["closed in"] is seen["thread"] is not threading.current_thread()

    def test_one_that_does_not_come_to_a_yield(self, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Is given up; the next turn begins."""
        monkeypatch.setattr("think_celery.domain.calls.GRACE_SECONDS", 0.05)
        entered, release = threading.Event(), threading.Event()

        def reply(ctx: Any) -> Iterator[str]:
            yield "Hello"
            entered.set()
            release.wait(20)
            yield " never"

        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, chatter(reply))
            assert entered.wait(10)
            turn.cancel()
            done = turn.end()
            release.set()

        assert (done.status, done.message().text) == (ABORTED, "Hello")

    def test_a_worker_that_stops(self, live: Any) -> None:
        """The turn is handed over with what there is of it."""

        def reply(ctx: Any) -> Iterator[str]:
            yield "Hello"
            ctx.signal.wait(10)
            yield " never"

        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, chatter(reply))
            turn.until(lambda: turn.shown == "Hello")
            live.stopping.abort("SIGTERM")
            assert turn.outcome.result(10).word == "handed-over"

        assert now(turn.agent, turn.submission).status == "pending"
        assert turn.agent.messages[-1].text == "Hello"

    def test_the_deadline(self, sqlite_url: str) -> None:
        """A generator that goes on for ever ends there, in error."""

        def reply(ctx: Any) -> Iterator[str]:
            while True:
                threading.Event().wait(0.01)
                yield "."

        with worker(sqlite_url, turn_timeout_seconds=0.2) as rt, ThreadPoolExecutor() as pool:
            turn = Running(rt, pool, chatter(reply))
            turn.until(lambda: rt.monitor.beat() or turn.outcome.done())
            assert turn.end().error_type == "TurnTimeout"

    def test_one_thread_and_one_context(self, live: Any) -> None:
        """From the first line to the last: what a library keeps per thread or context stays over a yield."""
        variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
        threads: list[Any] = []

        def reply(ctx: Any) -> Iterator[str]:
            token = variable.set(7)
            threads.append(threading.current_thread())
            yield "a"
            threads.append(threading.current_thread())
            assert variable.get() == 7
            variable.reset(token)
            yield "b"

        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, chatter(reply))
            assert turn.end().message().text == "ab"

        assert threads[0] is threads[1]

    def test_what_fails_when_it_is_closed_changes_nothing(
        self, live: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The turn ends as it was to end, and the log says so."""

        def reply(ctx: Any) -> Iterator[str]:
            try:
                yield "Hello"
                ctx.signal.wait(10)
                yield " never"
            finally:
                raise ValueError(WORD)

        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, chatter(reply))
            turn.until(lambda: turn.shown == "Hello")
            turn.cancel()

            assert turn.end().status == ABORTED
        assert any("when it was closed" in each.getMessage() for each in caplog.records)
        assert WORD not in caplog.text


def test_live_frames_of_a_restart_are_reset(t: ThinkTest) -> None:
    """Listeners that saw the first try are told that it is void."""

    def reply(ctx: Any) -> Iterator[str]:
        yield "Hello"

    agent = chatter(reply)("a")
    crash_at_nth(t, "turn:streaming", 1)

    ask(t, agent)

    assert "reset" in [event["type"] for _, event in events(t, agent)]


def test_the_doctor_asks_for_no_model_of_theirs() -> None:
    """They need none of ours."""
    chatter("Hello")

    found = doctor._look_at_classes(Settings())

    assert [each for each in found if "Chatter" in each.text] == []
