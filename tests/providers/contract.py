"""What every provider must do, whatever its vendor's wire format: run against a real server on loopback.

A provider's test file subclasses :class:`ProviderContract` and sets ``wire``.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from tests.providers.server import CUT_OFF, HANG, Delay, Hang, ModelServer, Piece, Response, sse, stream
from think_celery.errors import ModelAborted, ModelError
from think_celery.messages import UIMessage, user
from think_celery.protocols import (
    Finish,
    ForcedTool,
    Model,
    ModelEvent,
    ModelRequest,
    ModelTimeouts,
    ReasoningDelta,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolSpec,
)
from think_celery.signals import AbortController, AbortSignal

KEY = "sk-contract-0123456789"
WEATHER = ToolSpec(
    name="weather",
    description="The weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
FINAL = ToolSpec(
    name="think_final_answer",
    description="Give the final answer.",
    parameters={"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]},
)

REASONING, TEXT = "Zürich or Oslo? 🦊", "I look it up."
TWO_CALLS = (("weather", {"city": "Zürich"}), ("weather", {"city": "Oslo"}))


class Wire(Protocol):
    """A vendor's wire format, as far as the suite needs it."""

    keep_alives: Hang

    def model(self, base_url: str) -> Model:
        """The provider under test, with the key ``KEY``."""

    def text(self, text: str) -> list[Piece]:
        """A whole answer of text, in several pieces."""

    def begun(self, text: str) -> list[Piece]:
        """The beginning of an answer, with this text, without its end."""

    def token(self, text: str) -> Piece:
        """One more piece of text."""

    def ending(self) -> list[Piece]:
        """The orderly end of an answer that has begun."""

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> list[Piece]:
        """A whole answer that calls tools, arguments in fragments."""

    def mixed(self, reasoning: str, text: str, *calls: tuple[str, dict[str, Any]]) -> list[Piece]:
        """A whole answer of reasoning, text and two calls, the fragments of whose arguments take turns."""

    def error(self, message: str, *, retryable: bool) -> Piece:
        """An error in the middle of a stream."""

    def refusal(self, status: int, message: str, **headers: str) -> Response:
        """An HTTP error."""

    def forced_tool(self, body: Any) -> str | None:
        """The one tool that a request's body allows, if it does so."""

    def offered_tools(self, body: Any) -> list[str]:
        """The names of the tools in a request's body."""


def request(*messages: UIMessage, **options: Any) -> ModelRequest:
    """A request with short limits of time."""
    options.setdefault("timeouts", ModelTimeouts(connect=60, first_token=60, token_gap=60))
    return ModelRequest(system="Be brief.", messages=messages or [user("Hello")], **options)


SOON = 20.0
"""Less than what waiting for any other limit would take, and more than a busy machine needs."""


def limits(first_token: float = 60, token_gap: float = 60) -> ModelTimeouts:
    return ModelTimeouts(connect=60, first_token=first_token, token_gap=token_gap)


def texts(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def reasonings(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def whole_calls(events: Sequence[ModelEvent]) -> list[tuple[str, str]]:
    return [(event.name, event.arguments) for event in events if isinstance(event, ToolCallComplete)]


def finish(events: Sequence[ModelEvent]) -> Finish:
    """The one Finish, which must come last."""
    assert [isinstance(event, Finish) for event in events].index(True) == len(events) - 1
    last = events[-1]
    assert isinstance(last, Finish)
    return last


class ProviderContract:
    """The suite. ``ask`` reads a whole answer."""

    wire: Wire

    @pytest.fixture
    def server(self) -> Iterator[ModelServer]:
        with ModelServer() as server:
            yield server

    @pytest.fixture
    def model(self, server: ModelServer) -> Model:
        return self.wire.model(server.base_url)

    def ask(self, model: Model, asked: ModelRequest | None = None, signal: AbortSignal | None = None):
        return list(model.stream(asked or request(), signal or AbortController().signal))

    # --- answers --------------------------------------------------------------------------------

    def test_text_comes_in_pieces_and_ends_with_finish(self, server, model):
        """A plain answer: its text, then one Finish with the provider's count of tokens."""
        server.script(self.wire.text("Hello, dear world"))

        events = self.ask(model)

        assert texts(events) == "Hello, dear world"
        assert len([event for event in events if isinstance(event, TextDelta)]) > 1
        assert finish(events).reason == "stop"
        assert finish(events).usage.total_tokens > 0

    def test_deltas_are_given_as_they_come(self, server, model):
        """A listener sees the first words while the model still writes."""
        server.script([*self.wire.begun("First"), HANG])
        events = model.stream(request(), AbortController().signal)

        assert next(events) == TextDelta("First")

    def test_any_cut_of_the_wire_gives_the_same_answer(self, server, model):
        """The network may cut anywhere, also within a character, a frame or a fragment of JSON."""
        frames = self.wire.text("Grüße, 世界 🦊\u2028\u0085 done")
        calls = self.wire.calls(("weather", {"city": "Zürich 🦊"}))
        server.script(stream(*frames), stream(*frames, slice_bytes=1), stream(*frames, slice_bytes=7))
        server.script(stream(*calls, slice_bytes=1))

        answers = [self.ask(model) for _ in range(3)]
        called = self.ask(model)

        assert texts(answers[0]) == "Grüße, 世界 🦊\u2028\u0085 done"
        assert answers[1] == answers[0]
        assert answers[2] == answers[0]
        assert [(name, json.loads(given)) for name, given in whole_calls(called)] == [
            ("weather", {"city": "Zürich 🦊"})
        ]

    def test_a_body_that_ends_with_its_connection(self, server, model):
        """Servers without chunked encoding end the body by closing."""
        server.script(stream(*self.wire.text("Hello"), framing="until-close"))

        assert texts(self.ask(model)) == "Hello"

    def test_tool_calls_come_as_deltas_and_then_whole(self, server, model):
        """Several calls in one answer: each with its own id and its own arguments, in order."""
        server.script(self.wire.calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))

        events = self.ask(model, request(tools=[WEATHER]))

        assert whole_calls(events) == [("weather", '{"city": "Oslo"}'), ("weather", '{"city": "Rome"}')]
        complete = [event for event in events if isinstance(event, ToolCallComplete)]
        assert len({event.tool_call_id for event in complete}) == 2
        for call in complete:
            deltas = [e for e in events if isinstance(e, ToolCallDelta) and e.index == call.index]
            assert "".join(delta.arguments for delta in deltas) == call.arguments
            assert (deltas[0].tool_call_id, deltas[0].name) == (call.tool_call_id, call.name)
        assert finish(events).reason == "tool-calls"

    @pytest.mark.parametrize("choice", ["required", ForcedTool(name="think_final_answer")])
    def test_a_structured_turn_works_by_ordinary_tool_calls(self, server, model, choice):
        """A10: the final answer is a call of an offered tool, while streaming; no vendor's own JSON mode."""
        tools = [FINAL] if isinstance(choice, ForcedTool) else [WEATHER, FINAL]
        server.script(self.wire.calls(("think_final_answer", {"label": "bug"})))

        events = self.ask(model, request(tools=tools, tool_choice=choice))

        body = server.requests[0]
        assert whole_calls(events) == [("think_final_answer", '{"label": "bug"}')]
        assert body["stream"] is True
        assert "response_format" not in body
        assert self.wire.offered_tools(body) == [tool.name for tool in tools]
        assert self.wire.forced_tool(body) == (choice.name if isinstance(choice, ForcedTool) else None)

    def test_a_mixed_answer_cut_at_every_byte(self, server, model):
        """FR-69: reasoning, text and calls whose fragments take turns; the same wherever the network cuts it in two."""
        raw = self._mixed()
        server.script(*(stream(raw[:at], raw[at:]) for at in range(1, len(raw), self.every)))
        server.script(stream(raw))

        answers = [self.ask(model, request(tools=[WEATHER])) for _ in range(1, len(raw), self.every)]
        whole = self.ask(model, request(tools=[WEATHER]))

        assert (reasonings(whole), texts(whole)) == (REASONING, TEXT)
        assert [(name, json.loads(given)) for name, given in whole_calls(whole)] == list(TWO_CALLS)
        assert finish(whole).reason == "tool-calls"
        assert all(answer == whole for answer in answers)

    def test_a_mixed_answer_that_breaks_off_at_any_byte(self, server, model):
        """FR-79: what is cut is never taken for a whole answer, a whole one is never lost, half a call never runs."""
        raw = self._mixed()
        server.script(*(stream(raw[:at], CUT_OFF) for at in range(0, len(raw), self.every)))

        ends: list[bool] = []
        retryable: list[bool] = []
        for _ in range(0, len(raw), self.every):
            events: list[ModelEvent] = []
            try:
                events += model.stream(request(tools=[WEATHER]), AbortController().signal)
            except ModelError as error:
                ends.append(False)
                retryable.append(error.retryable)
            else:
                assert [(name, json.loads(given)) for name, given in whole_calls(events)] == list(TWO_CALLS)
                ends.append(True)

        assert all(retryable)
        assert ends == sorted(ends), "a longer piece of the answer was cut, a shorter one whole"
        assert ends.count(True) * self.every < len(raw) // 2

    every = 1  # how many bytes lie between two cuts

    def _mixed(self) -> bytes:
        pieces = self.wire.mixed(REASONING, TEXT, *TWO_CALLS)
        return b"".join(piece if isinstance(piece, bytes) else sse(piece) for piece in pieces)

    def test_options_are_sent(self, server, model):
        """Temperature, most tokens, headers and the provider's own options, each where it belongs."""
        server.script(self.wire.text("Hello"))
        options = {"openai": {"top_p": 0.5}, "anthropic": {"top_p": 0.5}, "pydantic_ai": {"top_p": 0.5}}

        self.ask(
            model,
            request(
                temperature=0.25, max_output_tokens=77, headers={"X-Mine": "yes"}, provider_options=options
            ),
        )

        seen = server.seen[0]
        limit = seen.body.get("max_tokens", seen.body.get("max_completion_tokens"))
        assert (seen.body["temperature"], limit, seen.body["top_p"]) == (0.25, 77, 0.5)
        assert seen.headers["x-mine"] == "yes"
        assert not seen.body.keys() & {"openai", "anthropic", "pydantic_ai"}

    # --- failures -------------------------------------------------------------------------------

    @pytest.mark.parametrize("retryable", [True, False])
    def test_an_error_in_the_middle_of_a_stream_fails_the_request(self, server, model, retryable):
        """FR-77: an error under HTTP 200, after text, is an error, and says whether to ask again."""
        error = self.wire.error("out of order", retryable=retryable)
        server.script([*self.wire.begun("Hel"), error, *self.wire.ending()])

        with pytest.raises(ModelError, match="out of order") as failed:
            self.ask(model)

        assert failed.value.retryable is retryable

    @pytest.mark.parametrize("framing", ["chunked", "until-close"])
    def test_a_stream_that_ends_too_early_is_no_answer(self, server, model, framing):
        """FR-79: without a finish reason or an end mark, a closed connection is a failed attempt."""
        server.script(stream(*self.wire.begun("Hel"), framing=framing))
        server.script(stream(*self.wire.begun("Hel"), CUT_OFF, framing=framing))
        server.script(stream(framing=framing))

        for _ in range(3):
            with pytest.raises(ModelError) as failed:
                self.ask(model)
            assert failed.value.retryable

    statuses: tuple[tuple[int, bool], ...] = (
        *((status, False) for status in (307, 400, 401, 403, 404, 422)),
        *((status, True) for status in (408, 409, 425, 429, 500, 502, 503, 529)),
    )

    def test_the_status_says_whether_to_ask_again(self, server, model):
        """One request, the provider's own words in the error, and what the status means."""
        for count, (status, retryable) in enumerate(self.statuses, start=1):
            server.script(self.wire.refusal(status, "the mock says no"))

            with pytest.raises(ModelError, match="the mock says no") as failed:
                self.ask(model)

            assert (failed.value.status_code, failed.value.retryable) == (status, retryable)
            assert len(server.requests) == count

    @pytest.mark.parametrize("status", [429, 503])
    def test_the_wait_that_a_provider_asks_for_is_passed_on(self, server, model, status):
        """FR-82: seconds are given to the turn, which does the waiting; nonsense is no wish."""
        server.script(
            *(self.wire.refusal(status, "slow down", retry_after=it) for it in ("2", "3600", "abc"))
        )

        wishes = []
        for _ in range(3):
            with pytest.raises(ModelError) as failed:
                self.ask(model)
            wishes.append(failed.value.retry_after_seconds)

        assert wishes == [2, 3600, None]

    def test_a_server_that_is_not_there(self, server):
        """A refused connection is worth another try, and the error names the model and the host."""
        with ModelServer() as gone:
            url = gone.base_url
        model = self.wire.model(url)

        with pytest.raises(ModelError, match=r"could not connect to 127\.0\.0\.1") as failed:
            self.ask(model)

        assert failed.value.retryable
        assert model.name in str(failed.value)

    def test_no_error_holds_the_key_or_is_endless(self, server, model):
        """Errors are stored and shown; a provider that quotes the key, or a whole page, must not get it there."""
        server.script(
            self.wire.refusal(401, f"wrong key {KEY}"),
            [*self.wire.begun("Hel"), self.wire.error(f"wrong key {KEY}", retryable=True)],
            self.wire.refusal(500, "x" * 100_000),
        )

        shown = []
        for _ in range(3):
            with pytest.raises(ModelError) as failed:
                self.ask(model)
            shown.append(str(failed.value))

        assert all(KEY not in text for text in shown)
        assert "wrong key" in shown[0]
        assert "wrong key" in shown[1]
        assert len(shown[2]) < 3000
        assert KEY not in repr(model)

    # --- limits of time -------------------------------------------------------------------------

    @pytest.mark.parametrize("when", ["before the head", "after the head", "keep-alives only"])
    def test_no_first_token_in_time(self, server, model, when):
        """FR-81, FR-12: silence ends at the first-token limit; keep-alive comments are no tokens."""
        if when == "before the head":
            server.script(Response(before_head=HANG))
        else:
            server.script([HANG if when == "after the head" else self.wire.keep_alives])
        began = time.monotonic()

        with pytest.raises(ModelError, match=r"no token came within 0\.3 s") as failed:
            self.ask(model, request(timeouts=limits(first_token=0.3)))

        assert failed.value.retryable
        assert 0.29 <= time.monotonic() - began < SOON
        assert server.seen[0].left.wait(2), "the connection is still open"

    @pytest.mark.parametrize("quiet", ["silence", "keep-alives"])
    def test_a_gap_between_tokens(self, server, model, quiet):
        """FR-81: after the first token, the limit is the one between tokens; comments don't extend it."""
        server.script([*self.wire.begun("Hel"), HANG if quiet == "silence" else self.wire.keep_alives])
        began = time.monotonic()

        with pytest.raises(ModelError, match=r"no token came for 0\.3 s") as failed:
            self.ask(model, request(timeouts=limits(token_gap=0.3)))

        assert failed.value.retryable
        assert 0.29 <= time.monotonic() - began < SOON

    def test_a_slow_answer_that_goes_on_is_let_be(self, server, model):
        """FR-81: tokens within the limit, for several times the limit, are an honest slow answer."""
        tokens = [piece for _ in range(8) for piece in (Delay(0.1), self.wire.token("x"))]
        server.script([*self.wire.begun("x"), *tokens, *self.wire.ending()])

        events = self.ask(model, request(timeouts=limits(first_token=0.4, token_gap=0.4)))

        assert texts(events) == "x" * 9

    def test_a_slow_reader_is_not_the_providers_fault(self, server, model):
        """What the turn does between two events (it stores them) does not count as the model's silence."""
        server.script([*self.wire.begun("Hel"), Delay(0.05), self.wire.token("lo"), *self.wire.ending()])
        events = model.stream(
            request(timeouts=limits(first_token=0.2, token_gap=0.2)), AbortController().signal
        )

        first = next(events)
        threading.Event().wait(0.5)

        assert texts([first, *events]) == "Hello"

    # --- aborts ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("when", ["before the head", "after the head", "in the middle"])
    @pytest.mark.parametrize("connection", ["new", "kept"])
    def test_an_abort_ends_a_silent_request_at_once(self, server, model, when, connection):
        """Within 100 ms of the signal, the connection closed, on a fresh connection and on one used before."""
        if connection == "kept":
            server.script(self.wire.text("Hello"))
            self.ask(model)
        hanging = {
            "before the head": Response(before_head=HANG),
            "after the head": stream(HANG),
            "in the middle": stream(*self.wire.begun("Hel"), HANG),
        }
        server.script(hanging[when])
        controller, aborted_at = AbortController(), []

        def abort() -> None:
            server.wait_for_requests(2 if connection == "kept" else 1)
            threading.Event().wait(0.05)
            aborted_at.append(time.monotonic())
            controller.abort("no longer wanted")

        thread = threading.Thread(target=abort)
        thread.start()
        with pytest.raises(ModelAborted, match="no longer wanted"):
            self.ask(model, signal=controller.signal)
        ended = time.monotonic()
        thread.join()

        assert ended - aborted_at[0] < 0.1
        assert server.seen[-1].left.wait(2), "the connection is still open"
        assert server.connections == 1

    def test_a_request_that_is_aborted_already_is_never_sent(self, server, model):
        """The signal may come before the request does."""
        controller = AbortController()
        controller.abort("too late")

        with pytest.raises(ModelAborted, match="too late"):
            self.ask(model, signal=controller.signal)

        assert server.connections == 0

    def test_an_abort_between_two_events_ends_the_answer(self, server, model):
        """Also when all of the answer is here already."""
        server.script(self.wire.text("one two three four"))
        controller = AbortController()
        events = model.stream(request(), controller.signal)

        next(events)
        controller.abort("enough")

        with pytest.raises(ModelAborted, match="enough"):
            list(events)

    # --- connections ----------------------------------------------------------------------------

    def test_an_iterator_that_is_closed_closes_the_connection(self, server, model):
        """A turn that stops reading leaves no socket behind, and the provider stops writing."""
        server.script([*self.wire.begun("Hel"), HANG])
        events = model.stream(request(), AbortController().signal)
        next(events)

        events.close()

        assert server.seen[0].left.wait(2), "the connection is still open"

    def test_a_connection_is_used_again(self, server, model):
        """FR-11: request after request in one process, and the same connection while the answers are whole."""
        server.script(*(self.wire.text(f"answer {n}") for n in range(3)))

        answers = [texts(self.ask(model)) for _ in range(3)]

        assert answers == ["answer 0", "answer 1", "answer 2"]
        assert server.connections == 1

    def test_a_reader_that_stops_at_finish_leaves_the_connection_usable(self, server, model):
        """A turn has no use for anything after Finish, and need not read on for the connection's sake."""
        server.script(self.wire.text("one"), self.wire.text("two"))

        for _ in range(2):
            events = model.stream(request(), AbortController().signal)
            while not isinstance(next(events), Finish):
                pass
            events.close()

        assert server.connections == 1

    @pytest.mark.parametrize("trouble", ["aborted", "timed out", "closed", "cut off", "refused"])
    def test_trouble_does_not_reach_the_next_request(self, server, model, trouble):
        """Whatever became of a connection, the next request in the same slot works."""
        signal = AbortController()
        if trouble == "refused":
            server.script(self.wire.refusal(500, "no"))
        else:
            server.script([*self.wire.begun("Hel"), CUT_OFF if trouble == "cut off" else HANG])
        server.script(self.wire.text("all is well"))
        events = model.stream(request(timeouts=limits(token_gap=0.2)), signal.signal)

        if trouble == "closed":
            next(events)
            events.close()
        else:
            if trouble == "aborted":
                threading.Thread(target=lambda: (server.wait_for_requests(1), signal.abort())).start()
            with pytest.raises(ModelError):
                list(events)

        assert texts(self.ask(model)) == "all is well"

    def test_many_threads_share_one_model(self, server, model):
        """FR-10: each thread reads its own answer, whoever else streams at the time."""

        def respond(body: Any) -> Response:
            content = body["messages"][-1]["content"]
            asked = content if isinstance(content, str) else "".join(block["text"] for block in content)
            words = [piece for n in range(10) for piece in (self.wire.token(f" {asked}.{n}"), Delay(0.002))]
            return stream(*self.wire.begun(asked), *words, *self.wire.ending())

        server.respond = respond

        def ask(n: int) -> str:
            return texts(self.ask(model, request(user(f"q{n}"))))

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(64)))

        assert answers == [f"q{n}" + "".join(f" q{n}.{k}" for k in range(10)) for n in range(64)]
        assert server.connections <= 16

    def test_a_lone_surrogate_does_not_break_the_request(self, server, model):
        """FR-37: whatever is in the history, the body is valid UTF-8, in this turn and in the next."""
        broken = user("x")
        # Unchecked, as a careless writer would leave it.
        broken.parts[0] = broken.parts[0].model_copy(update={"text": "a\ud83cb \ud83c\udf78"})
        server.script(self.wire.text("fine"), self.wire.text("fine again"))

        answers = [texts(self.ask(model, request(broken))) for _ in range(2)]

        assert answers == ["fine", "fine again"]
        sent = server.seen[0].raw.decode("utf-8")
        assert "a\ufffdb \U0001f378" in sent or "a\\ufffdb \\ud83c\\udf78" in sent
