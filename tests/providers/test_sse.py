"""The decoder of server-sent events."""

import pytest

from think_celery.errors import ModelError
from think_celery.providers.sse import LONG_BYTES, MAX_EVENT_BYTES, ServerSentEvent, SseDecoder

STREAM = (
    "\ufeff: a comment\r\n\r\nevent: delta\rdata: one\r\ndata:  two \n\ndata: ä€🦊\u2028\u0085\u000b\r\r"
    "id: 7\n\ndata\n\nretry: 10\rdata:[1,\ndata:2]\r\n\r\n"
).encode()
EVENTS = [
    ServerSentEvent("delta", "one\n two "),
    ServerSentEvent("message", "ä€🦊\u2028\u0085\u000b"),
    ServerSentEvent("message", ""),
    ServerSentEvent("message", "[1,\n2]"),
]


def decode(*chunks: bytes, limit: int = MAX_EVENT_BYTES) -> list[ServerSentEvent]:
    decoder = SseDecoder(limit)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


class TestDecoding:
    def test_a_stream_cut_in_two_at_any_byte_gives_the_same_events(self):
        """CR, LF and CRLF end a line wherever the network cuts, also within CRLF, the BOM and a character."""
        for at in range(len(STREAM) + 1):
            assert decode(STREAM[:at], STREAM[at:]) == EVENTS, f"cut at {at}"

    def test_a_stream_that_comes_byte_by_byte_gives_the_same_events(self):
        """The same with all cuts at once, and with empty chunks between them."""
        chunks = [part for at in range(len(STREAM)) for part in (STREAM[at : at + 1], b"")]

        assert decode(*chunks) == EVENTS

    def test_usual_streams_cut_in_two_at_any_byte(self):
        """The same without CR and byte order mark, where whole blocks are cut out at once."""
        text = 'data: one\n\n: ping\n\n\nevent: delta\ndata:{"a":\ndata: 1}\n\ndata\n\nid: 3\ndata: ä🦊\n\n'
        events = [
            ServerSentEvent("message", "one"),
            ServerSentEvent("delta", '{"a":\n1}'),
            ServerSentEvent("message", ""),
            ServerSentEvent("message", "ä🦊"),
        ]
        usual = text.encode()

        for at in range(len(usual) + 1):
            assert decode(usual[:at], usual[at:]) == events, f"cut at {at}"
        assert decode(*(usual[at : at + 1] for at in range(len(usual)))) == events
        assert decode(usual, usual, b"data: x\r\n\r", b"\ndata: y\n\n") == [
            *events,
            *events,
            ServerSentEvent("message", "x"),
            ServerSentEvent("message", "y"),
        ]

    def test_a_long_event_in_many_pieces(self):
        """It is whole, and what follows it, too."""
        long = b"x" * (3 * LONG_BYTES)
        stream = b"data: a\n\ndata: " + long + b"\n\ndata: b\n\n"
        pieces = [stream[at : at + 1000] for at in range(0, len(stream), 1000)]

        assert [event.data for event in decode(*pieces)] == ["a", long.decode(), "b"]

    def test_keep_alives_ids_and_unicode_separators(self):
        """FR-75: comments and an id alone are no events; U+2028 and U+0085 are text."""
        stream = ': ping\n\nid: 1\n\ndata: {"text": "a\u2028b\u0085c"}\n\n'.encode()

        assert decode(stream) == [ServerSentEvent("message", '{"text": "a\u2028b\u0085c"}')]

    def test_an_event_is_given_as_soon_as_its_blank_line_is_there(self):
        """A CR that ends the blank line is enough; the LF that may follow is no second line."""
        decoder = SseDecoder()

        assert [event.data for event in decoder.feed(b"data: a\r\r")] == ["a"]
        assert list(decoder.feed(b"\ndata: b\n")) == []
        assert [event.data for event in decoder.feed(b"\n")] == ["b"]

    def test_a_byte_order_mark_counts_only_at_the_start(self):
        """Later it is a part of a field's name, and so the line is none of ours."""
        assert decode("\ufeffdata: a\n\n\ufeffdata: b\n\n".encode()) == [ServerSentEvent("message", "a")]

    def test_bytes_that_are_no_utf8_become_replacement_characters(self):
        """One bad byte does not end the answer."""
        assert decode(b"data: a\xffb\n\n") == [ServerSentEvent("message", "a\ufffdb")]


class TestTheEnd:
    @pytest.mark.parametrize("tail", [b"data: last", b"data: last\n", b"data: last\r\n"])
    def test_the_last_event_needs_no_blank_line(self, tail: bytes):
        """FR-79: servers that end the stream right after [DONE] are understood."""
        decoder = SseDecoder()

        assert list(decoder.feed(b"data: first\n\n" + tail)) == [ServerSentEvent("message", "first")]
        assert decoder.end() == ServerSentEvent("message", "last")
        assert decoder.end() is None

    def test_nothing_is_left_after_a_whole_stream(self):
        """A comment or an id at the end is no event either."""
        decoder = SseDecoder()
        list(decoder.feed(b"data: a\n\n: bye\nid: 3"))

        assert decoder.end() is None


class TestSize:
    def test_an_event_without_an_end_is_refused(self):
        """A line, or many lines of one event, can't fill the memory."""
        endless = [[b"x" * 100] * 11, [b"data:\ndata: x\n"] * 400]

        for chunks in endless:
            with pytest.raises(ModelError, match="more than 1,000 bytes"):
                decode(*chunks, limit=1000)

    def test_comments_and_finished_events_do_not_count(self):
        """A long stream of small events and keep-alives is no large event."""
        decoder = SseDecoder(max_event_bytes=100)

        events = [
            event for _ in range(100) for event in decoder.feed(b": keep-alive\ndata: 0123456789\n: x\n\n")
        ]

        assert len(events) == 100
