"""The end of a turn that ends by itself: its line, its message and its submission change together."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import CTE, and_, bindparam, func, literal, null, select, update
from sqlalchemy.dialects.postgresql import insert

from think_celery.errors import LeaseLost
from think_celery.states import SUBMISSION_MOVES, SubmissionStatus, is_terminal
from think_celery.store import lines, messages, submissions
from think_celery.store.database import Tx
from think_celery.store.leases import LINE_HELD, Lease, fence
from think_celery.store.moves import moving
from think_celery.store.tables import lines as line_table
from think_celery.store.tables import messages as message_table
from think_celery.store.tables import submissions as submission_table

# On PostgreSQL one statement, for each costs a turn a round trip. Where the line is not the holder's any more there is
# no row of it, so that nothing is inserted and nothing ends; both must wait for it: so the line is locked first, as by
# two statements.
_FREED = update(line_table).where(LINE_HELD).values(process_id=null()).returning(line_table.c.agent_id)
_KEPT = select(line_table.c.agent_id).where(LINE_HELD).with_for_update(key_share=True)
_COLUMNS = ["message_id", "role", "parts", "metadata", "created_at"]


def _stored(line: CTE) -> CTE:
    new = select(
        line.c.agent_id,
        *(bindparam(f"new_{name}", type_=message_table.c[name].type) for name in _COLUMNS),
        messages.END,
        literal(messages.DONE),
    )
    inserted = insert(message_table).from_select(["agent_id", *_COLUMNS, "position", "status"], new)
    return (
        inserted.on_conflict_do_update(
            index_elements=[message_table.c.agent_id, message_table.c.message_id],
            set_={name: inserted.excluded[name] for name in ("parts", "metadata", "position", "status")},
        )
        .returning(message_table.c.seq)
        .cte()
    )


def _ending(status: SubmissionStatus, *, keep: bool) -> Any:
    line = _KEPT.cte() if keep else _FREED.cte()
    ended = moving(
        submission_table,
        and_(
            submission_table.c.seq == bindparam("number"),
            submission_table.c.agent_id.in_(select(line.c.agent_id)),
        ),
        status,
        allowed=SUBMISSION_MOVES,
        error_type=bindparam("why_type", type_=submission_table.c.error_type.type),
        error=bindparam("why", type_=submission_table.c.error.type),
        **submissions.ENDED,
    ).cte()
    return select(
        select(func.count()).select_from(line).scalar_subquery().label("held"),
        select(func.count()).select_from(ended).scalar_subquery().label("ended"),
    ).add_cte(_stored(line))


_END = {
    (status, keep): _ending(status, keep=keep)
    for status in SubmissionStatus
    if is_terminal(status)
    for keep in (False, True)
}


def end_turn(
    tx: Tx,
    lease: Lease,
    seq: int,
    status: SubmissionStatus,
    message_id: str,
    message: dict[str, Any] | None,
    *,
    keep: bool,
    error_type: str | None,
    error: str | None,
    tokens: Mapping[str, int] | None = None,
) -> bool:
    """Give the line back, store the message for good (or remove it), end the submission; False if it had ended.

    With *keep* the line stays its holder's.

    Raises:
        LeaseLost: The line is not the holder's any more. Nothing is changed.
    """
    if message is None or not tx.postgres:
        if keep:
            fence(tx, lease)
        elif not lines.free_line(tx, lease):
            raise LeaseLost(str(lease))
        if message is None:
            messages.remove(tx, lease.key, message_id)
        else:
            messages.store_finished(tx, lease.key, message)
        return submissions.end(tx, seq, status, error_type=error_type, error=error, tokens=tokens)
    new = {f"new_{name}": message.get(name) for name in _COLUMNS}
    values = {"agent": lease.key, "number": seq, "why_type": error_type, "why": error}
    given = {**lease.parameters, **new, **values, **submissions.used(tokens)}
    done = tx.execute(_END[status, keep], given).one()
    if not done.held:
        raise LeaseLost(str(lease))
    return bool(done.ended)
