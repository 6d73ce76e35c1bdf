"""The live log in Redis: one stream for each agent, which Redis itself bounds and lets expire.

A cursor names an entry: its position is the entry's id, its incarnation a random stamp that the entry bears.
As long as that entry is there, everything after it is, too: streams are only cut at their old end. When it
is gone (trimmed, expired, flushed, lost in a restart or a failover), or another one has its id, frames may be
missing, and the reader is told.

Where there is no stream there is no entry to name. Such a cursor names the *era* instead, a random text in
a key beside the streams: when Redis is emptied it goes, too, and the next look finds another one.
"""

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import redis
from pydantic_core import to_json
from redis.backoff import NoBackoff
from redis.retry import Retry

from think_celery import forks
from think_celery.breaker import Breaker
from think_celery.clock import MICROSECOND, Clock, SystemClock
from think_celery.events.redis_ears import RedisEars
from think_celery.events.redis_url import connection_options
from think_celery.events.writer import DELTAS
from think_celery.protocols import Cursor, Frame, Page

logger = logging.getLogger("think_celery.events")

Answer = TypeVar("Answer")
Entry = tuple[bytes, dict[bytes, bytes]]

SOCKET_SECONDS = 0.25
EARS_SECONDS = 2.0
"""How long an answer may take for which Redis waits itself, up to half a second."""

REST_SECONDS = 1.0
"""How long nothing is read after a read that failed."""

MILLISECOND = timedelta(milliseconds=1)

NOTHING_YET = "none:"
"""How the incarnation of an agent without a stream begins; the era follows. The position of such a cursor
is the instant of the look, in microseconds of Redis's clock."""

UNKNOWN = Cursor("unknown", 0)
"""The head of a log that can't be reached: as soon as it can, its reader is told that frames are missing."""

_SEQUENCE_BITS = 64  # of the second half of an entry's id
_IDS = 2 ** (2 * _SEQUENCE_BITS)

_APPEND = """
for i, key in ipairs(KEYS) do
  redis.call('XADD', key, 'MAXLEN', '~', ARGV[2], '*', 'stamp', ARGV[1], 'frame', ARGV[i + 3])
  redis.call('PEXPIRE', key, ARGV[3])
end
"""
"""Frames, each with its stream's key, in one command: a pipeline costs its sender several times as much."""

_AFTER = """
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[3])
local known = table.remove(entries, 1)
if not known or known[1] ~= ARGV[1] or known[2][2] ~= ARGV[2] then return false end
return entries
"""
"""The entries after one, if that is still there; so a reader at the end is not sent the last entry again."""

_BACK = """
local entries = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[3])
if not entries[1] or entries[1][1] ~= ARGV[1] or entries[1][2][2] ~= ARGV[2] then return {} end
return entries
"""
"""An entry and those before it, newest first; none if it is gone, for then those are, too."""


class RedisEventLog:
    """An :class:`~think_celery.protocols.EventLog` in Redis Streams. Thread-safe; a forked child connects anew.

    Reading never raises: what can't be reached reads as silence, and goes on (or says that frames are lost)
    when it can be reached again.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Mapping[str, Any] | None = None,
        prefix: str = "",
        keep: timedelta = timedelta(minutes=10),
        keep_frames: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is connected before the first use.

        *url* and *tls* are those of :func:`~think_celery.events.redis_url.connection_options`; each key
        begins with *prefix*. A stream expires when nothing was written to it for *keep*, and is cut to
        *keep_frames* or some more.

        Raises:
            ValueError: The URL can't be read.
            TypeError: *tls* has an option that redis-py does not know.
        """
        self._options = connection_options(url, tls)
        self._prefix, self._keep, self._keep_frames = prefix, keep, keep_frames
        self._breaker = Breaker(clock or SystemClock(), rest_seconds=REST_SECONDS)
        self._client: redis.Redis | None = None
        self._connected()
        forks.in_child(self._forget_connections)

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames, of one or more agents, in order. All of them, or none and an error.

        Raises:
            ConnectionError: Redis could not be reached, or refused. After a time-out it is not known
                whether they were written.
        """
        if not frames:
            return
        keys = [self._key(frame.agent_id) for frame in frames]
        values = (secrets.token_hex(8), self._keep_frames, self._keep // MILLISECOND)
        try:
            self._connected().eval(_APPEND, len(keys), *keys, *values, *map(_as_text, frames))
        except (redis.RedisError, OSError) as error:
            raise ConnectionError(f"Redis took no frames: {_told(error)}") from None

    def head(self, agent_id: str) -> Cursor:
        """The place after the newest frame."""
        return self._ask(lambda client: self._head(client, agent_id)) or UNKNOWN

    def _head(self, client: redis.Redis, agent_id: str) -> Cursor:
        pipe = self._looking(client)
        pipe.xrevrange(self._key(agent_id), count=1)
        _, era, now, newest = pipe.execute()
        return _cursor_of(newest[0]) if newest else _nothing_yet(era, now)

    def read(self, agent_id: str, after: Cursor, limit: int = 500) -> Page:
        """The frames after a cursor, oldest first; none when there is nothing new, or Redis is away.

        ``lost`` says that frames may be missing between the cursor and the one that is given back.
        """
        page = self._ask(lambda client: self._read(client, agent_id, after, limit))
        return page or Page((), after, lost=False)

    def _read(self, client: redis.Redis, agent_id: str, after: Cursor, limit: int) -> Page:
        if after.incarnation.startswith(NOTHING_YET):
            page = self._first(client, agent_id, after, limit)
        else:
            page = self._next(client, agent_id, after, limit)
        return page or Page((), self._head(client, agent_id), lost=True)

    def _next(self, client: redis.Redis, agent_id: str, after: Cursor, limit: int) -> Page | None:
        """What follows an entry; ``None`` if that is gone."""
        if not 0 <= after.position < _IDS:
            return None
        asked = (_entry_id(after.position), after.incarnation, str(limit + 1))
        found = client.eval(_AFTER, 1, self._key(agent_id), *asked)
        if found is None:
            return None
        return _page(agent_id, _entries(found), after)

    def _first(self, client: redis.Redis, agent_id: str, after: Cursor, limit: int) -> Page | None:
        """The beginning of a stream that was not there; ``None`` if it may be another than the first since."""
        pipe = self._looking(client)
        pipe.xlen(self._key(agent_id))
        pipe.xrange(self._key(agent_id), count=limit)
        _, era, now, length, entries = pipe.execute()
        present = _nothing_yet(era, now)
        # A stream lives longer than half its time to live, so none came and went since a look that is younger.
        too_long_ago = present.position - after.position > self._keep // MICROSECOND // 2
        if present.incarnation != after.incarnation or too_long_ago or length >= self._keep_frames:
            return None
        return _page(agent_id, entries, present)

    def back(self, agent_id: str, until: Cursor, limit: int = 500) -> Iterator[Frame]:
        """The frames up to a cursor, newest first, as far back as they are kept. They are read *limit* at a time."""
        known = 0  # of a page's entries: all but the first begin with the last one of the page before
        while 0 <= until.position < _IDS:
            found = self._ask(partial(self._until, agent_id, until, limit + known)) or ()
            entries = _entries(found)[known:]
            for entry in entries:
                yield _frame(agent_id, entry)
            if len(entries) < limit:
                return
            until, known = _cursor_of(entries[-1]), 1

    def _until(self, agent_id: str, place: Cursor, count: int, client: redis.Redis) -> Any:
        asked = (_entry_id(place.position), place.incarnation, str(count))
        return client.eval(_BACK, 1, self._key(agent_id), *asked)

    def _looking(self, client: redis.Redis) -> Any:
        """A transaction whose first three results are none, the era and the time."""
        pipe = client.pipeline(transaction=True)
        era = f"{self._prefix}think:live-era"
        pipe.set(era, secrets.token_hex(8), nx=True)
        pipe.get(era)
        pipe.time()
        return pipe

    def ears(self) -> RedisEars:
        """What hears of turns that end."""
        return RedisEars(lambda: self._connection(EARS_SECONDS), self._key)

    def trim(self) -> int:
        """Nothing: Redis does it."""
        return 0

    def forget(self, agent_id: str) -> None:
        """Drop an agent's stream.

        Raises:
            ConnectionError: Redis could not be reached, or refused.
        """
        try:
            self._connected().delete(self._key(agent_id))
        except (redis.RedisError, OSError) as error:
            raise ConnectionError(f"Redis did not drop a stream: {_told(error)}") from None

    def close(self) -> None:
        """Close the connections; the next use opens others."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _forget_connections(self) -> None:
        self._client = None

    def _key(self, agent_id: str) -> str:
        return f"{self._prefix}think:live:{agent_id}"

    def _ask(self, question: Callable[[redis.Redis], Answer]) -> Answer | None:
        """The answer; ``None`` while Redis gives none."""
        if self._breaker.rests():
            return None
        try:
            answer = question(self._connected())
        except (redis.RedisError, OSError) as error:
            known = self._breaker.broken
            if self._breaker.failed() and not known:
                logger.warning(
                    "the live log can't be read (%s); listeners are told by the database", _told(error)
                )
            return None
        if self._breaker.succeeded():
            logger.info("the live log is read again")
        return answer

    def _connected(self) -> redis.Redis:
        client = self._client
        if client is None:
            client = self._client = self._connection(SOCKET_SECONDS)
        return client

    def _connection(self, seconds: float) -> redis.Redis:
        return redis.Redis(
            **self._options,
            protocol=2,
            socket_timeout=seconds,
            socket_connect_timeout=SOCKET_SECONDS,
            retry=Retry(NoBackoff(), 0),  # the writer and the readers have breaks of their own
        )


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _as_text(frame: Frame) -> bytes | str:
    told = {
        "submission_id": frame.submission_id,
        "message_id": frame.message_id,
        "token": frame.token,
        "first": frame.first,
        "n": frame.n,
        "event": frame.event,
    }
    # Nearly all are deltas, of which there are many: in them nothing is a number that JSON does not have.
    return to_json(told) if frame.event.get("type") in DELTAS else _encode(told)


def _page(agent_id: str, entries: Sequence[Entry], cursor: Cursor) -> Page:
    frames = [_frame(agent_id, entry) for entry in entries]
    return Page(frames, _cursor_of(entries[-1]) if entries else cursor, lost=False)


def _entries(found: Iterable[Any]) -> list[Entry]:
    """Entries as a script gives them, in the form that commands give."""
    return [(entry_id, dict(zip(fields[::2], fields[1::2], strict=True))) for entry_id, fields in found]


def _frame(agent_id: str, entry: Entry) -> Frame:
    return Frame(agent_id=agent_id, **json.loads(entry[1][b"frame"]))


def _cursor_of(entry: Entry) -> Cursor:
    entry_id, fields = entry
    milliseconds, _, sequence = entry_id.partition(b"-")
    return Cursor(fields[b"stamp"].decode(), (int(milliseconds) << _SEQUENCE_BITS) + int(sequence))


def _entry_id(position: int) -> str:
    return f"{position >> _SEQUENCE_BITS}-{position % 2**_SEQUENCE_BITS}"


def _nothing_yet(era: bytes, now: tuple[int, int]) -> Cursor:
    seconds, microseconds = now
    return Cursor(NOTHING_YET + era.decode(), seconds * 1_000_000 + microseconds)


def _told(error: Exception) -> str:
    """What happened, without what was sent: Redis's refusals, and redis-py's words on them, may quote that."""
    kind = type(error).__name__
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return f"{kind}: {error}"
    code = re.search(r"(?:^|caused error: )([A-Z]+) ", str(error))
    return f"{kind}: {code[1]}" if code else kind
