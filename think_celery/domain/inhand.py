"""Whose work is in hand: what a tool, a step or a hook runs for.

A context variable knows it; helper threads run in copies of their caller's context, so they know it too. A thread
that users' code starts by itself does not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from think_celery.domain.leases import Hold
from think_celery.ids import AgentRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Work under a lease. ``agent`` is whose turn it is (``None``: a workflow), ``outer`` what waits for it here."""

    hold: Hold
    agent: AgentRef | None
    outer: "Work | None"


_in_hand: ContextVar[Work | None] = ContextVar("think_in_hand", default=None)


_helping: ContextVar[int] = ContextVar("think_helping", default=0)


@contextmanager
def helping() -> Iterator[None]:
    """The block runs a turn in the place of somebody who waits for it."""
    token = _helping.set(_helping.get() + 1)
    try:
        yield
    finally:
        _helping.reset(token)


def depth() -> int:
    """How many turns are run inside one another here, each in the place of one that waits for it."""
    return _helping.get()


@contextmanager
def doing(hold: Hold, agent: AgentRef | None = None) -> Iterator[None]:
    """What runs in the block runs for the work under this lease."""
    token = _in_hand.set(Work(hold=hold, agent=agent, outer=_in_hand.get()))
    try:
        yield
    finally:
        _in_hand.reset(token)


def in_hand() -> Work | None:
    """The work that this code runs for; ``None`` in a script, a web request or a task of the host's."""
    return _in_hand.get()


def all_in_hand() -> list[Work]:
    """That work, and all that waits for it in this very thread, the innermost first."""
    found, work = [], _in_hand.get()
    while work is not None:
        found.append(work)
        work = work.outer
    return found
