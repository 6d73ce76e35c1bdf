"""The version of an agent's class: it tells whether an agent has started, and whose code declared a task."""

import functools
import hashlib
import inspect
from typing import Any


def version_of(cls: Any) -> str:
    """The version of an agent's class: its attribute ``version``, else a hash of its source.

    Bases of yours count too. Where there is no source (a class made in a shell), its compiled methods count.
    """
    return cls.version if cls.version is not None else _hashed(cls)


@functools.lru_cache(maxsize=1000)
def _hashed(cls: type) -> str:
    theirs = [base for base in cls.__mro__ if not is_ours(base) and base is not object]
    text = "\x1e".join(_source(base) for base in theirs)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_ours(cls: type) -> bool:
    """Whether a class is one of this package's, and no user's."""
    package, _, module = cls.__module__.partition(".")
    return package == "think_celery" and not module.startswith("demo")


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        codes = {name: getattr(value, "__code__", None) for name, value in vars(cls).items()}
        told = [
            (
                name,
                code.co_code.hex(),
                code.co_names,
                [str(const) for const in code.co_consts if _plain(const)],
            )
            for name, code in sorted(codes.items())
            if code is not None
        ]
        return f"{cls.__qualname__}{told}"


def _plain(constant: Any) -> bool:
    return isinstance(constant, str | int | float | bytes | None)
