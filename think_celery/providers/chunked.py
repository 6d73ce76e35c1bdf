"""Bodies that come in HTTP chunks, read from the connection itself.

A model's server sends each token as a chunk of its own. httpx hands out chunk by chunk, through many layers, which
costs more than all that is done with a token afterwards. So once the head of a response is there, we go on by
ourselves: what has come is taken out of its chunks at once. In the end httpx is told that the body is over, and keeps
the connection for the next request.
"""

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx

READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024
_END = b"0\r\n\r\n"
_HEAD_ENDS = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/1\.[01] 1\d\d")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,20})[ \t]*(?:;.*)?")


class Tap:
    """Sees what httpx reads of a connection up to a response's head, and tells it in the end that the body is over."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._read = stream, stream.read
        self._seen: bytearray | None = bytearray()
        self._told = b""
        stream.read = self.read

    def begin(self) -> None:
        """A request goes out: what comes now is the answer to it."""
        self._seen, self._told = bytearray(), b""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What httpx calls in place of its stream's own method."""
        if self._told:
            told, self._told = self._told, b""
            return told
        data: bytes = self._read(max_bytes, timeout)
        if self._seen is not None:
            self._seen += data
        return data

    def body(self, response: httpx.Response) -> Iterator[bytes] | None:
        """The body of this response, whose head httpx has just read; ``None`` if httpx must read it by itself.

        Reading waits without a limit: somebody must cut the connection.
        """
        seen, self._seen = self._seen, None
        sock = self._stream.get_extra_info("socket")
        if (
            not seen
            or response.http_version != "HTTP/1.1"
            or response.headers.get("transfer-encoding", "").lower() != "chunked"
            or response.headers.get("content-encoding", "identity") != "identity"
            or response.extensions.get("network_stream") is not self._stream
            # Of other kinds of streams we don't know whether their socket carries what they give.
            or type(self._stream).__qualname__ != "SyncStream"
            or not isinstance(sock, socket.socket)
        ):
            return None
        begun = _after_head(bytes(seen))
        return None if begun is None else self._chunks(response, sock, begun)

    def _chunks(self, response: httpx.Response, sock: socket.socket, begun: bytes) -> Iterator[bytes]:
        decoder = Dechunker()
        data = decoder.feed(begun)
        # httpx has these bytes, too. It can be told of the end only between two chunks.
        known, between = decoder.done, decoder.between
        # The guard of the request cuts the connection at its deadline; a limit here would cost a second system call
        # for each read. httpx sets its own for whatever it does with the socket.
        sock.settimeout(None)
        while True:
            if data:
                yield data
            if decoder.done:
                break
            try:
                read = sock.recv(READ_BYTES)
            except OSError as error:
                raise httpx.ReadError(str(error)) from error
            if not read:
                raise httpx.RemoteProtocolError("the server closed the connection in the middle of the body")
            data = decoder.feed(read)
        if known or (between and not decoder.surplus):
            self._told = b"" if known else _END
            assert isinstance(response.stream, httpx.SyncByteStream)
            for _ in response.stream:
                pass


def _after_head(seen: bytes) -> bytes | None:
    at = 0
    while True:
        end = _HEAD_ENDS.search(seen, at)
        if end is None or not seen.startswith(b"HTTP/1.", at):
            return None
        if not _INTERIM.match(seen, at):
            return seen[end.end() :]
        at = end.end()


class Dechunker:
    """Takes bodies out of their HTTP chunks, cut anywhere."""

    def __init__(self) -> None:
        self.done = False
        """Whether the last chunk was read, and what follows it."""
        self.surplus = False
        """Whether more came than the body."""
        self._held = b""
        self._left = 0  # of the chunk's data
        self._closing = False  # the data was read; the end of its line follows
        self._last = False

    @property
    def between(self) -> bool:
        """Whether a chunk is over and nothing has come of the next one."""
        return not (self._held or self._left or self._closing or self._last)

    def feed(self, data: bytes) -> bytes:
        """The data in these bytes.

        Raises:
            httpx.RemoteProtocolError: They are no chunks.
        """
        if self._held:
            data, self._held = self._held + data, b""
        pieces, at, end = [], 0, len(data)
        while not self.done:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._closing = True
            if self._closing:
                if end - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise httpx.RemoteProtocolError("a chunk of the body does not end where it says")
                self._closing, at = False, at + 2
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                if end - at > MAX_LINE_BYTES:
                    raise httpx.RemoteProtocolError("a line between the body's chunks is too long")
                break
            line, at = data[at:line_end], line_end + 2
            if self._last:
                self.done = not line  # else it is a trailer
                continue
            size = _SIZE.fullmatch(line)
            if size is None:
                raise httpx.RemoteProtocolError("a chunk of the body does not say how long it is")
            self._left = int(size[1], 16)
            self._last = not self._left
        self._held, self.surplus = (b"", at < end) if self.done else (data[at:], False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
