"""The end of a turn that ends by itself: its line, its message and its submission change together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import CTE, and_, bindparam, delete, exists, func, null, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql import ColumnElement

from think_celery.errors import LeaseLost
from think_celery.states import SUBMISSION_MOVES, SubmissionStatus
from think_celery.store import lines, messages, outbox, submissions
from think_celery.store.database import Tx
from think_celery.store.leases import LINE_HELD, Lease, fence
from think_celery.store.moves import moving
from think_celery.store.tables import lines as line_table
from think_celery.store.tables import messages as message_table
from think_celery.store.tables import submissions as submission_table


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnEnd:
    """How a turn in hand ends: what is stored with it.

    Where *message* is ``None``, what is stored of the message is removed. With *keep* the line stays its holder's.
    """

    lease: Lease
    seq: int
    status: SubmissionStatus
    message_id: str
    message: dict[str, Any] | None = None
    keep: bool = False
    error_type: str | None = None
    error: str | None = None
    tokens: Mapping[str, int] | None = None


# On PostgreSQL this is one statement, for each costs a turn a round trip. All parts of it hang on the row of the line,
# which is locked first: where the line is not the holder's any more there is none, so nothing is stored or ended.
_FREED = update(line_table).where(LINE_HELD).values(process_id=null()).returning(line_table.c.agent_id)
_KEPT = select(line_table.c.agent_id).where(LINE_HELD).with_for_update(key_share=True)


def _removed(line: CTE) -> CTE:
    its_own = and_(
        message_table.c.agent_id.in_(select(line.c.agent_id)),
        message_table.c.message_id == bindparam("new_message_id", type_=message_table.c.message_id.type),
    )
    return delete(message_table).where(its_own).returning(message_table.c.seq).cte()


def _ended(line: CTE, status: SubmissionStatus) -> CTE:
    return moving(
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


@cache
def _ending(status: SubmissionStatus, *, keep: bool, says: bool) -> Any:
    line = (_KEPT if keep else _FREED).cte()
    return _statement(line, _ended(line, status), says)


def _statement(line: CTE, ended: CTE, says: bool, *more: ColumnElement[Any]) -> Any:
    return select(
        select(func.count()).select_from(line).scalar_subquery().label("held"),
        select(func.count()).select_from(ended).scalar_subquery().label("ended"),
        *more,
    ).add_cte(
        messages.putting_under(line, insert, messages.END, messages.DONE).cte() if says else _removed(line)
    )


def end_turn(tx: Tx, end: TurnEnd) -> bool:
    """Give the line back, store the message for good (or remove it), end the submission; False if it had ended.

    Raises:
        LeaseLost: The line is not the holder's any more. Nothing is changed.
    """
    if not tx.postgres:
        return _end_in_steps(tx, end)
    done = tx.execute(_ending(end.status, keep=end.keep, says=end.message is not None), _given(end)).one()
    if not done.held:
        raise LeaseLost(str(end.lease))
    return bool(done.ended)


def _end_in_steps(tx: Tx, end: TurnEnd) -> bool:
    lease = end.lease
    if end.keep:
        fence(tx, lease)
    elif not lines.free_line(tx, lease):
        raise LeaseLost(str(lease))
    if end.message is None:
        messages.remove(tx, lease.key, end.message_id)
    else:
        messages.store_finished(tx, lease.key, end.message)
    return submissions.end(
        tx, end.seq, end.status, error_type=end.error_type, error=end.error, tokens=end.tokens
    )


def _given(end: TurnEnd) -> dict[str, Any]:
    new: dict[str, Any] = {"new_message_id": end.message_id}
    if end.message is not None:
        new = {"agent": end.lease.key, **{f"new_{name}": end.message.get(name) for name in messages.GIVEN}}
    values = {"number": end.seq, "why_type": end.error_type, "why": end.error}
    return {**end.lease.parameters, **new, **values, **submissions.used(end.tokens)}


# --- the whole end in one statement ---------------------------------------------------------------

_PENDING = and_(
    submission_table.c.agent_id == bindparam("lease_key"),
    submission_table.c.status == SubmissionStatus.PENDING,
)


@cache
def _ending_at_once(status: SubmissionStatus, *, keep: bool, says: bool, tells: bool) -> Any:
    # Only where nobody waits: who does must be expected (`knock_at`) by a statement that sees the line free. One that
    # is committed while this runs has set its own time, as everything that is accepted; where the tick has taken that
    # back since, it has said so in the line.
    nobody_waits = and_(
        line_table.c.look_at.is_(None), ~exists(select(submission_table.c.seq).where(_PENDING))
    )
    line = (_KEPT if keep else _FREED.where(nobody_waits)).cte()
    ended = _ended(line, status)
    if not tells:
        return _statement(line, ended, says)
    news = select(outbox.inserting(ended).c.id).scalar_subquery().label("news_id")
    return _statement(line, ended, says, news)


def end_at_once(tx: Tx, end: TurnEnd, news: Mapping[str, Any] | None) -> tuple[bool, str | None] | None:
    """Do what :func:`end_turn` does, store the news of it, and see that nobody has to be expected, on PostgreSQL.

    Whether this call ended it, and the id of the news, if that is new. ``None``, and nothing is changed: another
    submission waits for the line that is given back; or the line is not the holder's any more.
    """
    how = _ending_at_once(end.status, keep=end.keep, says=end.message is not None, tells=news is not None)
    told = {} if news is None else {f"news_{name}": news[name] for name in outbox.GIVEN}
    done = tx.execute(how, {**_given(end), **told}).one()
    if not done.held:
        return None
    return bool(done.ended), None if news is None else done.news_id
