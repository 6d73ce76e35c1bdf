"""What is shown of a turn while it happens, and of its agent. How it is followed: ``domain.conversation.listening``."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from think_celery.events.writer import Growing
from think_celery.plain import plain_value
from think_celery.protocols import Frame
from think_celery.runtime import Runtime


class LiveTurn:
    """Writes one turn's frames. Never raises and never waits: the live log is a courtesy. Thread-safe."""

    def __init__(self, rt: Runtime, agent_id: str, submission_id: str, message_id: str, token: int) -> None:
        self._rt, self._agent_id, self._submission_id = rt, agent_id, submission_id
        self._message_id, self._token, self._n = message_id, token, 0
        self._lock = threading.RLock()  # tools show their results from threads of their own
        self._growing: Growing | None = None  # if there is one, it counts on from ``_n``

    def put(self, *events: dict[str, Any]) -> None:
        """Show these events to whoever listens."""
        growing = self._growing
        if growing is not None and len(events) == 1 and growing.takes(events[0]):
            return  # nearly all events: they go into the frame that waits already, and wake nobody
        done = False
        with self._lock:
            growing, self._growing = self._growing, None
            for event in events:
                self._n = (self._n if growing is None else growing.close()) + 1
                frame, growing = self._frame(self._n, event), None
                if frame.event.get("type") in ("text-delta", "reasoning-delta"):
                    growing = self._rt.live.grow(frame)
                else:
                    done = done or event.get("type") == "done"
                    self._rt.live.put(frame)
            self._growing = growing
        if done:
            self._rt.poller.hint(self._agent_id)

    def _frame(self, n: int, event: dict[str, Any]) -> Frame:
        return Frame(
            agent_id=self._agent_id,
            submission_id=self._submission_id,
            message_id=self._message_id,
            token=self._token,
            first=n,
            n=n,
            event=event,
        )


NO_TURN = NO_MESSAGE = ""
"""The submission of a frame that belongs to no turn, and the message of one that belongs to none."""

STORED = "message-stored"

RESTORED = "restored"
"""The type of a frame with all parts of a message: what was shown of it before is void."""


def tell_of_messages(rt: Runtime, agent_id: str, message_ids: Sequence[str]) -> None:
    """Let listeners know that these messages were added or changed; what they say, each listener reads itself."""
    for message_id in message_ids:
        _put_aside(rt, agent_id, message_id, {"type": STORED})


def _put_aside(rt: Runtime, agent_id: str, message_id: str, event: dict[str, Any]) -> None:
    rt.live.put(
        Frame(
            agent_id=agent_id,
            submission_id=NO_TURN,
            message_id=message_id,
            token=0,
            first=1,
            n=1,
            event=event,
        )
    )


def show(rt: Runtime, agent_id: str, event: dict[str, Any]) -> None:
    """Show listeners of an agent something that is of no turn and no message. Never raises and never waits."""
    _put_aside(rt, agent_id, NO_MESSAGE, event)


def show_state(rt: Runtime, agent_id: str, text: str, version: int) -> None:
    """Show listeners an agent's new state."""
    show(rt, agent_id, state_event(text, version))


def state_event(text: str, version: int) -> dict[str, Any]:
    """What listeners are told of a state."""
    return {"type": "state", "state": plain_value(text), "version": version}


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveEvent:
    """One thing that happened in a conversation.

    ``type`` is that of a UI message chunk (``text-delta``, ``tool-input-available``, ``tool-output-available``,
    …) or one of ``snapshot`` (a message as it is now: what was shown of it before is void), ``reset``
    (what was shown of the message is void), ``done`` (the turn is stored as ended; ``data["status"]``) and
    ``message`` (a message was added or changed outside a turn, so ``submission_id`` is empty).

    Of a turn that ran when listening began, each piece comes once. A ``snapshot`` comes of one that had ended then,
    of one that is taken up again, and of one of which the live log has lost something.
    ``text`` is the piece of a ``text-delta``, or the whole text of a ``snapshot`` or ``message``; else it is empty.
    ``data`` is the chunk itself; of a ``snapshot`` or ``message`` it is that as ``UIMessage.to_dict()`` gives it.

    Of no turn, and with empty ids, are ``broadcast`` (``data["data"]`` is what was broadcast, and ``text`` too if
    that is a text), ``state`` (``data["state"]`` is the agent's new state in JSON values) and ``cleared`` (the
    conversation is empty now, and its turns have ended).
    """

    type: str
    submission_id: str
    message_id: str
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
