"""The live log in the SQL database, for where there is no Redis.

A frame's place is given while its agent's row in ``live_heads`` is locked, in a transaction that does
nothing else: so the order of places is the order of commits, and a reader that has seen place 7 never
misses a 6 that commits later. An agent's row and with it the incarnation of its log go when its last
frame is trimmed; the next frame begins a new one, and cursors of the old one are answered with ``lost``.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, func, select, text, update

from think_celery.clock import MICROSECOND, to_microseconds
from think_celery.ids import new_id
from think_celery.protocols import Cursor, Frame, Page
from think_celery.store.database import Database, Tx
from think_celery.store.statements import AT_MOST, now, on_each
from think_celery.store.tables import live, live_heads

NOTHING_YET = ""
"""The incarnation of a log without frames. Such a cursor's position is the instant at which it was looked at."""

FURTHEST = 2**63 - 1

AT_ONCE = 500
"""Agents that one trim looks after."""


_ADVANCE = on_each(
    lambda insert: (
        insert(live_heads)
        .values(trimmed=0)
        .on_conflict_do_update(
            index_elements=[live_heads.c.agent_id],
            set_={"position": live_heads.c.position + bindparam("more", type_=live_heads.c.position.type)},
        )
        .returning(live_heads.c.position, now().label("now"))
    )
)

# One statement, so that frames, head and trimmed edge are of one moment. It always gives a row.
_PLACE = select(bindparam("agent", type_=live.c.agent_id.type).label("agent_id")).subquery()
_READ = (
    select(
        now().label("now"),
        live_heads.c.incarnation,
        live_heads.c.position.label("newest"),
        live_heads.c.trimmed,
        live,
    )
    .select_from(_PLACE)
    .outerjoin(live_heads, live_heads.c.agent_id == _PLACE.c.agent_id)
    .outerjoin(live, and_(live.c.agent_id == live_heads.c.agent_id, live.c.position > bindparam("since")))
    .order_by(live.c.position)
    .limit(AT_MOST)
)
_BACK = (
    select(live)
    .join(live_heads, live_heads.c.agent_id == live.c.agent_id)
    .where(
        live.c.agent_id == bindparam("agent"),
        live.c.position <= bindparam("until"),
        live_heads.c.incarnation == bindparam("incarnation"),
        live_heads.c.position >= bindparam("until"),
    )
    .order_by(live.c.position.desc())
    .limit(AT_MOST)
)


class SqlEventLog:
    """An :class:`~think_celery.protocols.EventLog` in two tables."""

    def __init__(
        self, db: Database, *, keep: timedelta = timedelta(minutes=10), keep_frames: int = 10_000
    ) -> None:
        """*keep* and *keep_frames*: how old a frame may get, and how many an agent may have."""
        self._db, self._keep, self._keep_frames = db, keep, keep_frames

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames, of one or more agents, in order. All of them, or none and an error."""
        by_agent = attrgetter("agent_id")
        # Agents in id order, so that two writers never wait for each other in a circle.
        groups = [(agent_id, list(own)) for agent_id, own in groupby(sorted(frames, key=by_agent), by_agent)]
        if groups:
            self._db.transact(lambda tx: self._append(tx, groups))

    def _append(self, tx: Tx, groups: list[tuple[str, list[Frame]]]) -> None:
        if tx.postgres:  # losing the last frames in a power cut costs nobody anything
            tx.execute(text("SET LOCAL synchronous_commit = off"))
        rows: list[dict[str, Any]] = []
        for agent_id, frames in groups:
            last, written_at = self._advance(tx, agent_id, len(frames))
            rows += [
                {
                    "agent_id": agent_id,
                    "position": position,
                    "submission_id": frame.submission_id,
                    "message_id": frame.message_id,
                    "token": frame.token,
                    "first": frame.first,
                    "n": frame.n,
                    "event": frame.event,
                    "written_at": written_at,
                }
                for position, frame in enumerate(frames, start=last - len(frames) + 1)
            ]
        tx.execute(live.insert(), rows)

    def _advance(self, tx: Tx, agent_id: str, count: int) -> tuple[int, datetime]:
        """Lock the agent's head until the commit, move it on, and return it and the time."""
        new = {"agent_id": agent_id, "incarnation": new_id(), "position": count, "more": count}
        row = tx.execute(_ADVANCE, new).one()
        return row.position, row.now

    def head(self, agent_id: str) -> Cursor:
        """The place after the newest frame."""
        return self.read(agent_id, Cursor("?", 0), limit=1).cursor

    def read(self, agent_id: str, after: Cursor, limit: int = 500) -> Page:
        """The frames after a cursor, oldest first; none when there is nothing new.

        ``lost`` says that frames may be missing between the cursor and the one that is given back.
        """
        return self._db.read(lambda tx: self._read(tx, agent_id, after, limit))

    def _read(self, tx: Tx, agent_id: str, after: Cursor, limit: int) -> Page:
        # A cursor of another log may hold a number that no column takes; its incarnation tells.
        since = 0 if after.incarnation == NOTHING_YET else min(max(after.position, 0), FURTHEST)
        rows = tx.execute(_READ, {"agent": agent_id, "since": since, "at_most": limit}).all()
        head = rows[0]
        asked_at = to_microseconds(head.now)
        newest = (
            Cursor(NOTHING_YET, asked_at)
            if head.incarnation is None
            else Cursor(head.incarnation, head.newest)
        )
        if after.incarnation == NOTHING_YET:
            # A log that begins lives longer than this, so none came and went since that look.
            lost = bool(head.trimmed) or asked_at - after.position > self._keep // MICROSECOND // 2
        else:
            # Beyond the newest: the database has lost its last commits.
            lost = after.incarnation != head.incarnation or not head.trimmed <= after.position <= head.newest
        if lost or head.incarnation is None:
            return Page((), newest, lost)
        frames = [_as_frame(row) for row in rows if row.position is not None]
        return Page(frames, Cursor(head.incarnation, rows[-1].position if frames else since), lost=False)

    def back(self, agent_id: str, until: Cursor, limit: int = 500) -> Iterator[Frame]:
        """The frames up to a cursor, newest first, as far back as they are kept. They are read *limit* at a time."""
        asked = {"agent": agent_id, "incarnation": until.incarnation, "at_most": limit}
        place = min(max(until.position, 0), FURTHEST)
        while place > 0:
            rows = self._db.read(partial(_rows_until, {**asked, "until": place}))
            yield from map(_as_frame, rows)
            place = rows[-1].position - 1 if len(rows) == limit else 0

    def ears(self) -> None:
        """None: whoever waits looks into this very database anyway."""

    def trim(self) -> int:
        """Drop frames that are too old, or too many for one agent, and say how many."""
        agents = self._db.read(self._overdue)
        return sum(self._db.transact(partial(self._trim, agent_id)) for agent_id in agents)

    def forget(self, agent_id: str) -> None:
        """Drop every frame of an agent, and its head: the next frame begins another log."""

        def work(tx: Tx) -> None:
            tx.execute(delete(live_heads).where(live_heads.c.agent_id == agent_id))
            tx.execute(delete(live).where(live.c.agent_id == agent_id))

        self._db.transact(work)

    def close(self) -> None:
        """Nothing: the connections are the database's."""

    def _overdue(self, tx: Tx) -> list[str]:
        old = select(live.c.agent_id).where(live.c.written_at < now(-self._keep)).distinct()
        many = select(live_heads.c.agent_id).where(
            live_heads.c.position - live_heads.c.trimmed > self._keep_frames
        )
        return sorted({row.agent_id for which in (old, many) for row in tx.execute(which.limit(AT_ONCE))})

    def _trim(self, agent_id: str, tx: Tx) -> int:
        of_agent = live_heads.c.agent_id == agent_id
        head = tx.execute(
            select(live_heads.c.position, live_heads.c.trimmed)
            .where(of_agent)
            .with_for_update(key_share=True)
        ).first()
        if head is None:
            return 0
        too_old = select(func.max(live.c.position)).where(
            live.c.agent_id == agent_id, live.c.written_at < now(-self._keep)
        )
        edge = max(tx.execute(too_old).scalar() or 0, head.position - self._keep_frames)
        if edge <= head.trimmed:
            return 0
        dropped = tx.execute(
            delete(live).where(live.c.agent_id == agent_id, live.c.position <= edge)
        ).rowcount
        if edge == head.position:
            tx.execute(delete(live_heads).where(of_agent))
        else:
            tx.execute(update(live_heads).where(of_agent).values(trimmed=edge))
        return dropped


def _rows_until(asked: dict[str, Any], tx: Tx) -> Sequence[Row[Any]]:
    return tx.execute(_BACK, asked).all()


def _as_frame(row: Row[Any]) -> Frame:
    return Frame(
        agent_id=row.agent_id,
        submission_id=row.submission_id,
        message_id=row.message_id,
        token=row.token,
        first=row.first,
        n=row.n,
        event=row.event,
    )
