"""Tokens that agents have used: counted with each submission, and kept when its row goes."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, select, union_all

from think_celery.store.database import Tx
from think_celery.store.statements import Statement
from think_celery.store.tables import past_usage, submissions

COUNTED = ("input_tokens", "output_tokens", "total_tokens")


def _sums(table: Any) -> list[Any]:
    return [func.coalesce(func.sum(table.c[name]), 0).label(name) for name in COUNTED]


_PARTS = union_all(
    *(
        select(*_sums(table)).where(table.c.agent_id == bindparam("agent"))
        for table in (submissions, past_usage)
    )
)


def of_agent(tx: Tx, agent_id: str) -> dict[str, int]:
    """The sums over all submissions of an agent, also those whose rows are gone."""
    rows = tx.execute(_PARTS, {"agent": agent_id}).all()
    return {name: sum(int(getattr(row, name)) for row in rows) for name in COUNTED}


_USED = submissions.c.total_tokens + submissions.c.input_tokens + submissions.c.output_tokens > 0


def _keeping() -> Statement:
    of = submissions.c.seq.in_(bindparam("numbers", expanding=True))
    sums = [func.sum(submissions.c[name]) for name in COUNTED]
    grouped = select(submissions.c.agent_id, *sums).where(of, _USED).group_by(submissions.c.agent_id)
    return past_usage.insert().from_select(["agent_id", *COUNTED], grouped)


_KEEP = _keeping()


def keep(tx: Tx, numbers: Sequence[int]) -> None:
    """Keep what these submissions have used: they are deleted in this transaction."""
    tx.execute(_KEEP, {"numbers": list(numbers)})


_REMOVE_ALL = delete(past_usage).where(past_usage.c.agent_id == bindparam("agent"))


def remove_all(tx: Tx, agent_id: str) -> None:
    """Forget what deleted submissions of an agent have used."""
    tx.execute(_REMOVE_ALL, {"agent": agent_id})
