"""What becomes of a turn whose worker went away: what its agent is told, what it may decide, and what bounds it."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from think_celery.durations import Duration, as_timedelta
from think_celery.errors import InvalidValue
from think_celery.hooks.turns import TurnInfo
from think_celery.messages import Part
from think_celery.wording import a_type


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryContext(TurnInfo):
    """What ``on_chat_recovery`` is told of the interrupted turn.

    ``recovery_kind`` is ``"continue"`` where something of the answer is stored (``partial_text``, ``partial_parts``),
    else ``"retry"``. ``attempt`` is the number of the attempt that begins now, of those that have brought no progress;
    once ``max_attempts`` of them were interrupted, the turn is given up. ``progress_at`` is when the turn last got
    anywhere: when it began, or when a tool's result was stored. ``cancel_intent`` is the reason that was stored with
    ``cancel_submission(…, if_interrupted=True)``, or ``None``.
    """

    recovery_kind: Literal["continue", "retry"]
    max_attempts: int
    partial_text: str = field(repr=False)
    partial_parts: list[Part] = field(repr=False)
    created_at: datetime
    started_at: datetime
    progress_at: datetime
    cancel_intent: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """What becomes of an interrupted turn.

    ``persist=False`` drops what the model had written of the step that was cut; steps before it stay, for their
    tools have run. ``resume=False`` ends the turn as ``aborted`` with what there is, and with *reason* as its error.
    """

    persist: bool = True
    resume: bool = True
    reason: str | None = None

    def __post_init__(self) -> None:
        for name in ("persist", "resume"):
            given: object = getattr(self, name)
            if not isinstance(given, bool):
                raise InvalidValue(f"Recovery({name}={given!r}): it must be True or False.")
        reason: object = self.reason
        if not isinstance(reason, str | None):
            raise InvalidValue(f"Recovery.reason is {a_type(reason)}: it must be a text, or None.")


@dataclass(frozen=True, kw_only=True)
class RecoveryLimits:
    """How long a class's turns are taken up again after interruptions. Each limit counts only what brought no progress.

    Progress is a tool's stored result. Text is none, for it is what an interruption cuts.

    Args:
        max_attempts: How many attempts without progress there may be. Then every interruption counts: a death, a
            worker that was told to stop, a stall. ``None``: deaths and stalls alone, up to ``think_max_attempts``.
        max_time: A turn that is found interrupted this long after its last progress is given up.
        stall: A turn that runs and from which neither the model nor a tool has let hear for this long is interrupted
            and taken up again, as an attempt. Choose it longer than the slowest tool. ``None``: only the deadlines of
            model, tools and turn.

    Raises:
        InvalidDuration: A span of time is none.
        InvalidValue: Another value is unfit.
    """

    max_attempts: int | None = None
    max_time: Duration | None = None
    stall: Duration | None = None

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        if attempts is not None and (
            isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1
        ):
            raise InvalidValue(
                f"RecoveryLimits(max_attempts={attempts!r}): it must be a whole number, 1 or more, or None for "
                "think_max_attempts. It counts the first attempt too."
            )
        for name in ("max_time", "stall"):
            given = getattr(self, name)
            if given is not None and not as_timedelta(given, name):
                raise InvalidValue(
                    f"RecoveryLimits({name}={given!r}): it must be longer than nothing, or None."
                )

    @property
    def longest(self) -> timedelta | None:
        """``max_time`` as a span."""
        return None if self.max_time is None else as_timedelta(self.max_time)

    @property
    def stall_seconds(self) -> float | None:
        """``stall`` in seconds."""
        return None if self.stall is None else as_timedelta(self.stall).total_seconds()
