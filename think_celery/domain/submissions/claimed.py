"""A turn that this process has in hand."""

from dataclasses import dataclass
from typing import Any

from think_celery.domain.turns.continuations import Place
from think_celery.ids import AgentRef
from think_celery.signals import AbortSignal
from think_celery.store.leases import Lease


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A submission that this process has claimed. ``row`` is as it was before the claim.

    ``stop`` comes for an *inner* turn, one that a hook of the turn before it asked for: then the line's lease is not
    the turn's to give back, and a worker's stop is not all that may interrupt it.
    """

    row: Any
    lease: Lease
    agent: AgentRef
    place: Place
    attempt: int
    stop: AbortSignal | None = None

    @property
    def inner(self) -> bool:
        """Whether it runs inside a hook."""
        return self.stop is not None

    @property
    def message_id(self) -> str:
        """Where the answer goes."""
        return self.place.message_id

    @property
    def resumes(self) -> bool:
        """Whether there may be something of the answer already."""
        return self.row.applied_at is not None or self.place.continues == self.place.message_id
