"""Server-sent events, decoded from bytes as the WHATWG standard says.

Only CR, LF and CRLF end a line. (Line iterators that work on text also cut at U+2028 and U+0085, and so
break JSON that holds them.)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from think_celery.errors import ModelError

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its kind (``message`` unless the server named one) and its data."""

    kind: str
    data: str


class SseDecoder:
    """Turns chunks of bytes, cut anywhere, into events."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
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
        if chunk[:5] == b"data:" and chunk[-2:] == b"\n\n" and self._between and b"\r" not in chunk:
            # What nearly all chunks are: whole events of one line.
            blocks = chunk[:-2].split(b"\n\n")
            plain = all(block[:5] == b"data:" and b"\n" not in block for block in blocks)
            if plain and len(chunk) <= self._max:
                return [_of_line(block) for block in blocks]
        return self._feed(chunk)

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


def _of_line(line: bytes) -> ServerSentEvent:
    data = line[6:] if line[5:6] == b" " else line[5:]
    return ServerSentEvent("message", data.decode("utf-8", "replace"))
