"""OpenAI's chat completions, and any server that speaks them (vLLM, Ollama, OpenRouter, gateways)."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

from think_celery.errors import ModelAborted, ModelError, NoModel
from think_celery.messages import ToolPart
from think_celery.protocols import ModelEvent, ModelRequest, ModelTimeouts
from think_celery.providers import failures
from think_celery.providers.connections import Connection, connections
from think_celery.providers.openai_request import request_body
from think_celery.providers.openai_stream import Answer
from think_celery.providers.permission import check_permitted
from think_celery.providers.sse import MAX_EVENT_BYTES, ServerSentEvent, SseDecoder
from think_celery.providers.toolcalls import UniqueIds
from think_celery.providers.watchdog import Guard, guard
from think_celery.signals import AbortSignal

OPENAI_URL = "https://api.openai.com/v1"

TRAILER_SECONDS = 5.0  # for usage and [DONE], once the answer is whole
DRAIN_SECONDS = 0.05  # for the end of the body after [DONE], so that the connection can be used again
_ERROR_BODY_BYTES = 64 * 1024


class OpenAIModel:
    """A model behind OpenAI's chat completions, streamed.

    Making one is cheap and connects to nothing. It may be shared between threads and used after a fork;
    connections are kept per process and server, never per object.

    Args:
        model: The provider's name of the model.
        api_key: Sent as a bearer token; ``None`` sends none. It is never part of an error or a log.
        base_url: Where ``/chat/completions`` is.
        headers: More headers; they win over our own.
        name: What to call it in logs and errors; ``openai/<model>`` if not given.
        client: Your own ``httpx.Client`` (HTTP/1.1), for a transport of yours. Each request then opens a connection
            of its own, for only of a new one is the socket known before the server answers.
        extra: More fields of the request's body, such as ``{"temperature": 0}``.

    Raises:
        NoModel: ``base_url`` is no http(s) URL, or the key can't be sent in a header.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = OPENAI_URL,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        client: httpx.Client | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._name = name or f"openai/{model}"
        self._url = _completions_url(self._name, base_url)
        self._client = client
        self._extra = dict(extra or {})
        key = (api_key or "").strip()
        if not key.isascii() or not key.isprintable():
            raise NoModel(self._name, "its API key holds characters that no HTTP header can carry")
        self._headers = httpx.Headers(
            {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
                "Accept-Encoding": "identity",  # compression holds back what should be seen at once
                "User-Agent": "think-celery",
            }
        )
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        if client is not None:
            self._headers["Connection"] = "close"
        self._headers.update(headers)
        words = [key, *(headers or {}).values()]
        self._secrets = [word for word in sorted(words, key=len, reverse=True) if len(word) >= 6]

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, name={self._name!r})"

    @property
    def name(self) -> str:
        """What to call it in logs, such as ``openai/gpt-5``."""
        return self._name

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask once, and yield events until a ``Finish``. See :meth:`think_celery.protocols.Model.stream`."""
        check_permitted(self._name, self._url)
        return self._stream(request, signal)

    def _stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        if signal.aborted:
            raise self._aborted(signal.reason)
        try:
            content = request_body(self._model, request, self._extra)
        except ModelError as error:
            raise self._named(error) from None
        if self._client is not None:
            yield from self._ask(Connection(self._client), content, request, signal)
        else:
            with connections().borrowed(self._url) as connection:
                yield from self._ask(connection, content, request, signal)

    def _ask(
        self, connection: Connection, content: bytes, request: ModelRequest, signal: AbortSignal
    ) -> Iterator[ModelEvent]:
        limits = request.timeouts
        waiting = f"no token came within {limits.first_token:g} s of the request (keep-alives are no tokens)"
        ids = UniqueIds(
            part.tool_call_id
            for message in request.messages
            for part in message.parts
            if isinstance(part, ToolPart)
        )
        with guard(connection.cut, signal) as watched:
            try:
                with connection.post(
                    self._url,
                    headers=self._headers,
                    content=content,
                    timeouts=limits,
                    guard=watched,
                    waiting_for=waiting,
                ) as response:
                    if not response.is_success:
                        body = _read_some(response, watched)
                        raise failures.of_status(response.status_code, response.headers, body)
                    yield from _Reader(response, watched, limits, Answer(ids)).events()
            except Exception as error:
                raise self._failure(error, watched) from None

    def _failure(self, error: Exception, watched: Guard) -> Exception:
        """The error to raise. What *watched* did comes first: all else may only be its consequence."""
        if watched.aborted:
            return self._aborted(watched.fired)
        refused = isinstance(error, ModelError) and error.status_code is not None
        if watched.fired is not None and not refused:
            return self._named(ModelError(watched.fired, retryable=True))
        match error:
            case ModelError():
                return self._named(error)
            case httpx.ConnectError() | httpx.ConnectTimeout():
                text = (
                    f"could not connect to {_address(httpx.URL(self._url))}: {error or type(error).__name__}"
                )
                return self._named(ModelError(text, retryable=True))
            case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
                return self._named(ModelError(f"the request could not be sent: {error}"))
            case httpx.HTTPError():
                text = f"the connection broke ({type(error).__name__}): {error}"
                return self._named(ModelError(text, retryable=True))
            case RecursionError():  # what was nested just not too deep to be parsed is, to be worked with
                return self._named(ModelError("the provider's answer is nested too deep", retryable=True))
            case _:
                return error

    def _named(self, error: ModelError) -> ModelError:
        return ModelError(
            failures.shown(f"{self._name}: {error.message}", self._secrets),
            retryable=error.retryable,
            status_code=error.status_code,
            retry_after_seconds=error.retry_after_seconds,
        )

    def _aborted(self, reason: str | None) -> ModelAborted:
        return ModelAborted(f"{self._name}: the request was given up: {reason or 'aborted'}")


class _Reader:
    """Reads one response and gives its events, while a guard watches."""

    def __init__(
        self, response: httpx.Response, watched: Guard, limits: ModelTimeouts, answer: Answer
    ) -> None:
        self._guard, self._answer = watched, answer
        self._chunks = response.iter_bytes()
        self._gap = limits.token_gap
        self._gap_reason = f"no token came for {limits.token_gap:g} s in the middle of the answer"

    def events(self) -> Iterator[ModelEvent]:
        """The whole answer.

        Raises:
            ModelError: It carries an error or is not whole.
        """
        start = self._start()
        if start.startswith(b"{"):
            yield from self._given(self._answer.body(self._json(start)))
            done = True
        elif start.startswith(b"<"):
            raise ModelError(
                "the server answered with a web page, not with a model's stream; is the base_url right?"
            )
        else:
            done = yield from self._read_stream(start)
        final = self._answer.end(done=done)
        if done:
            self._drain()
        yield from self._given(final)

    def _start(self) -> bytes:
        """The first bytes that are more than blanks: they tell a JSON body from a stream, whatever the headers say."""
        start = b""
        for chunk in self._chunks:
            self._check()
            start = (start + chunk).lstrip()
            # Three bytes, for a byte order mark may come first.
            if len(start) >= 3:
                break
        self._check()
        return start.removeprefix(b"\xef\xbb\xbf").lstrip()

    def _json(self, start: bytes) -> Any:
        body = bytearray(start)
        self._guard.extend(self._gap, self._gap_reason)
        for chunk in self._chunks:
            self._check()
            body += chunk
            if len(body) > MAX_EVENT_BYTES:
                raise ModelError(f"the server answered with more than {MAX_EVENT_BYTES:,} bytes of JSON")
            if chunk.strip():
                self._guard.extend(self._gap, self._gap_reason)
        self._check()
        return _parsed(body.decode("utf-8", "replace"))

    def _read_stream(self, start: bytes) -> Generator[ModelEvent, None, bool]:
        """The deltas; returns whether the end was marked by ``[DONE]``."""
        decoder, finished = SseDecoder(), False
        for chunk in self._all(start):
            self._check()
            events: list[ModelEvent] = []
            done = False
            for event in decoder.feed(chunk):
                if event.data.strip() == "[DONE]":
                    done = True
                    break
                events += self._frame(event)
            if events:
                yield from self._given(events)
            if done:
                return True
            if self._answer.finished and (events or not finished):
                # Once only: neither comments nor bookkeeping make the trailer's time longer.
                self._guard.extend(min(self._gap, TRAILER_SECONDS), self._gap_reason)
            elif events:
                self._guard.extend(self._gap, self._gap_reason)
            finished = self._answer.finished
        return (yield from self._rest(decoder))

    def _all(self, start: bytes) -> Iterator[bytes]:
        yield start
        try:
            # `yield from` would close the response together with this generator, before the drain.
            for chunk in self._chunks:  # noqa: UP028
                yield chunk
        except httpx.HTTPError:
            # Once the answer is whole, a connection that breaks (or that our guard cuts) takes nothing away.
            if not self._answer.finished or self._guard.aborted:
                raise

    def _rest(self, decoder: SseDecoder) -> Generator[ModelEvent, None, bool]:
        """What the stream held after its last blank line. A frame that was cut is none."""
        event = decoder.end()
        if event is None or event.data.strip() == "[DONE]":
            return event is not None
        try:
            json.loads(event.data)
        except (ValueError, RecursionError):
            return False
        yield from self._given(self._frame(event))
        return False

    def _frame(self, event: ServerSentEvent) -> list[ModelEvent]:
        frame = _parsed(event.data)
        if event.kind == "error" and isinstance(frame, dict) and not frame.get("error"):
            frame = {"error": frame}
        return self._answer.frame(frame)

    def _given(self, events: list[ModelEvent]) -> Iterator[ModelEvent]:
        """Hand out events. The time that their reader takes is not the provider's."""
        self._guard.pause()
        for event in events:
            self._check()
            yield event

    def _check(self) -> None:
        fired = self._guard.fired
        if fired is not None and (self._guard.aborted or not self._answer.finished):
            raise ModelError(fired, retryable=True)

    def _drain(self) -> None:
        self._guard.extend(DRAIN_SECONDS, "the body did not end after [DONE]")
        with suppress(httpx.HTTPError):
            for _ in self._chunks:
                pass


def _completions_url(name: str, base_url: str) -> str:
    try:
        url = httpx.URL(base_url.strip())
        if url.scheme in ("http", "https") and url.host:
            return str(url.copy_with(path=url.path.rstrip("/") + "/chat/completions"))
    except (httpx.InvalidURL, TypeError):
        pass
    raise NoModel(name, f"its base_url must be an http(s) URL such as {OPENAI_URL}")


def _address(url: httpx.URL) -> str:
    return f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter: nested too deep
        start = text if len(text) <= 200 else text[:200] + "…"
        raise ModelError(f"the provider sent something that is no JSON: {start!r}", retryable=True) from None


def _read_some(response: httpx.Response, watched: Guard) -> bytes:
    """The body of a refusal, as far as it comes. The status alone says enough to go by."""
    body = bytearray()
    with suppress(httpx.HTTPError):
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _ERROR_BODY_BYTES or watched.fired is not None:
                break
    return bytes(body)
