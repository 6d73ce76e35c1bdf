"""A model server that writes as fast as its reader reads, or at a pace: one thread, one process, prepared bytes.

``python -m benchmarks.streamserver`` prints its port. The request's ``max_tokens`` says how many tokens come, its
``top_p`` at which pace: a second's tokens, 0 for all at once. Each token is a frame and an HTTP chunk of its own.
"""

import asyncio
import json
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = "a word or so "
END = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def frame(delta: dict[str, str], finish: str | None = None) -> bytes:
    """One frame, as OpenAI writes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return chunked(b"data: " + json.dumps({**whole, "choices": [choice]}).encode() + b"\n\n")


FIRST = frame({"role": "assistant", "content": ""})
ONE = frame({"content": TOKEN})
LAST = frame({}, "stop") + chunked(b"data: [DONE]\n\n") + END


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer request after request."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            body = json.loads(await reader.readexactly(int(length)))
            await answer(writer, body["max_tokens"], body["top_p"])
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def answer(writer: asyncio.StreamWriter, tokens: int, rate: float) -> None:
    """One answer."""
    writer.write(HEAD + FIRST)
    if not rate:
        for at in range(0, tokens, 100):  # many frames in one packet, as after a pause of the network
            writer.write(ONE * min(100, tokens - at))
            await writer.drain()
    else:
        due = time.monotonic()
        for _ in range(tokens):
            due += 1 / rate
            await asyncio.sleep(max(due - time.monotonic(), 0))
            writer.write(ONE)
    writer.write(LAST)
    await writer.drain()


async def main() -> None:
    """Serve on a free port of this machine until the parent closes our standard input."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
