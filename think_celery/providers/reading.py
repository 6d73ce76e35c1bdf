"""Reads one response of a provider and gives its events, while a guard watches. The same for every vendor."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

import httpx
from pydantic_core import from_json

from think_celery.errors import ModelError
from think_celery.protocols import ModelEvent, ModelTimeouts, Usage
from think_celery.providers.pace import Pace
from think_celery.providers.sse import MAX_EVENT_BYTES, ServerSentEvent, SseDecoder
from think_celery.providers.watchdog import Guard

TRAILER_SECONDS = 5.0
"""For what may follow an answer that is whole, such as its count of tokens."""

DRAIN_SECONDS = 0.05
"""For the end of the body after the end of the stream, so that the connection can be used again."""

ERROR_BODY_BYTES = 64 * 1024


class Answer(Protocol):
    """One answer as it comes in, in a vendor's format: feed it what is read, and take the events."""

    @property
    def finished(self) -> bool:
        """Whether the answer is whole, so that a connection that breaks now takes nothing away."""

    @property
    def done(self) -> bool:
        """Whether the provider marked the end of the stream: nothing more is read."""

    @property
    def usage(self) -> Usage:
        """What it has cost so far, as far as the provider has told: that stays, if the answer never becomes whole."""

    def take(self, event: ServerSentEvent) -> list[ModelEvent]:
        """The model's events in one event of the stream: often none, for frames also keep books.

        Raises:
            ModelError: It carries an error, whatever else it carries.
        """

    def body(self, body: Any) -> list[ModelEvent]:
        """The events of an answer that came as one JSON body, without its ``Finish``.

        Raises:
            ModelError: It carries an error, or is no answer.
        """

    def end(self) -> list[ModelEvent]:
        """The last events, with ``Finish``.

        Raises:
            ModelError: Nothing says that the answer is whole.
        """


class Reader:
    """Reads the body of one response."""

    def __init__(
        self,
        chunks: Iterator[bytes],
        watched: Guard,
        limits: ModelTimeouts,
        answer: Answer,
        pace: Pace,
    ) -> None:
        self._chunks, self._guard, self._answer, self._pace = chunks, watched, answer, pace
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
        elif start.startswith(b"<"):
            raise ModelError(
                "the server answered with a web page, not with a model's stream; is the base_url right?"
            )
        else:
            yield from self._read_stream(start)
        final = self._answer.end()
        if self._answer.done:
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
        return parsed(body.decode("utf-8", "replace"))

    def _read_stream(self, start: bytes) -> Generator[ModelEvent, None, None]:
        """The events up to the end of the stream."""
        decoder, finished = SseDecoder(), False
        self._pace.begin(self._guard.left)
        answer, guard, gap, gap_reason = self._answer, self._guard, self._gap, self._gap_reason
        try:
            for chunk in chain((start,), self._chunks):
                if guard.fired is not None:
                    self._check()
                events: list[ModelEvent] = []
                for event in decoder.feed(chunk):
                    events += answer.take(event)
                    if answer.done:
                        break
                if events:
                    guard.pause()  # the time that their reader takes is not the provider's
                    for each in events:
                        if guard.fired is not None:
                            self._check()
                        yield each
                if answer.done:
                    self._pace.end()
                    return
                was_finished, finished = finished, answer.finished
                if finished and (events or not was_finished):
                    self._pace.end()
                    # Once only: neither comments nor bookkeeping make the trailer's time longer.
                    guard.extend(min(gap, TRAILER_SECONDS), gap_reason)
                elif events:
                    guard.extend(gap, gap_reason)
        except httpx.HTTPError:
            # Once the answer is whole, a connection that breaks (or that our guard cuts) takes nothing away.
            if not answer.finished or guard.aborted:
                raise
        yield from self._rest(decoder)

    def _rest(self, decoder: SseDecoder) -> Iterator[ModelEvent]:
        """What the stream held after its last blank line. A frame that was cut is none."""
        event = decoder.end()
        if event is None:
            return
        try:
            json.loads(event.data)
        except (ValueError, RecursionError):
            with suppress(ModelError):
                self._answer.take(event)  # which may be the mark of the end
            return
        yield from self._given(self._answer.take(event))

    def _given(self, events: list[ModelEvent]) -> Iterator[ModelEvent]:
        """Hand out events. The time that their reader takes is not the provider's."""
        self._guard.pause()
        for event in events:
            self._check()
            yield event

    def _check(self) -> None:
        fired, answer = self._guard.fired, self._answer
        if fired is not None and (self._guard.aborted or not (answer.finished or answer.done)):
            raise ModelError(fired, retryable=True)

    def _drain(self) -> None:
        self._guard.extend(DRAIN_SECONDS, "the body did not end after the end of the stream")
        with suppress(httpx.HTTPError):
            for _ in self._chunks:
                pass


def parsed(text: str) -> Any:
    """The JSON value of a frame or body.

    Raises:
        ModelError: It is none; some of it is shown.
    """
    try:
        return from_json(text)
    except ValueError:
        pass  # it refuses half a surrogate pair, which may be whole with the next frame
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter: nested too deep
        start = text if len(text) <= 200 else text[:200] + "…"
        raise ModelError(f"the provider sent something that is no JSON: {start!r}", retryable=True) from None


def frame_of(event: ServerSentEvent) -> Mapping[str, Any]:
    """The JSON object of an event; of one that the server named ``error``, an object that says so.

    Raises:
        ModelError: It is none.
    """
    try:
        frame = from_json(event.data)
    except ValueError:
        frame = parsed(event.data)
    if event.kind == "error" and isinstance(frame, dict) and not frame.get("error"):
        frame = {"error": frame}
    if not isinstance(frame, dict):
        raise ModelError(f"the provider sent a frame that is no JSON object: {frame!r}", retryable=True)
    return frame


def read_some(response: httpx.Response, watched: Guard) -> bytes:
    """The body of a refusal, as far as it comes. The status alone says enough to go by."""
    body = bytearray()
    with suppress(httpx.HTTPError):
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > ERROR_BODY_BYTES or watched.fired is not None:
                break
    return bytes(body)
