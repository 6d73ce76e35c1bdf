"""Bodies in HTTP chunks, as they are read beside httpx."""

import httpx
import pytest

from tests.providers.server import DONE, ModelServer, chunk, stream
from think_celery.protocols import ModelTimeouts
from think_celery.providers.chunked import MAX_LINE_BYTES, Dechunker
from think_celery.providers.connections import Connection
from think_celery.providers.watchdog import guard

BODY = b'5\r\nHello\r\n00d ;a="b"\r\n, \r\n0\r\n\r\n you\r\nA\r\n0123456789\r\n0\r\nX-After: 1\r\n\r\n'
TEXT = b"Hello, \r\n0\r\n\r\n you0123456789"


class TestDechunker:
    def test_a_body_cut_in_two_at_any_byte_gives_the_same_data(self):
        """Sizes, line ends, data and trailers may be cut anywhere; data may look like the end of a body."""
        for at in range(len(BODY) + 1):
            decoder = Dechunker()

            assert decoder.feed(BODY[:at]) + decoder.feed(BODY[at:]) == TEXT, f"cut at {at}"
            assert decoder.done, f"cut at {at}"
            assert not decoder.surplus, f"cut at {at}"

    def test_a_body_that_comes_byte_by_byte(self):
        """The same with all cuts at once; it is not done before its last byte."""
        decoder = Dechunker()
        data = [decoder.feed(BODY[at : at + 1]) for at in range(len(BODY) - 1)]

        assert not decoder.done
        assert b"".join(data) + decoder.feed(BODY[-1:]) == TEXT
        assert decoder.done

    def test_only_between_two_chunks_it_says_so(self):
        """Where a chunk is over and nothing of the next one has come; the last one belongs to the end."""
        decoder, said = Dechunker(), []
        for at in range(len(BODY)):
            decoder.feed(BODY[at : at + 1])
            if decoder.between:
                said.append(BODY[: at + 1][-8:])

        assert said == [b"\nHello\r\n", b"\r\n you\r\n", b"456789\r\n"]

    def test_more_than_the_body(self):
        """What follows the end is no data, and is noticed: such a connection can't be used again."""
        decoder = Dechunker()

        assert decoder.feed(BODY + b"HTTP/1.1 200 OK") == TEXT
        assert decoder.surplus

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"5\r\nHello!\r\n", id="longer than it says"),
            pytest.param(b"five\r\nHello\r\n", id="no number"),
            pytest.param(b"-5\r\nHello\r\n", id="a negative size"),
            pytest.param(b"\r\nHello\r\n", id="no size"),
            pytest.param(b"1" * (MAX_LINE_BYTES + 1), id="an endless size"),
            pytest.param(b"0\r\n" + b"x" * (MAX_LINE_BYTES + 1), id="an endless trailer"),
        ],
    )
    def test_what_is_no_chunk_is_refused(self, body):
        """As by httpx: no guess is made of what was meant."""
        with pytest.raises(httpx.RemoteProtocolError):
            Dechunker().feed(body)


class TestBodies:
    @pytest.fixture
    def server(self):
        with ModelServer() as server:
            yield server

    @staticmethod
    def ask(server: ModelServer, connection: Connection) -> tuple[list[bytes], bool]:
        """The pieces of an answer's body, and whether httpx read them by itself."""
        with (
            guard(connection.cut) as watched,
            connection.post(
                f"{server.base_url}/chat/completions",
                headers={"Content-Type": "application/json"},
                content=b'{"messages": []}',
                timeouts=ModelTimeouts(connect=5, first_token=5, token_gap=5),
                guard=watched,
                waiting_for="a token",
            ) as response,
        ):
            body = connection.body(response)
            return list(body), getattr(body, "__name__", "") != "_chunks"

    def test_a_body_in_chunks_is_read_beside_httpx(self, server):
        """Whole, however it was cut; and the next request uses the same connection."""
        pieces = [chunk({"content": "Hel"}), chunk({"content": "lo"}, "stop"), DONE]
        connection = Connection(httpx.Client())
        bodies = []
        for size in (None, 1, 7, None):
            server.script(stream(*pieces, slice_bytes=size))
            body, by_httpx = self.ask(server, connection)
            assert not by_httpx
            bodies.append(b"".join(body))

        assert len(set(bodies)) == 1
        assert bodies[0].endswith(DONE)
        assert server.connections == 1

    def test_a_body_that_ends_with_its_connection_is_left_to_httpx(self, server):
        """So is everything else that is not in chunks."""
        server.script(stream(chunk({"content": "Hello"}, "stop"), DONE, framing="until-close"))

        body, by_httpx = self.ask(server, Connection(httpx.Client()))

        assert by_httpx
        assert b"".join(body).endswith(DONE)
