"""Lines: the row that owns an agent's turn order and its lease."""

from datetime import timedelta
from typing import Any

from sqlalchemy import and_, bindparam, literal, null, select, update

from think_celery.store.database import Tx
from think_celery.store.leases import LINE_HELD, TURNS, Lease
from think_celery.store.statements import AT_MOST, Statement, insert_new, now, on_each, span
from think_celery.store.tables import lines, submissions

_OF_AGENT = and_(lines.c.agent_id == bindparam("agent"), lines.c.kind == TURNS)

_MAKE = insert_new(lines, lines.c.token, kind=TURNS, token=0)


def make_line(tx: Tx, agent_id: str) -> None:
    """Make the agent's line where there is none yet."""
    tx.execute(_MAKE, {"agent_id": agent_id}).close()


_LINE = select(lines.c.process_id, lines.c.token).where(_OF_AGENT)
_LOCK = _LINE.with_for_update(key_share=True)
_LOCK_IF_FREE = _LINE.with_for_update(key_share=True, skip_locked=True)


def lock_line(tx: Tx, agent_id: str, *, patient: bool = True) -> Any:
    """Lock the agent's line, and return it.

    ``None`` where there is none or, without *patient*, where another transaction has it locked.
    """
    return tx.execute(_LOCK if patient else _LOCK_IF_FREE, {"agent": agent_id}).first()


_IS_THERE = select(lines.c.token).where(_OF_AGENT)


def is_there(tx: Tx, agent_id: str) -> bool:
    """Whether the agent has a line already, whoever may have it locked."""
    return tx.execute(_IS_THERE, {"agent": agent_id}).first() is not None


_HELD = select(lines.c.token).where(_OF_AGENT, lines.c.process_id.is_not(None))


def is_held(tx: Tx, agent_id: str) -> bool:
    """Whether somebody holds the agent's line, whoever may have it locked."""
    return tx.execute(_HELD, {"agent": agent_id}).first() is not None


def make_and_lock_line(tx: Tx, agent_id: str) -> bool:
    """Lock the agent's line, which is made where there is none; False where another transaction has it locked.

    One that is there is not made: not even an INSERT that changes nothing would come past another's change of it.
    """
    if lock_line(tx, agent_id, patient=False) is not None:
        return True
    if is_there(tx, agent_id):
        return False
    make_line(tx, agent_id)
    return lock_line(tx, agent_id, patient=False) is not None


_AGENT = select(submissions.c.agent_id).where(submissions.c.id == bindparam("submission")).scalar_subquery()
_TAKE = (
    update(lines)
    .where(lines.c.agent_id == _AGENT, lines.c.kind == TURNS, lines.c.process_id.is_(None))
    .values(process_id=bindparam("process"), token=lines.c.token + 1, waits_for=null())
    .returning(lines.c.agent_id, lines.c.token)
)


_FIRST_LEASE = select(
    submissions.c.agent_id, literal(TURNS), bindparam("process", type_=lines.c.process_id.type), literal(1)
).where(submissions.c.id == bindparam("submission"))
_MAKE_AND_TAKE = on_each(
    lambda insert: (
        insert(lines)
        .from_select(["agent_id", "kind", "process_id", "token"], _FIRST_LEASE)
        .on_conflict_do_update(
            index_elements=[lines.c.agent_id, lines.c.kind],
            set_={"process_id": bindparam("process"), "token": lines.c.token + 1, "waits_for": null()},
            where=lines.c.process_id.is_(None),
        )
        .returning(lines.c.agent_id, lines.c.token)
    )
)


def take_line(tx: Tx, submission_id: str, process_id: str) -> Lease | None:
    """Take the line of a submission's agent if it is free.

    ``None`` if another holds it, if there is none yet, or no such submission.
    """
    return _taken(tx, _TAKE, submission_id, process_id)


_TAKE_OF = (
    update(lines)
    .where(_OF_AGENT, lines.c.process_id.is_(None))
    .values(process_id=bindparam("process"), token=lines.c.token + 1, waits_for=null())
    .returning(lines.c.agent_id, lines.c.token)
)


def take_line_of(tx: Tx, agent_id: str, process_id: str) -> Lease | None:
    """Take an agent's line if it is free, for work that is no submission; ``None`` if another holds it."""
    row = tx.execute(_TAKE_OF, {"agent": agent_id, "process": process_id}).first()
    if row is None:
        return None
    return Lease(kind=TURNS, key=row.agent_id, process_id=process_id, token=row.token)


def make_and_take_line(tx: Tx, submission_id: str, process_id: str) -> Lease | None:
    """The same, but a line that there was none of is made. The agent has its row already, and so its lock first."""
    return _taken(tx, _MAKE_AND_TAKE, submission_id, process_id)


def _taken(tx: Tx, statement: Statement, submission_id: str, process_id: str) -> Lease | None:
    row = tx.execute(statement, {"submission": submission_id, "process": process_id}).first()
    if row is None:
        return None
    return Lease(kind=TURNS, key=row.agent_id, process_id=process_id, token=row.token)


_IS_MADE = select(lines.c.token).where(lines.c.agent_id == _AGENT, lines.c.kind == TURNS)


def is_made(tx: Tx, submission_id: str) -> bool:
    """Whether a submission's agent has a line already, whoever may have it locked."""
    return tx.execute(_IS_MADE, {"submission": submission_id}).first() is not None


_FREE = update(lines).where(LINE_HELD).values(process_id=null())


def free_line(tx: Tx, lease: Lease) -> bool:
    """Give the line back, and say whether it was still the holder's."""
    return tx.execute(_FREE, lease.parameters).rowcount == 1


_TAKEN_AWAY = {"process_id": null(), "token": lines.c.token + 1}
_SEIZE = update(lines).where(_OF_AGENT).values(_TAKEN_AWAY)
_SEIZE_FROM = update(lines).where(LINE_HELD).values(_TAKEN_AWAY)


def seize_line(tx: Tx, agent_id: str) -> None:
    """Take the line from whoever holds it, and leave it free."""
    tx.execute(_SEIZE, {"agent": agent_id})


def seize_from(tx: Tx, lease: Lease) -> bool:
    """Take the line from that holder, leave it free, and say whether it still had it."""
    return tx.execute(_SEIZE_FROM, lease.parameters).rowcount == 1


_LOOK_LATER = update(lines).where(_OF_AGENT).values(look_at=now(span("after")))
_LOOKED = update(lines).where(_OF_AGENT).values(look_at=null())


def look_later(tx: Tx, agent_id: str, after: timedelta) -> None:
    """Let the tick look at the line: its head is locked by a caller just now, so nobody could expect it."""
    tx.execute(_LOOK_LATER, {"agent": agent_id, "after": after})


def looked(tx: Tx, agent_id: str) -> None:
    """The line was looked at."""
    tx.execute(_LOOKED, {"agent": agent_id})


_TO_LOOK_AT = (
    select(lines.c.agent_id)
    .where(lines.c.look_at <= now(), lines.c.kind == TURNS)
    .order_by(lines.c.look_at)
    .limit(AT_MOST)
)


def to_look_at(tx: Tx, limit: int) -> list[str]:
    """The agents whose lines are to be looked at now."""
    return list(tx.execute(_TO_LOOK_AT, {"at_most": limit}).scalars())
