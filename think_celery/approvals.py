"""Which calls of a tool need somebody's approval."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from think_celery.errors import AsyncNotSupported, InvalidTool

logger = logging.getLogger("think_celery.tools")

NeedsApproval = bool | Callable[..., bool]
"""Whether calls need it: always, never, or what a function of their arguments says."""


def check(tool: str, asks: Any, names: Iterable[str], *, is_client: bool) -> None:
    """Refuse what can't say whether a call of this tool, with parameters of these *names*, needs an approval.

    Raises:
        InvalidTool: It is neither a bool nor a function of some of them, or a client runs the tool.
        AsyncNotSupported: It is ``async def``.
    """
    if asks is False:
        return
    if is_client:
        remedy = "Leave needs_approval out: the client's answer is the approval."
        raise InvalidTool(tool, "a client runs it, and it needs an approval", remedy)
    if asks is True:
        return
    if not callable(asks):
        remedy = "Pass True, or a function of the call's arguments."
        raise InvalidTool(tool, f"needs_approval is {asks!r}", remedy)
    if inspect.iscoroutinefunction(asks):
        raise AsyncNotSupported(f"needs_approval of the tool {tool!r}")
    known = sorted(names)
    for each in _parameters(asks):
        if each.kind is each.POSITIONAL_ONLY or (each.default is each.empty and each.name not in known):
            raise InvalidTool(
                tool,
                f"needs_approval asks for {each.name!r}, which is none of the tool's parameters",
                f"Take some of these by name: {', '.join(known) or 'none'}; or **arguments.",
            )


def needed(
    tool: str,
    asks: NeedsApproval,
    function: Callable[..., Any],
    names: Iterable[str],
    given: Mapping[str, Any],
) -> bool:
    """Whether this call of *function* needs it. *given* are its arguments; its own defaults stand for the others.

    Only ``False`` means that it needs none: ``None`` is what a function returns that forgot to. What *asks* raises
    goes through.
    """
    if isinstance(asks, bool):
        return asks
    known = set(names)
    defaults = {
        each.name: each.default
        for each in _parameters(function)
        if each.name in known and each.default is not each.empty
    }
    arguments = {**defaults, **given}
    if not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(asks).parameters.values()):
        wanted = {each.name for each in _parameters(asks)}
        arguments = {name: value for name, value in arguments.items() if name in wanted}
    answer: object = asks(**arguments)
    if not isinstance(answer, bool):
        _warn_of_no_bool(tool, type(answer).__name__)
    return answer is not False


@lru_cache(maxsize=1000)  # once for each tool in a process, however often it is called
def _warn_of_no_bool(tool: str, kind: str) -> None:
    logger.warning(
        "needs_approval of tool %s returned a %s, so somebody is asked: only False means that nobody is. Let it return "
        "True or False.",
        tool,
        kind,
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """All but ``*args`` and ``**kwargs``."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind not in variable]
