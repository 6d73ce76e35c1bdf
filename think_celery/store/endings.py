"""The end of a turn that ends by itself: its line, its message and its submission change together."""

from typing import Any

from sqlalchemy import and_, bindparam, func, literal, null, select, update
from sqlalchemy.dialects.postgresql import insert

from think_celery.errors import LeaseLost
from think_celery.states import SUBMISSION_MOVES, SubmissionStatus, is_terminal
from think_celery.store import lines, messages, submissions
from think_celery.store.database import Tx
from think_celery.store.leases import LINE_HELD, Lease
from think_celery.store.moves import moving
from think_celery.store.tables import lines as line_table
from think_celery.store.tables import messages as message_table
from think_celery.store.tables import submissions as submission_table

# On PostgreSQL one statement, for each costs a turn a round trip. What is not `freed` gives no row to insert and
# ends nothing, and both must wait for that: so the line is locked first, as by two statements.
_FREED = update(line_table).where(LINE_HELD).values(process_id=null()).returning(line_table.c.agent_id).cte()
_COLUMNS = ["message_id", "role", "parts", "metadata", "created_at"]
_NEW = select(
    _FREED.c.agent_id,
    *(bindparam(f"new_{name}", type_=message_table.c[name].type) for name in _COLUMNS),
    messages.END,
    literal(messages.DONE),
)
_INSERT = insert(message_table).from_select(["agent_id", *_COLUMNS, "position", "status"], _NEW)
_STORED = (
    _INSERT.on_conflict_do_update(
        index_elements=[message_table.c.agent_id, message_table.c.message_id],
        set_={name: _INSERT.excluded[name] for name in ("parts", "metadata", "position", "status")},
    )
    .returning(message_table.c.seq)
    .cte()
)


def _ending(status: SubmissionStatus) -> Any:
    ended = moving(
        submission_table,
        and_(
            submission_table.c.seq == bindparam("number"),
            submission_table.c.agent_id.in_(select(_FREED.c.agent_id)),
        ),
        status,
        allowed=SUBMISSION_MOVES,
        error_type=bindparam("why_type", type_=submission_table.c.error_type.type),
        error=bindparam("why", type_=submission_table.c.error.type),
        **submissions.ENDED,
    ).cte()
    return select(
        select(func.count()).select_from(_FREED).scalar_subquery().label("freed"),
        select(func.count()).select_from(ended).scalar_subquery().label("ended"),
    ).add_cte(_STORED)


_END = {status: _ending(status) for status in SubmissionStatus if is_terminal(status)}


def end_turn(
    tx: Tx,
    lease: Lease,
    seq: int,
    status: SubmissionStatus,
    message_id: str,
    message: dict[str, Any] | None,
    *,
    error_type: str | None,
    error: str | None,
) -> bool:
    """Give the line back, store the message for good (or remove it), end the submission; False if it had ended.

    Raises:
        LeaseLost: The line is not the holder's any more. Nothing is changed.
    """
    if message is None or not tx.postgres:
        if not lines.free_line(tx, lease):
            raise LeaseLost(str(lease))
        if message is None:
            messages.remove(tx, lease.key, message_id)
        else:
            messages.store_finished(tx, lease.key, message)
        return submissions.end(tx, seq, status, error_type=error_type, error=error)
    new = {f"new_{name}": message.get(name) for name in _COLUMNS}
    values = {"agent": lease.key, "number": seq, "why_type": error_type, "why": error}
    done = tx.execute(_END[status], {**lease.parameters, **new, **values}).one()
    if not done.freed:
        raise LeaseLost(str(lease))
    return bool(done.ended)
