"""What a model or an agent's own loop yields, looked at before it is taken.

What can't be stored would keep its turn from ending: the next worker would ask for it again.
"""

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from think_celery.errors import InvalidValue
from think_celery.protocols import (
    Finish,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    Usage,
)
from think_celery.wording import a_type, shown

MOST_TOKENS = 2**31 - 1
"""Of one request: a server that says more is wrong, and the sum of many has to fit into a column."""

_COUNTS = tuple(get_type_hints(Usage))
_REASONS = get_args(get_type_hints(Finish)["reason"])


def check(event: ModelEvent) -> None:
    """Make sure that an event is one, of the types that it says.

    Raises:
        InvalidValue: It is not.
    """
    if type(event) is TextDelta and type(event.text) is str:  # nearly always
        return
    match event:
        case TextDelta() | ReasoningDelta():
            _text(event, "text")
        case ToolCallDelta() | ToolCallComplete():
            for field in ("tool_call_id", "name", "arguments"):
                _text(event, field)
            if not event.name.strip():
                raise InvalidValue(
                    f"{type(event).__name__}.name={shown(event.name)}: pass the name of a tool."
                )
            if isinstance(event, ToolCallComplete):
                _metadata(event, event.metadata)
        case ReasoningEnd(metadata=metadata) | StepMetadata(metadata=metadata):
            _metadata(event, metadata)
        case Finish():
            _finish(event)
        case _:
            raise InvalidValue(
                f"A model yielded {a_type(event)}. It must yield events, such as TextDelta, ToolCallComplete and, at "
                "its end, Finish."
            )


def counted(usage: Usage) -> Usage:
    """The same in numbers that can be stored: what is none, or below zero, counts nothing."""
    return Usage(**{name: _count(getattr(usage, name)) for name in _COUNTS})


def _count(told: Any) -> int:
    return min(max(told, 0), MOST_TOKENS) if type(told) is int else 0


def _text(event: object, field: str) -> None:
    given = getattr(event, field)
    if not isinstance(given, str):
        raise InvalidValue(f"{type(event).__name__}.{field} is {a_type(given)}: it must be a text.")


def _metadata(event: object, given: Any) -> None:
    fits = isinstance(given, Mapping) and all(isinstance(fields, Mapping) for fields in given.values())
    if given is not None and not fits:
        raise InvalidValue(
            f"{type(event).__name__}.metadata={shown(given)}: pass fields by provider, such as "
            '{"anthropic": {"signature": "…"}}, or None.'
        )


def _finish(event: Finish) -> None:
    if event.reason not in _REASONS:
        raise InvalidValue(f"Finish.reason={shown(event.reason)}: pass one of {', '.join(_REASONS)}.")
    if event.raw_reason is not None:
        _text(event, "raw_reason")
    usage: object = event.usage
    if not isinstance(usage, Usage):
        raise InvalidValue(
            f"Finish.usage is {a_type(usage)}: pass a Usage; Usage() where the provider does not tell."
        )
