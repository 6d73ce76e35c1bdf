"""The offline model: an HTTP server on this machine's loopback that streams as OpenAI's chat completions do.

The agents ask it as they would ask a provider, so the demo runs the same code as production.
"""

import json
import os
import re
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from think_celery.clock import SystemClock
from think_celery.demo.answerer import Reply, UnknownRequest, reply_to
from think_celery.signals import AbortController

MODEL = "openai/offline-rules"
_PATH = "/v1/chat/completions"
_LARGEST_BODY = 16 * 1024 * 1024
_PIECE = 12  # characters of a tool call's arguments in one frame

_clock = SystemClock()


class OfflineModel(ThreadingHTTPServer):
    """Serves until closed.

    Args:
        log: Gets one line of JSON for each request, when it arrives.
        pace: Seconds between two pieces of an answer.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, log: Path, *, pace: float = 0.02) -> None:
        self.pace, self.stopped = pace, AbortController()
        self._log, self._lock = log, threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def base_url(self) -> str:
        """Where a client finds it."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle of an answer is nothing to report."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def note(self, reply: Reply) -> None:
        """Log a request, in one write, so that a kill cuts no line."""
        line = json.dumps(
            {
                "request": reply.key,
                "report": reply.report_id,
                "step": reply.step,
                "answer": reply.tool or "text",
                "process": os.getpid(),
                "at": _clock.now().isoformat(),
            },
            ensure_ascii=False,
        )
        with self._lock, self._log.open("ab", buffering=0) as file:
            file.write(line.encode("utf-8") + b"\n")


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: OfflineModel
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """The request log is our own."""

    def do_POST(self) -> None:
        """Answer one request for a chat completion."""
        body = self._body()
        if body is None:
            return
        try:
            reply = reply_to(body)
        except UnknownRequest as error:
            self._refuse(400, str(error))
            return
        self.server.note(reply)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for frame in frames(str(body.get("model", "")), reply, len(json.dumps(body))):
            _clock.sleep(self.server.pace, self.server.stopped.signal)
            self._chunk(f"data: {json.dumps(frame)}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _body(self) -> dict[str, Any] | None:
        length = self.headers.get("Content-Length", "")
        if self.path != _PATH or not length.isdecimal() or int(length) > _LARGEST_BODY:
            self.close_connection = True
            self._refuse(404, f"This server answers POST {_PATH} and nothing else.")
            return None
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._refuse(400, "The body is no JSON object.")
            return None
        return body

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def frames(model: str, reply: Reply, asked_characters: int = 0) -> Iterator[dict[str, Any]]:
    """An answer as the chunks of a stream. Tokens are reckoned as four characters each."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": f"chatcmpl-{reply.step}",
            "object": "chat.completion.chunk",
            "model": model,
            "choices": [choice],
        }

    yield chunk({"role": "assistant", "content": ""})
    for word in re.findall(r"\s*\S+\s*", reply.text):
        yield chunk({"content": word})
    written = 0
    if reply.tool is not None:
        arguments = json.dumps(reply.arguments, ensure_ascii=False)
        written = len(arguments)
        head = {"name": reply.tool, "arguments": ""}
        call_id = f"call_{reply.step}"
        yield chunk({"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": head}]})
        for at in range(0, len(arguments), _PIECE):
            piece = {"arguments": arguments[at : at + _PIECE]}
            yield chunk({"tool_calls": [{"index": 0, "function": piece}]})
    yield chunk({}, "stop" if reply.tool is None else "tool_calls")
    asked, answered = asked_characters // 4, (len(reply.text) + written) // 4
    usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
    yield {
        "id": f"chatcmpl-{reply.step}",
        "object": "chat.completion.chunk",
        "model": model,
        "choices": [],
        "usage": usage,
    }


@contextmanager
def offline_model(log: Path, *, pace: float = 0.02) -> Iterator[str]:
    """Serve while the block runs; gives the base URL."""
    with OfflineModel(log, pace=pace) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), name="offline-model", daemon=True
        )
        thread.start()
        try:
            yield server.base_url
        finally:
            server.stopped.abort("closed")
            server.shutdown()
            thread.join()
