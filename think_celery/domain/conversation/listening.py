"""Following an agent, or one of its turns, while it happens."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from think_celery.domain.conversation import conversation
from think_celery.domain.conversation.live import (
    NO_MESSAGE,
    NO_TURN,
    RESTORED,
    STORED,
    LiveEvent,
    state_event,
)
from think_celery.domain.conversation.seen import Seen
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
"""How long nothing is heard of a turn before the database is asked whether it has ended, and what it has said."""

_AT_ONCE = float("-inf")


def listen(rt: Runtime, agent: AgentRef, submission_id: str | None = None) -> Iterator[LiveEvent]:
    """Follow an agent, or one of its submissions until that ends.

    Begins with what the turn in hand has told so far, as the live log has it; where that holds its beginning no
    more, with what is stored of the answer. The end comes from the database, also when the live log loses its
    frame, and with it the whole text, if something was lost. Without *submission_id* it goes on until the generator
    is closed. What happens from this call on is seen, even if it is read later.

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
        self._seen, self._about = Seen(), _About()
        self._ends = _Ends(rt, agent) if only is None else None
        self._ask_at: dict[str, float] = {}  # of each turn that has not ended: unless it is heard of before
        self._owed: set[str] = set()  # of these, those whose text is told then, too
        self._is_over = False
        # Before the turns are looked at, so that nothing falls between.
        self._cursor = rt.events.head(agent.id)

    def begin(self) -> list[LiveEvent]:
        """What is there to be told as listening begins."""
        turn = self._only or self._in_hand()
        told = [] if turn is None else list(self._catch_up(turn))
        return told if self._only is not None else [*told, *self._about.look(self._rt, self._agent)]

    def follow(self, begun: Sequence[LiveEvent]) -> Iterator[LiveEvent]:
        """Those, and what happens from then on."""
        if self._only is not None:
            self._ask_at.setdefault(self._only, self._rt.clock.elapsed() + SILENCE_SECONDS)
        yield from begun
        while not self._is_over:
            yield from self._next_page()  # first, for it may be read later than it was asked for
            if not self._is_over:
                yield from self._not_heard_of()

    def _next_page(self) -> Iterator[LiveEvent]:
        page = self._rt.events.read(self._agent.id, self._cursor)
        self._cursor = page.cursor
        if page.lost:
            turn = None if self._only is not None else self._in_hand()
            self._owed = {*self._ask_at, *([] if turn is None else [turn])}
            self._ask_at = dict.fromkeys(self._owed, _AT_ONCE)
            if self._only is None:
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
        turn, news = frame.submission_id, self._seen.take(frame)
        if news == "old":
            return
        event = _as_event(frame)
        if event.type == "done":
            if self._seen.is_unsure(frame.message_id):
                yield from self._stored(turn)
            yield self._end(event)
            return
        if news == "gap":
            yield from self._catch_up(turn)
        elif news == "anew":
            yield replace(event, type="reset", text="", data={"type": "reset"})
        if not self._seen.has_ended(turn):
            self._owed.discard(turn)
            self._ask_at[turn] = self._rt.clock.elapsed() + SILENCE_SECONDS
            self._seen.tell(frame)
            yield event

    def _not_heard_of(self) -> Iterator[LiveEvent]:
        """What the database says of turns that the log says nothing of."""
        now = self._rt.clock.elapsed()
        for turn in [each for each, at in self._ask_at.items() if at <= now]:
            self._ask_at[turn] = now + SILENCE_SECONDS
            yield from self._catch_up(turn, text=turn in self._owed)
        for missed in [] if self._ends is None else self._ends.missed(self._ask_at):
            yield from self._stored(missed.submission_id)
            yield self._end(missed)

    # --- what is told of a turn whose frames were missed --------------------------------------------

    def _in_hand(self) -> str | None:
        """The turn that runs, or is the next."""
        return self._rt.db.read(lambda tx: heads.head_id(tx, self._agent.id))

    def _catch_up(self, turn: str, *, text: bool = True) -> Iterator[LiveEvent]:
        """Its end, if it has ended; else, with *text*, what there is of it so far."""
        ended = _ended(self._rt, turn)  # before the look at its text, which is then of its end
        if ended is not None:
            yield from self._stored(turn)
            yield self._end(ended)
        elif text:
            yield from self._so_far(turn)

    def _so_far(self, turn: str) -> Iterator[LiveEvent]:
        row = self._rt.db.read(lambda tx: submissions.get(tx, turn))
        if row is None or row.message_id is None:
            return  # it has not begun: all its frames are yet to come
        found: list[Frame] = []
        if not self._seen.knows(row.message_id):
            found = _back_to_its_beginning(self._rt.events.back(self._agent.id, self._cursor), row)
            if not found and turn not in self._owed:  # where the log is in order, they are on their way
                self._owed.add(turn)
                self._ask_at[turn] = self._rt.clock.elapsed() + SILENCE_SECONDS
                return
        self._owed.discard(turn)
        if not found or not Seen().takes_all(found):
            yield from self._stored(turn)
        else:
            for frame in found:
                yield from self._take_of_turn(frame)

    def _stored(self, turn: str) -> list[LiveEvent]:
        """The answer as it is stored; nothing, where all of it was told."""
        return self._seen.look(_snapshot(self._rt, self._agent, turn))

    def _end(self, done: LiveEvent) -> LiveEvent:
        """Take in that a turn has ended, before it is told."""
        self._seen.end(done.submission_id, done.message_id)
        self._ask_at.pop(done.submission_id, None)
        self._owed.discard(done.submission_id)
        if self._ends is not None:
            self._ends.told(done.submission_id)
        self._is_over = done.submission_id == self._only
        return done


def _back_to_its_beginning(frames: Iterable[Frame], row: Any) -> list[Frame]:
    """A turn's frames under its last token, in their order, from the one on that begins its answer.

    Where that is kept no more, those that are. *frames* are the agent's, newest first.
    """
    found: list[Frame] = []
    token = 0
    for frame in frames:
        if frame.submission_id != row.id or frame.token < token:
            continue
        if frame.token > token:  # what came after it was written by one who had lost the lease
            found, token = [], frame.token
        found.append(frame)
        begins = frame.first == 1 or frame.event.get("type") == RESTORED
        if begins and frame.message_id == row.message_id:
            break
    return found[::-1]


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


def _as_event(frame: Frame) -> LiveEvent:
    event = dict(frame.event)
    kind, text = str(event.get("type")), ""
    if kind == "text-delta":
        text = str(event["delta"])
    elif kind == RESTORED:  # to a listener it is what a look into the database gives
        message = UIMessage(id=frame.message_id, role="assistant", parts=load_parts(event["parts"]))
        kind, text, event = "snapshot", message.text, message.to_dict()
    return LiveEvent(
        type=kind, submission_id=frame.submission_id, message_id=frame.message_id, text=text, data=event
    )


def _snapshot(rt: Runtime, agent: AgentRef, submission_id: str) -> Iterator[LiveEvent]:
    """The stored form of that submission's answer."""
    row = rt.db.read(lambda tx: submissions.get(tx, submission_id))
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
