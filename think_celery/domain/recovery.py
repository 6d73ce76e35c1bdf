"""What becomes of work whose worker died: find it, free it, and say how it goes on."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from think_celery.domain import knocks, lines
from think_celery.domain.conversation import UNKNOWN_OUTCOME
from think_celery.domain.liveness import host_facts, known_dead
from think_celery.errors import LeaseLost, TurnTimeout
from think_celery.logs import trace_of
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
SECONDS = 0.2
"""How long one kind of work may take in a pass; what is left comes in the next."""

PATIENCE = timedelta(milliseconds=200)
"""How long a pass waits for a row that somebody else has locked; then the next pass tries again."""


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
            _each(f"process {process_id}", partial(_declare, rt, process_id, known=True))
    for suspect in rt.db.read(lambda tx: processes.lapsed(tx, limit)):
        _each(f"process {suspect.process_id}", partial(_look_at, rt, suspect.process_id))
    freed, until = 0, rt.clock.elapsed() + SECONDS
    for lease in rt.db.read(lambda tx: line_rows.orphaned(tx, limit)):
        if rt.clock.elapsed() > until:
            break
        freed += _each(f"line {lease.key}", partial(_in_pass, rt, partial(_free_line, rt, lease)))
    until = rt.clock.elapsed() + SECONDS
    for key, process_id in rt.db.read(lambda tx: workflows.orphaned(tx, limit)):
        if rt.clock.elapsed() > until:
            break
        freed += _each(f"workflow {key}", partial(_in_pass, rt, partial(_free_workflow, rt, key, process_id)))
    return freed


def _each(what: str, work: Callable[[], bool]) -> bool:
    try:
        return work()
    except Exception as error:
        logger.error("could not recover %s; the next pass tries again: %s", what, trace_of(error))
        return False


def _in_pass(rt: "Runtime", work: Callable[[Tx], bool]) -> bool:
    def impatient(tx: Tx) -> bool:
        line_rows.wait_at_most(tx, PATIENCE)
        return work(tx)

    return rt.db.transact(impatient)


def _look_at(rt: "Runtime", process_id: str) -> bool:
    rt.db.transact(lambda tx: processes.suspect(tx, process_id))
    return _declare(rt, process_id)


def _declare(rt: "Runtime", process_id: str, *, known: bool = False) -> bool:
    if not rt.db.transact(lambda tx: processes.declare_dead(tx, process_id, known=known)):
        return False
    logger.warning(
        "process %s is dead (%s); its work is taken over",
        process_id,
        "its end is proven" if known else "it has not renewed its lease",
        extra={"think_event": "process.dead", "think_process": process_id},
    )
    return True


def _free_line(rt: "Runtime", lease: Lease, tx: Tx) -> bool:
    if not line_rows.seize_from(tx, lease):
        return False
    if _running(tx, lease) is None:
        message_rows.settle_all(tx, lease.key)  # the partial text of a turn that was cancelled meanwhile
    lines.expect_next(rt, tx, lease.key)
    return True


def _running(tx: Tx, lease: Lease) -> Any:
    head = submissions.head(tx, lease.key)
    return None if head is None or head.status != SubmissionStatus.RUNNING else head


def _free_workflow(rt: "Runtime", key: str, process_id: str, tx: Tx) -> bool:
    row = workflows.seize_of(tx, key, process_id)
    if row is None:
        return False
    tx.after_commit(lambda: rt.knock(knocks.for_workflow(row)))
    return True


# --- leases of this process -----------------------------------------------------------------------


def hand_back(rt: "Runtime", lease: Lease) -> None:
    """Give up a lease of this process under which nobody works, as if its worker had died."""

    def work(tx: Tx) -> None:
        if lease.kind == "turn":
            _free_line(rt, lease, tx)
        elif _has(tx, lease):
            _free_workflow(rt, lease.key, lease.process_id, tx)

    rt.db.transact(work)


def let_go(rt: "Runtime", lease: Lease) -> None:
    """Take a lease from code of this process that ignored its deadline; a turn ends in error with it."""

    def work(tx: Tx) -> None:
        if lease.kind == "workflow":
            if _has(tx, lease):
                _free_workflow(rt, lease.key, lease.process_id, tx)
            return
        if not line_rows.seize_from(tx, lease):
            return
        running = _running(tx, lease)
        row = None if running is None else submissions.lock(tx, running.id)
        if row is not None:
            error = TurnTimeout(rt.settings.turn_timeout_seconds)
            name, ended = type(error).__name__, SubmissionStatus.ERROR
            lines.end(rt, tx, row, ended, error_type=name, error=str(error), holding=True)
        message_rows.settle_all(tx, lease.key)
        lines.expect_next(rt, tx, lease.key)

    rt.db.transact(work)


def _has(tx: Tx, lease: Lease) -> bool:
    try:
        line_rows.fence(tx, lease)
    except LeaseLost:
        return False
    return True
