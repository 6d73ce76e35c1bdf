"""The events of Anthropic's Messages, for a test's model server."""

import json
from typing import Any

from tests.providers.server import Json, Piece


def event(kind: str, **fields: Any) -> bytes:
    """One event of the stream, named as the vendor names it."""
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


PING = event("ping")


def message_start(read: int = 3, **usage: int) -> bytes:
    """The beginning, with the count of what was read."""
    counted = {"input_tokens": read, "output_tokens": 1, **usage}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    return event("message_start", message={**message, "stop_reason": None, "usage": counted})


def block_start(index: int, kind: str, **fields: Any) -> bytes:
    """A block begins."""
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def block_delta(index: int, kind: str, **fields: Any) -> bytes:
    """A piece of a block."""
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def block_stop(index: int) -> bytes:
    """A block is whole."""
    return event("content_block_stop", index=index)


def text_delta(text: str, index: int = 0) -> bytes:
    """A piece of text."""
    return block_delta(index, "text_delta", text=text)


def ending(reason: str | None = "end_turn", written: int = 5) -> list[Piece]:
    """The end, with the reason and the count of what was written."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [event("message_delta", delta=delta, usage={"output_tokens": written}), event("message_stop")]


def text_block(text: str, index: int = 0) -> list[Piece]:
    """A block of text, word by word."""
    words = text.split(" ")
    pieces = [word if at == 0 else f" {word}" for at, word in enumerate(words)]
    deltas = [text_delta(piece, index) for piece in pieces]
    return [block_start(index, "text", text=""), *deltas, block_stop(index)]


def thinking_block(text: str, signature: str = "sig-1", index: int = 0) -> list[Piece]:
    """A block of thinking in two pieces, and its signature."""
    half = len(text) // 2
    return [
        block_start(index, "thinking", thinking="", signature=""),
        *(block_delta(index, "thinking_delta", thinking=piece) for piece in (text[:half], text[half:])),
        block_delta(index, "signature_delta", signature=signature),
        block_stop(index),
    ]


def call_start(index: int, name: str, call_id: str) -> bytes:
    """A call begins."""
    return block_start(index, "tool_use", id=call_id, name=name, input={})


def call_delta(index: int, piece: str) -> bytes:
    """A piece of a call's arguments."""
    return block_delta(index, "input_json_delta", partial_json=piece)


def call_block(index: int, name: str, arguments: Json | str, call_id: str = "") -> list[Piece]:
    """A call, its arguments in fragments, the first of which is empty."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    size = max(-(-len(written) // 3), 1)
    pieces = ["", *(written[at : at + size] for at in range(0, len(written), size))]
    start = call_start(index, name, call_id or f"toolu_{index}")
    return [start, *(call_delta(index, piece) for piece in pieces), block_stop(index)]


def message(*blocks: list[Piece], reason: str | None = "end_turn") -> list[Piece]:
    """A whole answer of these blocks."""
    return [message_start(), *(piece for block in blocks for piece in block), *ending(reason)]


def error_event(kind: str = "overloaded_error", text: str = "Overloaded") -> bytes:
    """An error in the middle of a stream."""
    return event("error", error={"type": kind, "message": text})
