"""Rows of clients' messages that wait, and may be replaced by later ones."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Row, bindparam, or_, select, update

from think_celery.states import SubmissionStatus, TurnKind
from think_celery.store.database import Tx
from think_celery.store.heads import HEAD_ID
from think_celery.store.statements import now, span
from think_celery.store.submissions import MINE
from think_celery.store.tables import submissions

_REPLACEABLE = (
    select(submissions)
    .where(
        submissions.c.agent_id == bindparam("agent"),
        submissions.c.status == SubmissionStatus.PENDING,
        submissions.c.kind == TurnKind.CHAT,
        submissions.c.message_id.is_(None),  # its turn has never begun
        or_(submissions.c.id != HEAD_ID, submissions.c.not_before > now()),
    )
    .order_by(submissions.c.seq)
    .with_for_update(key_share=True, skip_locked=True, of=submissions)
)


def replaceable(tx: Tx, agent_id: str) -> list[Row[Any]]:
    """An agent's messages of clients that wait and may not run yet, locked, oldest first."""
    return list(tx.execute(_REPLACEABLE, {"agent": agent_id}))


_BEGIN_LATER = (
    update(submissions).where(MINE).values(not_before=now(span("after")), knock_at=now(span("after")))
)


def begin_later(tx: Tx, submission_id: str, after: timedelta) -> None:
    """Let a turn that was just accepted begin only after that span."""
    tx.execute(_BEGIN_LATER, {"submission": submission_id, "after": after})
