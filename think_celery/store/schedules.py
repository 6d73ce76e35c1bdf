"""Rows of schedules: which are due, and each way in which one changes.

Whoever has a row locked waits for nobody else, so it may be locked at any time.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, exists, func, null, or_, select, update

from think_celery.ids import AgentRef
from think_celery.store.database import Tx
from think_celery.store.destroyed import OF_AGENT, accepted_now, is_destroyed
from think_celery.store.schedule_tables import schedules, slots
from think_celery.store.statements import AT_MOST, insert_new, now, span
from think_celery.store.tables import agents

_MINE = schedules.c.id == bindparam("schedule")
_OF_AGENT = schedules.c.agent_id == bindparam("agent")
_LIVE = schedules.c.ended_at.is_(None)

_INSERT = insert_new(schedules, created_at=accepted_now(), declared_at=now())
_INSERT_DELAYED = insert_new(
    schedules,
    created_at=accepted_now(),
    anchor_at=now(),
    next_run_at=now(span("delay")),
    due_at=now(span("delay")),
)


def insert(
    tx: Tx, agent: AgentRef, schedule_id: str, *, next_run_at: datetime, anchor_at: datetime, **values: Any
) -> Row[Any] | None:
    """Add a schedule whose first slot is known, and return it; ``None`` where the agent has one of its key."""
    times = {"anchor_at": anchor_at, "next_run_at": next_run_at, "due_at": next_run_at}
    return tx.execute(_INSERT, {"id": schedule_id, **_of(agent), **times, **values}).first()


def insert_delayed(
    tx: Tx, agent: AgentRef, schedule_id: str, delay: timedelta, **values: Any
) -> Row[Any] | None:
    """Add a schedule for so long from now, by the database's clock; likewise."""
    return tx.execute(_INSERT_DELAYED, {"id": schedule_id, **_of(agent), "delay": delay, **values}).first()


def _of(agent: AgentRef) -> dict[str, str]:
    return {
        OF_AGENT: agent.id,
        "agent_id": agent.id,
        "agent_class": agent.agent_class,
        "agent_name": agent.name,
    }


# --- looking --------------------------------------------------------------------------------------

_GET = select(schedules).where(_MINE)
_LOCK = select(schedules, now().label("now")).where(_MINE).with_for_update(key_share=True, of=schedules)
# Whether its agent was destroyed after it was made; it may be there again since.
_DESTROYED = exists().where(agents.c.id == schedules.c.agent_id, is_destroyed(schedules))
_BY_KEY = select(schedules, _DESTROYED.label("destroyed")).where(
    _OF_AGENT, schedules.c.key == bindparam("of_key")
)
_LOCK_BY_KEY = (
    select(schedules, now().label("now"))
    .where(_OF_AGENT, schedules.c.key == bindparam("of_key"))
    .with_for_update(key_share=True, of=schedules)
)


def get(tx: Tx, schedule_id: str) -> Row[Any] | None:
    """The schedule of that id."""
    return tx.execute(_GET, {"schedule": schedule_id}).first()


def lock(tx: Tx, schedule_id: str) -> Row[Any] | None:
    """The same, locked for this transaction, with ``now``."""
    return tx.execute(_LOCK, {"schedule": schedule_id}).first()


def by_key(tx: Tx, agent_id: str, key: str) -> Row[Any] | None:
    """The agent's schedule of that key, with ``destroyed``: whether its agent was destroyed after it was made."""
    return tx.execute(_BY_KEY, {"agent": agent_id, "of_key": key}).first()


def lock_by_key(tx: Tx, agent_id: str, key: str) -> Row[Any] | None:
    """The same, locked for this transaction, with ``now``."""
    return tx.execute(_LOCK_BY_KEY, {"agent": agent_id, "of_key": key}).first()


def find(
    tx: Tx,
    *,
    agent_id: str | None = None,
    agent_class: str | None = None,
    kinds: Sequence[str] | None = None,
    method: str | None = None,
    task_id: str | None = None,
    due_after: datetime | None = None,
    due_before: datetime | None = None,
    ended: bool = False,
    after: tuple[datetime, str] | None = None,
    limit: int = 100,
) -> list[Row[Any]]:
    """Schedules, the one that is due next first; *ended*: those that have ended, the latest first."""
    s = schedules.c
    wanted = {"agent_id": agent_id, "agent_class": agent_class, "method": method, "task_id": task_id}
    statement = select(schedules).where(
        *(s[name] == value for name, value in wanted.items() if value is not None)
    )
    if kinds is not None:
        statement = statement.where(s.kind.in_(kinds))
    if due_after is not None:
        statement = statement.where(s.next_run_at >= due_after)
    if due_before is not None:
        statement = statement.where(s.next_run_at < due_before)
    if ended:
        statement = statement.where(s.ended_at.is_not(None)).order_by(s.ended_at.desc(), s.id)
    else:
        statement = statement.where(s.ended_at.is_(None)).order_by(s.next_run_at, s.id)
    if after is not None:
        moment, behind = after[0], s.id > after[1]
        if ended:
            statement = statement.where(s.ended_at <= moment, or_(s.ended_at < moment, behind))
        else:
            statement = statement.where(s.next_run_at >= moment, or_(s.next_run_at > moment, behind))
    return list(tx.execute(statement.limit(limit)))


_DECLARED = select(schedules).where(_OF_AGENT, _LIVE, schedules.c.task_id.is_not(None))


def declared(tx: Tx, agent_id: str) -> list[Row[Any]]:
    """The schedules of an agent's declared tasks."""
    return list(tx.execute(_DECLARED, {"agent": agent_id}))


# --- what is due ----------------------------------------------------------------------------------

_IS_DUE = and_(schedules.c.due_at.is_not(None), schedules.c.due_at <= now())
_DUE = (
    select(schedules.c.id, schedules.c.due_at)
    .where(_IS_DUE)
    .order_by(schedules.c.due_at, schedules.c.id)
    .limit(AT_MOST)
)
_DUE_BEHIND = _DUE.where(
    schedules.c.due_at >= bindparam("seen"),
    or_(schedules.c.due_at > bindparam("seen"), schedules.c.id > bindparam("schedule")),
)


def due(tx: Tx, limit: int, behind: Row[Any] | None = None) -> list[Row[Any]]:
    """Id and ``due_at`` of schedules that are due, the longest due first; only those *behind* that one."""
    if behind is None:
        return list(tx.execute(_DUE, {"at_most": limit}))
    where = {"seen": behind.due_at, "schedule": behind.id}
    return list(tx.execute(_DUE_BEHIND, {"at_most": limit, **where}))


_LOCK_DUE = (
    select(schedules, now().label("now"), _DESTROYED.label("destroyed"))
    .where(_MINE, _IS_DUE)
    .with_for_update(key_share=True, skip_locked=True, of=schedules)
)


def lock_due(tx: Tx, schedule_id: str) -> Row[Any] | None:
    """A schedule that is due, locked for this transaction; ``None`` where it is not, or somebody has it locked.

    With ``now`` by the database's clock, and ``destroyed``: whether its agent was destroyed after it was made.
    """
    return tx.execute(_LOCK_DUE, {"schedule": schedule_id}).first()


_NEXT_DUE = select(func.min(schedules.c.due_at)).where(schedules.c.due_at.is_not(None))


def next_due(tx: Tx) -> datetime | None:
    """The next instant at which one is due."""
    moment: datetime | None = tx.execute(_NEXT_DUE).scalar()
    return moment


# --- changing -------------------------------------------------------------------------------------

_NO_FAILURE: Mapping[str, Any] = {"failures": 0, "error_type": null(), "error": null()}
_FIRE = (
    update(schedules)
    .where(
        _MINE,
        schedules.c.next_run_at == bindparam("seen"),
        or_(schedules.c.last_slot_at.is_(None), schedules.c.last_slot_at < bindparam("slot")),
    )
    .values(last_slot_at=bindparam("slot"), **_NO_FAILURE)
)
_FIRE_LAST = _FIRE.values(next_run_at=null(), due_at=null(), key=schedules.c.id, ended_at=now())


def fire(tx: Tx, schedule_id: str, seen: datetime, slot: datetime, following: datetime | None) -> bool:
    """Take this slot, and say whether this call did: no slot is taken twice, nor one before another that was.

    *seen* is the next run as the caller saw it, *following* the next one; without it the schedule ends.
    """
    values = {"schedule": schedule_id, "seen": seen, "slot": slot}
    if following is None:
        return tx.execute(_FIRE_LAST, values).rowcount == 1
    return tx.execute(_FIRE, {**values, "next_run_at": following, "due_at": following}).rowcount == 1


_MOVE_ON = update(schedules).where(_MINE, _LIVE)


def move_on(tx: Tx, schedule_id: str, following: datetime) -> bool:
    """Let the next slot be that one, and say whether the schedule had not ended."""
    values = {"schedule": schedule_id, "next_run_at": following, "due_at": following}
    return tx.execute(_MOVE_ON, values).rowcount == 1


_END = (
    update(schedules)
    .where(_MINE, _LIVE)
    .values(next_run_at=null(), due_at=null(), key=schedules.c.id, ended_at=now(), **_NO_FAILURE)
)


def end(tx: Tx, schedule_id: str) -> bool:
    """End a schedule: it has no further slot, and its key is free. Say whether this call did."""
    return tx.execute(_END, {"schedule": schedule_id}).rowcount == 1


_PUT_OFF = update(schedules).where(_MINE, _IS_DUE).values(due_at=now(span("after")))
_FAILED = _PUT_OFF.values(failures=schedules.c.failures + 1)


def put_off(tx: Tx, schedule_id: str, after: timedelta) -> None:
    """Look at a schedule that is due again so much later."""
    tx.execute(_PUT_OFF, {"schedule": schedule_id, "after": after})


def failed(tx: Tx, schedule_id: str, after: timedelta, error_type: str, error: str) -> bool:
    """The same for one that could not be fired, and say whether it was due still."""
    values = {"schedule": schedule_id, "after": after, "error_type": error_type, "error": error}
    return tx.execute(_FAILED, values).rowcount == 1


_CHANGE = update(schedules).where(_MINE, _LIVE)
_DECLARE = _CHANGE.values(declared_at=now())


def change(tx: Tx, schedule_id: str, **values: Any) -> None:
    """Change columns of a schedule that whoever calls this has locked."""
    tx.execute(_CHANGE, {"schedule": schedule_id, **values})


def declare(tx: Tx, schedule_id: str, **values: Any) -> None:
    """The same, and note that its task was declared now."""
    tx.execute(_DECLARE, {"schedule": schedule_id, **values})


# --- removing -------------------------------------------------------------------------------------

_ALL_OF = select(schedules.c.id).where(_OF_AGENT)
_FREE_OF = _ALL_OF.with_for_update(skip_locked=True)


def lock_all(tx: Tx, agent_id: str) -> str | None:
    """Lock every schedule of an agent but those that another transaction has locked; the id of one of those, if any."""
    there = set(tx.execute(_ALL_OF, {"agent": agent_id}).scalars())
    locked = set(tx.execute(_FREE_OF, {"agent": agent_id}).scalars())
    return next(iter(sorted(there - locked)), None)


_REMOVE_SLOTS = delete(slots).where(slots.c.schedule_id.in_(_ALL_OF))
_REMOVE = delete(schedules).where(_OF_AGENT)


def remove_all(tx: Tx, agent_id: str) -> int:
    """Delete an agent's schedules with their slots, and say how many schedules."""
    tx.execute(_REMOVE_SLOTS, {"agent": agent_id})
    return tx.execute(_REMOVE, {"agent": agent_id}).rowcount


_OLD = (
    select(schedules.c.id)
    .where(
        schedules.c.ended_at.is_not(None),
        schedules.c.ended_at < now(span("age")),
        ~exists().where(slots.c.schedule_id == schedules.c.id),
    )
    .order_by(schedules.c.ended_at)
    .limit(AT_MOST)
    .with_for_update(skip_locked=True, of=schedules)
)
_DELETE_OLD = delete(schedules).where(schedules.c.id.in_(_OLD))


def delete_old(tx: Tx, age: timedelta, limit: int) -> int:
    """Delete schedules that ended so long ago and have no slots any more, and say how many."""
    return tx.execute(_DELETE_OLD, {"age": -age, "at_most": limit}).rowcount


_FAILING = select(schedules).where(schedules.c.failures > 0).order_by(schedules.c.created_at).limit(AT_MOST)


def failing(tx: Tx, limit: int) -> list[Row[Any]]:
    """Schedules that could not be fired when they were looked at last."""
    return list(tx.execute(_FAILING, {"at_most": limit}))
