"""Hooks that react: they are told what has happened, and can't change it."""

import logging
from collections.abc import Callable

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
