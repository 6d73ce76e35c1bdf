"""A turn that was interrupted: whether it may be taken up again, and what its agent wants to become of it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from think_celery.domain.agents.hooks import Hooks
from think_celery.domain.leases import Hold
from think_celery.domain.patience import patiently
from think_celery.domain.recovery import Recovered, last_step
from think_celery.domain.submissions.claimed import Claim
from think_celery.errors import NoProgress, ThinkError, TooManyAttempts, TurnCancelled
from think_celery.hooks.recoveries import Recovery, RecoveryContext, RecoveryLimits
from think_celery.messages import Part, StepStartPart, TextPart
from think_celery.runtime import Runtime, agent_classes
from think_celery.states import SubmissionStatus
from think_celery.store import submissions
from think_celery.wording import a_type

logger = logging.getLogger("think_celery.recovery")

MAX_TAKEOVERS = 100
NOT_RESUMED = "The turn was interrupted, and was not taken up again."


def limits_of(agent_class: str) -> RecoveryLimits:
    """What bounds the recovery of turns of this class."""
    limits: RecoveryLimits = agent_classes.get(agent_class).chat_recovery
    return limits


def attempts_of(rt: Runtime, row: Any) -> tuple[int, int]:
    """How many attempts of the submission have counted so far, and how many may."""
    most = limits_of(row.agent_class).max_attempts
    return (row.attempts, rt.settings.max_attempts) if most is None else (row.tries, most)


def was_interrupted(row: Any) -> bool:
    """Whether the submission had begun before this claim and then stopped for another reason than to wait."""
    waited = row.status == SubmissionStatus.PENDING and row.not_before is not None
    return row.applied_at is not None and not waited


def given_up(rt: Runtime, row: Any) -> ThinkError | None:
    """Why the submission is not taken up again, if it is not."""
    what, interrupted = f"Submission {row.id!r}", was_interrupted(row)
    counted, most = attempts_of(rt, row)
    if interrupted and counted >= most:
        return TooManyAttempts(what, counted)
    if row.takeovers >= MAX_TAKEOVERS:
        return TooManyAttempts(what, row.takeovers)
    longest = limits_of(row.agent_class).longest
    if longest is None or not interrupted:
        return None
    since: timedelta = row.now - row.progress_at
    return NoProgress(what, since.total_seconds(), longest.total_seconds()) if since > longest else None


def ask(
    rt: Runtime, hooks: Hooks, claim: Claim, hold: Hold, about: Mapping[str, Any], found: Recovered
) -> tuple[Recovered, str | None]:
    """Ask the agent what becomes of its interrupted turn: what is kept of it, and the reason if it ends with that.

    What the agent raises, or returns amiss, changes nothing.

    Args:
        rt: The runtime.
        hooks: The agent's.
        claim: The turn, as its claim found it.
        hold: Its lease.
        about: What the turn tells every hook.
        found: What there is of its answer.
    """
    stored = patiently(rt, hold, lambda: rt.db.read(lambda tx: submissions.get(tx, claim.row.id)))
    if stored is None:
        raise TurnCancelled("deleted")
    counted, most = attempts_of(rt, claim.row)
    parts = _own(found.parts, claim.place.steps_before)
    context = RecoveryContext(
        **{**about, "attempt": counted + 1, "metadata": stored.metadata},
        recovery_kind="continue" if parts else "retry",
        max_attempts=most,
        partial_text="".join(part.text for part in parts if isinstance(part, TextPart)),
        partial_parts=[part.model_copy(deep=True) for part in parts],
        created_at=stored.created_at,
        started_at=stored.started_at,
        progress_at=stored.progress_at,
        cancel_intent=stored.cancel_intent,
    )
    standing = Recovery(resume=stored.cancel_intent is None, reason=stored.cancel_intent)
    given = hooks.react("on_chat_recovery", context, default=None)
    if given is not None and not isinstance(given, Recovery):
        logger.error(
            "on_chat_recovery of submission %s returned %s; it must return a Recovery, or None for the default",
            stored.id,
            a_type(given),
        )
        given = None
    rt.failpoint("turn:recovery-decided")
    decision = given or standing
    kept = found if decision.persist else _without_cut_step(found)
    return kept, None if decision.resume else decision.reason or NOT_RESUMED


def _own(parts: Sequence[Part], steps_before: int) -> Sequence[Part]:
    """The parts from behind that many steps on."""
    starts = [at for at, part in enumerate(parts) if isinstance(part, StepStartPart)]
    return parts if not steps_before else parts[starts[steps_before] :] if steps_before < len(starts) else []


def _without_cut_step(found: Recovered) -> Recovered:
    """What is left without the step that was cut; one that was not is kept, for its tools have run."""
    if not found.continues:
        return found
    return replace(found, parts=found.parts[: last_step(found.parts)], continues=False)
