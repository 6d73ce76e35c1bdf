"""All settings, read and checked once, when a process starts."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from pydantic import ByteSize, TypeAdapter, ValidationError

from think_celery.durations import as_timedelta
from think_celery.errors import InvalidDuration, InvalidSetting

PREFIX = "think_"
DAY = 86_400.0

Read = Callable[[Any], Any]


class _Unfit(Exception):
    """A value breaks a setting's rule, which is the text of this error."""


# --- reading one value ----------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Unfit("it must be a text that is not empty")
    return value.strip()


def _database_url(value: Any) -> str:
    url = _text(value)
    if "://" not in url:
        raise _Unfit("it must be a database URL, such as postgresql+psycopg://user:password@host/name")
    return url


def _web_url(vendor: str, example: str) -> Read:
    def read(value: Any) -> str:
        url = _text(value)
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            fits = False
        if not fits:
            raise _Unfit(f"it must be an http:// or https:// URL, such as {example}")
        if "@" in parts.netloc:  # Celery shows this setting in Flower
            raise _Unfit(f"it must not hold a user or password; the key belongs into think_{vendor}_api_key")
        return url

    return read


def _names(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise _Unfit('it must be a list of module names, such as ["shop.agents", "shop.workflows"]')
    return tuple(item.strip() for item in items if item.strip())


def _count(value: Any) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Unfit("it must be a whole number, 1 or more")
    return value


def _flag(value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise _Unfit("it must be True or False (in the environment: true, false, 1, 0, yes, no, on or off)")


_BYTES = TypeAdapter(ByteSize)


def _bytes(value: Any) -> int:
    try:
        size = -1 if isinstance(value, bool) else int(_BYTES.validate_python(value))
    except ValidationError:
        size = -1
    if size < 1:
        raise _Unfit('it must be a number of bytes, 1 or more, or words such as "2 MiB"')
    return size


def _span(at_least: float = 0.001) -> Read:
    def read(value: Any) -> float:
        least = f"{at_least:g} seconds or more"
        try:
            span = as_timedelta(value)
        except InvalidDuration as refused:
            if refused.longest is not None:
                raise _Unfit(f"it must be {refused.longest} or less") from None
            raise _Unfit(f'it must be a span of time, {least}: seconds, or words such as "1 hour"') from None
        if span < timedelta(seconds=at_least):
            raise _Unfit(f"it must be {least}")
        return span.total_seconds()

    return read


_SPAN = _span()


def _span_or_never(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() == "never":
        return None
    try:
        return _SPAN(value)  # type: ignore[no-any-return]
    except _Unfit as refused:
        raise _Unfit(f'{refused}; or "never"') from None


# --- the settings ---------------------------------------------------------------------------------


def _setting(default: Any, key: str, read: Read, *, secret: bool = False, vendor: str | None = None) -> Any:
    return field(
        default=default,
        repr=not secret,
        metadata={"key": PREFIX + key, "read": read, "secret": secret, "vendor": vendor},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one process goes by. Spans are in seconds, sizes in bytes.

    Each field is the setting ``think_…`` of the same name, without the unit; its ``repr`` shows none that
    can hold a password. :meth:`from_mapping` checks what it reads; a ``Settings`` made directly is taken
    at its word.
    """

    database_url: str = _setting("sqlite:///think.db", "database_url", _database_url, secret=True)
    live_database_url: str | None = _setting(None, "live_database_url", _database_url, secret=True)
    model: str | None = _setting(None, "model", _text)
    queue: str | None = _setting(None, "queue", _text)
    imports: tuple[str, ...] = _setting((), "imports", _names)
    lease_seconds: float = _setting(15.0, "lease", _span(at_least=3))
    max_attempts: int = _setting(5, "max_attempts", _count)
    turn_timeout_seconds: float = _setting(3600.0, "turn_timeout", _span())
    connect_timeout_seconds: float = _setting(10.0, "connect_timeout", _span())
    first_token_timeout_seconds: float = _setting(120.0, "first_token_timeout", _span())
    token_gap_timeout_seconds: float = _setting(60.0, "token_gap_timeout", _span())
    model_attempts: int = _setting(3, "model_attempts", _count)
    retention_seconds: float | None = _setting(30 * DAY, "retention", _span_or_never)
    key_retention_seconds: float | None = _setting(90 * DAY, "key_retention", _span_or_never)
    max_payload: int = _setting(1024 * 1024, "max_payload", _bytes)
    fail_tasks: bool = _setting(True, "fail_tasks", _flag)
    worker_schedules: bool = _setting(False, "worker_schedules", _flag)
    openai_api_key: str | None = _setting(None, "openai_api_key", _text, secret=True, vendor="OPENAI_API_KEY")
    openai_base_url: str | None = _setting(
        None,
        "openai_base_url",
        _web_url("openai", "https://api.openai.com/v1"),
        vendor="OPENAI_BASE_URL",
    )
    openai_echo: bool = _setting(True, "openai_echo", _flag)
    anthropic_api_key: str | None = _setting(
        None, "anthropic_api_key", _text, secret=True, vendor="ANTHROPIC_API_KEY"
    )
    anthropic_base_url: str | None = _setting(
        None,
        "anthropic_base_url",
        _web_url("anthropic", "https://api.anthropic.com"),
        vendor="ANTHROPIC_BASE_URL",
    )
    anthropic_echo: bool = _setting(True, "anthropic_echo", _flag)

    @property
    def retention(self) -> timedelta | None:
        """How long what has ended is kept whole; ``None``: for ever."""
        return None if self.retention_seconds is None else timedelta(seconds=self.retention_seconds)

    @property
    def key_retention(self) -> timedelta | None:
        """How long the row of a submission is kept, and with it its key: that long at least; ``None``: for ever."""
        if self.retention_seconds is None or self.key_retention_seconds is None:
            return None
        return timedelta(seconds=max(self.retention_seconds, self.key_retention_seconds))

    @property
    def busy_timeout(self) -> timedelta:
        """How long SQLite may wait for its one writer: less than a lease needs to be renewed in time."""
        return timedelta(seconds=min(4.5, self.lease_seconds * 0.3))

    @classmethod
    def from_mapping(cls, celery_conf: Mapping[str, Any], environ: Mapping[str, str]) -> "Settings":
        """The settings of a process. For each, the first that is set wins.

        Keys ``think_*`` of *celery_conf* (``CELERY_THINK_*`` too, as Django spells them), then ``THINK_*`` of
        *environ*, then for vendors' keys the vendor's own variable, then the default. ``None`` and empty
        variables count as not set. Unknown ``THINK_*`` variables are ignored: they may be another program's.

        Raises:
            InvalidSetting: A ``think_`` key is unknown, or a value breaks its rule. A value that can hold a
                password is not in the text.
        """
        values, faults = cls.read(celery_conf, environ)
        if faults:
            raise faults[0]
        return cls(**values)

    @classmethod
    def read(
        cls, celery_conf: Mapping[str, Any], environ: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[InvalidSetting]]:
        """Those that are set and fit, by their fields, and what is wrong with the others: see :meth:`from_mapping`."""
        given = _given(celery_conf)
        known = {each.metadata["key"] for each in fields(cls)}
        faults = [InvalidSetting(key, "", _unknown(key, known)) for key in given if key not in known]
        values: dict[str, Any] = {}
        for each in fields(cls):
            key, vendor = each.metadata["key"], each.metadata["vendor"]
            found: dict[str, Any] = {key: given.get(key, celery_conf.get(key))}
            found.update((name, environ.get(name) or None) for name in (key.upper(), vendor) if name)
            for name, value in found.items():
                if value is not None:
                    try:
                        values[each.name] = _read(name, value, each.metadata["read"], each.metadata["secret"])
                    except InvalidSetting as fault:
                        faults.append(fault)
                    break
        return values, faults


def _given(celery_conf: Mapping[str, Any]) -> dict[str, Any]:
    spelled = {str(key): str(key).lower().removeprefix("celery_") for key in celery_conf}
    return {name: celery_conf[key] for key, name in spelled.items() if name.startswith(PREFIX)}


def _unknown(key: str, known: set[str]) -> str:
    nearest = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    if nearest:
        return f"there is no such setting. Did you mean {nearest[0]!r}?"
    return f"there is no such setting. There are: {', '.join(sorted(known))}."


def _read(name: str, value: Any, read: Read, secret: bool) -> Any:
    try:
        return read(value)
    except _Unfit as rule:
        raise InvalidSetting(name, "" if secret else repr(value), f"{rule}.") from None
