"""What becomes of a fiber whose worker went away: what its agent is told, and what it may decide."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal, get_args

from think_celery.errors import InvalidValue
from think_celery.wording import a_type, shown

FiberDecision = Literal["completed", "error", "aborted", "interrupted", "retry"]


class Kept(Enum):
    """That something stays as it is."""

    KEPT = "kept"

    def __repr__(self) -> str:
        return "KEPT"


KEPT = Kept.KEPT


@dataclass(frozen=True, kw_only=True, slots=True)
class FiberRecoveryContext:
    """What ``on_fiber_recovered`` is told of the interrupted fiber.

    ``method`` is the name of the method that it ran, with this ``payload``. ``snapshot`` is what it stashed last,
    ``None`` if nothing. ``attempt`` counts the workers that this fiber was in the hands of, this one included.
    """

    fiber_id: str
    method: str
    payload: Any = field(repr=False)
    snapshot: Any = field(repr=False)
    idempotency_key: str | None
    metadata: dict[str, Any] | None
    attempt: int
    created_at: datetime
    started_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FiberRecovery:
    """What becomes of an interrupted fiber.

    ``status`` is how it ends: ``"completed"`` (with *output*), ``"error"`` or ``"aborted"`` (with *error*, a text). Or
    ``"retry"``: its method is called again, and finds the snapshot in ``fiber.snapshot``. Or ``"interrupted"``: it
    stays as it is until somebody decides. *snapshot* takes the place of what was stashed last.

    Raises:
        InvalidValue: A value is unfit.
    """

    status: FiberDecision
    output: Any = None
    error: str | None = None
    snapshot: Any = field(default=KEPT, repr=False)

    def __post_init__(self) -> None:
        if self.status not in get_args(FiberDecision):
            raise InvalidValue(
                f"FiberRecovery(status={shown(self.status)}): it must be one of {', '.join(get_args(FiberDecision))}."
            )
        error: object = self.error
        if not isinstance(error, str | None):
            raise InvalidValue(f"FiberRecovery.error is {a_type(error)}: it must be a text, or None.")
        if self.output is not None and self.status != "completed":
            raise InvalidValue(
                f"FiberRecovery(status={self.status!r}, output=…): only a completed fiber has an output."
            )
