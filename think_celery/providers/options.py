"""What a caller adds to a request: fields of the body and headers, checked so that none breaks the engine's part."""

from collections.abc import Mapping
from typing import Any

from think_celery.errors import ModelError

SCOPES = frozenset({"openai", "anthropic", "pydantic_ai"})
"""Keys of provider options whose value is for that provider alone."""


def body_options(
    scope: str, provider_options: Mapping[str, Any], reserved: Mapping[str, str]
) -> dict[str, Any]:
    """The options that go into the body of a request to the provider *scope*.

    *reserved* are the fields that the engine writes itself, with what to use instead.

    Raises:
        ModelError: One of them is given, or a provider's options are no mapping.
    """
    given = {key: value for key, value in provider_options.items() if key not in SCOPES}
    own = provider_options.get(scope)
    if own is not None and not isinstance(own, Mapping):
        raise ModelError(
            f"provider_options[{scope!r}] is {type(own).__name__}: it must be a dict of fields of the request's body"
        )
    given.update(own or {})
    return checked_options(given, reserved)


def checked_options(given: Mapping[str, Any], reserved: Mapping[str, str]) -> dict[str, Any]:
    """*given*, none of whose fields is one of the engine's own.

    Raises:
        ModelError: One is.
    """
    for key in given:
        if not isinstance(key, str):
            raise ModelError(
                f"the provider option {key!r} is no text: it must be the name of a field of the body"
            )
        if key in reserved:
            raise ModelError(
                f"the provider option {key!r} can't be set: the engine relies on what it writes there. {reserved[key]}"
            )
    return dict(given)


def checked_headers(given: Mapping[str, str]) -> dict[str, str]:
    """*given*, all of which can be sent.

    Raises:
        ModelError: One can't. Its value, which may be a key, is not shown.
    """
    for name, value in given.items():
        fit = isinstance(name, str) and isinstance(value, str) and name.isascii() and value.isascii()
        if not fit or not name or not name.isprintable() or not value.isprintable() or set(name) & set(" :"):
            raise ModelError(
                f"the header {name!r} can't be sent: a header's name and value are printable ASCII text"
            )
    return dict(given)
