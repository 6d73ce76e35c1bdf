"""Server-sent events, decoded from bytes as the WHATWG standard says.

Only CR, LF and CRLF end a line. (Line iterators that work on text also cut at U+2028 and U+0085, and so
break JSON that holds them.)
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from think_celery.errors import ModelError

MAX_EVENT_BYTES = 16 * 1024 * 1024
LONG_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event: its kind (``message`` unless the server named one) and its data."""

    kind: str
    data: str


class SseDecoder:
    """Turns chunks of bytes, cut anywhere, into events."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail = b""  # of a block, not looked at yet
        self._line = bytearray()
        self._kind = b""
        self._data: list[bytes] = []
        self._held = 0
        self._after_cr = False
        self._first_line = True

    def feed(self, chunk: bytes) -> Iterable[ServerSentEvent]:
        """The events that are complete with this chunk, to be read before the next chunk is fed.

        Raises:
            ModelError: An event is larger than ``max_event_bytes``.
        """
        if chunk.find(b"\n") == len(chunk) - 2 and chunk.startswith(b"data: "):  # mostly: one token
            is_whole = not self._tail and self._between and len(chunk) <= self._max
            if is_whole and chunk.endswith(b"\n") and b"\r" not in chunk:
                return (ServerSentEvent("message", chunk[6:-2].decode("utf-8", "replace")),)
        if b"\r" in chunk or not (self._between or self._tail):
            return self._slowly(chunk)
        # What nearly all streams are: blocks of lines that end with LF.
        data = self._tail + chunk if self._tail else chunk
        cut = data.rfind(b"\n\n")
        self._tail = data if cut < 0 else data[cut + 2 :]
        self._check(len(self._tail))
        events: list[ServerSentEvent] = []
        if cut >= 0:
            for block in data[:cut].split(b"\n\n"):
                if block[:5] == b"data:" and b"\n" not in block and len(block) <= self._max:
                    line = block[6:] if block[5:6] == b" " else block[5:]
                    events.append(ServerSentEvent("message", line.decode("utf-8", "replace")))
                else:
                    events += self._feed(block + b"\n\n")
        if len(self._tail) > LONG_BYTES:  # to be joined piece by piece, not looked through again with each
            tail, self._tail = self._tail, b""
            events += self._feed(tail)
        return events

    def _slowly(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        tail, self._tail = self._tail, b""
        end = chunk.find(b"\n\n") + 2
        if b"\r" in chunk or end < 2:
            yield from self._feed(tail + chunk)
        else:  # once an event has ended, the rest may be as usual
            yield from self._feed(chunk[:end])
            yield from self.feed(chunk[end:]) if self._between else self._feed(chunk[end:])

    @property
    def _between(self) -> bool:
        """Whether the last event is over and nothing has come of the next one."""
        return not (self._first_line or self._after_cr or self._line or self._data or self._kind)

    def _feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        if not chunk:
            return
        if self._after_cr:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        # Only a CR at the very end may have its LF still to come.
        self._after_cr = chunk.endswith(b"\r")
        for piece in chunk.splitlines(keepends=True):
            self._check(len(piece))
            if not piece.endswith((b"\r", b"\n")):
                self._line += piece
                return
            event = self._take_line(bytes(self._line) + piece.rstrip(b"\r\n"))
            self._line.clear()
            if event is not None:
                yield event

    def end(self) -> ServerSentEvent | None:
        """The event that the stream left without its closing blank line, if any.

        The standard drops it. Servers that forget the last blank line are common, and a cut event is found out
        by its JSON, so it is given.
        """
        if self._tail:
            tail, self._tail = self._tail, b""
            for event in self._feed(tail):
                return event
        if self._line:
            self._take_line(bytes(self._line))
            self._line.clear()
        return self._dispatch()

    def _take_line(self, line: bytes) -> ServerSentEvent | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._held += len(value) + 1
        elif field == b"event":
            self._kind = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        kind, data = self._kind or b"message", self._data
        self._kind, self._data, self._held = b"", [], 0
        if not data:
            return None
        return ServerSentEvent(kind.decode("utf-8", "replace"), b"\n".join(data).decode("utf-8", "replace"))

    def _check(self, more: int) -> None:
        if self._held + len(self._line) + more > self._max:
            raise ModelError(
                f"the provider's stream holds an event of more than {self._max:,} bytes; "
                "such an answer is refused, lest it fill the memory"
            )
