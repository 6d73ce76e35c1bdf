"""What a forked child does first: forget what belongs to its parent, whose threads and sockets it does not have.

Celery's prefork pool forks, and so do many hosts. A lock that one of the parent's threads held stays locked in the
child for ever, and a connection that both use mixes up their words.
"""

import os
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import ReferenceType, WeakMethod

Call = Callable[[], Any]
_Calls = set[ReferenceType[Call]]

_before: _Calls = set()
_in_parent: _Calls = set()
_in_child: _Calls = set()


def in_child(call: Call) -> None:
    """Make this call in each forked child before its own code goes on. A method: as long as its object lives."""
    _keep(_in_child, call)


def around(*, before: Call, in_parent: Call) -> None:
    """Make these calls in the process that forks, just before and just after it; methods likewise."""
    _keep(_before, before)
    _keep(_in_parent, in_parent)


def _keep(calls: _Calls, call: Call) -> None:
    weak = WeakMethod if isinstance(call, MethodType) else ReferenceType
    calls.add(weak(call, calls.discard))


def _make(calls: _Calls) -> None:
    for reference in list(calls):
        call = reference()
        if call is not None:
            call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _make(_before),
        after_in_parent=lambda: _make(_in_parent),
        after_in_child=lambda: _make(_in_child),
    )
