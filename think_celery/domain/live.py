"""What listeners see of a turn while it happens, and how they follow it."""

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from think_celery.domain import conversation
from think_celery.errors import InsideTransaction, SubmissionNotFound
from think_celery.events.writer import Growing
from think_celery.ids import AgentRef
from think_celery.messages import UIMessage, load_parts
from think_celery.names import can_be_a_name
from think_celery.plain import plain_value
from think_celery.protocols import Cursor, Frame
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import agents, heads, submissions

POLL_SECONDS = 0.05
SILENCE_SECONDS = 5.0


class LiveTurn:
    """Writes one turn's frames. Never raises and never waits: the live log is a courtesy. Thread-safe."""

    def __init__(self, rt: Runtime, agent_id: str, submission_id: str, message_id: str, token: int) -> None:
        self._rt, self._agent_id, self._submission_id = rt, agent_id, submission_id
        self._message_id, self._token, self._n = message_id, token, 0
        # Tools show their results from threads of their own; a writer may close what grows while we put it.
        self._lock = threading.RLock()
        self._growing: Growing | None = None

    def put(self, *events: dict[str, Any]) -> None:
        """Show these events to whoever listens."""
        done = False
        with self._lock:
            for event in events:
                self._n = n = self._n + 1
                kind = event.get("type")
                if kind == "text-delta" or kind == "reasoning-delta":
                    # Nearly all events: they go into the frame that waits already, and wake nobody.
                    if self._growing is None or not self._growing.takes(event, n):
                        self._growing = self._rt.live.grow(self._frame(n, event), self._lock)
                else:
                    self._growing = None
                    done = done or kind == "done"
                    self._rt.live.put(self._frame(n, event))
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
    show(rt, agent_id, _state_event(text, version))


def _state_event(text: str, version: int) -> dict[str, Any]:
    return {"type": "state", "state": plain_value(text), "version": version}


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveEvent:
    """One thing that happened in a conversation.

    ``type`` is that of a UI message chunk (``text-delta``, ``tool-input-available``, ``tool-output-available``,
    …) or one of ``snapshot`` (a message as it is stored now: what was shown of it before is void), ``reset``
    (what was shown of the message is void), ``done`` (the turn is stored as ended; ``data["status"]``) and
    ``message`` (a message was added or changed outside a turn, so ``submission_id`` is empty).
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


def listen(rt: Runtime, agent: AgentRef, submission_id: str | None = None) -> Iterator[LiveEvent]:
    """Follow an agent, or one of its submissions until that ends.

    Begins with what is stored of the answer so far. The end comes from the database, also when the live
    log loses its frame, and with it the whole text, whatever was lost. Without *submission_id* it goes on
    until the generator is closed. What happens from this call on is seen, even if it is read later.

    Raises:
        SubmissionNotFound: The agent has no such submission.
        InsideTransaction: The caller's transaction is joined: what it waits for can't begin before.
    """
    if rt.db.inside_joined:
        raise InsideTransaction("listen()")
    if submission_id is not None:
        known = can_be_a_name(submission_id, 200)
        row = rt.db.read(lambda tx: submissions.get(tx, submission_id)) if known else None
        if row is None or row.agent_id != agent.id:
            raise SubmissionNotFound(submission_id)
    about, ends = _About(), _Ends(rt, agent) if submission_id is None else None
    cursor = rt.events.head(agent.id)
    ended = None if submission_id is None else _ended(rt, submission_id)
    stored = list(_snapshot(rt, agent, submission_id))  # after the look at its end: then it is whole
    if ended is not None:
        return iter([*stored, ended])
    if submission_id is None:
        stored += about.look(rt, agent)
    return _follow(rt, agent, submission_id, cursor, stored, about, ends)


def _follow(
    rt: Runtime,
    agent: AgentRef,
    submission_id: str | None,
    cursor: Cursor,
    stored: Sequence[LiveEvent],
    about: "_About",
    ends: "_Ends | None",
) -> Iterator[LiveEvent]:
    yield from stored
    seen = _Seen()
    heard: dict[str, float] = {}  # of each turn that has not ended: when it was heard of last
    if submission_id is not None:
        heard[submission_id] = rt.clock.elapsed()
    while True:
        for overdue in [each for each, at in heard.items() if rt.clock.elapsed() - at >= SILENCE_SECONDS]:
            first = heard[overdue] == float("-inf")
            heard[overdue] = rt.clock.elapsed()
            ended = _ended(rt, overdue)  # before the snapshot, which is then of its end
            if first or ended is not None:
                yield from _snapshot(rt, agent, overdue)
            if ended is not None:
                seen.end(overdue, ended.message_id)
                if ends is not None:
                    ends.told(overdue)
                del heard[overdue]
                yield ended
                if overdue == submission_id:
                    return
        for missed in [] if ends is None else ends.missed(heard):
            yield from _snapshot(rt, agent, missed.submission_id)
            seen.end(missed.submission_id, missed.message_id)
            yield missed
        page = rt.events.read(agent.id, cursor)
        cursor = page.cursor
        if page.lost:
            heard = dict.fromkeys(heard, float("-inf"))
            if submission_id is None:
                yield from _snapshot(rt, agent, None)
                yield from about.look(rt, agent)
        for frame in page.frames:
            if frame.submission_id == NO_TURN and frame.message_id == NO_MESSAGE:
                yield from about.take(frame)
                continue
            if submission_id is not None and frame.submission_id != submission_id:
                continue
            if frame.submission_id == NO_TURN:
                yield from _aside(rt, agent, frame)
                continue
            news = seen.take(frame)
            if news == "old":
                continue
            done = frame.event.get("type") == "done"
            if news == "gap" or (done and seen.has_hole(frame.message_id)):
                yield from _snapshot(rt, agent, frame.submission_id)
            heard[frame.submission_id] = rt.clock.elapsed()
            if done:
                seen.end(frame.submission_id, frame.message_id)
                if ends is not None:
                    ends.told(frame.submission_id)
                del heard[frame.submission_id]
            yield _as_event(frame)
            if done and submission_id is not None:
                return
        if not page.frames and not page.lost:
            rt.clock.sleep(POLL_SECONDS)


def _aside(rt: Runtime, agent: AgentRef, frame: Frame) -> Iterator[LiveEvent]:
    """What happened outside all turns."""
    if frame.event.get("type") != STORED:
        return
    message = conversation.get_message(rt, agent, frame.message_id)
    if message is not None:  # it was not removed meanwhile
        yield LiveEvent(
            type="message",
            submission_id=NO_TURN,
            message_id=message.id,
            text=message.text,
            data=message.to_dict(),
        )


class _Ends:
    """Turns that have begun and ended while the live log could not be written: looked for in the database."""

    MARGIN = timedelta(seconds=30)
    """How much later than it says a row's end may be committed."""

    def __init__(self, rt: Runtime, agent: AgentRef) -> None:
        self._rt, self._agent = rt, agent
        self._told = {row.id for row in self._ended()}  # before anybody listened
        self._looked = rt.clock.elapsed()

    def _ended(self) -> Sequence[Any]:
        return self._rt.db.read(lambda tx: submissions.ended_lately(tx, self._agent.id, self.MARGIN))

    def told(self, submission_id: str) -> None:
        """Its listener knows of this end."""
        self._told.add(submission_id)

    def missed(self, heard: Collection[str]) -> Iterator[LiveEvent]:
        """The ends that were not told; of those *heard* of, the silence is noticed elsewhere."""
        if self._rt.clock.elapsed() - self._looked < SILENCE_SECONDS:
            return
        self._looked, found = self._rt.clock.elapsed(), self._ended()
        known, self._told = self._told, {row.id for row in found}
        for row in found:
            if row.id not in known and row.id not in heard:
                ended = _ended(self._rt, row.id)
                if ended is not None:
                    yield ended


class _About:
    """What a reader is told of the agent itself. Two processes may show states in another order than that in which
    they stored them."""

    def __init__(self) -> None:
        self._version = 0

    def look(self, rt: Runtime, agent: AgentRef) -> Iterator[LiveEvent]:
        """The state as it is stored, if it is a newer one than was told."""
        text, version = rt.db.read(lambda tx: agents.state(tx, agent.id))
        if text is not None:
            yield from self._state(_state_event(text, version))

    def take(self, frame: Frame) -> Iterator[LiveEvent]:
        """What a frame tells."""
        event = dict(frame.event)
        if event.get("type") == "state":
            yield from self._state(event)
        else:
            told = event.get("data")
            text = told if event.get("type") == "broadcast" and isinstance(told, str) else ""
            yield _of_no_turn(event, text)

    def _state(self, event: dict[str, Any]) -> Iterator[LiveEvent]:
        if event["version"] > self._version:
            self._version = event["version"]
            yield _of_no_turn(event)


def _of_no_turn(event: dict[str, Any], text: str = "") -> LiveEvent:
    return LiveEvent(
        type=str(event.get("type")), submission_id=NO_TURN, message_id=NO_MESSAGE, text=text, data=event
    )


class _Seen:
    """What a reader has seen of each message: the highest token, and the last number under it."""

    KEPT = 1000

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._holes: set[str] = set()
        self._ended: dict[str, None] = {}

    def take(self, frame: Frame) -> Literal["old", "next", "gap"]:
        """``old``: drop the frame, its writer lost its lease. ``gap``: frames before it are missing."""
        if frame.submission_id in self._ended:
            return "old"
        known = frame.message_id in self._last
        token, n = self._last.get(frame.message_id, (frame.token, 0))
        if frame.token < token or (frame.token == token and frame.n <= n):
            return "old"
        self._last[frame.message_id] = (frame.token, frame.n)
        if len(self._last) > self.KEPT:
            del self._last[next(iter(self._last))]
        expected = n + 1 if frame.token == token else 1
        missing = frame.first > expected
        if missing:
            self._holes.add(frame.message_id)
        if frame.event.get("type") == "restored":
            self._holes.discard(frame.message_id)
        return "gap" if missing and known else "next"

    def has_hole(self, message_id: str) -> bool:
        """Whether something of the message as it is shown is missing."""
        return message_id in self._holes

    def end(self, submission_id: str, message_id: str) -> None:
        """Nothing of that turn is news any more. Another one may go on in the same message."""
        self._holes.discard(message_id)
        self._ended[submission_id] = None
        if len(self._ended) > self.KEPT:
            del self._ended[next(iter(self._ended))]


def _as_event(frame: Frame) -> LiveEvent:
    event = dict(frame.event)
    kind, text = str(event.get("type")), ""
    if kind == "text-delta":
        text = str(event["delta"])
    elif kind == "restored":  # to a listener it is what a look into the database gives
        message = UIMessage(id=frame.message_id, role="assistant", parts=load_parts(event["parts"]))
        kind, text, event = "snapshot", message.text, message.to_dict()
    return LiveEvent(
        type=kind, submission_id=frame.submission_id, message_id=frame.message_id, text=text, data=event
    )


def _snapshot(rt: Runtime, agent: AgentRef, submission_id: str | None) -> Iterator[LiveEvent]:
    """The stored form of the message in the making (or of that submission's answer)."""
    if submission_id is None:
        head = rt.db.read(lambda tx: heads.head(tx, agent.id))
        submission_id = None if head is None else head.id
    row = None if submission_id is None else rt.db.read(lambda tx: submissions.get(tx, submission_id))
    if row is None or row.message_id is None:
        return
    message = conversation.get_message(rt, agent, row.message_id)
    if message is not None:
        yield LiveEvent(
            type="snapshot",
            submission_id=row.id,
            message_id=message.id,
            text=message.text,
            data=message.to_dict(),
        )


def _ended(rt: Runtime, submission_id: str) -> LiveEvent | None:
    """The end of a turn, as the database has it; one that was deleted counts as ended."""
    row = rt.db.read(lambda tx: submissions.get(tx, submission_id))
    if row is not None and not is_terminal(SubmissionStatus(row.status)):
        return None
    data = {"type": "done", "status": None if row is None else row.status}
    message_id = "" if row is None else row.message_id or ""
    return LiveEvent(type="done", submission_id=submission_id, message_id=message_id, data=data)
