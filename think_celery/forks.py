"""What a forked child does first: forget what belongs to its parent, whose threads and sockets it does not have.

Celery's prefork pool forks, and so do many hosts. A lock that one of the parent's threads held stays locked in the
child for ever, and a connection that both use mixes up their words.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any
from weakref import ReferenceType, WeakMethod

from think_celery import native

Call = Callable[[], Any]
_Calls = set[ReferenceType[Call]]

PATIENCE_SECONDS = 1.0
"""How long a fork waits for what threads have in hand. A database that hangs must not hold it up for longer."""

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


class _Uncut:
    """What threads have in hand that no fork may cut in two."""

    def __init__(self) -> None:
        self.changed, self.in_hand, self.forks = threading.Condition(), 0, False
        self._mine = threading.local()

    def is_inside(self) -> bool:
        """Whether this thread has something in hand."""
        return getattr(self._mine, "inside", False)

    def hold_off(self) -> None:
        """Let it come to its end, and begin nothing anew."""
        with self.changed:
            self.forks = True
            mine = 1 if self.is_inside() else 0
            self.changed.wait_for(lambda: self.in_hand <= mine, PATIENCE_SECONDS)

    def begin(self) -> None:
        """This thread begins, once no fork is under way."""
        with self.changed:
            self.changed.wait_for(lambda: not self.forks, PATIENCE_SECONDS)
            self.in_hand += 1
        self._mine.inside = True

    def end(self) -> None:
        """This thread has come to its end."""
        self._mine.inside = False
        with self.changed:
            self.in_hand -= 1
            self.changed.notify_all()

    def go_on(self) -> None:
        """The fork is over."""
        with self.changed:
            self.forks = False
            self.changed.notify_all()


_uncut = _Uncut()


@contextmanager
def uncut() -> Iterator[None]:
    """Around what a thread does again and again beside a pool that forks: the fork waits for its end, if that is soon.

    The import of a module, which a library does when it first needs it, is such a thing: a child that is born in
    the middle of it waits for ever for its end when it comes to need that module itself.

    Under gevent it does nothing: greenlets share no lock with native threads, and their pools don't fork.
    """
    in_hand = _uncut
    # A part of what this thread has in hand is not held off: the fork waits for its end.
    if native.has_greenlets() or in_hand.is_inside():
        yield
        return
    in_hand.begin()
    try:
        yield
    finally:
        if in_hand is _uncut:  # else this is a child, which has begun anew
            in_hand.end()


def _begin_child() -> None:
    global _uncut
    _uncut = _Uncut()
    _make(_in_child)


def _hold_off() -> None:
    _uncut.hold_off()
    _make(_before)


def _go_on() -> None:
    _make(_in_parent)
    _uncut.go_on()


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
        before=_hold_off,
        after_in_parent=_go_on,
        after_in_child=_begin_child,
    )
