"""A Redis that a test may freeze and kill, with a log in it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import redis

from tests import servers
from think_celery.events.redis import RedisEventLog
from think_celery.protocols import Cursor, Page


@contextmanager
def own_log() -> Iterator[tuple[RedisEventLog, servers.Server]]:
    """A log, and the server that it is in."""
    with servers.own_redis() as own:
        log = RedisEventLog(own.url)
        yield log, own
        log.close()


def wait_until(true: Callable[[], object]) -> None:
    """Poll, for ten seconds at most."""
    give_up_at = time.monotonic() + 10
    while not true():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def refuses(url: str) -> bool:
    """Whether nobody serves there (any more)."""
    with suppress(redis.RedisError), redis.Redis.from_url(url, socket_timeout=1) as client:
        return not client.ping()
    return True


def read_again(log: RedisEventLog, cursor: Cursor) -> Page:
    """The next page that is not silence. After a failure reads pause for a second."""
    pages: list[Page] = []

    def found() -> bool:
        pages.append(log.read("a", cursor))
        return pages[-1].lost or bool(pages[-1].frames)

    wait_until(found)
    return pages[-1]
