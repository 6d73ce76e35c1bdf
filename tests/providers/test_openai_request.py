"""The conversation in OpenAI's wire format."""

import json
import math
from typing import Any

import pytest

from think_celery.errors import ModelError
from think_celery.messages import (
    FilePart,
    OtherPart,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    UIMessage,
    system,
    user,
)
from think_celery.protocols import ForcedTool, ModelRequest, ToolSpec
from think_celery.providers.openai_request import request_body, wire_messages


def tool(call_id: str = "c1", name: str = "add", given: Any = None, **more: Any) -> ToolPart:
    more = more or {"state": "output-available", "output": 3}
    return ToolPart(type=f"tool-{name}", tool_call_id=call_id, input=given, **more)


def assistant(*parts: Any) -> UIMessage:
    return UIMessage(role="assistant", parts=list(parts))


def wire(*messages: UIMessage, prompt: str | None = None) -> list[dict[str, Any]]:
    return wire_messages(ModelRequest(system=prompt, messages=messages))


def called(call_id: str, arguments: str = "{}", name: str = "add") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class TestMessages:
    def test_system_and_user(self):
        """The prompt first; a plain text stays a plain text, for every server takes one."""
        two_texts = UIMessage(role="user", parts=[TextPart(text="a"), TextPart(text="b")])

        assert wire(system("Be kind."), user("Hi"), two_texts, prompt="Be brief.") == [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": "a\nb"},
        ]

    def test_files(self):
        """Pictures as image_url, other data as a file, other links as text: nothing is left out silently."""
        picture = FilePart(media_type="image/png", url="data:image/png;base64,AA==")
        paper = FilePart(
            media_type="application/pdf", url="data:application/pdf;base64,AA==", filename="a.pdf"
        )
        link = FilePart(media_type="text/csv", url="https://example.com/a.csv")
        message = UIMessage(role="user", parts=[TextPart(text="See"), picture, paper, link])

        assert wire(message)[0]["content"] == [
            {"type": "text", "text": "See"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
            {"type": "text", "text": "[file (text/csv): https://example.com/a.csv]"},
        ]

    def test_what_has_nothing_to_say_is_left_out(self):
        """Servers refuse empty messages: data parts alone, an empty step, reasoning alone."""
        data = UIMessage(role="user", parts=[OtherPart(type="data-x")])

        assert wire(data, assistant(StepStartPart(), ReasoningPart(text="hm")), system("")) == []

    def test_each_step_becomes_its_own_messages(self):
        """Each call is followed at once by its result; the next step comes after all results."""
        message = assistant(
            StepStartPart(),
            ReasoningPart(text="hm"),
            TextPart(text="Let me "),
            TextPart(text="see."),
            tool("c1", given={"a": 1}),
            tool("c2", state="output-error", error_text="no such number"),
            StepStartPart(),
            TextPart(text="It is 3."),
        )

        assert wire(message) == [
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [called("c1", '{"a": 1}'), called("c2")],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "tool", "tool_call_id": "c2", "content": "Error: no such number"},
            {"role": "assistant", "content": "It is 3."},
        ]

    def test_text_after_a_call_where_no_steps_are_marked(self):
        """Transcripts of other origin: what follows a result answers it."""
        assert wire(assistant(tool("c1"), TextPart(text="It is 3."))) == [
            {"role": "assistant", "content": None, "tool_calls": [called("c1")]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "assistant", "content": "It is 3."},
        ]

    def test_a_call_without_a_result_is_refused(self):
        """Servers would refuse the request, each time; the error names the call."""
        with pytest.raises(ModelError, match="'c1' of 'add' has no result") as failed:
            wire(assistant(tool("c1", given={}, state="input-available")))
        assert not failed.value.retryable


class TestToolCalls:
    @pytest.mark.parametrize(
        ("given", "sent"),
        [
            (None, "{}"),
            ("", "{}"),
            (" ", "{}"),
            ({}, "{}"),
            ({"ä": 1}, '{"ä": 1}'),
            ('{"a": 1}', '{"a": 1}'),
            ('{"a": ', '{"raw": "{\\"a\\": "}'),
            ([1], '{"raw": [1]}'),
            ({"x": math.nan}, '{"x": "NaN"}'),
        ],
    )
    def test_arguments_are_always_the_json_text_of_an_object(self, given, sent):
        """FR-73: what the model wrote wrongly once must not make every later request fail."""
        assert wire(assistant(tool(given=given)))[0]["tool_calls"][0]["function"]["arguments"] == sent

    @pytest.mark.parametrize(
        ("output", "sent"),
        [
            ("text", "text"),
            ({"ä": [1]}, '{"ä": [1]}'),
            (None, "null"),
            ([math.inf], '["Infinity"]'),
            (True, "true"),
        ],
    )
    def test_results_are_texts(self, output, sent):
        """A text as it is, all else as JSON."""
        assert wire(assistant(tool(state="output-available", output=output)))[1]["content"] == sent

    def test_ids_are_unique_within_a_request(self):
        """FR-70: a transcript with one id twice is sent with two, each result with its own call's."""
        first, second = assistant(tool("call_0", given={"n": 1})), assistant(tool("call_0", given={"n": 2}))

        sent = wire(first, user("again"), second)

        assert [message["tool_calls"][0]["id"] for message in sent if "tool_calls" in message] == [
            "call_0",
            "call_0_2",
        ]
        assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == [
            "call_0",
            "call_0_2",
        ]

    def test_ids_of_another_provider_may_be_too_long(self):
        """OpenAI takes 40 characters; a longer one is replaced, always by the same."""
        long_id = "chatcmpl-tool-0123456789abcdef0123456789abcdef"

        sent = [wire(assistant(tool(long_id))) for _ in range(2)]

        assert sent[0] == sent[1]
        assert len(sent[0][0]["tool_calls"][0]["id"]) <= 40
        assert sent[0][0]["tool_calls"][0]["id"] == sent[0][1]["tool_call_id"]


class TestTheBody:
    def test_tools_and_their_choice(self):
        """Each spelling of the choice; without tools there is none."""
        spec = ToolSpec(name="add", description="Add.", parameters={"type": "object"})
        choices = ["auto", "required", "none", ForcedTool(name="add")]

        def body(**options: Any) -> Any:
            return json.loads(
                request_body("m", ModelRequest(system=None, messages=[user("x")], **options), {})
            )

        bodies = [body(tools=[spec], tool_choice=choice) for choice in choices]

        described = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
        assert bodies[0]["tools"] == [{"type": "function", "function": described}]
        assert [body["tool_choice"] for body in bodies] == [
            "auto",
            "required",
            "none",
            {"type": "function", "function": {"name": "add"}},
        ]
        assert "tool_choice" not in body()

    def test_it_is_valid_utf8_and_valid_json(self):
        """FR-37: a lone surrogate is replaced, a pair joined, NaN is a text, wherever they stand."""
        part = tool(state="output-available", output="x")
        part.output = {"a": "b\ud83c", "c\ud83c\udf78": math.nan}
        request = ModelRequest(system="\udf78", messages=[assistant(part)])

        body = json.loads(request_body("m", request, {"seed": math.nan}).decode("utf-8"))

        assert body["messages"][0]["content"] == "\ufffd"
        assert json.loads(body["messages"][2]["content"]) == {"a": "b\ufffd", "c\U0001f378": "NaN"}
        assert body["seed"] == "NaN"
