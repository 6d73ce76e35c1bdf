"""Pydantic models and dataclasses as plain fields, and back.

They are restored field by field, as they were, without running validators or ``__post_init__`` again:
those may change a value that they have seen before. A class that has gained fields since gives them their
defaults; fields that it has lost are dropped.
"""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from think_celery.errors import NotSerializable, UnreadableValue

Encode = Callable[[Any, str], Any]
Decode = Callable[[Any], Any]

_set = object.__setattr__


def dump_fields(value: Any, path: str, encode: Encode) -> dict[str, Any]:
    """The fields of a model or dataclass; ``v`` holds the declared ones, the other keys what else it has."""

    def encoded(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: encode(item, f"{path}.{name}") for name, item in fields.items()}

    if not isinstance(value, BaseModel):
        declared, others = _dataclass_fields(value, path)
        return {"v": encoded(declared), **({"x": encoded(others)} if others else {})}
    names = type(value).model_fields
    stored: dict[str, Any] = {
        "v": encoded({name: item for name, item in vars(value).items() if name in names})
    }
    if value.__pydantic_extra__:
        stored["x"] = encoded(value.__pydantic_extra__)
    if value.__pydantic_private__:
        stored["p"] = encoded(value.__pydantic_private__)
    if value.model_fields_set != {*stored["v"], *stored.get("x", ())}:
        stored["s"] = sorted(value.model_fields_set)
    return stored


def _dataclass_fields(value: Any, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    declared: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        try:
            declared[field.name] = getattr(value, field.name)
        except AttributeError:
            raise NotSerializable(
                f"{path}.{field.name}", "the field was never set", "Give every field a value or a default."
            ) from None
    others = {
        name: item
        for name, item in getattr(value, "__dict__", {}).items()
        if name not in declared
        and not (name.startswith("__") and name.endswith("__"))
        and not isinstance(getattr(type(value), name, None), cached_property)
    }
    return declared, others


def load_dataclass(cls: Any, stored: dict[str, Any], decode: Decode) -> Any:
    """The dataclass instance that was dumped."""
    value = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in stored["v"]:
            _set(value, field.name, decode(stored["v"][field.name]))
        elif field.default is not dataclasses.MISSING:
            _set(value, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            _set(value, field.name, field.default_factory())
        else:
            raise _missing(cls, field.name)
    for name, item in stored.get("x", {}).items():
        _set(value, name, decode(item))
    return value


def load_model(cls: Any, stored: dict[str, Any], decode: Decode) -> Any:
    """The pydantic model that was dumped."""
    fields: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        if name in stored["v"]:
            fields[name] = decode(stored["v"][name])
        elif not field.is_required():
            fields[name] = field.get_default(call_default_factory=True, validated_data=fields)
        else:
            raise _missing(cls, name)
    extra = {name: decode(item) for name, item in stored.get("x", {}).items()}
    given = set(stored.get("s", (*stored["v"], *extra)))
    value = cls.__new__(cls)
    _set(value, "__dict__", fields)
    _set(value, "__pydantic_fields_set__", given & {*fields, *extra})
    _set(value, "__pydantic_extra__", extra if cls.model_config.get("extra") == "allow" else None)
    _set(value, "__pydantic_private__", _load_private(cls, stored.get("p", {}), decode))
    return value


def _load_private(cls: Any, stored: dict[str, Any], decode: Decode) -> dict[str, Any] | None:
    if not cls.__private_attributes__:
        return None
    private = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
    private.update((name, decode(item)) for name, item in stored.items() if name in private)
    return {name: item for name, item in private.items() if item is not PydanticUndefined}


def _missing(cls: type, name: str) -> UnreadableValue:
    return UnreadableValue(
        f"A stored {cls.__qualname__}", f"its class now requires {name!r}, without a default"
    )
