"""The models for tests and examples."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.providers.contract import finish, limits, reasonings, request, texts, whole_calls
from think_celery.errors import ModelAborted, ModelError
from think_celery.messages import ToolPart, UIMessage, user
from think_celery.protocols import (
    ForcedTool,
    Model,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolSpec,
    Usage,
)
from think_celery.providers.scripted import (
    FunctionModel,
    ScriptedModel,
    answer,
    call,
    fail,
    reason,
    say,
    silence,
)
from think_celery.signals import AbortController


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"})


def ask(model: Model, *messages: UIMessage, **options: Any) -> list[Any]:
    return list(model.stream(request(*messages, **options), AbortController().signal))


class TestScriptedModel:
    def test_answers_are_played_in_order(self):
        """One answer a request; a text alone is one too."""
        model = ScriptedModel(call("add", {"a": 1}), say("It is 1."), "Bye")

        first, second, third = ask(model), ask(model), ask(model)

        assert whole_calls(first) == [("add", '{"a": 1}')]
        assert finish(first).reason == "tool-calls"
        assert (texts(second), texts(third)) == ("It is 1.", "Bye")
        assert finish(second).reason == "stop"
        assert model.remaining == 0

    def test_events_are_like_a_providers(self):
        """Text and arguments in a few deltas, whole calls last, then Finish with a count of tokens."""
        events = ask(ScriptedModel([reason("hm"), say("Let me see."), call("add", {"a": 1}), call("now")]))

        assert [type(event) for event in events].count(TextDelta) > 1
        assert (reasonings(events), texts(events)) == ("hm", "Let me see.")
        assert whole_calls(events) == [("add", '{"a": 1}'), ("now", "{}")]
        assert [isinstance(event, ToolCallComplete) for event in events[-3:]] == [True, True, False]
        deltas = [event for event in events if isinstance(event, ToolCallDelta) and event.index == 0]
        assert "".join(delta.arguments for delta in deltas) == '{"a": 1}'
        assert finish(events).usage.total_tokens > 2

    def test_requests_are_recorded_as_they_were(self):
        """What happens to a message after the request does not change the record."""
        model, message = ScriptedModel("Hello"), user("before")

        ask(model, message)
        message.parts[0] = user("after").parts[0]

        assert [recorded.messages[0].text for recorded in model.requests] == ["before"]

    def test_ids_are_unique_in_the_conversation(self):
        """FR-70: also in another process that plays the same script."""
        earlier = ToolPart(type="tool-add", tool_call_id="call_0", state="output-available", output=1)
        history = UIMessage(role="assistant", parts=[earlier])

        events = ask(ScriptedModel([call("add"), call("add")]), user("x"), history)

        assert [e.tool_call_id for e in events if isinstance(e, ToolCallComplete)] == ["call_0_2", "call_1"]

    def test_the_end_of_the_script(self):
        """The error lists what was asked, and asking again would not help."""
        model = ScriptedModel("Hello")
        ask(model, user("first question"))

        with pytest.raises(ModelError, match="1 answers, and this is request 2") as failed:
            ask(model, user("second question"), tools=[spec("add")])

        assert "1. user: 'first question' (1 messages, tools: none)" in str(failed.value)
        assert "2. user: 'second question' (1 messages, tools: add)" in str(failed.value)
        assert not failed.value.retryable

    def test_more_answers_can_be_added(self):
        """A test scripts turn after turn."""
        model = ScriptedModel()
        model.add("one", say("two"))

        assert [texts(ask(model)), texts(ask(model))] == ["one", "two"]

    def test_something_else_is_no_answer(self):
        """Said when the script is written."""
        with pytest.raises(TypeError, match="42 is no answer"):
            ScriptedModel(42)  # type: ignore[arg-type]

    def test_many_threads_play_one_script(self):
        """Each answer is played once."""
        model = ScriptedModel(*(f"answer {n}" for n in range(200)))

        with ThreadPoolExecutor(8) as pool:
            played = list(pool.map(lambda _: texts(ask(model)), range(200)))

        assert sorted(played) == sorted(f"answer {n}" for n in range(200))
        assert len(model.requests) == 200


class TestFinalAnswers:
    @pytest.mark.parametrize(
        ("options", "called"),
        [
            ({"tool_choice": ForcedTool(name="give_answer"), "tools": [spec("give_answer")]}, "give_answer"),
            (
                {"tool_choice": "required", "tools": [spec("add"), spec("think_final_answer")]},
                "think_final_answer",
            ),
            ({"tools": [spec("think_final_answer"), spec("think_final_answer_1")]}, "think_final_answer_1"),
        ],
    )
    def test_the_answer_goes_to_the_final_answer_tool(self, options, called):
        """A16: the forced one, or the one of that name; if the agent has such a tool too, ours comes last."""
        events = ask(ScriptedModel(answer({"label": "bug"})), **options)

        assert whole_calls(events) == [(called, '{"label": "bug"}')]

    def test_a_request_without_such_a_tool(self):
        """The error says what an answer() is for."""
        with pytest.raises(ModelError, match=r"structured turn.*offers add"):
            ask(ScriptedModel(answer({})), tools=[spec("add")])


class TestTrouble:
    def test_failures(self):
        """At once, or after some text; retryable as said."""
        model = ScriptedModel(
            fail("busy", retryable=True), [say("Hel"), fail(ModelError("no", status_code=400))]
        )

        with pytest.raises(ModelError, match="busy") as first:
            ask(model)
        events, second = [], None
        try:
            for event in model.stream(request(), AbortController().signal):
                events.append(event)
        except ModelError as error:
            second = error

        assert first.value.retryable
        assert texts(events) == "Hel"
        assert second is not None
        assert second.status_code == 400

    def test_silence_ends_with_the_signal_or_the_limit(self):
        """Like a provider that says nothing more."""
        model, controller = ScriptedModel([say("Hel"), silence()], silence()), AbortController()
        threading.Timer(0.05, controller.abort, ["enough"]).start()

        with pytest.raises(ModelAborted, match="enough"):
            list(model.stream(request(), controller.signal))
        with pytest.raises(ModelError, match=r"within 0\.1 s") as failed:
            ask(model, timeouts=limits(first_token=0.1))
        assert failed.value.retryable

    def test_an_abort_between_two_events(self):
        """No event comes after the signal."""
        controller = AbortController()
        events = ScriptedModel("Hello world").stream(request(), controller.signal)

        next(events)
        controller.abort()

        with pytest.raises(ModelAborted):
            next(events)


class TestFunctionModel:
    def test_it_answers_by_function(self):
        """With anything that a script may hold, by what was asked."""

        def respond(asked: Any) -> Any:
            text = asked.messages[-1].text
            return call("add", {"a": 1}) if text == "add" else f"You said {text}"

        model = FunctionModel(respond)

        assert texts(ask(model, user("hi"))) == "You said hi"
        assert whole_calls(ask(model, user("add"))) == [("add", '{"a": 1}')]
        assert [recorded.messages[-1].text for recorded in model.requests] == ["hi", "add"]

    def test_it_may_yield_events(self):
        """Finish is added, in keeping with what was yielded."""

        def respond(asked: Any) -> Any:
            yield TextDelta("A")
            yield ToolCallComplete(0, "c", "add", "{}")

        events = ask(FunctionModel(respond))

        assert texts(events) == "A"
        assert finish(events).reason == "tool-calls"
        assert finish(events).usage == Usage(2, 2, 4)
