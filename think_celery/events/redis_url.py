"""Redis URLs, as redis-py and as Celery spell them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

OVER_TCP = ("redis", "rediss")
OVER_A_SOCKET = ("unix", "redis+socket")

_DATABASE = ("db", "virtual_host")  # redis-py's word and Celery's
_CERTIFICATES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
_VERIFY = {"required", "optional", "none"}


def is_redis_url(url: str) -> bool:
    """Whether this names one Redis, by its scheme."""
    return url.partition("://")[0].lower() in OVER_TCP + OVER_A_SOCKET


def connection_options(url: str, tls: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What redis-py's client must be told to connect there.

    ``redis://``, ``rediss://`` (TLS) with ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile`` and
    ``ssl_cert_reqs`` (``required``, which is the default, ``optional`` or ``none``) as parameters, and
    ``unix://`` or ``redis+socket://`` with ``db`` or ``virtual_host``. With *tls*, redis-py's own
    ``ssl_…`` options, the connection is encrypted so, and what the URL says of it does not count.

    Raises:
        ValueError: It can't be read; the text, without the URL, says why.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("its host or port can't be read") from None
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    options: dict[str, Any] = {
        "username": unquote(parts.username or "") or None,
        "password": unquote(parts.password or "") or None,
    }
    if parts.scheme in OVER_A_SOCKET:
        if not parts.path.strip("/"):
            raise ValueError("it names no socket; write three slashes, as in unix:///run/redis.sock")
        given = [parameters.pop(name) for name in _DATABASE if name in parameters]
        options |= {"unix_socket_path": unquote(parts.path), "db": _number("".join(given[:1]))}
    elif parts.scheme in OVER_TCP:
        given = [parameters.pop("db")] if "db" in parameters else [parts.path.strip("/")]
        options |= {"host": unquote(parts.hostname or "") or "127.0.0.1", "port": port or 6379}
        options |= {"db": _number(unquote(given[0])), **_tls(parts, parameters, tls)}
    else:
        raise ValueError(f"it begins with none of {', '.join(f'{s}://' for s in OVER_TCP + OVER_A_SOCKET)}")
    if parameters:
        raise ValueError(f"it has parameters that are not known here: {', '.join(sorted(parameters))}")
    return options


def _number(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError("its database must be a number, such as 0")
    return int(text or 0)


def _tls(parts: SplitResult, parameters: dict[str, str], tls: Mapping[str, Any] | None) -> dict[str, Any]:
    if tls is not None:
        return {"ssl": True, **tls}
    if parts.scheme != "rediss":
        return {}
    verify = parameters.pop("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if verify not in _VERIFY:
        raise ValueError(f"its ssl_cert_reqs must be one of {', '.join(sorted(_VERIFY))}")
    files = {name: parameters.pop(name) for name in _CERTIFICATES if name in parameters}
    return {"ssl": True, "ssl_cert_reqs": verify, "ssl_check_hostname": verify != "none", **files}
