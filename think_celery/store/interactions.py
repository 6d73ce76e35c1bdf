"""Rows of calls that wait for a person's approval or for a client's answer."""

from typing import Any

from sqlalchemy import Row, and_, bindparam, case, delete, exists, literal_column, not_, or_, select, update

from think_celery.states import INTERACTION_MOVES, InteractionStatus
from think_celery.store.database import Tx
from think_celery.store.moves import Move, moved, moving
from think_celery.store.statements import insert_new, now
from think_celery.store.tables import interactions, submissions

OPEN = InteractionStatus.OPEN.value

_OF_AGENT = interactions.c.agent_id == bindparam("agent")
# A literal, for only then PostgreSQL knows that the index of what is open holds all of that.
_IS_OPEN = interactions.c.status == literal_column(f"'{OPEN}'")
_OPEN_OF = and_(_OF_AGENT, _IS_OPEN)
# Others of its message wait still, so no turn acts on it yet.
_IS_UNUSED = and_(
    interactions.c.status == InteractionStatus.APPROVED, interactions.c.continuation_id.is_(None)
)
_OF_MESSAGE = and_(_OF_AGENT, interactions.c.message_id == bindparam("message"))

_INSERT = insert_new(interactions, interactions.c.id, status=OPEN, created_at=now())


def insert(tx: Tx, **values: Any) -> bool:
    """Note that a call waits, and say whether that is new."""
    return tx.execute(_INSERT, values).first() is not None


_ANY = select(exists().where(_OPEN_OF))


def any_open(tx: Tx, agent_id: str) -> bool:
    """Whether a call of the agent waits."""
    return bool(tx.execute(_ANY, {"agent": agent_id}).scalar_one())


_ANY_IN = select(exists().where(_OF_MESSAGE, _IS_OPEN))


def any_open_in(tx: Tx, agent_id: str, message_id: str) -> bool:
    """Whether a call in that message waits. Nobody is waited for who decides on one just now."""
    return bool(tx.execute(_ANY_IN, {"agent": agent_id, "message": message_id}).scalar_one())


_OPEN_IN_ORDER = (
    select(interactions)
    .where(_OPEN_OF)
    .order_by(interactions.c.created_at, interactions.c.message_id, interactions.c.tool_call_id)
)


def open_of(tx: Tx, agent_id: str) -> list[Row[Any]]:
    """The agent's calls that wait, oldest first."""
    return list(tx.execute(_OPEN_IN_ORDER, {"agent": agent_id}))


_OPEN_OF_ALL = select(interactions).where(
    _IS_OPEN,
    or_(
        bindparam("agent_class", type_=interactions.c.agent_class.type).is_(None),
        interactions.c.agent_class == bindparam("agent_class"),
    ),
)
_IN_TIME = (interactions.c.created_at, interactions.c.agent_id, interactions.c.message_id)
_OLDEST_OF_ALL = _OPEN_OF_ALL.order_by(*_IN_TIME, interactions.c.tool_call_id).limit(bindparam("most"))
_NEWEST_OF_ALL = _OPEN_OF_ALL.order_by(
    *(column.desc() for column in _IN_TIME), interactions.c.tool_call_id.desc()
).limit(bindparam("most"))


def open_of_all(tx: Tx, *, agent_class: str | None, newest_first: bool, limit: int) -> list[Row[Any]]:
    """The calls of all agents (or those of one class) that wait, in the order in which they came, or the other way."""
    statement = _NEWEST_OF_ALL if newest_first else _OLDEST_OF_ALL
    return list(tx.execute(statement, {"agent_class": agent_class, "most": limit}))


_BY_ID = select(interactions).where(interactions.c.id == bindparam("interaction"))


def by_id(tx: Tx, interaction_id: str) -> Row[Any] | None:
    """The one of that id, of whatever agent it is."""
    return tx.execute(_BY_ID, {"interaction": interaction_id}).first()


_BY_CALL = (
    select(interactions)
    .where(_OF_AGENT, interactions.c.tool_call_id == bindparam("call"))
    .order_by(case((_IS_OPEN, 0), else_=1), interactions.c.created_at.desc())
    .limit(1)
)


def by_call(tx: Tx, agent_id: str, tool_call_id: str) -> Row[Any] | None:
    """What the agent has of a call: the one that waits, else the last that did."""
    return tx.execute(_BY_CALL, {"agent": agent_id, "call": tool_call_id}).first()


_LOCK_MESSAGE = (
    select(interactions)
    .where(_OF_MESSAGE, _IS_OPEN)
    .order_by(interactions.c.tool_call_id)
    .with_for_update(key_share=True)
)


def lock_open_of(tx: Tx, agent_id: str, message_id: str) -> list[Row[Any]]:
    """Lock what waits of one message. Of several that decide its calls at once, one after the other sees the rest."""
    return list(tx.execute(_LOCK_MESSAGE, {"agent": agent_id, "message": message_id}))


_DECIDE: dict[InteractionStatus, Move] = {
    status: moving(
        interactions,
        interactions.c.id == bindparam("interaction"),
        status,
        allowed=INTERACTION_MOVES,
        returning=interactions.c,
        decided_at=now(),
    )
    for status in InteractionStatus
    if status is not InteractionStatus.OPEN
}


def decide(tx: Tx, interaction_id: str, status: InteractionStatus, **decision: Any) -> Row[Any] | None:
    """Take a decision; the row as it is then, or ``None`` if it was not this call that took one."""
    return moved(tx, _DECIDE[status], interaction=interaction_id, **decision)


_CONTINUE = (
    update(interactions)
    .where(_OF_MESSAGE, interactions.c.continuation_id.is_(None), not_(_IS_OPEN))
    .values(continuation_id=bindparam("continuation"))
)


def continue_with(tx: Tx, agent_id: str, message_id: str, submission_id: str) -> None:
    """Note which turn acts on the decisions on a message's calls."""
    tx.execute(_CONTINUE, {"agent": agent_id, "message": message_id, "continuation": submission_id})


_DECIDED = select(interactions).where(
    _OF_MESSAGE, interactions.c.continuation_id == bindparam("continuation")
)


def decided_for(tx: Tx, agent_id: str, message_id: str, submission_id: str) -> list[Row[Any]]:
    """The decisions on a message's calls on which that turn is to act."""
    values = {"agent": agent_id, "message": message_id, "continuation": submission_id}
    return list(tx.execute(_DECIDED, values))


_OF_MESSAGES = (
    select(
        interactions.c.message_id,
        interactions.c.tool_call_id,
        interactions.c.kind,
        interactions.c.status,
        interactions.c.continuation_id,
        submissions.c.status.label("continuation_status"),
    )
    .select_from(interactions.outerjoin(submissions, submissions.c.id == interactions.c.continuation_id))
    .where(_OF_AGENT, interactions.c.message_id.in_(bindparam("messages", expanding=True)))
)


def of_messages(tx: Tx, agent_id: str, message_ids: list[str]) -> list[Row[Any]]:
    """How the calls of these messages stand, with the status of the turn that acts on each."""
    return list(tx.execute(_OF_MESSAGES, {"agent": agent_id, "messages": message_ids}))


# --- withdrawing ----------------------------------------------------------------------------------

_MAY_BE_MADE = and_(_OF_AGENT, or_(_IS_OPEN, _IS_UNUSED))
_UNMADE = select(interactions).where(
    _MAY_BE_MADE,
    or_(
        bindparam("submission", type_=interactions.c.submission_id.type).is_(None),
        interactions.c.submission_id == bindparam("submission"),
    ),
)
_THERE = select(interactions.c.id).where(_OPEN_OF)
_FREE = _THERE.with_for_update(key_share=True, skip_locked=True)
_WITHDRAW_ALL = moving(
    interactions, _MAY_BE_MADE, InteractionStatus.WITHDRAWN, allowed=INTERACTION_MOVES, decided_at=now()
)
_WITHDRAW_OF = moving(
    interactions,
    and_(_MAY_BE_MADE, interactions.c.submission_id == bindparam("submission")),
    InteractionStatus.WITHDRAWN,
    allowed=INTERACTION_MOVES,
    decided_at=now(),
)


def unmade(tx: Tx, agent_id: str, submission_id: str | None = None) -> list[Row[Any]]:
    """The agent's calls (or those that a submission's turn asked about) that wait, also approved ones, for others."""
    return list(tx.execute(_UNMADE, {"agent": agent_id, "submission": submission_id}))


def lock_all(tx: Tx, agent_id: str) -> str | None:
    """Lock all that waits, but for what another transaction has locked: the id of one of that, if there is any."""
    there = set(tx.execute(_THERE, {"agent": agent_id}).scalars())
    locked = set(tx.execute(_FREE, {"agent": agent_id}).scalars())
    return min(there - locked, default=None)


_LOCK = select(interactions.c.id).where(interactions.c.id == bindparam("interaction")).with_for_update()


def wait_for(tx: Tx, interaction_id: str) -> None:
    """Wait until nobody has that one locked."""
    tx.execute(_LOCK, {"interaction": interaction_id}).first()


def withdraw_all(tx: Tx, agent_id: str) -> int:
    """Nothing of the agent waits any more, nor is made. Say how much had; whoever calls this has locked what waited."""
    return len(tx.execute(_WITHDRAW_ALL, {"agent": agent_id}).all())


def withdraw_of(tx: Tx, agent_id: str, submission_id: str) -> int:
    """What a submission's turn asked for does not wait any more, nor is made. Say how much had."""
    return len(tx.execute(_WITHDRAW_OF, {"agent": agent_id, "submission": submission_id}).all())


_REMOVE_ALL = delete(interactions).where(_OF_AGENT)


def remove_all(tx: Tx, agent_id: str) -> int:
    """Delete every row of an agent, and say how many there were."""
    return tx.execute(_REMOVE_ALL, {"agent": agent_id}).rowcount
