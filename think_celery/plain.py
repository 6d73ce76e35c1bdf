"""Stored values as a reader wants them: what they hold, without the marks that tell their classes."""

import base64
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from think_celery.serialization import TAG


def plain_value(stored: str | None) -> Any:
    """A stored value as JSON values; its classes need not be known here."""
    return None if stored is None else _plain(json.loads(stored))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {name: _plain(item) for name, item in value.items()}
    read = _READERS.get(value[TAG])
    return value if read is None else read(value)  # a kind of a later version is shown as it is


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {**value["v"], **value.get("x", {})}
    return {name: _plain(item) for name, item in fields.items()}


def _moment(value: Mapping[str, Any]) -> str:
    stored = value["v"]
    return f"{stored['at']}[{stored['zone']}]" if "zone" in stored else str(stored["at"])


def _as_it_is(value: Mapping[str, Any]) -> Any:
    return value["v"]


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "dict": _fields,
    "model": _fields,
    "dataclass": _fields,
    "datetime": _moment,
    "time": _moment,
    "timedelta": lambda value: str(timedelta(*value["v"])),
    "str": lambda value: base64.b64decode(value["v"]).decode("utf-8", "replace"),
    **dict.fromkeys(("enum", "date", "Decimal", "UUID", "bytes"), _as_it_is),
}
