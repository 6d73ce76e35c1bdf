"""The beginning of a turn, in the usual case: a look, and one statement that takes the line and begins.

On PostgreSQL only. A transaction asks for the same rows one after the other, and each of its statements costs a turn a
round trip. What is not usual is left to such a transaction: then nothing is changed here.

The look takes no lock. What it saw of the line's order still holds where the line's token is still the one that it saw:
nobody has had the line in between. Nobody is waited for, either: what another has locked is not usual.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import CTE, Row, and_, bindparam, exists, func, literal, null, select, update
from sqlalchemy.dialects.postgresql import insert

from think_celery.states import SUBMISSION_MOVES, SubmissionStatus
from think_celery.store import messages, submissions
from think_celery.store.database import Tx
from think_celery.store.heads import candidate
from think_celery.store.leases import TURNS, Lease
from think_celery.store.moves import moving
from think_celery.store.statements import now
from think_celery.store.tables import agents, lines
from think_celery.store.tables import messages as message_table
from think_celery.store.tables import submissions as submission_table

_OWNER = submission_table.alias("owner")
_AGENT = (
    select(_OWNER.c.agent_id).where(_OWNER.c.id == bindparam("submission")).correlate(None).scalar_subquery()
)
_ITS_LINE = and_(lines.c.agent_id == submission_table.c.agent_id, lines.c.kind == TURNS)
_LOOK = (
    candidate(_AGENT, lines.c.token.label("line_token"), lines.c.process_id.label("held_by"))
    .select_from(submission_table.outerjoin(lines, _ITS_LINE))
    .where(submissions.MINE)
)


def look(tx: Tx, submission_id: str) -> Row[Any] | None:
    """What a claim asks of a submission, without a lock: see ``heads.lock_candidate``.

    With ``line_token`` and ``held_by`` of its line; without a token there is no line yet.
    """
    return tx.execute(_LOOK, {"submission": submission_id}).first()


# --- the first turn of an agent -------------------------------------------------------------------


def _making() -> Any:
    # Read before anything is inserted, and undone at the end of the statement.
    limit = select(func.set_config("lock_timeout", bindparam("milliseconds"), literal(True)).label("it")).cte(
        "patience"
    )
    limit = limit.prefix_with("MATERIALIZED", dialect="postgresql")
    limited = submission_table.join(limit, limit.c.it.is_not(None))
    names = ("agent_id", "agent_class", "agent_name")
    agent = insert(agents).from_select(
        ["id", "agent_class", "name", "epoch", "created_at"],
        select(*(submission_table.c[name] for name in names), literal(0), now())
        .select_from(limited)
        .where(submissions.MINE),
    )
    made: CTE = agent.on_conflict_do_nothing().returning(agents.c.id).cte("made")
    first = select(func.count()).select_from(made).scalar_subquery()  # the agent's row before its line
    line = insert(lines).from_select(
        ["agent_id", "kind", "token"],
        select(submission_table.c.agent_id, literal(TURNS), literal(0)).where(submissions.MINE, first >= 0),
    )
    return line.on_conflict_do_nothing()


_MAKE = _making()


def make_line(tx: Tx, submission_id: str, patience: timedelta) -> None:
    """Make the rows of a submission's agent and of its line where there are none, with the token 0.

    Where a caller is just making the agent's row, it is waited for that long; then it raises.
    """
    milliseconds = patience // timedelta(milliseconds=1)
    tx.execute(_MAKE, {"submission": submission_id, "milliseconds": str(milliseconds)})


# --- beginning ------------------------------------------------------------------------------------

_COLUMNS = ("message_id", "role", "parts", "metadata", "created_at")


def _beginning() -> Any:
    of_agent = and_(lines.c.agent_id == bindparam("agent"), lines.c.kind == TURNS)
    as_seen = and_(of_agent, lines.c.process_id.is_(None), lines.c.token == bindparam("seen_token"))
    free = (
        select(lines.c.agent_id).where(as_seen).with_for_update(key_share=True, skip_locked=True).cte("free")
    )
    mine = (
        select(submission_table.c.seq, submission_table.c.agent_id)
        .select_from(submission_table.join(free, free.c.agent_id == submission_table.c.agent_id))
        .where(
            submission_table.c.seq == bindparam("number"),
            submission_table.c.status == SubmissionStatus.PENDING,
            submission_table.c.applied_at.is_(None),
        )
        .with_for_update(key_share=True, skip_locked=True, of=submission_table)
        .cte("mine")
    )
    added = (
        insert(message_table)
        .from_select(
            ["agent_id", *_COLUMNS, "position", "status"],
            select(
                mine.c.agent_id,
                *(bindparam(f"new_{name}", type_=message_table.c[name].type) for name in _COLUMNS),
                messages.END,
                literal(messages.DONE),
            ),
        )
        .on_conflict_do_nothing()
        .returning(message_table.c.seq)
        .cte("added")
    )
    begun = moving(
        submission_table,
        and_(submission_table.c.seq.in_(select(mine.c.seq)), exists(select(added.c.seq))),
        SubmissionStatus.RUNNING,
        allowed=SUBMISSION_MOVES,
        message_id=bindparam("answer", type_=submission_table.c.message_id.type),
        **submissions.BEGUN,
    ).cte("begun")
    return (
        update(lines)
        .where(of_agent, exists(select(begun.c.status)))
        .values(process_id=bindparam("process"), token=lines.c.token + 1, waits_for=null())
        .returning(lines.c.token)
    )


_BEGIN = _beginning()


def begin(
    tx: Tx, row: Any, token: int, process_id: str, answer_id: str, message: dict[str, Any]
) -> Lease | None:
    """Take the line, append the submitted message and begin the turn, as :func:`look` saw them under that token.

    ``None``, and nothing is changed, where any of it is not so any more, or there is such a message already.
    """
    given = {f"new_{name}": message.get(name) for name in _COLUMNS}
    of = {"agent": row.agent_id, "seen_token": token, "number": row.seq, "process": process_id}
    found = tx.execute(_BEGIN, {**of, "answer": answer_id, **given}).first()
    if found is None:
        return None
    return Lease(kind=TURNS, key=row.agent_id, process_id=process_id, token=found.token)
