"""OpenAI's provider: the contract, and the quirks of servers that speak almost the same."""

import json
import multiprocessing
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from tests.providers.contract import (
    KEY,
    SOON,
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
    DONE,
    HANG,
    KEEP_ALIVES,
    Delay,
    Hang,
    ModelServer,
    Piece,
    Response,
    chunk,
    error_frame,
    fragment,
    json_response,
    stream,
    text_frames,
    tool_call_frames,
    usage,
)
from think_celery.errors import ModelAborted, ModelError, NoModel
from think_celery.protocols import Model, ModelTimeouts, ToolCallComplete, Usage
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.transcript import arguments_of
from think_celery.signals import AbortController


class OpenAIWire:
    keep_alives = KEEP_ALIVES

    def model(self, base_url: str) -> Model:
        return OpenAIModel("gpt-test", api_key=KEY, base_url=base_url)

    def text(self, text: str) -> list[Piece]:
        return text_frames(text)

    def begun(self, text: str) -> list[Piece]:
        return [chunk({"role": "assistant", "content": ""}), chunk({"content": text})]

    def token(self, text: str) -> Piece:
        return chunk({"content": text})

    def ending(self) -> list[Piece]:
        return [chunk(finish="stop"), usage(), DONE]

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> list[Piece]:
        return tool_call_frames(*calls)

    def mixed(self, reasoning: str, text: str, *calls: tuple[str, dict[str, Any]]) -> list[Piece]:
        half = len(reasoning) // 2
        frames: list[Piece] = [
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": reasoning[:half]}),
            chunk({"reasoning_content": reasoning[half:]}),
            chunk({"content": text}),
            *(chunk(fragment(at, "", call_id=f"c{at}", name=name)) for at, (name, _) in enumerate(calls)),
        ]
        written = [json.dumps(given, ensure_ascii=False) for _, given in calls]
        frames += [chunk(fragment(at, given[:8])) for at, given in enumerate(written)]
        frames += [chunk(fragment(at, given[8:])) for at, given in enumerate(written)]
        return [*frames, chunk(finish="tool_calls"), usage(), DONE]

    def error(self, message: str, *, retryable: bool) -> Piece:
        return error_frame(message, code=502 if retryable else "insufficient_quota")

    def refusal(self, status: int, message: str, **headers: str) -> Response:
        return json_response({"error": {"message": message, "type": "mock"}}, status, **headers)

    def forced_tool(self, body: Any) -> str | None:
        choice = body["tool_choice"]
        return choice["function"]["name"] if isinstance(choice, dict) else None

    def offered_tools(self, body: Any) -> list[str]:
        return [tool["function"]["name"] for tool in body["tools"]]


class TestContract(ProviderContract):
    """OpenAI passes the suite that every provider passes."""

    wire = OpenAIWire()


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def model(server) -> OpenAIModel:
    return OpenAIModel("gpt-test", api_key=KEY, base_url=server.base_url)


def ask(model: Model, **options: Any) -> list[Any]:
    return list(model.stream(request(**options), AbortController().signal))


class TestToolCalls:
    def test_interleaved_fragments_go_to_their_own_call(self, server, model):
        """FR-69: the index decides, not what was written last; the same tool may be called twice."""
        both = {"tool_calls": []}
        for index, call_id in enumerate(["a1", "a2"]):
            both["tool_calls"] += fragment(index, "", call_id=call_id, name="w")["tool_calls"]
        server.script(
            [
                chunk(both),
                chunk(fragment(0, '{"city":')),
                chunk(fragment(1, '{"city":"Ro')),
                chunk(fragment(0, '"Oslo"}')),
                chunk(fragment(1, 'me"}')),
                chunk(finish="tool_calls"),
                DONE,
            ]
        )

        calls = [event for event in ask(model) if isinstance(event, ToolCallComplete)]

        assert [(call.index, call.tool_call_id, call.arguments) for call in calls] == [
            (0, "a1", '{"city":"Oslo"}'),
            (1, "a2", '{"city":"Rome"}'),
        ]

    def test_a_lost_fragment_is_an_error_that_can_be_retried(self, server, model):
        """FR-69: arguments that could be of either of two open calls are not guessed at."""
        server.script(
            [
                chunk(fragment(0, "", call_id="a1", name="w")),
                chunk(fragment(1, "", call_id="a2", name="w")),
                chunk(fragment(7, '{"city":"Oslo"}')),
                chunk(finish="tool_calls"),
                DONE,
            ]
        )

        with pytest.raises(ModelError, match="had not begun") as failed:
            ask(model)
        assert failed.value.retryable

    @pytest.mark.parametrize("given", ["", " ", None, "missing", {}])
    def test_a_call_without_arguments_has_empty_ones(self, server, model, given):
        """FR-73: '', blanks, null and no field at all mean {}."""
        delta = fragment(0, given, call_id="a1", name="now")
        if given == "missing":
            del delta["tool_calls"][0]["function"]["arguments"]
        server.script([chunk(delta), chunk(finish="tool_calls"), DONE])

        assert whole_calls(ask(model)) == [("now", "{}")]

    def test_arguments_as_an_object_instead_of_a_text(self, server, model):
        """FR-73: servers that send the object itself are understood."""
        server.script(
            [chunk(fragment(0, {"city": "Oslo"}, call_id="a1", name="w")), chunk(finish="stop"), DONE]
        )

        assert whole_calls(ask(model)) == [("w", '{"city": "Oslo"}')]

    @pytest.mark.parametrize("reason", ["stop", "end_turn", "function_calls", "tool_calls"])
    def test_tool_calls_decide_whatever_the_finish_reason_says(self, server, model, reason):
        """FR-72: a call that was made is a call; the reason is advice, and its word is kept."""
        server.script(tool_call_frames(("w", {"city": "Oslo"}), finish=reason))

        events = ask(model)

        assert whole_calls(events) == [("w", '{"city": "Oslo"}')]
        assert (finish(events).reason, finish(events).raw_reason) == ("tool-calls", reason)

    @pytest.mark.parametrize(("reason", "ours"), [("length", "length"), ("content_filter", "content-filter")])
    def test_a_call_that_was_cut_short_is_not_a_whole_one(self, server, model, reason, ours):
        """FR-72: at a limit of length, or under a filter, half-written arguments never become a call."""
        frames = [
            chunk(fragment(0, '{"city":"Oslo"}', call_id="a1", name="w")),
            chunk(fragment(1, '{"city":"Ro', call_id="a2", name="w")),
            chunk(finish=reason),
            DONE,
        ]
        server.script(frames)

        events = ask(model)

        assert whole_calls(events) == [("w", '{"city":"Oslo"}')]
        assert finish(events).reason == ours


class TestFrames:
    def test_what_an_answer_cost_that_never_became_whole(self, server, model):
        """B27: the count that came before the connection broke stays with the error."""
        server.script([chunk({"content": "Hel"}), usage(3, 5), CUT_OFF])

        with pytest.raises(ModelError) as failed:
            list(model.stream(request(), AbortController().signal))

        assert failed.value.usage.total_tokens == 8

    def test_chunks_without_choices_are_bookkeeping(self, server, model):
        """FR-71: first, in the middle and last; the usage in them is taken."""
        filter_data: Piece = {"choices": [], "prompt_filter_results": [{"x": 1}]}
        server.script(
            [
                filter_data,
                chunk({"content": "Hel"}),
                {"choices": []},
                {"choices": None, "usage": None},
                chunk({"content": "lo"}),
                chunk(finish="stop"),
                usage(3, 5),
                DONE,
            ]
        )

        events = ask(model)

        assert texts(events) == "Hello"
        assert finish(events).usage == Usage(3, 5, 8)

    def test_keep_alives_and_unicode_separators(self, server, model):
        """FR-75: comments and an id alone are nothing; the text is unchanged."""
        server.script(
            [b": ping\n\n", b"id: 1\n\n", chunk({"content": "a\u2028b\u0085c"}), chunk(finish="stop"), DONE]
        )

        assert texts(ask(model)) == "a\u2028b\u0085c"

    def test_content_as_null_text_or_parts(self, server, model):
        """FR-84: text parts are the text, thinking parts are reasoning, others are ignored."""
        parts = [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "A"},
            {"type": "image_url", "image_url": {"url": "x"}},
        ]
        server.script(
            [
                chunk({"content": None}),
                chunk({"content": parts}),
                chunk({"content": "B"}),
                chunk(finish="stop"),
                DONE,
            ]
        )

        events = ask(model)

        assert (texts(events), reasonings(events)) == ("AB", "hm")

    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
    def test_reasoning_is_kept_apart(self, server, model, field):
        """Both spellings in use; never part of the visible text."""
        server.script(
            [chunk({field: "r1"}), chunk({field: "r2"}), chunk({"content": "A"}), chunk(finish="stop"), DONE]
        )

        events = ask(model)

        assert (texts(events), reasonings(events)) == ("A", "r1r2")

    def test_a_character_that_was_cut_in_two_escapes(self, server, model):
        """FR-37: halves of a surrogate pair in two frames make one character; a lone half is replaced."""
        halves = [rb"x\ud83c", rb"\udf78y\ud83c"]
        frames = [b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % half for half in halves]
        server.script([*frames, chunk(finish="stop"), DONE])

        assert texts(ask(model)) == "x\U0001f378y\ufffd"

    def test_frames_that_are_no_json(self, server, model):
        """Garbage from a gateway is a failed attempt; the error shows some of it."""
        server.script([chunk({"content": "A"}), b"data: <html>bad gateway</html>\n\n", DONE])

        with pytest.raises(ModelError, match="no JSON: '<html>bad gateway") as failed:
            ask(model)
        assert failed.value.retryable

    @pytest.mark.parametrize("depth", [400, 900, 960, 100_000])
    @pytest.mark.parametrize("form", ["frame", "error", "body", "refusal", "last frame"])
    def test_what_is_nested_too_deep_is_garbage_too(self, server, model, form, depth):
        """Wherever it stops to be readable, it is a failed attempt and never a bare RecursionError."""
        nested = b"[" * depth + b"]" * depth
        match form:
            case "frame":
                server.script([chunk({"content": "A"}), b"data: %s\n\n" % nested, DONE])
            case "error":
                server.script([b'data: {"error": {"message": %s, "code": 502}}\n\n' % nested, DONE])
            case "body":
                server.script(stream(b'{"error": {"code": 502, "message": %s}}' % nested))
            case "refusal":
                server.script(stream(b'{"error": {"message": %s}}' % nested, status=502))
            case _:
                server.script([chunk({"content": "A"}), b"data: %s" % nested])

        with pytest.raises(ModelError) as failed:
            ask(model)
        assert failed.value.retryable

    def test_arguments_that_are_nested_too_deep_are_the_tools_to_refuse(self, server, model):
        """They are handed on as they are, like other arguments that are no JSON; a later request holds them, too."""
        deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
        server.script(tool_call_frames(("add", deep)))

        events = ask(model)

        assert whole_calls(events) == [("add", deep)]
        assert arguments_of(deep) == {"raw": deep}


class TestErrorsInStreams:
    @pytest.mark.parametrize(
        ("error", "retryable"),
        [
            ({"code": 502}, True),
            ({"code": "429", "message": "slow"}, True),
            ({"code": "server_error", "message": "x"}, True),
            ({"code": 400, "message": "x"}, False),
            ({"code": "insufficient_quota"}, False),
            ({"code": 429, "type": "insufficient_quota"}, False),
            ({"code": None, "type": "invalid_request_error", "message": "x"}, False),
            ("overloaded", True),
        ],
    )
    def test_the_code_says_whether_to_ask_again(self, server, model, error, retryable):
        """FR-77: an error frame after text, often with empty choices; quota and bad requests are final."""
        server.script(
            [chunk({"content": "A"}), chunk({"content": "B"}), {"choices": [], "error": error}, DONE]
        )

        with pytest.raises(ModelError) as failed:
            ask(model)

        assert failed.value.retryable is retryable
        assert len(server.requests) == 1

    def test_an_error_event(self, server, model):
        """FR-77: an event named `error` is one, whatever its data look like."""
        server.script([chunk({"content": "A"}), b'event: error\ndata: {"message": "broken"}\n\n', DONE])

        with pytest.raises(ModelError, match="broken"):
            ask(model)


class TestJsonBodies:
    @pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/plain"])
    def test_a_completion_instead_of_a_stream_is_an_answer(self, server, model, content_type):
        """FR-77: a server that ignores `stream` answers with one body, under whatever content type."""
        calls = [{"id": "c", "type": "function", "function": {"name": n, "arguments": "{}"}} for n in "vw"]
        message = {"role": "assistant", "content": "Hello", "reasoning_content": "hm", "tool_calls": calls}
        body = {**usage(3, 5), "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        raw = b"\n  \n" + json.dumps(body).encode()
        server.script(Response(pieces=[raw], content_type=content_type, slice_bytes=3))

        events = ask(model)

        assert (texts(events), reasonings(events)) == ("Hello", "hm")
        assert whole_calls(events) == [("v", "{}"), ("w", "{}")]
        assert len({event.tool_call_id for event in events if isinstance(event, ToolCallComplete)}) == 2
        assert finish(events).reason == "tool-calls"
        assert finish(events).usage == Usage(3, 5, 8)

    @pytest.mark.parametrize(
        ("body", "text", "retryable"),
        [
            ({"error": {"message": "busy", "code": 503}}, "busy", True),
            ({"error": {"message": "pay", "code": "insufficient_quota"}}, "pay", False),
            ({"hello": "world"}, "no chat completion", False),
        ],
    )
    def test_other_bodies_are_errors(self, server, model, body, text, retryable):
        """FR-77: an error object under HTTP 200, or JSON of another service, is never an empty success."""
        server.script(json_response(body))

        with pytest.raises(ModelError, match=text) as failed:
            ask(model)
        assert failed.value.retryable is retryable

    def test_a_web_page_is_an_error(self, server, model):
        """A wrong base_url often answers with HTML and 200."""
        server.script(Response(pieces=[b"<!doctype html><p>hi"], content_type="text/html"))

        with pytest.raises(ModelError, match=r"web page.*base_url"):
            ask(model)

    def test_half_a_body_is_a_failed_attempt(self, server, model):
        """A JSON body is an answer only when it is whole."""
        server.script(Response(pieces=[b'{"choices": [{"mess'], content_type="application/json"))

        with pytest.raises(ModelError) as failed:
            ask(model)
        assert failed.value.retryable


class TestEndings:
    @pytest.mark.parametrize("framing", ["chunked", "until-close"])
    def test_a_finish_reason_without_done(self, server, model, framing):
        """FR-79 (a): the answer is whole."""
        server.script(stream(chunk({"content": "A"}), chunk(finish="stop"), framing=framing))

        events = ask(model)

        assert (texts(events), finish(events).reason, finish(events).raw_reason) == ("A", "stop", "stop")

    def test_done_without_a_finish_reason(self, server, model):
        """FR-79 (b): the answer is whole, and flagged."""
        server.script([chunk({"content": "A"}), DONE])

        events = ask(model)

        assert (texts(events), finish(events).reason, finish(events).raw_reason) == ("A", "unknown", None)

    @pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n\r\n"])
    def test_done_in_any_spelling(self, server, model, tail):
        """FR-79: the last blank line is often missing."""
        server.script([chunk({"content": "A"}), tail])

        assert finish(ask(model)).reason == "unknown"

    def test_neither(self, server, model):
        """FR-79 (c): a failed attempt; the error says where the stream broke."""
        server.script(
            [chunk({"content": "A"})], [b": nothing\n\n"], [chunk({"content": "A"}), b'data: {"choi']
        )

        for where in ("in the middle", "before the answer began", "in the middle"):
            with pytest.raises(ModelError, match=where) as failed:
                ask(model)
            assert failed.value.retryable

    @pytest.mark.parametrize("after", ["hang", "cut"])
    def test_a_connection_that_hangs_or_breaks_after_the_finish_reason(self, server, model, after):
        """FR-79: the answer is whole; what happens to the connection then takes nothing away."""
        server.script([chunk({"content": "A"}), chunk(finish="stop"), HANG if after == "hang" else CUT_OFF])
        began = time.monotonic()

        events = ask(model, timeouts=limits(token_gap=0.2))

        assert (texts(events), finish(events).reason) == ("A", "stop")
        assert time.monotonic() - began < SOON

    @pytest.mark.parametrize("after", [b": ping\n\n", usage(), chunk()])
    def test_what_keeps_coming_after_the_finish_reason(self, server, model, after):
        """FR-79: usage and [DONE] get a time of their own, which neither comments nor empty frames make longer."""
        ping = after if isinstance(after, bytes) else b"data: %s\n\n" % json.dumps(after).encode()
        server.script([chunk({"content": "A"}), chunk(finish="stop"), usage(), Hang(ping, every=0.05)])
        began = time.monotonic()

        events = ask(model, timeouts=limits(token_gap=0.3))

        assert (texts(events), finish(events).reason) == ("A", "stop")
        assert finish(events).usage == Usage(3, 5, 8)
        assert 0.25 < time.monotonic() - began < SOON

    def test_a_connection_that_stays_open_after_done(self, server, model):
        """FR-79: [DONE] is the end, with a finish reason and without; nobody waits for the body's."""
        server.script([*text_frames("Hello"), HANG], [chunk({"content": "Hello"}), DONE, HANG])
        began = time.monotonic()

        answers = [ask(model) for _ in range(2)]

        assert [texts(events) for events in answers] == ["Hello", "Hello"]
        assert [finish(events).reason for events in answers] == ["stop", "unknown"]
        assert time.monotonic() - began < SOON

    def test_an_unknown_finish_reason(self, server, model):
        """FR-72: text with an unknown reason is a whole answer; the provider's word is kept."""
        server.script(text_frames("Hello", finish="end_turn"))

        events = ask(model)

        assert (finish(events).reason, finish(events).raw_reason) == ("other", "end_turn")

    def test_an_empty_finish_reason_is_none(self, server, model):
        """Some servers send an empty one in every chunk."""
        server.script([chunk({"content": "A"}, finish=""), chunk({"content": "B"}, finish="")])

        with pytest.raises(ModelError, match="in the middle"):
            ask(model)


class TestRefusals:
    def test_an_empty_quota_is_final(self, server, model):
        """FR-77: 429 for money is not 429 for speed: one request."""
        body = {"error": {"message": "pay first", "type": "insufficient_quota", "code": "insufficient_quota"}}
        server.script(json_response(body, 429, retry_after="5"))

        with pytest.raises(ModelError, match="pay first") as failed:
            ask(model)

        assert not failed.value.retryable
        assert failed.value.retry_after_seconds is None

    @pytest.mark.parametrize(
        ("headers", "message", "seconds"),
        [
            ({"retry_after": "2"}, "x", 2),
            ({"retry_after_ms": "350"}, "x", 0.35),
            ({"retry_after_ms": "350", "retry_after": "2"}, "x", 0.35),
            ({"retry_after": "abc"}, "x", None),
            ({}, "Rate limit reached. Please try again in 1.5s. Visit …", 1.5),
            ({}, "Rate limit reached. Please try again in 350ms.", 0.35),
            ({}, "Please try again in 6m0s.", 360),
            ({}, "Please retry after 20 seconds.", 20),
            ({}, "You may try again in a while, in 5 rooms.", None),
        ],
    )
    def test_the_wait_in_a_header_or_in_the_text(self, server, model, headers, message, seconds):
        """FR-82: a hint that stands only in the body is heard too."""
        server.script(json_response({"error": {"message": message}}, 429, **headers))

        with pytest.raises(ModelError) as failed:
            ask(model)
        assert failed.value.retry_after_seconds == pytest.approx(seconds)

    def test_the_wait_as_a_date(self, server, model):
        """FR-82: an HTTP date in the future is a wait; one in the past is none."""
        now = datetime.now(UTC)
        for moment in (now + timedelta(seconds=30), now - timedelta(hours=1)):
            server.script(
                json_response({"error": "x"}, 503, retry_after=format_datetime(moment, usegmt=True))
            )

        waits = []
        for _ in range(2):
            with pytest.raises(ModelError) as failed:
                ask(model)
            waits.append(failed.value.retry_after_seconds)

        assert 25 < waits[0] <= 30
        assert waits[1] is None

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b'{"error": "plain"}', "HTTP 400: plain"),
            (b'{"detail": [{"loc": ["body"], "msg": "bad"}]}', '"msg": "bad"'),
            (b'[{"error": {"message": "in a list"}}]', "HTTP 400: in a list"),
            (b"not   json\nat all", "HTTP 400: not json at all"),
            (b"", "HTTP 400$"),
        ],
    )
    def test_errors_in_any_shape_are_shown(self, server, model, body, text):
        """The provider's own words, wherever it put them."""
        server.script(Response(pieces=[body], status=400, content_type="application/json"))

        with pytest.raises(ModelError, match=text.replace("[", r"\[")):
            ask(model)

    def test_a_web_page_is_not_quoted(self, server, model):
        """A gateway's HTML error page says nothing; its status does."""
        server.script(Response(pieces=[b"<html>" + b"x" * 200_000], status=502, content_type="text/html"))

        with pytest.raises(ModelError, match=r"HTTP 502.*web page") as failed:
            ask(model)
        assert failed.value.retryable

    @pytest.mark.parametrize(("status", "retryable"), [(500, True), (401, False)])
    @pytest.mark.parametrize("end", [HANG, CUT_OFF])
    def test_a_refusal_whose_body_never_ends(self, server, model, status, retryable, end):
        """FR-81: the limit of time holds for its body too, and the status still says whether to ask again."""
        server.script(Response(pieces=[b"no such luck", end], status=status))
        began = time.monotonic()

        with pytest.raises(ModelError, match=f"HTTP {status}: no such luck") as failed:
            ask(model, timeouts=limits(first_token=0.3))

        assert failed.value.retryable is retryable
        assert time.monotonic() - began < SOON


class TestTheRequest:
    def test_what_is_sent(self, server):
        """The key as a bearer token, our own headers, and more fields as given."""
        model = OpenAIModel(
            "gpt-test",
            api_key=f" {KEY}\n",
            base_url=server.base_url + "/",
            headers={"X-Title": "mine"},
            extra={"temperature": 0},
        )
        server.script(text_frames("Hello"))

        ask(model)

        seen = server.seen[0]
        assert seen.path == "/v1/chat/completions"
        assert (seen.headers["authorization"], seen.headers["x-title"]) == (f"Bearer {KEY}", "mine")
        assert seen.body["model"] == "gpt-test"
        assert (seen.body["stream"], seen.body["stream_options"]) == (True, {"include_usage": True})
        assert seen.body["temperature"] == 0
        assert "tools" not in seen.body
        assert "tool_choice" not in seen.body

    def test_a_query_in_the_address_is_kept(self, server):
        """Some clouds want the version of their API there."""
        model = OpenAIModel("m", api_key=KEY, base_url=server.base_url + "?api-version=7")
        server.script(text_frames("Hello"))

        ask(model)

        assert server.seen[0].path == "/v1/chat/completions?api-version=7"

    @pytest.mark.parametrize("url", ["", "api.example.com/v1", "ftp://example.com", "http://"])
    def test_an_address_that_is_none(self, url):
        """Said when the model is made, with an address as it should be."""
        with pytest.raises(NoModel, match=r"https://api\.openai\.com/v1"):
            OpenAIModel("m", api_key=KEY, base_url=url)

    @pytest.mark.parametrize("key", ["sk-ключ-0123456789", "sk-0123\n456789"])
    def test_a_key_that_no_header_can_carry(self, key):
        """Said when the model is made, and without showing the key."""
        with pytest.raises(NoModel, match="API key") as failed:
            OpenAIModel("m", api_key=key)
        assert key not in str(failed.value)


class TestOwnClient:
    def test_a_client_of_ones_own_is_used_and_can_be_aborted(self, server):
        """For a transport of the user's; each request opens a connection of its own, so that it can be cut."""
        with httpx.Client(headers={"X-Mine": "yes"}) as client:
            model = OpenAIModel("m", api_key=KEY, base_url=server.base_url, client=client)
            server.script(text_frames("one"), text_frames("two"), Response(before_head=HANG))
            controller = AbortController()

            assert [texts(ask(model)), texts(ask(model))] == ["one", "two"]
            threading.Timer(0.1, controller.abort).start()
            began = time.monotonic()
            with pytest.raises(ModelAborted):
                list(model.stream(request(), controller.signal))

            assert time.monotonic() - began < SOON
            assert server.connections == 3
            assert server.seen[0].headers["x-mine"] == "yes"
            assert not client.is_closed


class TestConnections:
    def test_a_connection_that_the_server_closed_meanwhile_is_replaced(self, server, model):
        """Servers close idle connections; the next request notices and opens another."""
        server.script(stream(*text_frames("one"), framing="until-close"), text_frames("two"))

        assert [texts(ask(model)), texts(ask(model))] == ["one", "two"]
        assert server.connections == 2

    def test_a_server_of_this_machine_is_reached_past_proxies(self, server, monkeypatch):
        """A proxy's loopback is its own machine, so one that the environment names is not asked there."""
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        server.script(text_frames("direct"))

        model = OpenAIModel("gpt-test", api_key=KEY, base_url=server.base_url)

        assert texts(ask(model)) == "direct"

    def test_the_first_token_limit_ends_with_the_first_token(self, server, model):
        """FR-81: a role, an empty delta and bookkeeping are no tokens."""
        server.script(
            [chunk({"role": "assistant", "content": ""}), Delay(0.2), usage(), chunk({}), Delay(0.2), HANG]
        )

        with pytest.raises(ModelError, match=r"within 0\.3 s"):
            ask(model, timeouts=limits(first_token=0.3))

    def test_a_connection_that_can_not_be_made_in_time(self):
        """FR-81: connecting has its own limit. A listener whose queue is full takes no connection."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            waiting = []
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(full.getsockname())
                waiting.append(one)
            model = OpenAIModel("m", api_key=KEY, base_url=f"http://127.0.0.1:{full.getsockname()[1]}/v1")
            began = time.monotonic()

            with pytest.raises(ModelError, match="could not connect") as failed:
                ask(model, timeouts=ModelTimeouts(connect=0.3))

            assert failed.value.retryable
            assert time.monotonic() - began < SOON
            for one in waiting:
                one.close()

    def test_a_forked_child_has_connections_of_its_own(self, server, model):
        """FR-10: a child that spoke through its parent's connection would read its parent's answers."""
        server.respond = lambda body: stream(*text_frames(str(body["messages"][-1]["content"])))
        ask(model)
        context = multiprocessing.get_context("fork")
        results = context.Queue()

        child = context.Process(target=lambda: results.put([texts(ask(model)) for _ in range(2)]))
        child.start()
        in_child = results.get(timeout=10)
        child.join(10)

        assert in_child == ["Hello", "Hello"]
        assert texts(ask(model)) == "Hello"
        assert server.connections == 2
