"""Hooks that react: they are told what has happened, and can't change it."""

import logging
from collections.abc import Callable
from typing import Any

from think_celery.domain import calls
from think_celery.logs import trace_of

logger = logging.getLogger("think_celery.hooks")


def react(what: str, call: Callable[[], object], **ids: str) -> bool:
    """Call such a hook here, and say whether it returned: see :func:`returned`."""
    return returned(calls.run(call), what, **ids)


def returned(result: calls.Result[Any], what: str, **ids: str) -> bool:
    """Whether a hook has returned; if not, that is logged, with these *ids*, and changes nothing.

    What unwinds the worker itself (a time limit, a cancel, the engine's own) passes.
    """
    if isinstance(result, calls.Done):
        return True
    if isinstance(result, calls.Failed) and calls.passes(result.error):
        raise result.error
    how = (
        f"failed, which changes nothing: {trace_of(result.error)}"
        if isinstance(result, calls.Failed)
        else "did not return and was given up"
    )
    logger.error("%s %s", what, how, extra={"think_event": "hook.failed", **ids})
    return False
