"""A user's class in another process: found there by its name, and made there by a worker."""

import dataclasses
import importlib
import inspect
import sys
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel

from think_celery.errors import InvalidClass, NotSerializable, UnreadableValue

ClassKind = Literal["model", "dataclass", "enum"]


def class_name(cls: type, path: str) -> str:
    """``module:Qualified.Name`` of a class that another process can import.

    Raises:
        NotSerializable: It can't be imported: it is local, of the script itself, or a generic's instance.
    """
    name, module = cls.__qualname__, cls.__module__
    if "<locals>" in name:
        raise NotSerializable(
            path, f"the class {name} is defined inside a function", "Move it to the top level of its module."
        )
    if module == "__main__":
        raise NotSerializable(
            path,
            f"the class {name} is defined in the started script (__main__), which workers don't import",
            "Move it to a module of its own and import it from there.",
        )
    if getattr(cls, "__pydantic_generic_metadata__", {}).get("origin") is not None:
        raise NotSerializable(
            path, f"{name} is a generic model's instance, which has no name to import", _generic_remedy(name)
        )
    if _lookup(sys.modules.get(module), name) is not cls:
        raise NotSerializable(
            path,
            f"{module}.{name} is another object than the class of this value",
            "Define the class once, under its own name, at the top level of a module.",
        )
    return f"{module}:{name}"


def find_class(stored: str, kind: ClassKind) -> Any:
    """The class that :func:`class_name` named.

    Raises:
        UnreadableValue: There is none, or it isn't of this *kind*.
    """
    module, _, name = stored.partition(":")
    try:
        found = _lookup(importlib.import_module(module), name)
    except Exception as error:  # a module's own code runs, and may fail in any way
        raise UnreadableValue(f"A stored {stored}", f"its module can't be imported here ({error})") from error
    if not isinstance(found, type) or not _is_kind(found, kind):
        raise UnreadableValue(f"A stored {stored}", f"there is no {kind} of this name now")
    return found


def name_if_loaded(kind: object) -> str | None:
    """``module:Qualified.Name`` of a class that :func:`find_loaded` finds by it; ``None`` where it would not.

    So of a class that was defined inside a function, and of a generic's instance.
    """
    if not isinstance(kind, type):
        return None
    name = f"{kind.__module__}:{kind.__qualname__}"
    return name if find_loaded(name) is kind else None


def find_loaded(stored: str) -> type | None:
    """The class of that name, if this process has its module already. Nothing is imported, and no code of it runs."""
    module, _, name = stored.partition(":")
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


def check_constructor(cls: type, *arguments: Any, called: str, remedy: str) -> None:
    """Refuse a class whose objects can't be made with these arguments, the only ones that a worker has.

    Raises:
        InvalidClass: They can't. *called* goes on after "can't be called", and *remedy* says what to do.
    """
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    try:
        signature.bind(None, *arguments)
    except TypeError:
        raise InvalidClass(
            cls.__name__, f"its __init__{signature} can't be called {called}", remedy
        ) from None


def is_dataclass_type(cls: type) -> bool:
    """Whether it is a dataclass that is nothing else besides (no error, no dict or list with fields)."""
    builtin = (BaseException, dict, list, tuple, set, frozenset, str, bytes, int, float)
    return dataclasses.is_dataclass(cls) and not issubclass(cls, builtin)


def is_orm_object(value: object) -> bool:
    """Whether it is a row of SQLAlchemy's or Django's ORM, which are not imported for the question."""
    cls = type(value)
    return hasattr(cls, "_sa_class_manager") or (hasattr(cls, "_meta") and hasattr(value, "_state"))


def _is_kind(cls: type, kind: ClassKind) -> bool:
    if kind == "model":
        return issubclass(cls, BaseModel)
    return issubclass(cls, Enum) if kind == "enum" else is_dataclass_type(cls)


def _lookup(module: object, name: str) -> object:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _generic_remedy(name: str) -> str:
    return f"Give it a name: class {''.join(filter(str.isalnum, name))}({name}): …"
