"""Hooks that react: they are told what has happened, and can't change it."""

import logging
from collections.abc import Callable
from typing import Any

from think_celery.domain import calls
from think_celery.logs import trace_of

logger = logging.getLogger("think_celery.hooks")


def react(what: str, call: Callable[[], object]) -> bool:
    """Call a hook of the user's, and say whether it returned; what it raises is logged and changes nothing.

    What unwinds the worker itself (a time limit, a cancel, the engine's own) passes.
    """
    try:
        call()
    except BaseException as error:
        if calls.passes(error):
            raise
        logger.error("%s failed; what it was told of stands: %s", what, trace_of(error))
        return False
    return True


def returned(result: calls.Result[Any], hook: str, submission_id: str) -> bool:
    """Whether a hook that was told of a submission has returned; if not, that is logged and changes nothing."""
    if isinstance(result, calls.Done):
        return True
    if isinstance(result, calls.Failed):
        if calls.passes(result.error):
            raise result.error
        logger.error(
            "%s of submission %s failed, which changes nothing: %s",
            hook,
            submission_id,
            trace_of(result.error),
            extra={"think_event": "hook.failed", "think_submission": submission_id},
        )
    else:
        logger.error("%s of submission %s did not return and was given up", hook, submission_id)
    return False
