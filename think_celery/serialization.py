"""JSON in and out: what is stored comes back equal and of the same type, or is refused at once.

JSON has no dates, decimals or models, so those are stored as an object with the key ``$think``, which names
their kind. A user's own dict that has this key is stored inside such an object and comes back unchanged: no
user data is ever read as a marker. Classes are stored by module and qualified name and found by importing;
nothing is evaluated or unpickled.
"""

import base64
import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from think_celery.classes import class_name, find_class, is_dataclass_type, is_orm_object
from think_celery.errors import InvalidType, NotSerializable, PayloadTooLarge, UnreadableValue
from think_celery.records import dump_fields, load_dataclass, load_model
from think_celery.wording import a_type, with_article

TAG = "$think"
MAX_DEPTH = 100

_PLAIN = (type(None), bool, str, int, float)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def dumps(value: Any, *, what: str, limit: int | None = None) -> str:
    """*value* as ASCII-only JSON text that :func:`loads` turns into an equal value of the same type.

    JSON values, ``datetime``, ``date``, ``time``, ``timedelta``, ``Decimal``, ``UUID``, ``Enum``, ``bytes``,
    and pydantic models and dataclasses that can be imported, nested as you like.

    Args:
        value: What to store.
        what: What to call it in errors, such as ``result``.
        limit: The most bytes that the text may have.

    Raises:
        NotSerializable: Something in it would not come back equal; the error names its path and a remedy.
        PayloadTooLarge: The text is longer than *limit*.
    """
    try:
        text = _to_text(_encode(value, what, 0))
    except RecursionError:
        raise _too_deep(what) from None
    except NotSerializable:
        raise
    except Exception as error:  # of code of the user's: a time zone, a property
        raise NotSerializable(
            what, f"reading it raised {type(error).__name__}", "Return plain values, read before."
        ) from error
    if limit is not None and len(text) > limit:
        raise PayloadTooLarge(what, len(text), limit)
    return text


def json_metadata(value: Any, limit: int) -> dict[str, Any] | None:
    """The metadata that a user has passed, as it is stored: a dict of JSON values and nothing else.

    Raises:
        InvalidType: It is no dict.
        NotSerializable: Something in it is no JSON value; the error names its path and a remedy.
        PayloadTooLarge: Its JSON is longer than *limit* characters.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidType(f"metadata is {a_type(value)}; pass a dict of JSON values.")
    kept = dict(value)
    dumps(kept, what="metadata")
    check_size("the metadata", kept, limit)
    return kept


def check_size(what: str, value: Any, limit: int) -> None:
    """Make sure that this is plain JSON of no more than *limit* characters.

    Raises:
        NotSerializable: It is not JSON.
        PayloadTooLarge: It is longer.
    """
    try:
        size = len(json.dumps(value, allow_nan=False, separators=(",", ":")))
    except (TypeError, ValueError) as error:
        raise NotSerializable(
            what, str(error), "Pass JSON values only: dicts, lists, texts, numbers."
        ) from None
    if size > limit:
        raise PayloadTooLarge(what, size, limit)


def loads(text: str) -> Any:
    """The value that :func:`dumps` was given.

    Raises:
        UnreadableValue: A class in it can't be found any more, or the text is not one of ours.
    """
    try:
        stored = json.loads(text)
    except ValueError as error:
        raise UnreadableValue("The text", f"it is not JSON ({error})") from None
    return _decode(stored) if f'"{TAG}"' in text else stored


def fingerprint(value: Any) -> str:
    """64 characters that are the same for equal values, whatever the order of their keys.

    Raises:
        NotSerializable: As :func:`dumps` does.
    """
    text = _to_text(_encode(value, "value", 0), sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _to_text(encoded: Any, sort_keys: bool = False) -> str:
    return json.dumps(encoded, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


# --- out ------------------------------------------------------------------------------------------


def _encode(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return _encode_plain(value, path)
    if depth > MAX_DEPTH:
        raise _too_deep(path)
    if kind is list:
        return [_encode(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if kind is dict:
        return _encode_dict(value, path, depth)
    if kind in _LEAVES:
        return {TAG: kind.__name__, "v": _LEAVES[kind](value, path)}
    if isinstance(value, Enum):
        return {TAG: "enum", "c": class_name(kind, path), "v": _encode_enum(value, path)}
    if is_orm_object(value):
        raise NotSerializable(
            path,
            f"{kind.__name__} is a database object, tied to its session",
            "Return the columns that you need, or its primary key.",
        )
    if isinstance(value, BaseModel) or is_dataclass_type(kind):
        tag = "model" if isinstance(value, BaseModel) else "dataclass"
        name = class_name(kind, path)
        return {
            TAG: tag,
            "c": name,
            **dump_fields(value, path, lambda item, at: _encode(item, at, depth + 1)),
        }
    raise NotSerializable(path, *_refusal(value))


def _encode_plain(value: Any, path: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotSerializable(
            path, f"{value} is not in JSON", "Return None, or a text, for a missing number."
        )
    if isinstance(value, str) and _SURROGATE_PAIR.search(value):
        # JSON reads two escaped surrogates as one character, so such a text must not be written as text.
        return {TAG: "str", "v": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")}
    if type(value) is int and value.bit_length() > 13_000:  # Python reads no more than 4,300 digits
        raise NotSerializable(
            path, "the number has more than 3,900 digits", "Store it as a hexadecimal text."
        )
    return value


def _encode_dict(value: dict[Any, Any], path: str, depth: int) -> Any:
    encoded: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise NotSerializable(
                path,
                f"the key {key!r} is of type {type(key).__name__}, and JSON has only texts as keys",
                "Use {str(key): value, …}, or a list of pairs.",
            )
        if _SURROGATE_PAIR.search(key):
            raise NotSerializable(
                path, f"the key {key!r} holds a character in two halves", "Decode the text that it came from."
            )
        encoded[key] = _encode(item, f"{path}[{json.dumps(key)}]", depth + 1)
    return {TAG: "dict", "v": encoded} if TAG in encoded else encoded


def _encode_enum(value: Enum, path: str) -> Any:
    kind = type(value)
    if isinstance(value, Flag):
        return value.value
    if kind.__members__.get(value.name) is not value:
        raise NotSerializable(path, f"{value!r} is no named member of its class", "Return a named member.")
    return value.name


def _encode_moment(value: datetime | time, path: str) -> dict[str, Any]:
    """ISO text, with the zone's name where it has one: an offset alone would lose it.

    A zone without a name is stored as its offset; ``fold`` is kept for naive and zoned times.
    """
    zone = value.tzinfo
    stored: dict[str, Any] = {"at": value.isoformat()}
    if isinstance(zone, ZoneInfo) and zone.key:
        stored = {"at": value.replace(tzinfo=None).isoformat(), "zone": zone.key}
    if value.fold:
        stored["fold"] = 1
    if _decode_moment(type(value), stored) != value:
        raise NotSerializable(
            path,
            f"{value!r} is a time at which its zone is ambiguous or undefined",
            "Return it in UTC: value.astimezone(timezone.utc).",
        )
    return stored


def _encode_decimal(value: Decimal, path: str) -> str:
    if not value.is_finite():
        raise NotSerializable(path, f"Decimal {value} is no number", "Return None, or a text, instead.")
    return str(value)


_LEAVES: dict[type, Callable[[Any, str], Any]] = {
    datetime: _encode_moment,
    date: lambda value, _: value.isoformat(),
    time: _encode_moment,
    timedelta: lambda value, _: [value.days, value.seconds, value.microseconds],
    Decimal: _encode_decimal,
    uuid.UUID: lambda value, _: str(value),
    bytes: lambda value, _: base64.b64encode(value).decode("ascii"),
}


def _refusal(value: Any) -> tuple[str, str]:
    """The problem with a value that is not supported, and what to do."""
    name = type(value).__name__
    if isinstance(value, tuple):
        return (
            f"{with_article(name)} would come back as a list",
            "Return a list, or a dataclass for a record.",
        )
    if isinstance(value, set | frozenset):
        return f"{with_article(name)} has no JSON form", "Return sorted(…), a list."
    if isinstance(value, bytearray | memoryview):
        return f"{with_article(name)} would come back as bytes", "Return bytes(…)."
    for base in (*_PLAIN[1:], list, dict, *_LEAVES):
        if isinstance(value, base):
            return (
                f"{name} is a subclass of {base.__name__} and would come back as one",
                f"Return {base.__name__}(…).",
            )
    if isinstance(value, type) or callable(value):
        return f"{with_article(name)} is code, not data", "Return its name, and look it up when you need it."
    return (
        f"{with_article(name)} can't be stored",
        "Return JSON values, dates, decimals, UUIDs, enums, bytes, dataclasses or pydantic models.",
    )


def _too_deep(path: str) -> NotSerializable:
    return NotSerializable(
        path if len(path) < 200 else path[:200] + "…",
        f"it is nested more than {MAX_DEPTH} levels deep, or contains itself",
        "Return a flat list whose items refer to each other by id.",
    )


# --- in -------------------------------------------------------------------------------------------


def _decode(stored: Any) -> Any:
    if isinstance(stored, list):
        return [_decode(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    if TAG not in stored:
        return {key: _decode(item) for key, item in stored.items()}
    kind, value = stored[TAG], stored.get("v")
    if kind in _READERS:
        return _READERS[kind](value)
    if kind == "dict":
        return {key: _decode(item) for key, item in stored["v"].items()}
    if kind == "enum":
        return _decode_enum(find_class(stored["c"], "enum"), value)
    if kind == "model":
        return load_model(find_class(stored["c"], "model"), stored, _decode)
    if kind == "dataclass":
        return load_dataclass(find_class(stored["c"], "dataclass"), stored, _decode)
    raise UnreadableValue("The stored value", f"it holds a kind {kind!r} that this version doesn't know")


def _decode_enum(cls: Any, value: Any) -> Any:
    if not issubclass(cls, Flag) and value not in cls.__members__:
        raise UnreadableValue(
            f"The stored value {cls.__qualname__}.{value}", "its class has no such member now"
        )
    return cls(value) if issubclass(cls, Flag) else cls[value]


def _decode_moment(kind: Any, stored: dict[str, Any]) -> Any:
    value = kind.fromisoformat(stored["at"])
    if "zone" in stored:
        value = value.replace(tzinfo=ZoneInfo(stored["zone"]))
    return value.replace(fold=1) if stored.get("fold") else value


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda value: base64.b64decode(value).decode("utf-8", "surrogatepass"),
    "datetime": lambda value: _decode_moment(datetime, value),
    "date": date.fromisoformat,
    "time": lambda value: _decode_moment(time, value),
    "timedelta": lambda value: timedelta(*value),
    "Decimal": Decimal,
    "UUID": uuid.UUID,
    "bytes": base64.b64decode,
}
