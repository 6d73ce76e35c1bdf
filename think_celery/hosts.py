"""What the host opens for each of its threads, such as connections of an ORM: closed where a thread of ours ends.

Celery and web frameworks close it in their own threads after each task or request, and know nothing of ours.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from think_celery.logs import trace_of

logger = logging.getLogger("think_celery.hosts")

Call = TypeVar("Call", bound=Callable[[], Any])

_added: list[Callable[[], Any]] = []


def at_thread_end(call: Call) -> Call:
    """Make this call, too, wherever a thread of ours ends its work. Returns it, so it may decorate."""
    if call not in _added:
        _added.append(call)
    return call


@contextmanager
def thread_closed() -> Iterator[None]:
    """Close what the block opens for this thread; code of the users' own runs in it."""
    try:
        yield
    finally:
        close_thread()


def close_thread() -> None:
    """Close what the host has opened for this thread, whose work is over. What can't be closed is logged."""
    for close in (close_django, *_added):
        try:
            close()
        except BaseException as error:  # let through, it would end a thread that somebody waits for
            logger.error("could not close what a thread had opened: %s", trace_of(error))


def close_django() -> None:
    """Django has connections of each thread; it is not imported for the question whether somebody uses it.

    Kept ones (``CONN_MAX_AGE``) are closed as well: nobody comes back to this thread for them.
    """
    conf, db = sys.modules.get("django.conf"), sys.modules.get("django.db")
    settings, connections = getattr(conf, "settings", None), getattr(db, "connections", None)
    if connections is not None and getattr(settings, "configured", False):
        connections.close_all()
