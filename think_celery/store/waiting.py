"""What those who wait ask for: how turns stand, and who waits for whom."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Row, and_, bindparam, exists, literal_column, select, union_all, update

from think_celery.errors import LeaseLost
from think_celery.states import InteractionStatus, SubmissionStatus
from think_celery.store.database import Tx
from think_celery.store.leases import LINE_HELD, TURNS, Lease
from think_celery.store.messages import DONE, STREAMING
from think_celery.store.submissions import IS_UNFINISHED
from think_celery.store.tables import agents, interactions, lines, messages, submissions


@dataclass(frozen=True, slots=True)
class Standing:
    """Of those who were asked for: which submissions have not ended, which agents have such ones, a message in the
    making or a call that waits for somebody, and whose lines are held."""

    unfinished: frozenset[str]
    busy: frozenset[str]
    held: frozenset[str]


_OF_AGENTS: BindParameter[str] = bindparam("agents", expanding=True)
_STANDING = union_all(
    select(literal_column("'unfinished'").label("what"), submissions.c.id.label("which")).where(
        submissions.c.id.in_(bindparam("submissions", expanding=True)), IS_UNFINISHED
    ),
    select(literal_column("'busy'"), submissions.c.agent_id).where(
        submissions.c.agent_id.in_(_OF_AGENTS), IS_UNFINISHED
    ),
    select(literal_column("'busy'"), messages.c.agent_id).where(
        messages.c.agent_id.in_(_OF_AGENTS), messages.c.status == STREAMING
    ),
    select(literal_column("'busy'"), interactions.c.agent_id).where(
        interactions.c.agent_id.in_(_OF_AGENTS),
        interactions.c.status == literal_column(f"'{InteractionStatus.OPEN}'"),
    ),
    select(literal_column("'held'"), lines.c.agent_id).where(
        lines.c.agent_id.in_(bindparam("lines", expanding=True)),
        lines.c.kind == TURNS,
        lines.c.process_id.is_not(None),
    ),
)


def standing(
    tx: Tx, submission_ids: Iterable[str], agent_ids: Iterable[str], line_ids: Iterable[str]
) -> Standing:
    """How these submissions, these agents and the lines of these stand: one statement for all who wait."""
    asked = {"submissions": list(submission_ids), "agents": list(agent_ids), "lines": list(line_ids)}
    found: dict[str, set[str]] = {"unfinished": set(), "busy": set(), "held": set()}
    for row in tx.execute(_STANDING, asked):
        found[row.what].add(row.which)
    return Standing(**{what: frozenset(which) for what, which in found.items()})


_SETTLING = select(
    and_(
        exists().where(
            lines.c.agent_id == bindparam("agent"), lines.c.kind == TURNS, lines.c.process_id.is_not(None)
        ),
        ~exists().where(
            submissions.c.agent_id == bindparam("agent"), submissions.c.status == SubmissionStatus.RUNNING
        ),
        ~exists().where(
            messages.c.agent_id == bindparam("agent"),
            messages.c.message_id == bindparam("message"),
            messages.c.status == DONE,
        ),
    )
)


def is_settling(tx: Tx, agent_id: str, message_id: str) -> bool:
    """Whether the worker of a turn that was cancelled may still store its partial text."""
    return bool(tx.execute(_SETTLING, {"agent": agent_id, "message": message_id}).scalar())


# --- who waits for whom ---------------------------------------------------------------------------

_WAITED_FOR = select(lines.c.waits_for).where(LINE_HELD).with_for_update(key_share=True)
_WAIT_FOR = update(lines).where(LINE_HELD).values(waits_for=bindparam("whom", type_=lines.c.waits_for.type))


def wait_for(tx: Tx, lease: Lease, agent_id: str) -> None:
    """Note in the holder's own line that its turn waits for that agent. Several tools of it may wait at once.

    Raises:
        LeaseLost: The line is another's.
    """
    found = tx.execute(_WAITED_FOR, lease.parameters).first()
    if found is None:
        raise LeaseLost(str(lease))
    _set(tx, lease, [*(found.waits_for or ()), agent_id])


def wait_no_more(tx: Tx, lease: Lease, agent_id: str) -> None:
    """Undo one :func:`wait_for`, if the line is still the holder's."""
    found = tx.execute(_WAITED_FOR, lease.parameters).first()
    whom = [] if found is None else list(found.waits_for or ())
    if agent_id in whom:
        whom.remove(agent_id)
        _set(tx, lease, whom)


def _set(tx: Tx, lease: Lease, whom: Sequence[str]) -> None:
    tx.execute(_WAIT_FOR, {**lease.parameters, "whom": list(whom) or None})


_EDGES = select(lines.c.agent_id, lines.c.waits_for).where(
    lines.c.agent_id.in_(_OF_AGENTS),
    lines.c.kind == TURNS,
    lines.c.process_id.is_not(None),
    lines.c.waits_for.is_not(None),
)


def waited_for_by(tx: Tx, agent_ids: Iterable[str]) -> dict[str, list[str]]:
    """Whom the turns that run for these agents wait for."""
    rows = tx.execute(_EDGES, {"agents": list(agent_ids)})
    return {row.agent_id: list(row.waits_for) for row in rows}


_NAMES = select(agents.c.id, agents.c.agent_class, agents.c.name).where(agents.c.id.in_(_OF_AGENTS))


def names_of(tx: Tx, agent_ids: Iterable[str]) -> list[Row[Any]]:
    """Class and name of each of these agents that ever ran."""
    return list(tx.execute(_NAMES, {"agents": list(agent_ids)}))
