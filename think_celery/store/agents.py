"""Rows of agents: their state, their start and their end."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, delete, exists, literal, null, or_, select, update

from think_celery.ids import AgentRef
from think_celery.retries import MISSED_AFTER
from think_celery.store.database import Tx
from think_celery.store.missed import PutOff
from think_celery.store.schedule_tables import schedules
from think_celery.store.statements import AT_MOST, insert_new, now, on_each, span, unlocked
from think_celery.store.submissions import epoch_of
from think_celery.store.tables import agents, jobs, lines, messages, submissions

_MAKE = insert_new(agents, agents.c.epoch, epoch=0, created_at=now())
_OF_SUBMISSION = select(
    submissions.c.agent_id, submissions.c.agent_class, submissions.c.agent_name, literal(0), now()
).where(submissions.c.id == bindparam("submission"))
_MAKE_FOR = on_each(
    lambda insert: (
        insert(agents)
        .from_select(["id", "agent_class", "name", "epoch", "created_at"], _OF_SUBMISSION)
        .on_conflict_do_nothing()
    )
)
_MINE = agents.c.id == bindparam("agent")
_GET = select(agents).where(_MINE)
_LOCK = _GET.with_for_update(key_share=True)
_NEXT_EPOCH = update(agents).where(_MINE).values(epoch=agents.c.epoch + 1)


def make(tx: Tx, agent: AgentRef) -> None:
    """Add the agent's row where there is none yet."""
    tx.execute(_MAKE, _names(agent)).close()


def _names(agent: AgentRef) -> dict[str, Any]:
    return {"id": agent.id, "agent_class": agent.agent_class, "name": agent.name}


def make_for(tx: Tx, submission_id: str) -> None:
    """Add the row of a submission's agent where there is none yet."""
    tx.execute(_MAKE_FOR, {"submission": submission_id})


def get(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The agent's row."""
    return tx.execute(_GET, {"agent": agent_id}).first()


def lock(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The agent's row, locked for this transaction."""
    return tx.execute(_LOCK, {"agent": agent_id}).first()


def next_epoch(tx: Tx, agent_id: str) -> None:
    """Begin another epoch: what was accepted before it no longer runs."""
    tx.execute(_NEXT_EPOCH, {"agent": agent_id})


# Also an agent that was destroyed and that somebody has given work since.
LIVES = or_(
    agents.c.destroyed_at.is_(None),
    exists().where(messages.c.agent_id == agents.c.id),
    exists().where(submissions.c.agent_id == agents.c.id, submissions.c.epoch >= agents.c.epoch),
)


_IS_THERE = select(
    or_(
        exists().where(_MINE, LIVES),
        exists().where(
            submissions.c.agent_id == bindparam("agent"), submissions.c.epoch >= epoch_of(bindparam("agent"))
        ),
        exists().where(jobs.c.agent_id == bindparam("agent")),
        exists().where(schedules.c.agent_id == bindparam("agent")),
    )
)


def is_there(tx: Tx, agent_id: str) -> bool:
    """Whether there is anything of the agent; it has no row before its first turn, start or state."""
    return bool(tx.execute(_IS_THERE, {"agent": agent_id}).scalar_one())


def find(tx: Tx, *, agent_class: str | None = None, limit: int = 100) -> Sequence[Row[Any]]:
    """Agents, newest first."""
    statement = select(agents).where(LIVES).order_by(agents.c.created_at.desc(), agents.c.id).limit(limit)
    if agent_class is not None:
        statement = statement.where(agents.c.agent_class == agent_class)
    return tx.execute(statement).all()


# --- state ----------------------------------------------------------------------------------------

_STATE = select(agents.c.state, agents.c.state_version).where(_MINE)
_NEXT_STATE = {"state_version": agents.c.state_version + 1, "destroyed_at": null()}


def _setting(*where: Any) -> Any:
    """The upsert that stores a state, with the row that it needs."""
    return on_each(
        lambda insert: (
            (new := insert(agents).values(epoch=0, state_version=1, created_at=now()))
            .on_conflict_do_update(
                index_elements=[agents.c.id],
                set_={"state": new.excluded.state, **_NEXT_STATE},
                where=and_(*where) if where else None,
            )
            .returning(agents.c.state_version)
        )
    )


_SET = _setting()
_SET_FIRST = _setting(agents.c.state_version == 0)
_SWAP = (
    update(agents)
    .where(_MINE, agents.c.state_version == bindparam("seen"))
    .values(_NEXT_STATE)
    .returning(agents.c.state_version)
)


def state(tx: Tx, agent_id: str) -> tuple[str | None, int]:
    """The stored state (``None`` where none is) and the number of times that it was changed."""
    row = tx.execute(_STATE, {"agent": agent_id}).first()
    return (None, 0) if row is None else (row.state, row.state_version)


def set_state(tx: Tx, agent: AgentRef, text: str) -> int:
    """Store a state whatever was there, and give its version."""
    version: int = tx.execute(_SET, {**_names(agent), "state": text}).scalar_one()
    return version


def swap_state(tx: Tx, agent: AgentRef, seen: int, text: str) -> int | None:
    """Store a state if nobody has changed it since the version *seen*, and give its version; else ``None``."""
    if seen:
        return tx.execute(_SWAP, {"agent": agent.id, "seen": seen, "state": text}).scalar()
    return tx.execute(_SET_FIRST, {**_names(agent), "state": text}).scalar()


# --- start ----------------------------------------------------------------------------------------

_UNKNOCKED: dict[str, Any] = {"knock_at": null(), "knocks": 0}


def _wanting() -> Any:
    def statement(insert: Any) -> Any:
        wanted = {"knock_at": now(MISSED_AFTER), "knocks": 0}
        new = insert(agents).values(epoch=0, created_at=now(), **wanted)
        return new.on_conflict_do_update(
            index_elements=[agents.c.id],
            set_={**wanted, "queue": new.excluded.queue, "start_attempts": 0, "destroyed_at": null()},
            where=or_(agents.c.started_version.is_(None), agents.c.started_version != bindparam("version")),
        ).returning(*START)

    return on_each(statement)


START = (agents.c.id, agents.c.agent_class, agents.c.name, agents.c.queue)
"""What the knock for a start needs."""
_WANT_START = _wanting()
_REVIVE = update(agents).where(_MINE, agents.c.destroyed_at.is_not(None)).values(destroyed_at=null())


def want_start(tx: Tx, agent: AgentRef, version: str, queue: str | None) -> Row[Any] | None:
    """Let a worker start the agent, and give what its knock needs; ``None`` where that version has started."""
    return tx.execute(_WANT_START, {**_names(agent), "version": version, "queue": queue}).first()


def revive(tx: Tx, agent_id: str) -> None:
    """An agent that was destroyed is there again."""
    tx.execute(_REVIVE, {"agent": agent_id})


_SAME = agents.c.start_version == bindparam("version")
_BEGIN_START = (
    update(agents)
    .where(_MINE, or_(agents.c.started_version.is_(None), agents.c.started_version != bindparam("version")))
    .values(
        start_version=bindparam("version"),
        start_attempts=case((_SAME, agents.c.start_attempts + 1), else_=1),
    )
    .returning(agents.c.start_attempts)
)


def begin_start(tx: Tx, agent_id: str, version: str) -> int | None:
    """Count an attempt to start this version of the agent, and say the how-manieth in a row that is.

    ``None``, and nothing is counted, if it has started.
    """
    attempt: int | None = tx.execute(_BEGIN_START, {"agent": agent_id, "version": version}).scalar()
    return attempt


_STARTED = (
    update(agents)
    .where(_MINE)
    .values(
        start_attempts=0,
        start_error_type=null(),
        start_error=null(),
        start_failed_at=null(),
        destroyed_at=null(),
        **_UNKNOCKED,
    )
)
_START_FAILED = update(agents).where(_MINE).values(start_failed_at=now(), **_UNKNOCKED)
_START_LATER = update(agents).where(_MINE).values(start_attempts=0)


def started(tx: Tx, agent_id: str, version: str) -> None:
    """This version of the agent has started."""
    tx.execute(_STARTED, {"agent": agent_id, "started_version": version})


def need_no_start(tx: Tx, agent_id: str) -> None:
    """The agent has started, or its class has nothing to do at a start."""
    tx.execute(_STARTED, {"agent": agent_id})


def start_failed(tx: Tx, agent_id: str, error_type: str, error: str, *, attempts: int) -> None:
    """Note why the agent could not start; *attempts*: how many workers have died in it."""
    why = {"start_error_type": error_type, "start_error": error, "start_attempts": attempts}
    tx.execute(_START_FAILED, {"agent": agent_id, **why})


def start_later(tx: Tx, agent_id: str) -> None:
    """The attempt to start the agent was put off in order: it does not count."""
    tx.execute(_START_LATER, {"agent": agent_id})


_MISSED = (
    select(*START, agents.c.knock_at, agents.c.knocks)
    .where(agents.c.knock_at <= now())
    .order_by(agents.c.knock_at)
    .limit(AT_MOST)
)
_AS_SEEN = and_(_MINE, agents.c.knock_at == bindparam("seen"))
_KNOCK_AGAIN = (
    update(agents).where(_AS_SEEN, unlocked(agents.c.id, _AS_SEEN)).values(knock_at=now(span("after")))
)
_EXPECTED = select(agents.c.id).where(agents.c.knock_at > now())
_KNOCK_NOW = (
    update(agents)
    .where(agents.c.id.in_(_EXPECTED.with_for_update(key_share=True, skip_locked=True)))
    .values(knock_at=now())
)


put_off = PutOff(agents, agents.c.id)


def missed(tx: Tx, limit: int) -> Sequence[Row[Any]]:
    """Agents that wait to be started and whose knock seems lost."""
    return tx.execute(_MISSED, {"at_most": limit}).all()


def knock_again(tx: Tx, agent_id: str, seen: datetime, after: timedelta, knocks: int) -> bool:
    """Set when to knock next, if nobody else has since *seen* and nobody is changing the row just now."""
    values = {"agent": agent_id, "seen": seen, "after": after, "knocks": knocks}
    return tx.execute(_KNOCK_AGAIN, values).rowcount == 1


def knock_now(tx: Tx) -> None:
    """Let the tick knock for every agent that waits to be started, at once: the broker has lost all messages.

    One that a caller has locked (its state, say) is left to the time that is set for it.
    """
    tx.execute(_KNOCK_NOW)


# --- end ------------------------------------------------------------------------------------------

_DESTROY = (
    update(agents)
    .where(_MINE)
    .values(
        state=null(),
        state_version=agents.c.state_version + 1,
        queue=null(),
        started_version=null(),
        start_version=null(),
        start_attempts=0,
        start_error_type=null(),
        start_error=null(),
        start_failed_at=null(),
        destroyed_at=now(),
        jobs_since=now(),
        sweep_at=now(span("after")),
        **_UNKNOCKED,
    )
)


def destroy(tx: Tx, agent_id: str, sweep_after: timedelta) -> None:
    """Empty the agent's row. It stays for a while, so that what was accepted before does not run after.

    What else there is of the agent is for whoever calls this to remove, and for the tick from *sweep_after* on.
    """
    tx.execute(_DESTROY, {"agent": agent_id, "after": sweep_after})


_TO_SWEEP = (
    select(agents.c.id, agents.c.epoch)
    .where(agents.c.sweep_at <= now())
    .order_by(agents.c.sweep_at)
    .limit(AT_MOST)
)
_SWEEP_AGAIN = update(agents).where(_MINE).values(sweep_at=now(span("after")))
_GONE = and_(
    _MINE,
    agents.c.destroyed_at <= now(span("age")),
    ~exists().where(messages.c.agent_id == agents.c.id),
    ~exists().where(submissions.c.agent_id == agents.c.id),
    ~exists().where(lines.c.agent_id == agents.c.id, lines.c.process_id.is_not(None)),
)
_OLD_OR_ALIVE = or_(agents.c.destroyed_at.is_(None), agents.c.destroyed_at <= now(span("age")))
_SWEPT = update(agents).where(_MINE, _OLD_OR_ALIVE).values(sweep_at=null())
_FORGET = delete(agents).where(_GONE)
_FORGET_LINES = delete(lines).where(lines.c.agent_id == bindparam("agent"), lines.c.process_id.is_(None))


def to_sweep(tx: Tx, limit: int) -> Sequence[Row[Any]]:
    """Agents that were destroyed, and of which something may be left."""
    return tx.execute(_TO_SWEEP, {"at_most": limit}).all()


def sweep_again(tx: Tx, agent_id: str, after: timedelta) -> None:
    """Look again later at what is left of a destroyed agent."""
    tx.execute(_SWEEP_AGAIN, {"agent": agent_id, "after": after})


def forget(tx: Tx, agent_id: str, older_than: timedelta) -> bool:
    """Delete the row of an agent that was destroyed so long ago, and its line; say whether that was done.

    One that lives again keeps both, and is not looked at again. One that was destroyed later is.
    """
    values = {"agent": agent_id, "age": -older_than}
    if tx.execute(_FORGET, values).rowcount == 1:
        tx.execute(_FORGET_LINES, {"agent": agent_id})
        return True
    tx.execute(_SWEPT, values)
    return False
