"""What those who wait ask for: how turns stand, and who waits for whom."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Row,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from think_celery.errors import LeaseLost
from think_celery.states import InteractionStatus, JobStatus, SubmissionStatus
from think_celery.store.database import Tx
from think_celery.store.leases import JOB_HELD, LINE_HELD, TURNS, Lease
from think_celery.store.messages import DONE, STREAMING
from think_celery.store.submissions import IS_UNFINISHED
from think_celery.store.tables import agents, interactions, jobs, lines, messages, submissions


@dataclass(frozen=True, slots=True)
class Standing:
    """Of those who were asked for: which submissions and jobs have not ended, which agents have such turns, a message
    in the making or a call that waits for somebody, and whose lines are held."""

    unfinished: frozenset[str]
    busy: frozenset[str]
    held: frozenset[str]


_GOES_ON = (JobStatus.PENDING, JobStatus.RUNNING)
_OF_AGENTS: BindParameter[str] = bindparam("agents", expanding=True)
_STANDING = union_all(
    select(literal_column("'unfinished'").label("what"), submissions.c.id.label("which")).where(
        submissions.c.id.in_(bindparam("submissions", expanding=True)), IS_UNFINISHED
    ),
    select(literal_column("'unfinished'"), jobs.c.id).where(
        jobs.c.id.in_(bindparam("submissions", expanding=True)),
        or_(*(jobs.c.status == literal_column(f"'{status}'") for status in _GOES_ON)),
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
    """How these submissions (or jobs), these agents and the lines of these stand: one statement for all who wait."""
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

JOB = "job "
"""What stands before a job's id among those that a turn or a job waits for; all others are agents."""

_HELD = {TURNS: (lines, LINE_HELD), "job": (jobs, JOB_HELD)}
_WAITED_FOR = {
    kind: select(table.c.waits_for).where(held).with_for_update(key_share=True)
    for kind, (table, held) in _HELD.items()
}
_WAIT_FOR = {
    kind: update(table).where(held).values(waits_for=bindparam("whom", type_=table.c.waits_for.type))
    for kind, (table, held) in _HELD.items()
}


def wait_for(tx: Tx, lease: Lease, whom: str) -> None:
    """Note in the holder's own line, or in its job's row, that it waits for that agent or job. Several tools of a
    turn may wait at once.

    Raises:
        LeaseLost: The line or the job is another's.
    """
    found = tx.execute(_WAITED_FOR[lease.kind], lease.parameters).first()
    if found is None:
        raise LeaseLost(str(lease))
    _set(tx, lease, [*(found.waits_for or ()), whom])


def wait_no_more(tx: Tx, lease: Lease, whom: str) -> None:
    """Undo one :func:`wait_for`, if the line or the job is still the holder's."""
    found = tx.execute(_WAITED_FOR[lease.kind], lease.parameters).first()
    noted = [] if found is None else list(found.waits_for or ())
    if whom in noted:
        noted.remove(whom)
        _set(tx, lease, noted)


def _set(tx: Tx, lease: Lease, whom: Sequence[str]) -> None:
    tx.execute(_WAIT_FOR[lease.kind], {**lease.parameters, "whom": list(whom) or None})


_OF_JOBS: BindParameter[str] = bindparam("several", expanding=True)
_EDGES = select(lines.c.agent_id, lines.c.waits_for).where(
    lines.c.agent_id.in_(_OF_AGENTS),
    lines.c.kind == TURNS,
    lines.c.process_id.is_not(None),
    lines.c.waits_for.is_not(None),
)
_JOB_EDGES = select(jobs.c.id, jobs.c.waits_for).where(
    jobs.c.id.in_(_OF_JOBS), jobs.c.process_id.is_not(None), jobs.c.waits_for.is_not(None)
)
_ahead, _first = jobs.alias("ahead"), jobs.alias("first")
_LANE_EDGES = (
    select(jobs.c.id, _ahead.c.id.label("head"))
    .join(_ahead, and_(_ahead.c.agent_id == jobs.c.agent_id, _ahead.c.lane == jobs.c.lane))
    .where(
        jobs.c.id.in_(_OF_JOBS),
        jobs.c.lane.is_not(None),
        _ahead.c.lane.is_not(None),
        _ahead.c.seq < jobs.c.seq,
        _ahead.c.seq
        == select(func.min(_first.c.seq))
        .where(_first.c.agent_id == jobs.c.agent_id, _first.c.lane == jobs.c.lane, _first.c.lane.is_not(None))
        .correlate(jobs)
        .scalar_subquery(),
    )
)


def waited_for_by(tx: Tx, several: Iterable[str]) -> dict[str, list[str]]:
    """Whom the turns that run for these agents wait for, and these jobs: a queued one waits for the first of its lane,
    which alone can run."""
    several = list(several)
    of_jobs = {"several": [each.removeprefix(JOB) for each in several if each.startswith(JOB)]}
    of_agents = {"agents": [each for each in several if not each.startswith(JOB)]}
    found: dict[str, list[str]] = {}
    if of_agents["agents"]:
        found = {row.agent_id: list(row.waits_for) for row in tx.execute(_EDGES, of_agents)}
    if of_jobs["several"]:
        for row in tx.execute(_JOB_EDGES, of_jobs):
            found.setdefault(JOB + row.id, []).extend(row.waits_for)
        for row in tx.execute(_LANE_EDGES, of_jobs):
            found.setdefault(JOB + row.id, []).append(JOB + row.head)
    return found


_NAMES = select(agents.c.id, agents.c.agent_class, agents.c.name).where(agents.c.id.in_(_OF_AGENTS))


def names_of(tx: Tx, agent_ids: Iterable[str]) -> list[Row[Any]]:
    """Class and name of each of these agents that ever ran."""
    return list(tx.execute(_NAMES, {"agents": list(agent_ids)}))
