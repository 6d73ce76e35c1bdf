"""The loop of a turn: what the model is asked, what is stored, and what a turn survives."""

import json
from typing import Any

import pytest

from tests.domain.talk import COMPLETED, ERROR, ask, calls_of, kinds, now, roles, row, shape, talker
from tests.providers.server import DONE, ModelServer, chunk, text_frames, tool_call_frames
from think_celery.errors import ModelError
from think_celery.messages import StepStartPart, TextPart, UIMessage
from think_celery.protocols import Finish, TextDelta, ToolCallComplete, Usage
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import FunctionModel, call, reason, say
from think_celery.tools import tool


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


def real(server: ModelServer) -> OpenAIModel:
    return OpenAIModel("gpt-test", api_key="sk-test-0123456789", base_url=server.base_url)


class TestLoop:
    def test_text(self, t):
        """A plain answer: one assistant message with one step, stored as complete; the line is free again."""
        model = t.script(talker(), say("Hello"))
        agent = talker()("a")

        done = ask(t, agent, "Hi")

        assert done.status is COMPLETED
        assert [(m.role, m.text) for m in agent.messages] == [("user", "Hi"), ("assistant", "Hello")]
        assert done.message().parts == [StepStartPart(), TextPart(text="Hello", state="done")]
        assert done.message().id == done.message_id
        request = model.requests[0]
        assert (request.system, request.tools, request.tool_choice) == ("Be brief.", [], "auto")
        assert row(t.rt, done).completed_at is not None

    def test_tools_over_several_steps(self, t):
        """Each step sees what the tools of the steps before it answered; all is one assistant message."""
        agent = talker(add)("a")
        model = t.script(
            agent,
            [say("Let me see."), call("add", {"a": 1, "b": 2})],
            call("add", {"a": 3, "b": 4}),
            say("10"),
        )

        done = ask(t, agent)

        first, second = ("add", {"a": 1, "b": 2}, 3), ("add", {"a": 3, "b": 4}, 7)
        assert shape(done.message()) == ["|", "Let me see.", first, "|", second, "|", "10"]
        assert [roles(request) for request in model.requests] == [["user"], *[["user", "assistant"]] * 2]
        assert shape(model.requests[2].messages[-1]) == ["|", "Let me see.", first, "|", second]
        assert [spec.name for spec in model.requests[0].tools] == ["add"]

    def test_max_steps_used_up(self, quick):
        """The step limit ends a turn as completed; the last call is still answered."""
        agent = talker(add, max_steps=3)("a")
        model = quick.script(agent, *[call("add", {"a": n, "b": n}) for n in range(9)])

        done = ask(quick, agent)

        assert (done.status, len(model.requests)) == (COMPLETED, 3)
        assert [part.output for part in calls_of(done.message())] == [0, 2, 4]

    def test_reasoning_is_kept_apart(self, quick):
        """FR-84: reasoning is no text."""
        agent = talker()("a")
        quick.script(agent, [reason("Hm."), say("Yes")])

        done = ask(quick, agent)

        assert done.message().text == "Yes"
        assert [part.type for part in done.message().parts] == ["step-start", "reasoning", "text"]

    def test_an_empty_answer_completes_and_stores_no_message(self, quick):
        """An empty answer is no error; nothing that says nothing stands in the transcript."""
        agent = talker()("a")
        quick.script(agent, [])

        done = ask(quick, agent)

        assert (done.status, done.message(), len(agent.messages)) == (COMPLETED, None, 1)

    def test_usage_of_all_steps_is_summed_and_the_reason_kept(self, quick):
        """B27, FR-72: tokens of each step add up; an unknown reason completes, and the provider's word is kept."""
        agent = talker(add)("a")
        steps = iter(
            [
                [ToolCallComplete(0, "c", "add", '{"a": 1, "b": 1}'), Finish("stop", "stop", Usage(1, 2, 3))],
                [TextDelta("2"), Finish("other", "end_turn", Usage(10, 20, 30))],
            ]
        )
        quick.use_model(FunctionModel(lambda request: iter(next(steps))), agent)

        done = ask(quick, agent)

        assert done.message().metadata == {
            "usage": {"input_tokens": 11, "output_tokens": 22, "total_tokens": 33},
            "step_usage": [
                {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
                {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30},
            ],
            "finish_reason": "other",
            "raw_finish_reason": "end_turn",
            "model": "function",
        }

    def test_frames_come_in_order_and_done_is_the_last(self, quick):
        """Listeners see start, steps, deltas, calls with their results, and done after all of it."""
        agent = talker(add)("a")
        quick.script(agent, call("add", {"a": 1, "b": 2}), say("3"))

        ask(quick, agent)

        seen = [kind for kind in kinds(quick, agent) if not kind.endswith("delta")]
        assert seen == [
            "start",
            "start-step",
            "tool-input-start",
            "finish-step",
            "tool-input-available",
            "tool-output-available",
            "start-step",
            "text-start",
            "finish-step",
            "done",
        ]


class TestTranscript:
    def test_the_next_turn_sees_the_whole_conversation(self, t):
        """B4: messages join when their turn starts, in order; the next request repeats what was said."""
        agent = talker()("a")
        model = t.script(agent, say("one"), say("two"))

        first, second = agent.submit_messages("1"), agent.submit_messages("2")
        assert agent.messages == []
        t.run_until_idle()

        assert [m.text for m in agent.messages] == ["1", "one", "2", "two"]
        assert [m.text for m in model.requests[1].messages] == ["1", "one", "2"]
        assert {now(agent, first).status, now(agent, second).status} == {COMPLETED}

    def test_known_message_ids_are_not_added_again(self, t):
        """The same ids again add nothing; with one new message, only that one is added."""
        agent = talker()("a")
        model = t.script(agent, say("one"), say("two"))
        first = {"id": "m1", "role": "user", "content": "Hi"}
        ask(t, agent, first)

        ask(t, agent, [first, {"id": "m2", "role": "user", "content": "Again"}])

        assert [m.text for m in agent.messages] == ["Hi", "one", "Again", "two"]
        assert len(model.requests) == 2

    def test_nothing_to_answer(self, t):
        """Nothing new and an assistant's message last is an error, without a request."""
        agent = talker()("a")
        model = t.script(agent, say("one"))
        message = {"id": "m1", "role": "user", "content": "Hi"}
        ask(t, agent, message)

        done = ask(t, agent, message)

        assert (done.status, done.error_type, len(model.requests)) == (ERROR, "NothingToAnswer", 1)
        assert "Submit a new message" in done.error

    def test_the_next_request_is_valid_on_the_wire(self, quick, server):
        """FR-55: after each kind of failed call, every call in the next request has its result right after it."""
        agent = talker(add)("a")
        quick.use_model(real(server), agent)
        bad = [("add", {"a": 1, "b": 2}), ("add", '{"a": 1'), ("add", {"a": "x"}), ("nope", {}), ("add", "")]
        server.script(tool_call_frames(*bad), text_frames("Done it"), text_frames("And now"))

        ask(quick, agent)
        done = ask(quick, agent, "More")

        wire = server.requests[2]["messages"]
        assert done.status is COMPLETED
        assert [m["role"] for m in wire] == [
            "system",
            "user",
            "assistant",
            *["tool"] * 5,
            "assistant",
            "user",
        ]
        asked = [c["id"] for c in wire[2]["tool_calls"]]
        assert asked == [m["tool_call_id"] for m in wire[3:8]]
        assert len(set(asked)) == 5
        assert [m["content"][:7] for m in wire[3:8]] == ["3", *["Error: "] * 4]

    def test_surrogates_never_reach_a_request(self, quick, server):
        """FR-37: halves of characters in tool results, errors and model text are cleaned where they enter."""

        def broken() -> str:
            return "a\ud83cb"

        def failing() -> str:
            raise RuntimeError("x\udf78")

        agent = talker(broken, failing)("a")
        quick.use_model(real(server), agent)
        halves = [chunk({"content": "\ud83c"}), chunk({"content": "\udf78!\ud83c"}), chunk(finish="stop")]
        escaped = [b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in halves]
        server.script(
            tool_call_frames(("broken", {}), ("failing", "{}")),
            tool_call_frames(("nope", '{"t": "\\ud83c\\udf78"}')),
            [*escaped, DONE],
            text_frames("fine"),
        )

        first = ask(quick, agent)
        done = ask(quick, agent, "More")

        assert (first.status, done.status) == (COMPLETED, COMPLETED)
        assert [part.output or part.error_text for part in calls_of(first.message())][:2] == [
            "a\ufffdb",
            "x\ufffd",
        ]
        assert calls_of(first.message())[2].input == {"t": "\U0001f378"}
        assert first.message().text == "\U0001f378!\ufffd"
        assert all(seen.raw.decode("utf-8") for seen in server.seen)


class TestWhatTheUsersCodeMayDo:
    @pytest.mark.parametrize("hook", ["get_model", "get_system_prompt", "get_tools", "__init__"])
    def test_a_hook_that_raises_ends_the_turn_in_error(self, live, hook):
        """An exception of the agent's own code is the turn's error, and the next turn runs."""
        from think_celery.domain.submissions import claims, submissions

        agent = talker(model=FunctionModel(lambda request: say("fine")))
        broken = talker(model=FunctionModel(lambda request: say("fine")))

        def fail(self: Any, *args: Any) -> Any:
            raise KeyError("no such tenant")

        first, _, _ = submissions.submit(live, agent("a")._ref, "one")
        second, _, _ = submissions.submit(live, agent("a")._ref, "two")
        setattr(broken, hook, fail)
        outcome = claims.run(live, first.id)
        talker(model=FunctionModel(lambda request: say("fine")))

        again = claims.run(live, second.id)

        assert (outcome.word, outcome.error_type) == ("error", "KeyError")
        assert submissions.get(live, first.id).error == "'no such tenant'"
        assert again.word == "completed"

    def test_what_was_stored_survives_a_class_that_broke_since(self, t):
        """A takeover by a worker whose class is broken ends in error and keeps the results of tools that ran."""
        releases = [[add]]

        def get_tools(self: Any) -> Any:
            if not releases:
                raise RuntimeError("half deployed")
            return releases.pop()

        agent = talker(get_tools=get_tools)("a")
        t.script(agent, call("add", {"a": 1, "b": 2}))
        t.crash_at("turn:tool-stored")

        submission = agent.submit_messages("Go")
        t.run_until_idle()

        done = now(agent, submission)
        assert (done.status, done.error_type) == (ERROR, "RuntimeError")
        assert shape(done.message()) == ["|", ("add", {"a": 1, "b": 2}, 3)]

    def test_an_exception_of_a_model_object(self, t):
        """A model that raises what is no ModelError is not asked again; its cut text is no answer."""

        def broken(request: Any) -> Any:
            yield TextDelta("Half an ans")
            raise ZeroDivisionError("division by zero \x00\ud800")

        agent = talker()("a")
        model = FunctionModel(broken)
        t.use_model(model, agent)

        done = ask(t, agent)

        assert (done.status, done.error_type, len(model.requests)) == (ERROR, "ZeroDivisionError", 1)
        assert done.error == "division by zero \N{SYMBOL FOR NULL}\ufffd"
        assert (done.message(), len(agent.messages)) == (None, 1)
        assert kinds(t, agent)[-3:] == ["reset", "restored", "done"]

    def test_an_exception_that_has_no_text(self, quick):
        """Even one whose own ``__str__`` fails ends the turn in order."""

        class Broken(Exception):
            def __str__(self) -> str:
                raise ValueError

        def respond(request: Any) -> Any:
            raise Broken

        agent = talker()("a")
        quick.use_model(FunctionModel(respond), agent)

        done = ask(quick, agent)

        assert (done.status, done.error_type) == (ERROR, "Broken")
        assert done.error == "(its text can't be made: ValueError)"

    def test_a_stream_is_closed_when_its_turn_ends(self, quick):
        """The connection to the model does not outlive the attempt, however that ends."""
        closed, kept = [], []

        def stream(request: Any) -> Any:
            try:
                yield TextDelta("Hi")
                yield Finish("stop", None, Usage())
                yield TextDelta("never read")
            finally:
                closed.append(True)

        class Model:
            name = "own"

            def stream(self, request: Any, signal: Any) -> Any:
                kept.append(stream(request))  # so that it is not closed by being forgotten
                return kept[-1]

        agent = talker()("a")
        quick.use_model(Model(), agent)

        assert ask(quick, agent).message().text == "Hi"
        assert closed == [True]

    def test_a_model_object_of_any_iterator_may_fail_at_once(self, quick):
        """`stream` may raise before it gives an iterator."""

        class Model:
            name = "own"

            def stream(self, request: Any, signal: Any) -> Any:
                raise ModelError("no such deployment", status_code=404)

        agent = talker()("a")
        quick.use_model(Model(), agent)

        done = ask(quick, agent)

        assert (done.error_type, done.error) == ("ModelError", "no such deployment")

    def test_messages_of_other_roles_and_parts_go_through(self, quick):
        """A submission may bring a history of its own: its dangling call gets a result in the request only."""
        agent = talker(tool(add))("a")
        model = quick.script(agent, say("ok"))
        dangling = {
            "type": "tool-add",
            "toolCallId": "x",
            "state": "input-available",
            "input": {"a": 1, "b": 1},
        }
        history = [
            UIMessage(role="system", parts=[TextPart(text="Speak German.")]),
            {"role": "user", "content": "Add"},
            {"role": "assistant", "parts": [dangling]},
            "Well?",
        ]

        done = ask(quick, agent, history)

        assert done.status is COMPLETED
        assert roles(model.requests[0]) == ["system", "user", "assistant", "user"]
        assert "interrupted before it ran" in shape(model.requests[0].messages[2])[0][2]
        assert calls_of(agent.messages[2])[0].state == "input-available"
