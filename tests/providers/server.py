"""A model server on loopback that speaks OpenAI's chat completions, as well or as badly as a test wants.

    with ModelServer() as server:
        server.script(text_frames("Hello"), tool_call_frames(("add", {"a": 1})))
        OpenAIModel("gpt-test", api_key="sk-test", base_url=server.base_url)

``script`` answers request after request; ``server.respond = function(body) -> Response`` answers by
function. Other processes reach it by ``server.base_url``.
"""

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Json = dict[str, Any]

# --- what a response is made of -------------------------------------------------------------------


@dataclass(frozen=True)
class Delay:
    """Send nothing for that many seconds."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Send nothing until the client leaves or the server is closed; with *ping*, send it again and again."""

    ping: bytes = b""
    every: float = 0.05


@dataclass(frozen=True)
class CutOff:
    """Close the connection here, without the end of the body."""


HANG, CUT_OFF = Hang(), CutOff()
KEEP_ALIVES = Hang(b": keep-alive\n\n")
DONE = b"data: [DONE]\n\n"

Piece = bytes | Json | Delay | Hang | CutOff


@dataclass(frozen=True, kw_only=True)
class Response:
    """One answer. A dict in ``pieces`` is sent as an SSE frame, bytes as they are.

    ``slice_bytes`` sends the body in HTTP chunks of that size, so that the client sees each cut.
    ``framing``: how the end of the body is told, ``until-close`` being the way of HTTP/1.0.
    ``before_head``: what to wait for before anything is sent at all.
    """

    pieces: Sequence[Piece] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    framing: Literal["chunked", "until-close"] = "chunked"
    slice_bytes: int | None = None
    before_head: Delay | Hang | CutOff | None = None


def stream(*pieces: Piece, **options: Any) -> Response:
    """A response of these pieces."""
    return Response(pieces=pieces, **options)


def json_response(body: Any, status: int = 200, **headers: str) -> Response:
    """A plain JSON body. Headers are written with underscores: ``retry_after="2"``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(
        pieces=[json.dumps(body).encode()], status=status, headers=named, content_type="application/json"
    )


# --- the wire format ------------------------------------------------------------------------------


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    """One chat.completion.chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def usage(prompt: int = 3, completion: int = 5) -> Json:
    """The last chunk with `stream_options.include_usage`: no choices."""
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counted}


def error_frame(message: str = "overloaded", code: Any = 502, **more: Any) -> Json:
    """An error in the middle of a stream."""
    return {"error": {"message": message, "code": code, **more}}


def fragment(
    index: int | None, arguments: Any = "", *, call_id: str | None = None, name: str | None = None
) -> Json:
    """The delta with one piece of a tool call."""
    function: Json = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    call: Json = {"type": "function", "function": function}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    return {"tool_calls": [call]}


def text_frames(text: str, finish: str = "stop") -> list[Piece]:
    """A whole answer of text, word by word."""
    words = text.split(" ")
    pieces = [word if at == 0 else f" {word}" for at, word in enumerate(words)]
    first = chunk({"role": "assistant", "content": ""})
    return [first, *(chunk({"content": piece}) for piece in pieces), chunk(finish=finish), usage(), DONE]


def tool_call_frames(
    *calls: tuple[str, Json | str], text: str = "", finish: str = "tool_calls", ids: Sequence[str] = ()
) -> list[Piece]:
    """A whole answer that calls tools, each call's arguments in three fragments. Ids are call_0, call_1, …"""
    frames: list[Piece] = [chunk({"role": "assistant", "content": None})]
    if text:
        frames.append(chunk({"content": text}))
    for index, (name, arguments) in enumerate(calls):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = ids[index] if ids else f"call_{index}"
        frames.append(chunk(fragment(index, "", call_id=call_id, name=name)))
        size = max(-(-len(written) // 3), 1)
        frames += [chunk(fragment(index, written[at : at + size])) for at in range(0, len(written), size)]
    return [*frames, chunk(finish=finish), usage(), DONE]


# --- the server -----------------------------------------------------------------------------------


@dataclass
class Seen:
    """One request as it came. ``left`` is set when the client closed the connection before its answer's end."""

    at: float
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    left: threading.Event = field(default_factory=threading.Event)


class ModelServer:
    """Serves on a free port of 127.0.0.1 from ``with`` on. Thread-safe.

    Args:
        log: A file to which each request is appended as a line of JSON: ``{"at": …, "path": …, "body": …}``.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self.respond: Callable[[Any], Response | Iterable[Piece]] = self._scripted
        self._script: list[Response] = []
        self._log = log
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads: list[threading.Thread] = []

    @property
    def base_url(self) -> str:
        """What to give a provider as its base URL."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    @property
    def requests(self) -> list[Any]:
        """The bodies of all requests so far."""
        with self._lock:
            return [seen.body for seen in self.seen]

    def script(self, *responses: Response | Iterable[Piece]) -> None:
        """Append answers to the script: responses, or the frames of one."""
        with self._lock:
            self._script += [_as_response(response) for response in responses]

    def wait_for_requests(self, count: int, seconds: float = 5.0) -> None:
        """Return once that many requests have come; fail after *seconds*."""
        until = time.monotonic() + seconds
        while len(self.requests) < count:
            assert time.monotonic() < until, f"{len(self.requests)} requests came, not {count}"
            self._closing.wait(0.002)

    def __enter__(self) -> "ModelServer":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        # A blocked accept is not woken by close alone.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _shut(connection)
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader:
                while (seen := self._read(reader)) is not None and not self._closing.is_set():
                    if not self._answer(connection, seen):
                        return
        except OSError:
            pass  # the client is gone, or the server is being closed
        finally:
            with self._lock:
                self._open.discard(connection)

    def _read(self, reader: Any) -> Seen | None:
        request_line = reader.readline().decode()
        if not request_line.strip():
            return None
        headers = {}
        while line := reader.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        raw = reader.read(length)
        if len(raw) < length:  # its process was killed
            return None
        seen = Seen(time.time(), request_line.split()[1], headers, raw, json.loads(raw) if raw else None)
        with self._lock:
            self.seen.append(seen)
            if self._log is not None:
                line = json.dumps({"at": seen.at, "path": seen.path, "body": seen.body})
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(line + "\n")
        return seen

    def _scripted(self, body: Any) -> Response:
        with self._lock:
            if self._script:
                return self._script.pop(0)
        return json_response({"error": {"message": "the server's script is over"}}, status=400)

    def _answer(self, connection: socket.socket, seen: Seen) -> bool:
        """Send the answer, and say whether the connection can take another request."""
        response = _as_response(self.respond(seen.body))
        wire = _Wire(connection, seen, self._closing, response)
        if response.before_head is not None and not wire.wait(response.before_head):
            return False
        head = f"HTTP/1.1 {response.status} Scripted\r\nContent-Type: {response.content_type}\r\n"
        for name, value in response.headers.items():
            head += f"{name}: {value}\r\n"
        chunked = response.framing == "chunked"
        head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else "Connection: close\r\n\r\n"
        try:
            connection.sendall(head.encode())
            for piece in response.pieces:
                if isinstance(piece, Delay | Hang | CutOff):
                    if not wire.wait(piece):
                        return False
                else:
                    wire.send(piece if isinstance(piece, bytes) else sse(piece))
            if chunked:
                connection.sendall(b"0\r\n\r\n")
        except OSError:
            seen.left.set()
            raise
        return chunked and seen.headers.get("connection", "").lower() != "close"


def sse(frame: Json) -> bytes:
    """A frame as an event of a stream; text beyond ASCII stays as it is, in UTF-8."""
    return b"data: " + json.dumps(frame, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"


@dataclass
class _Wire:
    connection: socket.socket
    seen: Seen
    closing: threading.Event
    response: Response

    def send(self, data: bytes) -> None:
        size = self.response.slice_bytes or len(data)
        framed = bytearray()
        for at in range(0, len(data), size or 1):
            part = data[at : at + size]
            framed += b"%x\r\n%s\r\n" % (len(part), part) if self.response.framing == "chunked" else part
        self.connection.sendall(framed)

    def wait(self, pause: Delay | Hang | CutOff) -> bool:
        """Wait as told, and say whether the answer goes on."""
        match pause:
            case CutOff():
                _shut(self.connection)
                return False
            case Delay(seconds):
                return not self._client_left(seconds)
            case Hang(ping, every):
                while not self.closing.is_set():
                    if self._client_left(every):
                        return False
                    if ping:
                        self.send(ping)
        return False

    def _client_left(self, seconds: float) -> bool:
        """Watch the connection for that long: a client that leaves makes it readable."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            if not selector.select(seconds):
                return False
        try:
            left = not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            left = True
        if left:
            self.seen.left.set()
        return left


def _as_response(given: Response | Iterable[Piece]) -> Response:
    return given if isinstance(given, Response) else Response(pieces=list(given))


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
