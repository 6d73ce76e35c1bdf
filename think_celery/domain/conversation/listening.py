"""Following an agent, or one of its turns, while it happens."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal

from think_celery.domain.conversation import conversation
from think_celery.domain.conversation.live import NO_MESSAGE, NO_TURN, STORED, LiveEvent, state_event
from think_celery.errors import InsideTransaction, SubmissionNotFound
from think_celery.ids import AgentRef
from think_celery.messages import UIMessage, load_parts
from think_celery.names import can_be_a_name
from think_celery.protocols import Frame
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import agents, heads, submissions

POLL_SECONDS = 0.05
SILENCE_SECONDS = 5.0
_NEVER = float("-inf")


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
    listener = _Listener(rt, agent, submission_id)
    return listener.follow(listener.begin())


class _Listener:
    """Somebody who follows an agent or one of its turns, and what was told already."""

    def __init__(self, rt: Runtime, agent: AgentRef, only: str | None) -> None:
        """*only* is the submission that is followed to its end, and alone."""
        self._rt, self._agent, self._only = rt, agent, only
        self._seen, self._about = _Seen(), _About()
        self._ends = _Ends(rt, agent) if only is None else None
        self._heard: dict[str, float] = {}  # of each turn that has not ended: when it was heard of last
        self._is_over = False
        # Before what is stored is looked at, so that nothing falls between.
        self._cursor = rt.events.head(agent.id)

    def begin(self) -> list[LiveEvent]:
        """What is stored as listening begins."""
        if self._only is None:
            return [*self._stored(None), *self._about.look(self._rt, self._agent)]
        ended = _ended(self._rt, self._only)
        stored = self._stored(self._only)  # after the look at its end: then it is whole
        return stored if ended is None else [*stored, self._end(ended)]

    def follow(self, begun: Sequence[LiveEvent]) -> Iterator[LiveEvent]:
        """Those, and what happens from then on."""
        if self._only is not None:
            self._heard[self._only] = self._rt.clock.elapsed()
        yield from begun
        while not self._is_over:
            yield from self._not_heard_of()
            if not self._is_over:
                yield from self._next_page()

    def _next_page(self) -> Iterator[LiveEvent]:
        page = self._rt.events.read(self._agent.id, self._cursor)
        self._cursor = page.cursor
        if page.lost:
            self._heard = dict.fromkeys(self._heard, _NEVER)
            if self._only is None:
                yield from self._stored(None)
                yield from self._about.look(self._rt, self._agent)
        for frame in page.frames:
            if not self._is_over:
                yield from self._take(frame)
        if not page.frames and not page.lost:
            self._rt.clock.sleep(POLL_SECONDS)

    def _take(self, frame: Frame) -> Iterator[LiveEvent]:
        """What a frame tells."""
        if frame.submission_id == NO_TURN and frame.message_id == NO_MESSAGE:
            yield from self._about.take(frame)
        elif self._only not in (None, frame.submission_id):
            return
        elif frame.submission_id == NO_TURN:
            yield from _aside(self._rt, self._agent, frame)
        else:
            yield from self._take_of_turn(frame)

    def _take_of_turn(self, frame: Frame) -> Iterator[LiveEvent]:
        news = self._seen.take(frame)
        if news == "old":
            return
        event = _as_event(frame)
        done = event.type == "done"
        if news == "gap" or (done and self._seen.is_unsure(frame.message_id)):
            yield from self._stored(frame.submission_id)
        if done:
            self._end(event)
        else:
            self._heard[frame.submission_id] = self._rt.clock.elapsed()
        yield event

    def _not_heard_of(self) -> Iterator[LiveEvent]:
        """What the database says of turns that the log says nothing of."""
        now = self._rt.clock.elapsed()
        for turn in [each for each, at in self._heard.items() if now - at >= SILENCE_SECONDS]:
            lost, self._heard[turn] = self._heard[turn] == _NEVER, now
            ended = _ended(self._rt, turn)  # before the snapshot, which is then of its end
            if lost or ended is not None:
                yield from self._stored(turn)
            if ended is not None:
                yield self._end(ended)
        for missed in [] if self._ends is None else self._ends.missed(self._heard):
            yield from self._stored(missed.submission_id)
            yield self._end(missed)

    def _stored(self, submission_id: str | None) -> list[LiveEvent]:
        return self._seen.look(_snapshot(self._rt, self._agent, submission_id))

    def _end(self, done: LiveEvent) -> LiveEvent:
        """Take in that a turn has ended, before it is told."""
        self._seen.end(done.submission_id, done.message_id)
        self._heard.pop(done.submission_id, None)
        if self._ends is not None:
            self._ends.told(done.submission_id)
        self._is_over = done.submission_id == self._only
        return done


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
            yield from self._state(state_event(text, version))

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
        self._unsure: set[str] = set()
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
            self._unsure.add(frame.message_id)
        if frame.event.get("type") == "restored":
            self._unsure.discard(frame.message_id)
        return "gap" if missing and known else "next"

    def look(self, stored: Iterable[LiveEvent]) -> list[LiveEvent]:
        """Take in messages as they are stored: what frames have yet to say of one may be in it already."""
        found = list(stored)
        self._unsure.update(event.message_id for event in found if event.type == "snapshot")
        return found

    def is_unsure(self, message_id: str) -> bool:
        """Whether something of the message as it is shown may be missing, or be there twice."""
        return message_id in self._unsure

    def end(self, submission_id: str, message_id: str) -> None:
        """Nothing of that turn is news any more. Another one may go on in the same message."""
        self._unsure.discard(message_id)
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
