"""The switch that forbids requests to real providers, as test runs want it."""

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from think_celery.errors import NoModel

_lock = threading.Lock()
_forbidden = 0


def forbid_real_requests() -> None:
    """Forbid requests to real providers for the rest of this process; loopback addresses stay allowed."""
    _change(+1)


@contextmanager
def no_real_requests() -> Iterator[None]:
    """Forbid requests to real providers within the block, in all threads; loopback addresses stay allowed."""
    _change(+1)
    try:
        yield
    finally:
        _change(-1)


def check_permitted(model: str, url: str) -> None:
    """Refuse a request to *url* while real requests are forbidden.

    Raises:
        NoModel: They are, and *url* is no loopback address.
    """
    if _forbidden and not is_loopback(url):
        raise NoModel(
            model,
            "requests to real providers are forbidden in this process (forbid_real_requests, no_real_requests, "
            "think_test). Give the agent a ScriptedModel or FunctionModel, or a base_url on 127.0.0.1.",
        )


def is_loopback(url: str) -> bool:
    """Whether *url* names this machine by a loopback address or as ``localhost``."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _change(by: int) -> None:
    global _forbidden
    with _lock:
        _forbidden += by
