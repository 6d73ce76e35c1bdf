"""Anthropic's provider: the contract, and what is its own."""

import json
import time
from typing import Any

import pytest

from tests.providers.anthropic_frames import (
    PING,
    block_delta,
    block_start,
    block_stop,
    call_block,
    call_delta,
    call_start,
    ending,
    error_event,
    event,
    message,
    message_start,
    text_block,
    text_delta,
    thinking_block,
)
from tests.providers.contract import (
    KEY,
    SOON,
    WEATHER,
    ProviderContract,
    finish,
    limits,
    reasonings,
    request,
    texts,
    whole_calls,
)
from tests.providers.server import (
    CUT_OFF,
    HANG,
    Hang,
    ModelServer,
    Piece,
    Response,
    json_response,
    stream,
)
from think_celery.domain.turns.answers import Answer
from think_celery.errors import ModelError, NoModel
from think_celery.messages import ReasoningPart, ToolPart, UIMessage, user
from think_celery.protocols import Model, ReasoningEnd, ToolCallComplete, Usage
from think_celery.providers.anthropic import AnthropicModel
from think_celery.signals import AbortController


class AnthropicWire:
    keep_alives = Hang(PING)

    def model(self, base_url: str) -> Model:
        return AnthropicModel("claude-test", api_key=KEY, base_url=base_url)

    def text(self, text: str) -> list[Piece]:
        return message(text_block(text))

    def begun(self, text: str) -> list[Piece]:
        return [message_start(), block_start(0, "text", text=""), text_delta(text)]

    def token(self, text: str) -> Piece:
        return text_delta(text)

    def ending(self) -> list[Piece]:
        return [block_stop(0), *ending()]

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> list[Piece]:
        return message(*(call_block(at, *call) for at, call in enumerate(calls)), reason="tool_use")

    def mixed(self, reasoning: str, text: str, *calls: tuple[str, dict[str, Any]]) -> list[Piece]:
        written = [json.dumps(given, ensure_ascii=False) for _, given in calls]
        taking_turns: list[Piece] = [
            *(call_start(at + 2, name, f"toolu_{at}") for at, (name, _) in enumerate(calls)),
            *(call_delta(at + 2, given[:8]) for at, given in enumerate(written)),
            PING,
            *(call_delta(at + 2, given[8:]) for at, given in enumerate(written)),
            *(block_stop(at + 2) for at in range(len(calls))),
        ]
        blocks = [thinking_block(reasoning), text_block(text, 1), taking_turns]
        return message(*blocks, reason="tool_use")

    def error(self, message: str, *, retryable: bool) -> Piece:
        return error_event("overloaded_error" if retryable else "invalid_request_error", message)

    def refusal(self, status: int, message: str, **headers: str) -> Response:
        return json_response(
            {"type": "error", "error": {"type": "mock_error", "message": message}}, status, **headers
        )

    def forced_tool(self, body: Any) -> str | None:
        choice = body["tool_choice"]
        return choice["name"] if choice["type"] == "tool" else None

    def offered_tools(self, body: Any) -> list[str]:
        return [tool["name"] for tool in body["tools"]]


class TestContract(ProviderContract):
    """Anthropic passes the suite that every provider passes."""

    wire = AnthropicWire()
    every = 3  # its wire is wordy


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def model(server) -> AnthropicModel:
    return AnthropicModel("claude-test", api_key=KEY, base_url=server.base_url)


def ask(model: Model, *messages: UIMessage, **options: Any) -> list[Any]:
    return list(model.stream(request(*messages, **options), AbortController().signal))


def taken_in(events: list[Any]) -> UIMessage:
    """The assistant's message that a turn would store of these events."""
    answer = Answer()
    answer.begin_step()
    for each in events:
        answer.feed(each)
    for call in answer.end_step():
        call.state, call.output = "output-available", "sunny"
    stored = UIMessage(role="assistant", parts=answer.parts)
    return UIMessage.model_validate(json.loads(json.dumps(stored.to_dict())))


class TestStream:
    def test_what_an_answer_cost_that_never_became_whole(self, server, model):
        """B27: what was read is told at the beginning, and stays with the error."""
        server.script([message_start(read=7), block_start(0, "text", text=""), CUT_OFF])

        with pytest.raises(ModelError) as failed:
            list(model.stream(request(), AbortController().signal))

        assert failed.value.usage.input_tokens == 7

    def test_pings_are_nothing(self, server, model):
        """FR-78: a ping may come between any two events."""
        pieces = [piece for each in message(text_block("Hello you")) for piece in (PING, each)]
        server.script(pieces)

        assert texts(ask(model)) == "Hello you"

    @pytest.mark.parametrize(
        ("fragments", "arguments"),
        [(["", '{"a"', ":1}"], '{"a":1}'), ([], "{}"), ([""], "{}"), (["{}"], "{}")],
    )
    def test_arguments_in_fragments(self, server, model, fragments, arguments):
        """FR-78: fragments are joined at the end; none at all mean {}."""
        block = [call_start(0, "now", "toolu_1"), *(call_delta(0, each) for each in fragments), block_stop(0)]
        server.script(message(block, reason="tool_use"))

        assert whole_calls(ask(model)) == [("now", arguments)]

    def test_arguments_that_come_whole(self, server, model):
        """Servers that only speak almost the same send the object with the block's beginning."""
        block = [block_start(0, "tool_use", id="toolu_1", name="w", input={"city": "Oslo"}), block_stop(0)]
        server.script(message(block, reason="tool_use"))

        assert whole_calls(ask(model)) == [("w", '{"city": "Oslo"}')]

    def test_the_stream_ends_with_message_stop(self, server, model):
        """FR-78: a reason for the end is not the end; a connection that closes before message_stop failed."""
        whole = message(text_block("Hello"))
        server.script(stream(*whole[:-1]), stream(*whole[:-1], CUT_OFF), stream(*whole, HANG))

        for _ in range(2):
            with pytest.raises(ModelError) as failed:
                ask(model)
            assert failed.value.retryable
        began = time.monotonic()
        assert texts(ask(model)) == "Hello"
        assert time.monotonic() - began < SOON

    @pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error", "timeout_error"])
    def test_errors_that_pass(self, server, model, kind):
        """FR-78: an error event in mid-stream is a failure, and these are worth another try."""
        server.script([*message(text_block("Hel"))[:3], error_event(kind, "no luck")])

        with pytest.raises(ModelError, match="no luck") as failed:
            ask(model)
        assert failed.value.retryable

    @pytest.mark.parametrize(
        "kind",
        [
            "invalid_request_error",
            "authentication_error",
            "billing_error",
            "permission_error",
            "request_too_large",
        ],
    )
    def test_errors_that_stay(self, server, model, kind):
        """FR-78: these would come again."""
        server.script([message_start(), error_event(kind, "no luck")])

        with pytest.raises(ModelError, match="no luck") as failed:
            ask(model)
        assert not failed.value.retryable

    @pytest.mark.parametrize(
        ("raw", "ours"),
        [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("refusal", "content-filter"),
            ("pause_turn", "other"),
            ("something_new", "other"),
            (None, "unknown"),
        ],
    )
    def test_reasons(self, server, model, raw, ours):
        """The provider's word is kept beside ours."""
        server.script(message(text_block("Hello"), reason=raw))

        ended = finish(ask(model))

        assert (ended.reason, ended.raw_reason) == (ours, raw)

    def test_a_call_that_was_cut_short_is_not_a_whole_one(self, server, model):
        """FR-72: at the limit of length half-written arguments never become a call."""
        cut = [call_start(1, "w", "toolu_2"), call_delta(1, '{"city":"Ro'), block_stop(1)]
        server.script(message(call_block(0, "w", {"city": "Oslo"}), cut, reason="max_tokens"))

        events = ask(model)

        assert whole_calls(events) == [("w", '{"city": "Oslo"}')]
        assert finish(events).reason == "length"

    def test_usage_counts_what_was_cached(self, server, model):
        """All that was read counts as input; the last count of what was written holds."""
        start = message_start(3, cache_read_input_tokens=100, cache_creation_input_tokens=20)
        server.script([start, *text_block("Hello"), *ending(written=5)])

        assert finish(ask(model)).usage == Usage(123, 5, 128, cache_read_tokens=100, cache_write_tokens=20)

    def test_an_answer_as_one_json_body(self, server, model):
        """FR-77: a server that ignores `stream` answers with one body."""
        blocks = [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "toolu_1", "name": "w", "input": {"city": "Oslo"}},
        ]
        body = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use"}
        server.script(json_response({**body, "usage": {"input_tokens": 3, "output_tokens": 5}}))

        events = ask(model)

        assert (texts(events), reasonings(events)) == ("Hello", "hm")
        assert whole_calls(events) == [("w", '{"city": "Oslo"}')]
        assert finish(events).usage == Usage(3, 5, 8)

    @pytest.mark.parametrize(
        ("body", "text"),
        [({"hello": "world"}, "no message"), ({"type": "error", "error": {"message": "busy"}}, "busy")],
    )
    def test_other_bodies_are_errors(self, server, model, body, text):
        """FR-77: JSON of another service, or an error under HTTP 200, is no empty success."""
        server.script(json_response(body))

        with pytest.raises(ModelError, match=text):
            ask(model)

    def test_a_piece_of_a_block_that_has_not_begun(self, server, model):
        """A lost event is a failed attempt, never a guess."""
        server.script([message_start(), text_delta("lo", index=4), *ending()])

        with pytest.raises(ModelError, match="had not begun") as failed:
            ask(model)
        assert failed.value.retryable

    def test_what_is_not_known_here_is_let_be(self, server, model):
        """Later versions may send events, deltas and blocks of new kinds."""
        search = [
            block_start(0, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
            call_delta(0, '{"query":'),
            call_delta(0, ' "fox"}'),
            block_stop(0),
        ]
        news = [block_delta(1, "citations_delta", citation={"url": "x"})]
        text = text_block("Hello", 1)
        server.script(message(search, [event("new_event", x=1)], [*text[:1], *news, *text[1:]]))

        events = ask(model)

        assert texts(events) == "Hello"
        kept = next(each for each in events if isinstance(each, ReasoningEnd)).metadata
        assert next(iter(kept.values()))["block"]["input"] == {"query": "fox"}


class TestEcho:
    def echo(self, server: ModelServer, model: Model, asked: Model, *blocks: list[Piece]) -> list[Any]:
        """What *asked* is sent of an answer of *model* that has these blocks."""
        server.script(message(*blocks, reason="tool_use"), message(text_block("Fine")))
        stored = taken_in(ask(model, tools=[WEATHER]))
        ask(asked, user("Hello"), stored, user("And now?"), tools=[WEATHER])
        return [each["content"] for each in server.requests[1]["messages"] if each["role"] == "assistant"]

    BLOCKS = (
        thinking_block("hm hm", "sig-1", 0),
        [block_start(1, "redacted_thinking", data="secret=="), block_stop(1)],
        thinking_block("so", "sig-2", 2),
        text_block("Let me see.", 3),
        call_block(4, "weather", {"city": "Oslo"}),
    )

    def test_thinking_goes_back_as_it_came(self, server, model):
        """FR-83: each block with its signature, secret ones too, in their order, before the text and the call."""
        (sent,) = self.echo(server, model, model, *self.BLOCKS)

        assert sent == [
            {"type": "thinking", "thinking": "hm hm", "signature": "sig-1"},
            {"type": "redacted_thinking", "data": "secret=="},
            {"type": "thinking", "thinking": "so", "signature": "sig-2"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_4", "name": "weather", "input": {"city": "Oslo"}},
        ]

    def test_another_provider_gets_none_of_it(self, server, model):
        """FR-83: signatures are the provider's own; after a switch neither they nor the thinking are sent."""
        other = AnthropicModel("claude-test", api_key=KEY, base_url=server.base_url, provider="other")

        (sent,) = self.echo(server, model, other, *self.BLOCKS)

        assert [block["type"] for block in sent] == ["text", "tool_use"]

    def test_it_can_be_switched_off(self, server, model):
        """FR-83: for a server that refuses it."""
        silent = AnthropicModel("claude-test", api_key=KEY, base_url=server.base_url, echo=False)

        (sent,) = self.echo(server, model, silent, *self.BLOCKS)

        assert [block["type"] for block in sent] == ["text", "tool_use"]

    def test_thinking_is_never_visible_text(self, server, model):
        """FR-83: its parts are reasoning; secret thinking is a part without a text."""
        server.script(message(*self.BLOCKS, reason="tool_use"))

        stored = taken_in(ask(model))

        assert stored.text == "Let me see."
        assert [part.text for part in stored.parts if isinstance(part, ReasoningPart)] == ["hm hm", "", "so"]

    def test_fields_of_a_call_that_nobody_here_knows(self, server, model):
        """FR-83: they are kept with the call and go back with it."""
        block = [
            block_start(0, "tool_use", id="toolu_1", name="weather", input={}, caller={"type": "direct"}),
            block_stop(0),
        ]

        (sent,) = self.echo(server, model, model, block)

        assert sent[0]["caller"] == {"type": "direct"}


class TestTheRequest:
    def test_what_is_sent(self, server):
        """The key and the version in the vendor's headers, our own headers, and more fields as given."""
        model = AnthropicModel(
            "claude-test",
            api_key=f" {KEY}\n",
            base_url=server.base_url.removesuffix("/v1") + "/",
            headers={"anthropic-beta": "x-1"},
            extra={"top_k": 4},
        )
        server.script(message(text_block("Hello")))

        ask(model)

        seen = server.seen[0]
        assert seen.path == "/v1/messages"
        assert (seen.headers["x-api-key"], seen.headers["anthropic-version"]) == (KEY, "2023-06-01")
        assert seen.headers["anthropic-beta"] == "x-1"
        assert "authorization" not in seen.headers
        assert (seen.body["model"], seen.body["stream"], seen.body["top_k"]) == ("claude-test", True, 4)
        assert seen.body["max_tokens"] == 8192
        assert seen.body["system"] == "Be brief."
        assert not seen.body.keys() & {"tools", "tool_choice", "temperature"}

    @pytest.mark.parametrize("url", ["", "api.example.com", "ftp://example.com"])
    def test_an_address_that_is_none(self, url):
        """Said when the model is made, with an address as it should be."""
        with pytest.raises(NoModel, match=r"https://api\.anthropic\.com"):
            AnthropicModel("m", api_key=KEY, base_url=url)

    def test_an_option_that_is_the_engines(self):
        """Said when the model is made: the field, and what to do instead."""
        with pytest.raises(NoModel, match=r"'stream' can't be set.*always streamed"):
            AnthropicModel("m", api_key=KEY, extra={"stream": False})

    def test_a_call_that_a_turn_can_store(self, server, model):
        """What comes is what `ToolCallComplete` carries, with the provider's id."""
        server.script(message(call_block(0, "weather", {"city": "Oslo"}, "toolu_9"), reason="tool_use"))

        (call,) = [each for each in ask(model) if isinstance(each, ToolCallComplete)]
        stored = taken_in([call]).parts[-1]

        assert isinstance(stored, ToolPart)
        assert (call.tool_call_id, stored.tool_call_id) == ("toolu_9", "toolu_9")

    def test_an_answer_that_stays_silent_after_its_reason(self, server, model):
        """FR-78, FR-81: without message_stop it fails at the limit between tokens; it never hangs."""
        server.script([*message(text_block("Hello"))[:-1], HANG])

        with pytest.raises(ModelError, match="no token came") as failed:
            ask(model, timeouts=limits(token_gap=0.2))
        assert failed.value.retryable
