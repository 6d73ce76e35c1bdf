"""What becomes of work whose worker died: find it, free it, and say how it goes on."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from think_celery.domain import knocks, lines
from think_celery.domain.conversation import UNKNOWN_OUTCOME
from think_celery.domain.liveness import host_facts, known_dead
from think_celery.errors import TurnTimeout
from think_celery.messages import Part, ReasoningPart, StepStartPart, TextPart, ToolPart
from think_celery.states import SubmissionStatus
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store import processes, submissions, workflows
from think_celery.store.database import Tx
from think_celery.store.lines import Lease

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.recovery")

EVERY = timedelta(seconds=1)


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
    start = _last_step(parts)
    text = [part for part in parts[start:] if isinstance(part, TextPart)]
    cut = any(part.state == "streaming" for part in text) or _has_cut_call(stored)
    if cut and not any(part.text.strip() for part in text):
        parts, cut = parts[:start], False
    elif isinstance(parts[-1] if parts else None, StepStartPart):
        parts = parts[:-1]
    to_run, kept = [], []
    for part in parts:
        if isinstance(part, TextPart) and part.state == "streaming":
            part = part.model_copy(update={"state": "done"})
        if isinstance(part, ToolPart) and not part.settled:
            if part.started and not is_idempotent(part.tool_name):
                part = part.model_copy(update={"state": "output-error", "error_text": UNKNOWN_OUTCOME})
            else:
                to_run.append(part)
        kept.append(part)
    last = kept[_last_step(kept) :]
    calls = any(isinstance(part, ToolPart) for part in last)
    said = any(isinstance(part, TextPart) and part.text for part in last)
    return Recovered(kept, to_run, cut, complete=said and not cut and not calls)


def _last_step(parts: Sequence[Part]) -> int:
    """Where the last model step begins."""
    return max((i for i, part in enumerate(parts) if isinstance(part, StepStartPart)), default=0)


def _dropped(part: Part) -> bool:
    if isinstance(part, ToolPart):
        return part.state == "input-streaming"
    return isinstance(part, ReasoningPart) and part.state == "streaming"


def _has_cut_call(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, ToolPart) and part.state == "input-streaming" for part in parts)


# --- finding it -----------------------------------------------------------------------------------


def sweep(rt: "Runtime", limit: int = 500) -> int:
    """Declare processes dead that are, and free what dead ones held. Returns how many leases were freed.

    A process is dead when this machine can prove it, or when two looks a while apart found it out of
    time. Each row is its own transaction; one that fails is tried again in the next pass.
    """
    here = host_facts()
    for process_id, facts in rt.db.read(processes.alive):
        if facts != here and known_dead(facts):
            _declare(rt, process_id, known=True)
    for suspect in rt.db.read(lambda tx: processes.lapsed(tx, limit)):
        rt.db.transact(lambda tx, it=suspect: processes.suspect(tx, it.process_id))  # type: ignore[misc]
        _declare(rt, suspect.process_id)
    freed = 0
    for agent_id, process_id in rt.db.read(lambda tx: line_rows.orphaned(tx, limit)):
        freed += _each(rt, f"line {agent_id}", lambda tx, a=agent_id, p=process_id: _free_line(rt, tx, a, p))  # type: ignore[misc]
    for key, process_id in rt.db.read(lambda tx: workflows.orphaned(tx, limit)):
        freed += _each(rt, f"workflow {key}", lambda tx, k=key, p=process_id: _free_workflow(rt, tx, k, p))  # type: ignore[misc]
    return freed


def _declare(rt: "Runtime", process_id: str, *, known: bool = False) -> None:
    if rt.db.transact(lambda tx: processes.declare_dead(tx, process_id, known=known)):
        logger.warning(
            "process %s is dead (%s); its work is taken over",
            process_id,
            "its end is proven" if known else "it has not renewed its lease",
            extra={"think_event": "process.dead", "think_process": process_id},
        )


def _each(rt: "Runtime", what: str, work: Callable[[Tx], bool]) -> bool:
    try:
        return rt.db.transact(work)
    except Exception:
        logger.exception("could not free %s; the next pass tries again", what)
        return False


def _free_line(rt: "Runtime", tx: Tx, agent_id: str, process_id: str) -> bool:
    if not line_rows.seize_line_of(tx, agent_id, process_id):
        return False
    head = submissions.head(tx, agent_id)
    if head is None or head.status != SubmissionStatus.RUNNING:
        message_rows.settle_all(tx, agent_id)  # the partial text of a turn that was cancelled meanwhile
    lines.expect_next(rt, tx, agent_id)
    return True


def _free_workflow(rt: "Runtime", tx: Tx, key: str, process_id: str) -> bool:
    row = workflows.seize_of(tx, key, process_id)
    if row is None:
        return False
    tx.after_commit(lambda: rt.knock(knocks.for_workflow(row)))
    return True


def let_go(rt: "Runtime", lease: Lease) -> None:
    """Take a lease from code of this process that ignored its deadline; a turn ends in error with it."""

    def work(tx: Tx) -> None:
        if lease.kind == "workflow":
            _free_workflow(rt, tx, lease.key, lease.process_id)
            return
        line = line_rows.lock_line(tx, lease.key)
        if line is None or line.token != lease.token or line.process_id != lease.process_id:
            return
        line_rows.seize_line(tx, lease.key)
        head = submissions.head(tx, lease.key)
        row = (
            submissions.lock(tx, head.id)
            if head is not None and head.status == SubmissionStatus.RUNNING
            else None
        )
        if row is not None:
            error = TurnTimeout(rt.settings.turn_timeout_seconds)
            lines.end(rt, tx, row, SubmissionStatus.ERROR, error_type="TurnTimeout", error=str(error))
        message_rows.settle_all(tx, lease.key)
        lines.expect_next(rt, tx, lease.key)

    rt.db.transact(work)
