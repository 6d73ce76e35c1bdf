"""Rows of a conversation."""

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Row,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql

from think_celery.clock import to_microseconds
from think_celery.store.database import Tx
from think_celery.store.leases import LINE_HELD, TURNS, Lease
from think_celery.store.statements import insert_new, on_each
from think_celery.store.submissions import IS_UNFINISHED
from think_celery.store.tables import UNPLACED, lines, messages, submissions
from think_celery.store.types import as_json_text

STREAMING, DONE = "streaming", "done"

_OF_AGENT = messages.c.agent_id == bindparam("agent")
_MESSAGE = bindparam("message", type_=messages.c.message_id.type)
_MINE = and_(_OF_AGENT, messages.c.message_id == _MESSAGE)
END = (
    func.coalesce(
        select(func.max(messages.c.position))
        .where(_OF_AGENT, messages.c.position < UNPLACED)
        .scalar_subquery(),
        0,
    )
    + 1
)

_APPEND = insert_new(messages, messages.c.seq, position=END, status=DONE)


def append(tx: Tx, agent_id: str, message: dict[str, Any]) -> bool:
    """Add a message at the end, and say whether it is new: an id that is there already changes nothing."""
    return tx.execute(_APPEND, {"agent": agent_id, "agent_id": agent_id, **message}).first() is not None


_OF_A_TURN = select(submissions.c.id).where(
    submissions.c.agent_id == bindparam("agent"),
    or_(submissions.c.message_id == _MESSAGE, submissions.c.continues == _MESSAGE),
    IS_UNFINISHED,
)
_UPSERT = on_each(
    lambda insert: (
        (new := insert(messages).values(position=END, status=DONE))
        .on_conflict_do_update(
            index_elements=[messages.c.agent_id, messages.c.message_id],
            set_={name: new.excluded[name] for name in ("role", "parts", "metadata")},
            where=messages.c.status == DONE,
        )
        .returning(messages.c.seq)
    )
)


def upsert(tx: Tx, agent_id: str, message: dict[str, Any]) -> bool:
    """Add a message at the end, or change the one of its id where it stands, and say whether that was done.

    The message of a turn that has not ended is the turn's own and stays as it is.
    """
    if tx.execute(_OF_A_TURN, {"agent": agent_id, "message": message["message_id"]}).first() is not None:
        return False
    return tx.execute(_UPSERT, {"agent": agent_id, "agent_id": agent_id, **message}).first() is not None


def _putting(position: Any, status: str) -> Any:
    placed = {"position": position, "status": status}
    return on_each(
        lambda insert: (new := insert(messages).values(placed)).on_conflict_do_update(
            index_elements=[messages.c.agent_id, messages.c.message_id],
            set_={"parts": new.excluded.parts, "metadata": new.excluded.metadata, **placed},
        )
    )


_PUT_UNFINISHED = _putting(UNPLACED, STREAMING)
_PUT_FINISHED = _putting(END, DONE)


def store_unfinished(tx: Tx, agent_id: str, message: dict[str, Any]) -> None:
    """Store a turn's message so far. It has no place in the order yet."""
    tx.execute(_PUT_UNFINISHED, {"agent_id": agent_id, **message})


GIVEN = ("message_id", "role", "parts", "metadata", "created_at")


def putting_under(
    line: CTE, insert: Callable[[Table], Any], position: ColumnElement[Any], status: str
) -> Any:
    """The INSERT of a turn's message, or the change of it, where *line* has its agent's row; else it stores nothing.

    Its parameters are ``new_…`` for each of :data:`GIVEN`.
    """
    row = select(
        line.c.agent_id,
        *(bindparam(f"new_{name}", type_=messages.c[name].type) for name in GIVEN),
        position,
        literal(status, messages.c.status.type),
    ).where(true())  # SQLite takes ON CONFLICT behind a SELECT only where that has a WHERE
    new = insert(messages).from_select(["agent_id", *GIVEN, "position", "status"], row)
    return new.on_conflict_do_update(
        index_elements=[messages.c.agent_id, messages.c.message_id],
        set_={name: new.excluded[name] for name in ("parts", "metadata", "position", "status")},
    ).returning(messages.c.seq)


def _putting_fenced() -> Any:
    line = select(lines.c.agent_id).where(LINE_HELD).with_for_update(key_share=True).cte("line")
    line = line.prefix_with("MATERIALIZED", dialect="postgresql")
    unplaced = literal(UNPLACED, messages.c.position.type)
    return on_each(lambda insert: putting_under(line, insert, unplaced, STREAMING))


_PUT_UNFINISHED_FENCED = _putting_fenced()


def store_unfinished_fenced(tx: Tx, lease: Lease, message: dict[str, Any]) -> bool:
    """Store a turn's message so far, fenced by the line's lease in the same statement: False if that is lost.

    While a model writes, each of its turns does this once a second: as a transaction it would be four round trips.
    """
    values = {f"new_{name}": value for name, value in message.items()}
    return tx.execute(_PUT_UNFINISHED_FENCED, {**lease.parameters, **values}).first() is not None


_GIVEN = (
    func.json_to_recordset(cast(bindparam("given", type_=Text()), JSON()))
    .table_valued(
        column("agent", Text()),
        column("token", lines.c.token.type),
        column("process", Text()),
        *(column(name, Text()) for name in ("message_id", "role", "parts", "metadata")),
        column("created_at", BigInteger()),
    )
    .render_derived(name="given", with_types=True)
)


def _putting_all_fenced() -> Any:
    held = and_(
        lines.c.agent_id == _GIVEN.c.agent,
        lines.c.kind == TURNS,
        lines.c.token == _GIVEN.c.token,
        lines.c.process_id == _GIVEN.c.process,
    )
    line = (
        select(lines.c.agent_id, *(_GIVEN.c[name] for name in GIVEN))
        .select_from(lines.join(_GIVEN, held))
        .with_for_update(of=lines, key_share=True, skip_locked=True)
        .cte("line")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    placed = (literal(UNPLACED, messages.c.position.type), literal(STREAMING, messages.c.status.type))
    row = select(line.c.agent_id, *(line.c[name] for name in GIVEN), *placed)
    new = postgresql.insert(messages).from_select(["agent_id", *GIVEN, "position", "status"], row)
    return new.on_conflict_do_update(
        index_elements=[messages.c.agent_id, messages.c.message_id],
        set_={name: new.excluded[name] for name in ("parts", "metadata", "position", "status")},
    ).returning(messages.c.agent_id)


_PUT_ALL_UNFINISHED_FENCED = _putting_all_fenced()


def as_given(lease: Lease, message: dict[str, Any]) -> dict[str, Any]:
    """A turn's message so far, and the lease that fences it, for :func:`store_all_unfinished_fenced`."""
    return {
        "agent": lease.key,
        "token": lease.token,
        "process": lease.process_id,
        **message,
        "parts": as_json_text(message["parts"]),
        "metadata": as_json_text(message["metadata"]),
        "created_at": to_microseconds(message["created_at"]),
    }


def store_all_unfinished_fenced(tx: Tx, given: list[dict[str, Any]]) -> set[str]:
    """Store the messages so far of several turns on PostgreSQL, each fenced by its line's lease.

    Returns the agents of those that were stored: not whose lease is lost, and not whose line somebody has locked.
    """
    text = json.dumps(given)
    return set(tx.execute(_PUT_ALL_UNFINISHED_FENCED, {"given": text}).scalars())


def store_finished(tx: Tx, agent_id: str, message: dict[str, Any]) -> None:
    """Store a turn's message for good, after everything that was added meanwhile."""
    tx.execute(_PUT_FINISHED, {"agent": agent_id, "agent_id": agent_id, **message})


_FREE = select(messages.c.seq).where(_MINE).with_for_update(key_share=True, skip_locked=True)
_REOPEN = update(messages).where(messages.c.seq.in_(_FREE)).values(position=UNPLACED, status=STREAMING)


def reopen(tx: Tx, agent_id: str, message_id: str) -> None:
    """Let a turn go on with a message: until it ends, that is the turn's own, and has no place in the order.

    One that a caller has locked is not waited for: it becomes the turn's own when the turn first stores it.
    """
    tx.execute(_REOPEN, {"agent": agent_id, "message": message_id})


_GET = select(messages).where(_MINE)
_IN_ORDER = (
    select(
        messages.c.message_id,
        messages.c.role,
        messages.c.parts,
        messages.c.metadata,
        messages.c.created_at,
        messages.c.position,
        messages.c.status,
    )
    .where(_OF_AGENT)
    .order_by(messages.c.position, messages.c.seq)
)


def get(tx: Tx, agent_id: str, message_id: str) -> Row[Any] | None:
    """One message."""
    return tx.execute(_GET, {"agent": agent_id, "message": message_id}).first()


_LOCK = _GET.with_for_update(key_share=True)
_LAST = _IN_ORDER.order_by(None).order_by(messages.c.position.desc(), messages.c.seq.desc()).limit(1)


def lock(tx: Tx, agent_id: str, message_id: str) -> Row[Any] | None:
    """One message, locked for this transaction."""
    return tx.execute(_LOCK, {"agent": agent_id, "message": message_id}).first()


def last(tx: Tx, agent_id: str) -> Row[Any] | None:
    """The last message of an agent."""
    return tx.execute(_LAST, {"agent": agent_id}).first()


def of(tx: Tx, agent_id: str) -> list[Row[Any]]:
    """All messages of an agent in their order, the unfinished one last."""
    return list(tx.execute(_IN_ORDER, {"agent": agent_id}))


_UPDATE = update(messages).where(_MINE)


def update_parts(tx: Tx, agent_id: str, message_id: str, parts: list[dict[str, Any]]) -> bool:
    """Change what a message says, where it stands; False if it is not there any more."""
    found = tx.execute(_UPDATE, {"agent": agent_id, "message": message_id, "parts": parts})
    return found.rowcount == 1


_REMOVE = delete(messages).where(_MINE)
_REMOVE_ALL = delete(messages).where(_OF_AGENT)


def remove(tx: Tx, agent_id: str, message_id: str) -> None:
    """Delete one message."""
    tx.execute(_REMOVE, {"agent": agent_id, "message": message_id})


def remove_all(tx: Tx, agent_id: str) -> int:
    """Delete every message of an agent, and say how many there were."""
    return tx.execute(_REMOVE_ALL, {"agent": agent_id}).rowcount


_UNFINISHED = and_(
    _OF_AGENT,
    messages.c.status == STREAMING,
    or_(_MESSAGE.is_(None), messages.c.message_id == _MESSAGE),
)
_SETTLE = update(messages).where(_UNFINISHED).values(position=END, status=DONE)
_SELECT_UNFINISHED = select(messages.c.message_id, messages.c.parts).where(_UNFINISHED)


def unfinished(tx: Tx, agent_id: str, message_id: str | None = None) -> list[Row[Any]]:
    """An agent's unfinished messages (or that one, if it is unfinished): id and parts."""
    return list(tx.execute(_SELECT_UNFINISHED, {"agent": agent_id, "message": message_id}))


def settle_all(tx: Tx, agent_id: str, message_id: str | None = None) -> None:
    """Give an agent's unfinished messages (or that one), as they are stored, their place in the order."""
    tx.execute(_SETTLE, {"agent": agent_id, "message": message_id})
