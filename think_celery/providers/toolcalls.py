"""Tool calls, put together from the fragments in which they are streamed."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from think_celery.errors import ModelError
from think_celery.ids import new_id
from think_celery.messages import clean
from think_celery.protocols import ProviderMetadata, ToolCallComplete, ToolCallDelta

_HALF_PAIR = re.compile("[\ud800-\udbff]$")
_CALL = frozenset({"index", "id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})


class Joiner:
    """Joins pieces of text, a surrogate pair that was cut in two included."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """The text that is whole with this piece."""
        if not self._half and piece.isascii():
            return piece
        text, self._half = self._half + piece, ""
        if _HALF_PAIR.search(text):
            text, self._half = text[:-1], text[-1]
        return str(clean(text))

    def end(self) -> str:
        """What is left at the end: nothing, or a replacement character."""
        text, self._half = self._half, ""
        return str(clean(text))


class UniqueIds:
    """Gives each call an id that no other call of the conversation has."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def unique(self, wanted: str) -> str:
        """*wanted*, changed if it is taken; a new id if it is empty."""
        given, count = wanted or f"call_{new_id().replace('-', '')}", 1
        base = given
        while given in self._taken:
            count += 1
            given = f"{base}_{count}"
        self._taken.add(given)
        return given


@dataclass(slots=True)
class _Slot:
    index: int  # ours: the position in the answer
    wire_index: int | None
    wire_id: str
    call_id: str
    name: str
    arguments: str
    unsent: str
    joiner: Joiner
    call_fields: dict[str, Any] = field(default_factory=dict)  # the provider's own
    function_fields: dict[str, Any] = field(default_factory=dict)


class ToolCalls:
    """The calls of one answer.

    A fragment belongs to the call of its index, whatever was written last. Servers that reuse an index, an id
    or send neither are met with what tells the calls apart; where nothing does, it is an error, never a guess.
    Fields of a call that are none of ours are kept as metadata of *provider*, to be sent back with it.
    """

    def __init__(self, ids: UniqueIds, provider: str | None = None) -> None:
        self._ids, self._provider = ids, provider
        self._slots: list[_Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, fragment: Mapping[str, Any]) -> ToolCallDelta | None:
        """Take a fragment of the wire; gives the news of it, once the call's name is known.

        Raises:
            ModelError: Nothing says which call the fragment belongs to.
        """
        function = fragment.get("function")
        if not isinstance(function, Mapping):
            function = {}
        index, wire_id, name = fragment.get("index"), fragment.get("id"), function.get("name")
        index = index if isinstance(index, int) else None
        wire_id = wire_id if isinstance(wire_id, str) else ""
        name = name if isinstance(name, str) else ""
        arguments = arguments_text(function.get("arguments"))
        slot = self._find(index, wire_id, name, arguments)
        if slot is None:
            slot = _Slot(len(self), index, wire_id, self._ids.unique(wire_id), name, "", "", Joiner())
            self._slots.append(slot)
        slot.name = slot.name or name
        _collect(slot.call_fields, fragment, _CALL)
        _collect(slot.function_fields, function, _FUNCTION)
        more = slot.joiner.feed(arguments)
        slot.arguments += more
        slot.unsent += more
        if not slot.name:
            return None
        more, slot.unsent = slot.unsent, ""
        return ToolCallDelta(slot.index, slot.call_id, slot.name, more)

    def complete(self, *, cut_short: bool) -> list[ToolCallComplete]:
        """The calls, in the order in which they began. Of an answer that was *cut short*, only the whole ones.

        Raises:
            ModelError: A call has no name.
        """
        calls = []
        for slot in self._slots:
            slot.arguments += slot.joiner.end()
            if cut_short and not is_object(slot.arguments):
                continue
            if not slot.name:
                raise ModelError("the provider sent a tool call without a name", retryable=True)
            arguments = slot.arguments if slot.arguments.strip() else "{}"
            metadata = self._metadata(slot)
            calls.append(ToolCallComplete(slot.index, slot.call_id, slot.name, arguments, metadata))
        return calls

    def _metadata(self, slot: _Slot) -> ProviderMetadata | None:
        fields = {"call": slot.call_fields, "function": slot.function_fields}
        kept = {key: value for key, value in fields.items() if value}
        return {self._provider: kept} if kept and self._provider is not None else None

    def _find(self, index: int | None, wire_id: str, name: str, arguments: str) -> _Slot | None:
        """The call that the fragment goes on with; ``None`` if it begins one."""
        for slot in reversed(self._slots):
            if index is not None and slot.wire_index == index:
                return None if _begins_another(slot, wire_id, name, arguments) else slot
        if wire_id and (index is None or not name):
            for slot in reversed(self._slots):
                if slot.wire_id == wire_id:
                    return None if _begins_another(slot, wire_id, name, arguments) else slot
        if wire_id or name:
            return None
        if len(self) == 1:
            return self._slots[0]
        open_calls = [slot for slot in self._slots if not is_object(slot.arguments)]
        if len(open_calls) == 1:
            return open_calls[0]
        raise ModelError(
            f"the provider sent arguments for a tool call that it had not begun (index {index}, no id), "
            f"while {len(self)} calls were open",
            retryable=True,
        )


def _begins_another(slot: _Slot, wire_id: str, name: str, arguments: str) -> bool:
    """Whether a fragment that points at *slot* begins a call of its own, under the same index or id.

    It must carry a name. Then another id says so, and so does a second text of arguments after a whole one.
    """
    if not name or not slot.name:
        return False
    if wire_id and slot.wire_id and wire_id != slot.wire_id:
        return True
    return bool(arguments.strip()) and is_object(slot.arguments)


def _collect(kept: dict[str, Any], fields: Mapping[str, Any], known: frozenset[str]) -> None:
    for key, value in fields.items():
        if key not in known and value is not None:
            kept[key] = value


def arguments_text(arguments: Any) -> str:
    """A call's arguments as the text of their JSON; nothing of none."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def is_object(text: str) -> bool:
    """Whether this is a whole JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # the latter: nested too deep
        return False
