"""HTTP connections to providers: kept per process, each with its socket known, so that it can be cut.

httpx shows a connection's socket only when it is made, and with a response's head. A request that is told
to stop while it still waits for that head must know its socket before. So each request borrows a client
that never has more than one connection.
"""

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from think_celery import forks
from think_celery.clock import SystemClock
from think_celery.protocols import ModelTimeouts
from think_celery.providers.pace import Pace
from think_celery.providers.permission import is_loopback
from think_celery.providers.watchdog import Guard

KEEP_SECONDS = 30.0
MOST_IDLE = 64  # per origin
_clock = SystemClock()


class Connection:
    """A client with at most one connection, in use by one request at a time."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.idle_since = 0.0
        self.pace = Pace()
        self._socket: socket.socket | None = None

    def cut(self) -> None:
        """End the connection under a reader that blocks in it. Safe from any thread, and when repeated."""
        if self._socket is not None:
            with suppress(OSError):
                # The plain socket's method: that of a TLS socket would take its state away from the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _read_at_pace(self, stream: Any) -> None:
        """Let the pace rest before reads of this stream of httpx's, which has no hook for that.

        Elsewhere nobody knows whether a token is still to be read or has come with the one before.
        """
        read, pace = stream.read, self.pace

        def rested(max_bytes: int, timeout: float | None = None) -> bytes:
            pace.rest()
            data: bytes = read(max_bytes, timeout)
            pace.took(len(data))
            return data

        stream.read = rested

    @contextmanager
    def post(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes,
        timeouts: ModelTimeouts,
        guard: Guard,
        waiting_for: str,
    ) -> Iterator[httpx.Response]:
        """Send a POST and give the response, its body unread. The connection is released with the block.

        Once the request goes out, *guard* has ``timeouts.first_token`` seconds, and *waiting_for* is its reason.
        """

        def trace(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
                self._socket = info["return_value"].get_extra_info("socket")
                self._read_at_pace(info["return_value"])
                guard.reconnected()
            elif event.endswith(".send_request_headers.started"):
                guard.extend(timeouts.first_token, waiting_for)

        # The guard is what limits reading; httpx's own limit is only a net below it.
        slack = max(timeouts.first_token, timeouts.token_gap) + 30
        limits = httpx.Timeout(slack, connect=timeouts.connect, pool=timeouts.connect)
        guard.extend(timeouts.connect + timeouts.first_token, waiting_for)
        request = self.client.build_request(
            "POST", url, headers=headers, content=content, timeout=limits, extensions={"trace": trace}
        )
        self.pace.end()
        response = self.client.send(request, stream=True)
        try:
            yield response
        finally:
            self.pace.end()
            response.close()

    def body(self, response: httpx.Response) -> Iterator[bytes]:
        """The body of the response that :meth:`post` gave, in the pieces in which it comes."""
        # Where nothing is to be decoded, the bytes as they come: layers that do nothing cost as much as reading them.
        if response.headers.get("content-encoding", "identity") != "identity":
            return response.iter_bytes()
        assert isinstance(response.stream, httpx.SyncByteStream)
        return iter(response.stream)


class Connections:
    """The idle connections of this process, by origin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}

    @contextmanager
    def borrowed(self, url: str) -> Iterator[Connection]:
        """A connection to the origin of *url*, for the length of the block.

        A guard of the connection must end before the block does, for then another request may get the connection.
        """
        parts = urlsplit(url)
        key = f"{parts.scheme}://{parts.netloc}"
        connection = self._take(key)
        try:
            yield connection
        finally:
            self._give_back(key, connection)

    def _take(self, key: str) -> Connection:
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                return idle.pop()
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEP_SECONDS)
        # A proxy of the environment can't reach a model server of this machine: to it, loopback is itself.
        return Connection(httpx.Client(verify=_tls(), limits=limits, trust_env=not is_loopback(key)))

    def _give_back(self, key: str, connection: Connection) -> None:
        connection.idle_since = now = _clock.elapsed()
        with self._lock:
            idle = self._idle.setdefault(key, [])
            idle.append(connection)
            # The longest unused come first, for the last one given back is the first one taken.
            surplus = max(len(idle) - MOST_IDLE, 0)
            while surplus < len(idle) and idle[surplus].idle_since < now - KEEP_SECONDS:
                surplus += 1
            dropped, idle[:surplus] = idle[:surplus], []
        for old in dropped:
            old.client.close()


_tls_lock = threading.Lock()
_tls_context: ssl.SSLContext | None = None
_connections = Connections()


def _tls() -> ssl.SSLContext:
    """Loading the certificates takes longer than a request to a near server, so it is done once."""
    global _tls_context
    with _tls_lock:
        if _tls_context is None:
            _tls_context = httpx.create_ssl_context()
        return _tls_context


def _forget_parent() -> None:
    """A forked child must not talk through its parent's connections."""
    global _connections, _tls_lock
    _connections, _tls_lock = Connections(), threading.Lock()


forks.in_child(_forget_parent)


def connections() -> Connections:
    """This process's connections."""
    return _connections
