"""The conversation in Anthropic's wire format."""

import json
from typing import Any

import pytest

from think_celery.errors import ModelError
from think_celery.messages import (
    FilePart,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    UIMessage,
    system,
    user,
)
from think_celery.protocols import ForcedTool, ModelRequest, ToolSpec
from think_celery.providers.anthropic_request import BEGUN_BEFORE, GO_ON, request_body, wire_messages

SPEC = ToolSpec(name="add", description="Add.", parameters={"type": "object"})


def tool(call_id: str = "c1", name: str = "add", given: Any = None, **more: Any) -> ToolPart:
    more = more or {"state": "output-available", "output": 3}
    return ToolPart(type=f"tool-{name}", tool_call_id=call_id, input=given, **more)


def assistant(*parts: Any) -> UIMessage:
    return UIMessage(role="assistant", parts=list(parts))


def wire(*messages: UIMessage) -> list[tuple[str, list[dict[str, Any]]]]:
    sent = wire_messages(ModelRequest(system=None, messages=messages))
    return [(each["role"], each["content"]) for each in sent]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def called(call_id: str, given: Any = None, name: str = "add") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given or {}}


def result(call_id: str, content: str | None, **more: Any) -> dict[str, Any]:
    said = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": call_id, **said, **more}


class TestMessages:
    def test_roles_alternate(self):
        """Messages of one role in a row are one message."""
        assert wire(
            user("a"), user("b"), assistant(TextPart(text="c")), assistant(TextPart(text="d")), user("e")
        ) == [
            ("user", [text("a"), text("b")]),
            ("assistant", [text("c"), text("d")]),
            ("user", [text("e")]),
        ]

    def test_the_user_begins_and_has_the_last_word(self):
        """An assistant's message at either end is framed by the user's: models refuse to go on inside their own."""
        assert wire(assistant(TextPart(text="Welcome"))) == [
            ("user", [text(BEGUN_BEFORE)]),
            ("assistant", [text("Welcome")]),
            ("user", [text(GO_ON)]),
        ]

    def test_results_stand_first_in_the_next_message_of_the_user(self):
        """Each step is a message; its results follow at once, before what the user says next."""
        message = assistant(
            StepStartPart(),
            TextPart(text="Let me see."),
            tool("c1", given={"a": 1}),
            tool("c2", state="output-error", error_text="no such number"),
            StepStartPart(),
            tool("c3", state="output-available", output={"ä": [1]}),
        )

        assert wire(user("Add"), message, user("Thanks")) == [
            ("user", [text("Add")]),
            ("assistant", [text("Let me see."), called("c1", {"a": 1}), called("c2")]),
            ("user", [result("c1", "3"), result("c2", "Error: no such number", is_error=True)]),
            ("assistant", [called("c3")]),
            ("user", [result("c3", '{"ä": [1]}'), text("Thanks")]),
        ]

    def test_no_blank_text(self):
        """Blocks of text that are empty or blank are refused by the vendor, and say nothing."""
        message = assistant(
            StepStartPart(), TextPart(text=""), tool("c1", state="output-available", output=" ")
        )
        blank = UIMessage(role="user", parts=[TextPart(text=" \n"), TextPart(text="b")])

        assert wire(blank, message, user("c")) == [
            ("user", [text("b")]),
            ("assistant", [called("c1")]),
            ("user", [result("c1", None), text("c")]),
        ]

    def test_reasoning_without_a_signature_is_left_out(self):
        """So is a step of reasoning alone."""
        thought = ReasoningPart(text="hm")

        assert wire(user("a"), assistant(thought, TextPart(text="b")), assistant(thought), user("c")) == [
            ("user", [text("a")]),
            ("assistant", [text("b")]),
            ("user", [text("c")]),
        ]

    def test_nothing_to_answer(self):
        """A request without a message is refused here, with a reason."""
        with pytest.raises(ModelError, match="nothing to answer"):
            wire(assistant(StepStartPart()))

    def test_a_call_without_a_result_is_refused(self):
        """The vendor would refuse it each time; the error names the call."""
        with pytest.raises(ModelError, match="'c1' of 'add' has no result"):
            wire(user("a"), assistant(tool("c1", given={}, state="input-available")))

    @pytest.mark.parametrize(
        ("given", "sent"),
        [
            (None, {}),
            ("", {}),
            ({"a": 1}, {"a": 1}),
            ('{"a": 1}', {"a": 1}),
            ('{"a"', {"raw": '{"a"'}),
            ([1], {"raw": [1]}),
        ],
    )
    def test_arguments_are_always_an_object(self, given, sent):
        """FR-73: what the model wrote wrongly once must not make every later request fail."""
        assert wire(user("a"), assistant(tool(given=given)))[1][1][0]["input"] == sent

    def test_ids_are_unique_and_of_the_form_that_is_taken(self):
        """FR-70: one id twice is sent as two; another provider's id is replaced, always by the same."""
        messages = [user("a"), assistant(tool("call_0")), user("b"), assistant(tool("call_0"))]
        foreign = [user("a"), assistant(tool("fc:1/ü"))]

        ids = [block["id"] for role, blocks in wire(*messages) if role == "assistant" for block in blocks]
        sent = [wire(*foreign) for _ in range(2)]

        assert ids == ["call_0", "call_0_2"]
        assert sent[0] == sent[1]
        assert sent[0][1][1][0]["id"].isidentifier()
        assert sent[0][2][1][0]["tool_use_id"] == sent[0][1][1][0]["id"]

    def test_files(self):
        """Pictures, PDFs and texts as what they are; what can't be sent is told, not left out silently."""
        parts = [
            FilePart(media_type="image/png", url="data:image/png;base64,AA=="),
            FilePart(media_type="image/jpeg", url="https://example.com/a.jpg"),
            FilePart(media_type="application/pdf", url="data:application/pdf;base64,AA==", filename="a.pdf"),
            FilePart(media_type="text/csv", url="data:text/csv,a%2Cb", filename="a.csv"),
            FilePart(media_type="application/zip", url="data:application/zip;base64,AA==", filename="a.zip"),
            FilePart(media_type="text/csv", url="https://example.com/a.csv"),
            FilePart(media_type="image/png", url="data:image/png;base64,?"),
        ]

        ((_, blocks),) = wire(UIMessage(role="user", parts=parts))

        png = {"type": "base64", "media_type": "image/png", "data": "AA=="}
        pdf = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
        csv = {"type": "text", "media_type": "text/plain", "data": "a,b"}
        assert blocks[:4] == [
            {"type": "image", "source": png},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}},
            {"type": "document", "source": pdf, "title": "a.pdf"},
            {"type": "document", "source": csv, "title": "a.csv"},
        ]
        assert [block["text"] for block in blocks[4:]] == [
            "[a.zip (application/zip): its content can't be sent to this model]",
            "[file (text/csv): https://example.com/a.csv]",
            "[file (image/png): its content can't be sent to this model]",
        ]


class TestTheBody:
    def body(self, *messages: UIMessage, extra: Any = None, **options: Any) -> Any:
        request = ModelRequest(messages=messages or [user("x")], **{"system": None, **options})
        return json.loads(request_body("m", request, extra or {}, max_tokens=1000))

    def test_the_system_prompt_and_system_messages(self):
        """The format has one place for them."""
        assert (
            self.body(system("Be kind."), user("x"), system="Be brief.")["system"] == "Be brief.\n\nBe kind."
        )

    def test_tools_and_their_choice(self):
        """Each spelling of the choice; without tools there is none."""
        choices = ["auto", "required", "none", ForcedTool(name="add")]

        bodies = [self.body(tools=[SPEC], tool_choice=choice) for choice in choices]

        assert bodies[0]["tools"] == [
            {"name": "add", "description": "Add.", "input_schema": {"type": "object"}}
        ]
        assert [body["tool_choice"] for body in bodies] == [
            {"type": "auto"},
            {"type": "any"},
            {"type": "none"},
            {"type": "tool", "name": "add"},
        ]
        assert not self.body().keys() & {"tools", "tool_choice"}

    def test_a_conversation_with_calls_names_their_tools(self):
        """Without tools the vendor refuses such a conversation; none of them can be called."""
        body = self.body(user("a"), assistant(tool("c1", "old")))

        assert [each["name"] for each in body["tools"]] == ["old"]
        assert body["tool_choice"] == {"type": "none"}

    def test_thinking_comes_on_top_and_not_with_a_forced_tool(self):
        """Its budget counts as output; the vendor refuses it together with a forced call."""
        thinking = {"type": "enabled", "budget_tokens": 400}
        forced = self.body(tools=[SPEC], tool_choice="required", extra={"thinking": thinking})

        assert self.body(extra={"thinking": thinking})["max_tokens"] == 1400
        assert self.body(tools=[SPEC], extra={"thinking": thinking})["thinking"] == thinking
        assert "thinking" not in forced

    def test_options(self):
        """A request's own win over the model's; those for other providers are not sent."""
        options = {"top_k": 5, "anthropic": {"top_p": 0.5}, "openai": {"seed": 1}}

        body = self.body(extra={"top_k": 4, "max_tokens": 9}, temperature=0.0, provider_options=options)

        assert (body["top_k"], body["top_p"], body["max_tokens"], body["temperature"]) == (5, 0.5, 9, 0.0)
        assert "seed" not in body

    @pytest.mark.parametrize(
        "options", [{"messages": []}, {"anthropic": {"stream": False}}, {"tool_choice": 1}]
    )
    def test_an_option_that_is_the_engines_is_refused(self, options):
        """A field that the engine relies on is never replaced silently."""
        with pytest.raises(ModelError, match="can't be set") as failed:
            self.body(provider_options=options)
        assert not failed.value.retryable
