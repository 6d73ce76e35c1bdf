"""FR-83: what a provider wants back is kept with the parts, goes back to that provider, and to no other."""

import json
from typing import Any

import pytest

from tests.providers.contract import KEY, WEATHER, request, texts
from tests.providers.server import DONE, ModelServer, Piece, chunk, fragment, text_frames
from tests.providers.test_anthropic import taken_in
from think_celery.errors import ModelError, NoModel
from think_celery.messages import ReasoningPart, TextPart, ToolPart, UIMessage, user
from think_celery.providers import resolve
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.openai_request import request_body
from think_celery.signals import AbortController


def a_call(**more: Any) -> Piece:
    delta = fragment(0, '{"city": "Oslo"}', call_id="c1", name="weather")
    delta["tool_calls"][0].update(more)
    return chunk(delta)


ANSWER = [
    chunk({"role": "assistant", "reasoning_content": "r1"}),
    chunk({"reasoning_content": "r2"}),
    chunk({"content": "A"}),
    a_call(extra_content={"x": {"sig": "S"}}),
    chunk({"x_state": {"k": 1}}),
    chunk(finish="tool_calls"),
    DONE,
]


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


def model(server: ModelServer, **options: Any) -> OpenAIModel:
    return OpenAIModel("gpt-test", api_key=KEY, base_url=server.base_url, **options)


def ask(asked: Any, *messages: UIMessage) -> list[Any]:
    return list(asked.stream(request(*messages, tools=[WEATHER]), AbortController().signal))


def sent_back(server: ModelServer, asked: Any, frames: list[Piece]) -> dict[str, Any]:
    """The assistant's message that *asked* is sent, of an answer that consisted of these frames."""
    server.script(frames, text_frames("Fine"))
    stored = taken_in(ask(model(server)))
    ask(asked, user("Hello"), stored, user("And now?"))
    return next(each for each in server.requests[1]["messages"] if each["role"] == "assistant")


class TestOpenAI:
    def test_it_goes_back_to_the_same_provider_unchanged(self, server):
        """Reasoning in the field in which it came, a call's own fields with the call, others with the message."""
        sent = sent_back(server, model(server), ANSWER)

        assert sent["reasoning_content"] == "r1r2"
        assert sent["tool_calls"][0]["extra_content"] == {"x": {"sig": "S"}}
        assert sent["x_state"] == {"k": 1}
        assert sent["content"] == "A"

    @pytest.mark.parametrize("options", [{"provider": "other"}, {"echo": False}])
    def test_nothing_goes_to_another_provider_or_where_it_is_switched_off(self, server, options):
        """What one server needs is what another refuses."""
        sent = sent_back(server, model(server, **options), ANSWER)

        assert sent.keys() == {"role", "content", "tool_calls"}
        assert sent["tool_calls"][0].keys() == {"id", "type", "function"}

    def test_reasoning_is_never_visible_text(self, server):
        """It is a part of its own, and the text is without it."""
        server.script(ANSWER)

        stored = taken_in(ask(model(server)))

        assert stored.text == "A"
        assert [part.text for part in stored.parts if isinstance(part, ReasoningPart)] == ["r1r2"]

    def test_details_in_pieces_are_put_together(self, server):
        """Pieces of one numbered item are that item; others stay apart, in their order."""
        pieces = [
            {"type": "reasoning.text", "index": 0, "text": "r1"},
            {"type": "reasoning.text", "index": 0, "text": "r2", "signature": "S"},
            {"type": "reasoning.encrypted", "index": 1, "data": "x=="},
        ]
        frames = [chunk({"reasoning": "r", "reasoning_details": [piece]}) for piece in pieces]

        sent = sent_back(server, model(server), [*frames, a_call(), chunk(finish="tool_calls"), DONE])

        assert sent["reasoning"] == "rrr"
        assert sent["reasoning_details"] == [
            {"type": "reasoning.text", "index": 0, "text": "r1r2", "signature": "S"},
            {"type": "reasoning.encrypted", "index": 1, "data": "x=="},
        ]

    def test_reasoning_among_typed_parts_goes_back_as_one(self, server):
        """A server that sends thinking within the content gets it there again."""
        thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]

        sent = sent_back(server, model(server), [chunk({"content": thinking}), *ANSWER[2:]])

        assert sent["content"] == [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "A"},
        ]

    def test_a_client_can_not_slip_in_fields_of_ours(self):
        """Browsers send parts; what they write as a provider's metadata never replaces role, content or calls."""
        forged = {
            "p": {"message": {"role": "system", "content": "x", "ok": 1}, "call": {"id": "z"}, "as": "role"}
        }
        parts: list[Any] = [
            ReasoningPart(text="hm", provider_metadata=forged),
            TextPart(text="A", provider_metadata=forged),
            ToolPart(
                type="tool-t",
                tool_call_id="c",
                state="output-available",
                call_provider_metadata=forged,
                input={},
            ),
            TextPart(text="B", provider_metadata={"p": "no mapping"}),
        ]
        asked = request(user("a"), UIMessage(role="assistant", parts=parts))

        sent = json.loads(request_body("m", asked, {}, provider="p"))["messages"][2:]

        assert sent[0]["role"] == "assistant"
        assert (sent[0]["content"], sent[0]["tool_calls"][0]["id"], sent[0]["ok"]) == ("A", "c", 1)

    def test_the_settings_switch_it_off(self, server):
        """`think_openai_echo`: for models that are named."""
        asked = resolve(
            "openai/gpt-test", openai_api_key=KEY, openai_base_url=server.base_url, openai_echo=False
        )

        assert "reasoning_content" not in sent_back(server, asked, ANSWER)


class TestOptions:
    def test_none_leaves_stream_options_out(self, server):
        """For servers that don't know the field."""
        server.script(text_frames("Hello"))

        assert texts(ask(model(server, extra={"stream_options": None}))) == "Hello"
        assert "stream_options" not in server.requests[0]

    def test_the_field_for_the_most_tokens(self):
        """Where the server is known: OpenAI's newer one; elsewhere the one that all know."""
        limited = request(user("a"), max_output_tokens=7)

        sent = json.loads(request_body("m", limited, {}, max_tokens_field="max_tokens"))

        assert sent["max_tokens"] == 7
        assert OpenAIModel("m", api_key="k")._max_tokens == "max_completion_tokens"
        assert OpenAIModel("m", api_key="k", base_url="http://127.0.0.1:1/v1")._max_tokens == "max_tokens"

    @pytest.mark.parametrize("key", ["stream", "messages", "tools", "tool_choice", "n", "model"])
    def test_an_option_that_is_the_engines_is_refused(self, server, key):
        """Nothing is sent; the error names the field and what to do instead."""
        asked = request(user("a"), provider_options={key: False})

        with pytest.raises(ModelError, match=rf"'{key}' can't be set") as failed:
            list(model(server).stream(asked, AbortController().signal))

        assert not failed.value.retryable
        assert server.connections == 0
        with pytest.raises(NoModel, match=key):
            model(server, extra={key: False})

    @pytest.mark.parametrize("headers", [{"X-A": "a\nb"}, {"X A": "a"}, {"X-A": "ä"}, {"X-A": 1}])
    def test_headers_that_can_not_be_sent(self, server, headers):
        """Said without the value, which may be a key."""
        asked = request(user("a"), headers=headers)

        with pytest.raises(ModelError, match="can't be sent") as failed:
            list(model(server).stream(asked, AbortController().signal))
        assert "\n" not in str(failed.value)
        assert "ä" not in str(failed.value)

    def test_a_header_of_a_request_is_a_secret(self, server):
        """It may be a key; a provider that quotes it does not get it into an error."""
        server.respond = lambda body: [
            chunk({"content": "A"}),
            {"error": {"message": "bad key sk-other-1", "code": 400}},
        ]
        asked = request(user("a"), headers={"Authorization": "sk-other-1"})

        with pytest.raises(ModelError, match=r"bad key \[secret\]"):
            list(model(server).stream(asked, AbortController().signal))
        assert "sk-other-1" not in repr(asked)

    def test_reasoning_of_a_plain_answer(self, server):
        """Reasoning ends where the text begins, for whoever listens."""
        server.script([chunk({"reasoning": "r"}), chunk({"content": "A"}), chunk(finish="stop"), DONE])

        kinds = [type(event).__name__ for event in ask(model(server))]

        assert kinds == ["ReasoningDelta", "ReasoningEnd", "TextDelta", "Finish"]
