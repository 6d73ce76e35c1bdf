"""What a provider's refusals mean: the text to show, whether asking again may help, and when."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from think_celery.clock import SystemClock
from think_celery.errors import ModelError
from think_celery.retries import parse_retry_after

LONGEST_TEXT = 2000
_NEVER = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
NOT_AGAIN = _NEVER | {
    "authentication_error",
    "billing_error",
    "content_filter",
    "content_policy_violation",
    "context_length_exceeded",
    "invalid_api_key",
    "invalid_prompt",
    "invalid_request_error",
    "model_not_found",
    "not_found_error",
    "permission_error",
    "request_too_large",
}
"""Codes and types of errors after which asking again can't help."""

_HINT = re.compile(
    r"(?:again|retry|wait)\s+(?:(?:in|after|for)\s+)?"
    r"(?:(?P<minutes>\d+)\s?m(?:in(?:ute)?s?)?(?![a-z])\s?)?"
    r"(?:(?P<number>\d+(?:\.\d+)?)\s?(?P<unit>ms|milliseconds?|s|secs?|seconds?)\b)?",
    re.IGNORECASE,
)


def of_status(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The error for a response with this status. ``retry_after_seconds`` is the provider's wish, in any form."""
    parsed = _parsed(body)
    error = _error_in(parsed) or (parsed if isinstance(parsed, Mapping) and parsed else None)
    text = _text(error) if error is not None else _snippet(body, headers)
    retryable = may_pass(status) and not _words(error) & _NEVER
    return ModelError(
        f"HTTP {status}: {text}" if text else f"HTTP {status}",
        retryable=retryable,
        status_code=status,
        retry_after_seconds=retry_after(headers, error) if retryable else None,
    )


def in_answer(frame: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> ModelError | None:
    """The error that a piece of an answer carries, or ``None``.

    Servers report errors under HTTP 200 too. Where a code says nothing about it, asking again may help.
    """
    if not frame.get("error") and "error" not in (frame.get("object"), frame.get("type")):
        return None  # nearly always
    error = _error_in(frame)
    status = _status_in(error)
    never = NOT_AGAIN if status is None else _NEVER
    retryable = (status is None or may_pass(status)) and not _words(error) & never
    return ModelError(
        _text(error) or "the provider reported an error without a text",
        retryable=retryable,
        status_code=status,
        retry_after_seconds=retry_after(headers or {}, error) if retryable else None,
    )


def may_pass(status: int) -> bool:
    """Whether asking again may help after this HTTP status."""
    return status in (408, 409, 425, 429) or status >= 500


def retry_after(headers: Mapping[str, str], error: Any = None) -> float | None:
    """How many seconds the provider asks to wait, by its headers or else by the text of its error."""
    milliseconds = headers.get("retry-after-ms", "")
    if re.fullmatch(r"\d+(\.\d+)?", milliseconds.strip()):
        return float(milliseconds) / 1000
    seconds = parse_retry_after(headers.get("retry-after"), SystemClock().now())
    if seconds is not None or error is None:
        return seconds
    if isinstance(error, Mapping):
        for key in ("retry_after", "retry_after_seconds", "retryDelay"):
            if (given := _number(error.get(key))) is not None:
                return given
    return _hint(_text(error))


def secrets_in(words: Iterable[str]) -> list[str]:
    """What no error shows, the longest first. Short words are no secrets, and stand in ordinary text."""
    return sorted((word for word in words if len(word) >= 6), key=len, reverse=True)


def shown(text: str, secrets: Iterable[str]) -> str:
    """*text* without the *secrets*, and no longer than an error's text should be."""
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # the latter: nested too deep
        return None


def _error_in(value: Any) -> Any:
    """The error object or text in a body or frame. Some servers wrap it in a list, some have no ``error`` key."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, Mapping):
        return None
    if value.get("error"):
        return value["error"]
    if value.get("object") == "error" or value.get("type") == "error":
        return value
    return None


def _text(error: Any) -> str:
    if isinstance(error, Mapping):
        for key in ("message", "detail", "error"):
            found = error.get(key)
            if found:
                return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)


def _words(error: Any) -> set[str]:
    if not isinstance(error, Mapping):
        return set()
    return {word for key in ("code", "type", "status") if isinstance(word := error.get(key), str)}


def _status_in(error: Any) -> int | None:
    if not isinstance(error, Mapping):
        return None
    for key in ("code", "status", "status_code"):
        found = error.get(key)
        if isinstance(found, str) and found.isdecimal():
            found = int(found)
        if isinstance(found, int) and 400 <= found <= 599:
            return found
    return None


def _snippet(body: bytes, headers: Mapping[str, str]) -> str:
    if "html" in headers.get("content-type", ""):
        return "the server answered with a web page, no error text"
    return " ".join(body.decode("utf-8", "replace").split())


def _number(value: Any) -> float | None:
    """Seconds, given as a number, ``"30"`` or ``"30s"``."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?s?", value):
        return float(value.removesuffix("s"))
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    return None


def _hint(text: str) -> float | None:
    """Seconds out of a sentence such as "Please try again in 6m0s"."""
    for found in _HINT.finditer(text):
        if found["minutes"] or found["number"]:
            number = float(found["number"] or 0)
            if (found["unit"] or "").lower().startswith("m"):
                number /= 1000
            return 60 * float(found["minutes"] or 0) + number
    return None
