"""Which live log a process has."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from think_celery.errors import InvalidSetting
from think_celery.events.redis_url import OVER_TCP, connection_options, is_redis_url
from think_celery.events.sql import SqlEventLog
from think_celery.protocols import EventLog
from think_celery.settings import Settings
from think_celery.store.database import Database
from think_celery.store.urls import checked_url

logger = logging.getLogger("think_celery.events")

SETTING = "think_live_database_url"
_RULE = (
    "It must be one Redis, such as redis://host:6379/1 (rediss:// with TLS, unix:///run/redis.sock), or the same "
    "URL as think_database_url."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Broker:
    """A Celery app's broker: its URL as it is configured, how TLS is spoken to it, what its keys begin with.

    ``problem`` says why it can't be used.
    """

    url: str = field(repr=False)
    tls: Mapping[str, Any] | None = field(default=None, repr=False)
    key_prefix: str = ""
    problem: str = ""


def event_log(settings: Settings, db: Database, broker: Broker) -> EventLog:
    """The log that ``think_live_database_url`` names; else the broker's Redis; else the SQL database.

    A broker that is Redis in a way which can't be used here (behind sentinels, at several addresses) gives the
    SQL database, too, and one line in the log.

    Raises:
        InvalidSetting: The setting names neither a Redis nor our database.
    """
    given = settings.live_database_url
    if given is None:
        return _of_broker(broker) or SqlEventLog(db)
    if is_redis_url(given):
        try:
            connection_options(given)
        except ValueError as problem:
            raise InvalidSetting(SETTING, "", f"{problem}. {_RULE}") from None
        return _redis(given)
    if _is_same_database(given, settings.database_url):
        return SqlEventLog(db)
    raise InvalidSetting(SETTING, "", f"it names neither. {_RULE}")


def _of_broker(broker: Broker) -> EventLog | None:
    problem = "it is behind sentinels" if broker.url.startswith("sentinel://") else broker.problem
    if is_redis_url(broker.url) and not problem:
        if ";" in broker.url:
            problem = "it has several addresses"
        elif "credential_provider" in broker.url:
            problem = "its password comes from a credential provider"
        else:
            try:
                return _redis(_bare(broker.url), broker.tls, broker.key_prefix)
            except (TypeError, ValueError) as error:
                problem = str(error)
    if problem:
        logger.warning(
            "the broker's Redis can't hold the live log (%s), so the database does; name another Redis in %s, "
            "or the database itself to have it so without this line",
            problem,
            SETTING,
        )
    return None


def _bare(url: str) -> str:
    """Without parameters, but for those of a socket: they are the broker's, or are in its ``tls`` already."""
    return url.partition("?")[0] if url.partition("://")[0].lower() in OVER_TCP else url


def _redis(url: str, tls: Mapping[str, Any] | None = None, prefix: str = "") -> EventLog:
    from think_celery.events.redis import RedisEventLog  # redis-py is loaded only where it is used

    return RedisEventLog(url, tls=tls, prefix=prefix)


def _is_same_database(given: str, database_url: str) -> bool:
    try:
        return checked_url(given) == checked_url(database_url)
    except InvalidSetting:
        return False
