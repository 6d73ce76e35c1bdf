"""What becomes of work whose worker died: find it, free it, and say how it goes on."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from think_celery.domain import knocks
from think_celery.domain.conversation import conversation
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME
from think_celery.domain.jobs import jobs
from think_celery.domain.liveness import host_facts, known_dead
from think_celery.domain.outcomes import Ended
from think_celery.domain.passes import ROWS, each_row
from think_celery.domain.submissions import lines, statuses
from think_celery.errors import TurnTimeout
from think_celery.messages import Part, ReasoningPart, StepStartPart, TextPart, ToolPart
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, WorkflowStatus
from think_celery.store import heads, leases, processes, submissions, workflows
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store.database import Tx
from think_celery.store.leases import Lease

logger = logging.getLogger("think_celery.recovery")


@dataclass(frozen=True, slots=True)
class Recovered:
    """How an interrupted answer goes on.

    ``parts`` are what is kept; ``to_run`` the calls among them that must run (again) first; ``continues``
    says that its last text was cut, so the model is asked to go on exactly there; ``complete`` that its last
    step was whole and called nothing, so the model has no more to say.
    """

    parts: list[Part]
    to_run: list[ToolPart]
    continues: bool
    complete: bool = False


def decide(stored: Sequence[Part], is_idempotent: Callable[[str], bool]) -> Recovered:
    """Read from the stored parts how the answer goes on. Pure.

    Half-written calls are dropped, and so is the reasoning of the cut step. A call that had not begun, or
    whose tool may be repeated, runs; another that had begun is settled as "outcome unknown". Where nothing
    that a listener saw as text is left of the last step, that step is asked for again.
    """
    parts = [part for part in stored if not _dropped(part)]
    start = last_step(parts)
    text = [part for part in parts[start:] if isinstance(part, TextPart)]
    cut = any(part.state == "streaming" for part in text) or _has_cut_call(stored)
    if cut and not any(part.text.strip() for part in text):
        parts, cut = parts[:start], False
    elif isinstance(parts[-1] if parts else None, StepStartPart):
        parts = parts[:-1]
    # The text that goes on stays marked, for the turn may be interrupted again before anything more has come.
    unfinished = text[-1] if cut else None
    to_run, kept = [], []
    for part in parts:
        if isinstance(part, TextPart):
            part = part.model_copy(update={"state": "streaming" if part is unfinished else "done"})
        if isinstance(part, ToolPart) and not part.settled:
            if part.started and not is_idempotent(part.tool_name):
                part = part.model_copy(update={"state": "output-error", "error_text": UNKNOWN_OUTCOME})
            else:
                to_run.append(part)
        kept.append(part)
    last = kept[last_step(kept) :]
    calls = any(isinstance(part, ToolPart) for part in last)
    said = any(isinstance(part, TextPart) and part.text for part in last)
    return Recovered(kept, to_run, cut, complete=said and not cut and not calls)


def last_step(parts: Sequence[Part]) -> int:
    """Where the last model step begins."""
    return max((i for i, part in enumerate(parts) if isinstance(part, StepStartPart)), default=0)


def _dropped(part: Part) -> bool:
    if isinstance(part, ToolPart):
        return part.state == "input-streaming"
    return isinstance(part, ReasoningPart) and part.state == "streaming"


def _has_cut_call(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, ToolPart) and part.state == "input-streaming" for part in parts)


# --- finding it -----------------------------------------------------------------------------------


def sweep(rt: Runtime, limit: int = ROWS) -> int:
    """Declare processes dead that are, and free what dead ones held. Returns how many leases were freed.

    A process is dead when this machine can prove it, or when two looks a while apart found it out of
    time. Each row is its own transaction; one that fails is tried again in the next pass.
    """
    _end_proven(rt)
    lapsed = rt.db.read(lambda tx: processes.lapsed(tx, limit))
    each_row(rt, "look at a process that is out of time", lapsed, _look_at)
    return _free_orphaned(rt, limit)


def reap(rt: Runtime) -> int:
    """Free at once what those held whose end this machine can prove; for whoever knows that somebody died."""
    _end_proven(rt)
    return _free_orphaned(rt, ROWS)


def _end_proven(rt: Runtime) -> None:
    here = host_facts()
    others = ((process_id, facts) for process_id, facts in rt.db.read(processes.alive) if facts != here)
    proven = (process_id for process_id, facts in others if known_dead(facts))
    each_row(rt, "end a dead process", proven, lambda tx, process_id: _declare(tx, process_id, known=True))


def _free_orphaned(rt: Runtime, limit: int) -> int:
    lost = rt.db.read(lambda tx: leases.orphaned(tx, limit))
    return each_row(rt, "free the work of a dead process", lost, lambda tx, lease: _free(rt, tx, lease))


def _look_at(tx: Tx, process_id: str) -> bool:
    processes.suspect(tx, process_id)
    return _declare(tx, process_id)


def _declare(tx: Tx, process_id: str, *, known: bool = False) -> bool:
    if not processes.declare_dead(tx, process_id, known=known):
        return False
    tx.after_commit(
        lambda: logger.warning(
            "process %s is dead (%s); its work is taken over",
            process_id,
            "its end is proven" if known else "it has not renewed its lease",
            extra={"think_event": "process.dead", "think_process": process_id},
        )
    )
    return True


def _free(rt: Runtime, tx: Tx, lease: Lease) -> bool:
    if lease.kind == "workflow":
        return _free_workflow(rt, tx, lease)
    if lease.kind == "job":
        return jobs.free(rt, tx, lease)
    line_rows.lock_line(tx, lease.key)
    running = _running(tx, lease)
    row = None if running is None else submissions.lock(tx, running.id, patient=False)
    if running is not None and row is None:
        return False  # somebody may be cancelling it, and counts on us: the next look sees what came of it
    if not line_rows.seize_from(tx, lease):
        return False
    if row is None or row.status != SubmissionStatus.RUNNING:
        # The partial text of a turn that was cancelled meanwhile.
        conversation.place_unfinished(tx, lease.key)
    lines.expect_next_on(rt, tx, lease.key)
    return True


def _free_workflow(rt: Runtime, tx: Tx, lease: Lease) -> bool:
    row = workflows.seize(tx, lease)
    if row is None:
        return False
    if row.status != WorkflowStatus.PAUSED:  # somebody had wanted that
        tx.after_commit(lambda: rt.knock(knocks.for_workflow(row)))
    return True


def _running(tx: Tx, lease: Lease) -> Any:
    head = heads.head(tx, lease.key)
    return None if head is None or head.status != SubmissionStatus.RUNNING else head


# --- leases of this process -----------------------------------------------------------------------


def hand_back(rt: Runtime, lease: Lease) -> None:
    """Give up a lease of this process under which nobody works, as if its worker had died."""
    rt.db.transact(lambda tx: _free(rt, tx, lease))


def let_go(rt: Runtime, lease: Lease) -> None:
    """Take a lease from code of this process that ignored its deadline; a turn ends in error with it.

    Who follows the agent's turns is told of that end as of any other, while the line is held for it.
    """
    if lease.kind == "workflow":
        rt.db.transact(lambda tx: _free_workflow(rt, tx, lease))
        return
    if lease.kind == "job":
        rt.db.transact(lambda tx: jobs.overdue(rt, tx, lease))
        return
    ended = rt.db.transact(lambda tx: _end_turn(rt, tx, lease))
    if ended is not None:
        from think_celery.domain.submissions import claims  # they hold leases, and leases are let go of here
        from think_celery.domain.turns import afterwards

        afterwards.call_hooks(rt, ended, claims.claim_next)


def _end_turn(rt: Runtime, tx: Tx, lease: Lease) -> Ended | None:
    if not line_rows.seize_from(tx, lease):
        return None
    running = _running(tx, lease)
    row = None if running is None else submissions.lock(tx, running.id)
    follows = row is not None and statuses.follows(row.agent_class)
    error, ended = TurnTimeout(rt.settings.turn_timeout_seconds), SubmissionStatus.ERROR
    name = type(error).__name__
    if row is not None:
        told = {"error_type": name, "error": str(error)}
        lines.end(rt, tx, row, ended, **told, holding=True, tell=not follows)
    conversation.place_unfinished(tx, lease.key)
    kept = line_rows.take_line_of(tx, lease.key, lease.process_id) if follows else None
    if row is None or kept is None:
        lines.expect_next_on(rt, tx, lease.key)
        return None
    stored = message_rows.get(tx, row.agent_id, row.message_id)
    return Ended.without_turn(row, kept, None if stored is None else conversation.from_row(stored), name)
