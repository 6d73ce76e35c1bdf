"""The broker: connections that give up soon, whether it lost what it held, how much waits, what slows recovery down.

Correctness depends on none of it: rows are the truth, and the tick finds what no message tells of.
"""

import contextlib
import hashlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from celery import Celery
from kombu import Connection

from think_celery import forks
from think_celery.breaker import Breaker
from think_celery.clock import Clock
from think_celery.memory import is_in_memory
from think_celery.tasks import GRACE_SECONDS

logger = logging.getLogger("think_celery.brokers")

Answer = TypeVar("Answer")

LOOK_SECONDS = 0.5
REST_SECONDS = 5.0
SEEN_SECONDS = 1.0
DAY_MILLISECONDS = 86_400_000
LOCAL_HOSTS = {"", "localhost", "127.0.0.1", "::1"}

VISIBILITY_SECONDS, RESTORE_INTERVAL, RESTORE_THROTTLE = 3600, 10, 10
"""What kombu's Redis transport does where ``broker_transport_options`` say nothing."""

RESTORE_WITHIN_SECONDS = 10

_inherited: list[Connection] = []  # a parent's, kept so that no finalizer in the child shuts its socket down


def connection(app: Celery, seconds: float) -> Connection:
    """A connection of its own, which gives up each read, write and connect after so many seconds, unlike Celery's.

    It is made at its first use. Looking up a name has no limit.
    """
    limits: dict[str, float] = {
        "socket_timeout": seconds,  # these two are Redis's words,
        "socket_connect_timeout": seconds,
        "read_timeout": seconds,  # these AMQP's; transports ignore what isn't theirs
        "write_timeout": seconds,
        "max_retries": 1,  # of connecting: the next broker of several, at once
        "interval_start": 0,
        "interval_step": 0,
    }
    options = {**(app.conf.broker_transport_options or {}), **limits}
    return app.connection_for_write(connect_timeout=seconds, transport_options=options)


def load_transport(app: Celery) -> None:
    """Import what speaks to this broker: when the process ends, where the first message may be sent, it can't be."""
    with contextlib.suppress(Exception):  # whoever connects says what is wrong
        app.connection_for_write().transport  # noqa: B018


def is_redis(app: Celery) -> bool:
    """Whether the broker is Redis: one, several, or behind sentinels. Nothing is connected."""
    return str(app.connection_for_write().transport.driver_type) == "redis"


# --- what it is asked -----------------------------------------------------------------------------


class _Questions:
    """Small questions to the broker, over one connection that is kept.

    While it can't be asked, nothing is known, and it is asked again after five seconds.
    """

    _asked: ClassVar[str]
    _level: ClassVar[int]
    """What it is asked, and how loudly the log says that it could not be."""

    answers = False
    """Whether the last question was answered."""

    _connection: Connection | None = None

    def __init__(self, app: Celery, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._breaker = Breaker(clock, rest_seconds=REST_SECONDS)
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        if self._connection is not None:
            _inherited.append(self._connection)
        self._lock, self._connection = threading.Lock(), None

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer | None:
        """The answer; ``None`` while it can't be asked. For whoever holds the lock."""
        if self._breaker.rests():
            return None
        asked = self._connection
        try:
            if asked is None:
                asked = self._connection = connection(self._app, LOOK_SECONDS)
            answer = question(asked)
        except Exception as error:
            self.close()
            if not self._breaker.broken:
                logger.log(self._level, "the broker can't be asked %s: %s", self._asked, type(error).__name__)
            self._breaker.failed()
            self.answers = False
            return None
        finally:
            if asked is not self._connection:  # it was closed meanwhile, and may have been opened again
                release(asked)
        self._breaker.succeeded()
        self.answers = True
        return answer

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        connection, self._connection = self._connection, None
        release(connection)


class RedisSentinel(_Questions):
    """Says when the broker's Redis has lost its messages: it was flushed, or is another than before.

    It is a key there, named for the database whose work the messages tell of and for the run of the server. A
    restarted server is another one, even where it has read an old snapshot; so is a replica that took over. The
    key expires after a day, so a loss is also assumed once a day, which costs some repeated messages.
    """

    _asked, _level = "whether it lost messages", logging.WARNING

    def __init__(self, app: Celery, database: str, clock: Clock) -> None:
        """*database* identifies the database among those that share this broker."""
        super().__init__(app, clock)
        self._key = f"think:sentinel:{hashlib.sha256(database.encode()).hexdigest()[:16]}"

    @property
    def watching(self) -> bool:
        """Whether the last look succeeded, so that a loss would not go unnoticed."""
        return self.answers

    def look(self, when_lost: Callable[[], None]) -> None:
        """Call *when_lost* if the messages are gone. The key is left once that is done: not if it raised or died."""
        if not self._lock.acquire(blocking=False):
            return  # somebody looks just now
        try:
            if self._ask(self._is_missing):
                logger.info(
                    "the broker has none of the messages that it was sent before; all work is sent again"
                )
                when_lost()
                self._ask(self._leave_key)
        finally:
            self._lock.release()

    # A hash, for these are commands before whose keys kombu puts the global prefix; not so GET.
    def _is_missing(self, connection: Connection) -> bool:
        return _client(connection).hget(self._key, _run_id(connection)) is None

    def _leave_key(self, connection: Connection) -> bool:
        client = _client(connection)
        client.hset(self._key, _run_id(connection), 1)
        return bool(client.pexpire(self._key, DAY_MILLISECONDS))


def _client(connection: Connection) -> Any:
    """kombu's own client, which knows every way to a Redis."""
    channel: Any = connection.default_channel
    return channel.client


def _run_id(connection: Connection) -> str:
    """What tells one run of the Redis server from another."""
    try:
        return str(_client(connection).info("server").get("run_id", ""))
    except connection.channel_errors:  # not allowed: then only a flush is noticed
        return ""


def sentinel(app: Celery, database: str, clock: Clock) -> RedisSentinel | None:
    """The sentinel of this app's broker and that database; none where the broker can't have one."""
    try:
        return RedisSentinel(app, database, clock) if is_redis(app) else None
    except Exception:  # an unfit URL: whoever uses it says so
        return None


class Lengths(_Questions):
    """Says how many messages wait in a queue of the broker."""

    _asked, _level = "how much waits in a queue", logging.DEBUG

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._seen: dict[str, _Seen] = {}

    def unserved(self, queue: str) -> int | None:
        """The messages that wait in a queue from which none was taken since it was last asked for.

        ``None`` where some were, or where nobody knows. What this process has seen within a second it does not ask for
        again: the pass looks for several kinds of work.
        """
        before, now = self._seen.get(queue), self._clock.elapsed()
        if before is None or now - before.at >= SEEN_SECONDS:
            length = self.of(queue)
            stands = length is not None and before is not None and before.length is not None
            served = not stands or length < before.length  # type: ignore[operator,union-attr]
            self._seen[queue] = before = _Seen(length, None if served else length, now)
        return before.unserved

    def of(self, queue: str) -> int | None:
        """The messages that no worker has taken yet; ``None`` where that is not known."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask(lambda connection: self._length(connection, queue))
        finally:
            self._lock.release()

    def _length(self, connection: Connection, queue: str) -> int | None:
        try:
            channel: Any = connection.default_channel
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors as error:  # it is this queue's, and other ones can be asked for
            there_is_none = str(getattr(error, "reply_code", "")) == "404"
            return 0 if there_is_none else None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of a queue: its length, the same if none of it was taken, and when that was."""

    length: int | None
    unserved: int | None
    at: float


def identity(url: Any) -> str:
    """What identifies a database, by its SQLAlchemy URL without password; a local one also by the machine's name."""
    shown = str(url.render_as_string(hide_password=True))
    local = url.get_backend_name() == "sqlite" or (url.host or "") in LOCAL_HOSTS
    return f"{socket.gethostname()} {shown}" if local else shown


def release(connection: Connection | None) -> None:
    """Close a connection, broken as it may be."""
    if connection is None:
        return
    try:
        connection.release()
    except Exception as error:
        logger.debug("a broken connection did not close: %s", type(error).__name__)


# --- what slows recovery down ---------------------------------------------------------------------


def advice(app: Any, pool: str | None = None) -> list[str]:
    """What in the configuration makes recovery slow or does work twice, and the setting that mends it.

    One sentence or two for each; none where all is well. *pool* is the name of the worker's pool, if that is
    known. The *app* is one that ``ThinkCelery`` has wired.
    """
    if is_in_memory(app):
        return []
    found = [_about_prefetch(app), _about_pool(pool), _about_channel_errors(app)]
    if is_redis(app):
        options = dict(app.conf.broker_transport_options or {})
        longest = int(app.think.runtime.settings.turn_timeout_seconds) + 2 * GRACE_SECONDS
        found += [_about_visibility(options, longest), _about_restoring(options)]
    return [sentence for sentence in found if sentence]


def warn(app: Celery, pool: Any) -> None:
    """Log the :func:`advice` for a worker that starts; *pool* is the class of its pool, or that one's name."""
    module = str(getattr(pool, "__module__", pool))
    for sentence in advice(app, module.rpartition(".")[2]):
        logger.warning("%s", sentence)


def _about_prefetch(app: Celery) -> str:
    multiplier = app.conf.worker_prefetch_multiplier
    if multiplier == 1 or app.conf.worker_disable_prefetch:
        return ""
    taken = f"{multiplier} messages" if multiplier else "all messages that there are"
    return (
        f"Each slot of a worker takes {taken} ahead, and those behind a long turn wait for it while other "
        "workers are idle. Set worker_prefetch_multiplier = 1."
    )


def _about_pool(pool: str | None) -> str:
    if pool != "solo":
        return ""
    return (
        "The solo pool runs one turn at a time, and its worker neither answers nor gives lost messages back "
        "meanwhile. Start it with --pool threads or --pool prefork."
    )


def _about_channel_errors(app: Celery) -> str:
    if app.conf.broker_channel_error_retry:
        return ""
    return (
        "A broker that refuses something for a while (Redis whose memory is full or whose replicas are gone, "
        "RabbitMQ that waited too long for a task's end) ends the worker. Set broker_channel_error_retry = True."
    )


def _about_visibility(options: dict[str, Any], longest: int) -> str:
    seconds = options.get("visibility_timeout", VISIBILITY_SECONDS)
    given = f"visibility_timeout is {seconds} s" + ("" if "visibility_timeout" in options else " by default")
    if seconds < longest:
        return (
            f"{given}, and a turn may take {longest} s: Redis then delivers its message a second time while it "
            "runs. That is harmless, but takes a slot for a moment. "
            f'Set broker_transport_options["visibility_timeout"] = {longest}.'
        )
    if seconds > 2 * longest:
        return (
            f"{given}: so long a message waits that a killed worker had taken; work of think_celery is found "
            f'sooner, by the tick. Set broker_transport_options["visibility_timeout"] = {longest}, or as long as '
            "your own longest task takes."
        )
    return ""


def _about_restoring(options: dict[str, Any]) -> str:
    interval = options.get("unacked_restore_interval", RESTORE_INTERVAL)
    throttle = options.get("unacked_restore_throttle", RESTORE_THROTTLE)
    seconds = max(interval, 1) * max(throttle, 1)
    if seconds <= RESTORE_WITHIN_SECONDS:
        return ""
    return (
        f"Messages that a killed worker had taken come back up to {seconds} s after their visibility timeout. Set "
        'broker_transport_options["unacked_restore_interval"] = 1 and '
        'broker_transport_options["unacked_restore_throttle"] = 1.'
    )
