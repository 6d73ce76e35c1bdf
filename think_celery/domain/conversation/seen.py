"""What somebody who follows an agent was told of each message."""

from collections.abc import Iterable
from typing import Literal, TypeVar

from think_celery.domain.conversation.live import RESTORED, LiveEvent
from think_celery.messages import UIMessage, load_parts
from think_celery.protocols import Frame

Value = TypeVar("Value")

News = Literal["old", "next", "anew", "gap"]
"""What a frame is to a listener. ``old``: its writer lost its lease, or it was told; it is dropped. ``anew``: what was
told of its message is void. ``gap``: frames before it are missing."""


class _Recent(dict[str, Value]):
    """Keeps the last thousand keys."""

    KEPT = 1000

    def __setitem__(self, key: str, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self.KEPT:
            del self[next(iter(self))]


class Seen:
    """Of each message: the highest token, the last number under it, and the text that was told."""

    def __init__(self) -> None:
        self._last: _Recent[tuple[int, int]] = _Recent()
        self._told: _Recent[list[str]] = _Recent()
        self._unsure: _Recent[None] = _Recent()
        self._ended: _Recent[None] = _Recent()

    def take(self, frame: Frame) -> News:
        """Take in a frame, and say what it is."""
        if frame.submission_id in self._ended:
            return "old"
        message_id, known = frame.message_id, self.knows(frame.message_id)
        token, n = self._last.get(message_id, (frame.token, 0))
        if frame.token < token or (frame.token == token and frame.n <= n):
            return "old"
        self._last[message_id] = (frame.token, frame.n)
        if frame.event.get("type") == RESTORED:
            self._unsure.pop(message_id, None)
            return "next"
        only_stored = message_id in self._unsure and not known  # that was told just now
        if frame.first > (n + 1 if frame.token == token else 1):
            self._unsure[message_id] = None
            return "next" if only_stored else "gap"
        if only_stored:
            self._unsure.pop(message_id)
            self._told.pop(message_id, None)
        return "anew" if only_stored else "next"

    def tell(self, frame: Frame) -> None:
        """Note that what this frame says is told."""
        message_id, kind = frame.message_id, frame.event.get("type")
        if kind == "text-delta":
            self._told[message_id] = self._told.get(message_id) or []
            self._told[message_id].append(str(frame.event["delta"]))
        elif kind == "reset":
            self._told.pop(message_id, None)
        elif kind == RESTORED:
            parts = load_parts(frame.event["parts"])
            self._told[message_id] = [UIMessage(id=message_id, role="assistant", parts=parts).text]

    def takes_all(self, frames: Iterable[Frame]) -> bool:
        """Whether nothing is missing between these."""
        return all(self.take(frame) != "gap" for frame in frames)

    def knows(self, message_id: str) -> bool:
        """Whether frames of the message were seen."""
        return message_id in self._last

    def look(self, stored: Iterable[LiveEvent]) -> list[LiveEvent]:
        """Take in messages as they are stored, and give those of which not all was told.

        What frames have yet to say of one may be in it already.
        """
        found = [each for each in stored if not self._is_told(each)]
        for event in found:
            self._unsure[event.message_id] = None
            self._told[event.message_id] = [event.text]
        return found

    def _is_told(self, stored: LiveEvent) -> bool:
        plain = all(part["type"] in ("text", "step-start") for part in stored.data["parts"])
        return plain and "".join(self._told.get(stored.message_id, ())) == stored.text

    def is_unsure(self, message_id: str) -> bool:
        """Whether something of the message as it is shown may be missing, or be there twice."""
        return message_id in self._unsure

    def end(self, submission_id: str, message_id: str) -> None:
        """Nothing of that turn is news any more. Another one may go on in the same message."""
        self._unsure.pop(message_id, None)
        self._told.pop(message_id, None)
        self._ended[submission_id] = None

    def has_ended(self, submission_id: str) -> bool:
        """Whether its end was told."""
        return submission_id in self._ended
