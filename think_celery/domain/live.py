"""What listeners see of a turn while it happens, and how they follow it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from think_celery.domain import conversation
from think_celery.errors import InsideTransaction, SubmissionNotFound
from think_celery.ids import AgentRef
from think_celery.protocols import Frame
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import submissions

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

POLL_SECONDS = 0.05
SILENCE_SECONDS = 5.0


class Broadcast:
    """Writes one turn's frames. Never raises and never waits: the live log is a courtesy."""

    def __init__(self, rt: "Runtime", agent_id: str, submission_id: str, message_id: str, token: int) -> None:
        self._rt, self._agent_id, self._submission_id = rt, agent_id, submission_id
        self._message_id, self._token, self._n = message_id, token, 0

    def put(self, *events: dict[str, Any]) -> None:
        """Show these events to whoever listens."""
        for event in events:
            self._n += 1
            self._rt.live.put(
                Frame(
                    agent_id=self._agent_id,
                    submission_id=self._submission_id,
                    message_id=self._message_id,
                    token=self._token,
                    n=self._n,
                    event=event,
                )
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveEvent:
    """One thing that happened in a conversation.

    ``type`` is that of a UI message chunk (``text-delta``, ``tool-input-available``, ``tool-output-available``,
    …) or one of ``snapshot`` (a message as it is stored now: what was shown of it before is void), ``reset``
    (what was shown of the message is void) and ``done`` (the turn is stored as ended; ``data["status"]``).
    """

    type: str
    submission_id: str
    message_id: str
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def listen(rt: "Runtime", agent: AgentRef, submission_id: str | None = None) -> Iterator[LiveEvent]:
    """Follow an agent, or one of its submissions until that ends.

    Begins with what is stored of the answer so far. The end comes from the database, also when the live
    log loses its frame. Without *submission_id* it goes on until the generator is closed.

    Raises:
        SubmissionNotFound: There is no such submission.
        InsideTransaction: The caller's transaction is joined: what it waits for can't begin before.
    """
    if rt.db.inside_joined:
        raise InsideTransaction("listen()")
    return _follow(rt, agent, submission_id)


def _follow(rt: "Runtime", agent: AgentRef, submission_id: str | None) -> Iterator[LiveEvent]:
    cursor = rt.events.head(agent.id)
    yield from _snapshot(rt, agent, submission_id)
    if submission_id is not None and (ended := _ended(rt, submission_id)) is not None:
        yield ended
        return
    seen = _Seen()
    quiet_since = rt.clock.elapsed()
    while True:
        page = rt.events.read(agent.id, cursor)
        cursor = page.cursor
        if page.lost:
            yield from _snapshot(rt, agent, submission_id)
        for frame in page.frames:
            if submission_id is not None and frame.submission_id != submission_id:
                continue
            gap = seen.take(frame)
            if gap is None:
                continue
            if gap:
                yield from _snapshot(rt, agent, frame.submission_id)
            yield _as_event(frame)
            if frame.event.get("type") == "done" and submission_id is not None:
                return
        if page.frames:
            quiet_since = rt.clock.elapsed()
            continue
        if submission_id is not None and rt.clock.elapsed() - quiet_since >= SILENCE_SECONDS:
            quiet_since = rt.clock.elapsed()
            if (ended := _ended(rt, submission_id)) is not None:
                yield from _snapshot(rt, agent, submission_id)
                yield ended
                return
        rt.clock.sleep(POLL_SECONDS)


class _Seen:
    """What a reader has seen of each message: the highest token, and the last number under it."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def take(self, frame: Frame) -> bool | None:
        """``None``: drop the frame, its writer lost its lease. True: frames before it are missing."""
        token, n = self._last.get(frame.message_id, (frame.token, 0))
        if frame.token < token or (frame.token == token and frame.n <= n):
            return None
        known = frame.message_id in self._last
        self._last[frame.message_id] = (frame.token, frame.n)
        first = frame.first or frame.n
        return known and frame.token == token and first > n + 1


def _as_event(frame: Frame) -> LiveEvent:
    event = dict(frame.event)
    return LiveEvent(
        type=str(event.get("type")),
        submission_id=frame.submission_id,
        message_id=frame.message_id,
        text=str(event["delta"]) if event.get("type") == "text-delta" else "",
        data=event,
    )


def _snapshot(rt: "Runtime", agent: AgentRef, submission_id: str | None) -> Iterator[LiveEvent]:
    """The stored form of the message in the making (or of that submission's answer)."""
    if submission_id is None:
        running = submissions.head
        row = rt.db.read(lambda tx: running(tx, agent.id))
        submission_id = None if row is None else row.id
    row = None if submission_id is None else rt.db.read(lambda tx: submissions.get(tx, submission_id))
    if row is None:
        return
    message = None if row.message_id is None else conversation.get_message(rt, agent, row.message_id)
    if message is not None:
        yield LiveEvent(
            type="snapshot",
            submission_id=row.id,
            message_id=message.id,
            text=message.text,
            data=message.to_dict(),
        )


def _ended(rt: "Runtime", submission_id: str) -> LiveEvent | None:
    row = rt.db.read(lambda tx: submissions.get(tx, submission_id))
    if row is None:
        raise SubmissionNotFound(submission_id)
    if not is_terminal(SubmissionStatus(row.status)):
        return None
    data = {"type": "done", "status": row.status}
    return LiveEvent(type="done", submission_id=row.id, message_id=row.message_id or "", data=data)
