"""Rows of workflows that another workflow has started and waits for: its children."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, String, bindparam, cast, exists, literal, null, select, update

from think_celery.states import OutboxStatus
from think_celery.store.database import Tx
from think_celery.store.submissions import TERMINAL as ENDED_TURNS
from think_celery.store.tables import outbox, submissions, workflows
from think_celery.store.workflows import TERMINAL


def news_key(row: Row[Any]) -> str:
    """What tells the news of this end of a run from all other news: also of an earlier child of that id, of which
    nothing else is left."""
    return f"workflow:{row.key}:{row.run}:{row.parent_key}:{row.parent_run}:{row.parent_event}"


_c = workflows.c
NEWS_KEY = (
    literal("workflow:")
    + (_c.key + ":" + cast(_c.run, String) + ":")
    + (_c.parent_key + ":" + cast(_c.parent_run, String) + ":" + _c.parent_event)
)
"""The same in SQL."""
UNTOLD = exists().where(outbox.c.dedupe_key == NEWS_KEY, outbox.c.status == OutboxStatus.PENDING)
"""Whether the parent of a workflow has yet to get the news of its end."""

_LIVE = (
    select(workflows.c.key)
    .where(
        workflows.c.parent_key == bindparam("of_key"),
        workflows.c.parent_run == bindparam("of_run"),
        workflows.c.status.not_in(TERMINAL),
    )
    .order_by(workflows.c.key)
    .with_for_update(key_share=True)
)


def live(tx: Tx, key: str, run: int) -> Sequence[str]:
    """The keys of the children of that run which have not ended, locked in their order."""
    return tx.execute(_LIVE, {"of_key": key, "of_run": run}).scalars().all()


_child, _parent = workflows.alias("child"), workflows.alias("parent")
_PARENT = (
    select(_parent.c.key)
    .select_from(_child.join(_parent, _parent.c.key == _child.c.parent_key))
    .where(
        _child.c.key == bindparam("of_key"),
        _parent.c.run == _child.c.parent_run,
        _parent.c.status.not_in(TERMINAL),
    )
)


def ends_with(tx: Tx, key: str) -> Sequence[str]:
    """The keys of the runs whose end is that of this run, too: itself, the one that waits for it, and so on."""
    found: list[str] = []
    above: str | None = key
    while above is not None and above not in found:
        found.append(above)
        above = tx.execute(_PARENT, {"of_key": above}).scalar()
    return found


_LET_GO = (
    update(workflows)
    .where(workflows.c.key == bindparam("of_key"))
    .values(parent_key=null(), parent_run=null(), parent_event=null())
)


def let_go(tx: Tx, key: str) -> None:
    """Let a run be nobody's child any more: it goes on when its parent ends, and does not tell of its own end."""
    tx.execute(_LET_GO, {"of_key": key})


_UNFINISHED = (
    select(submissions.c.id)
    .where(
        submissions.c.id.in_(bindparam("ids", expanding=True)),
        submissions.c.status.not_in(ENDED_TURNS),
    )
    .order_by(submissions.c.seq)
)


def unfinished(tx: Tx, submission_ids: Sequence[str]) -> Sequence[str]:
    """Which of these submissions have not ended, in the order in which they were accepted."""
    return tx.execute(_UNFINISHED, {"ids": list(submission_ids)}).scalars().all()
