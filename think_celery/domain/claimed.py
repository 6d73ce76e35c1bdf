"""A turn that this process has in hand."""

from dataclasses import dataclass
from typing import Any

from think_celery.domain.continuations import Place
from think_celery.ids import AgentRef
from think_celery.store.leases import Lease


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A submission that this process has claimed. ``row`` is as it was before the claim."""

    row: Any
    lease: Lease
    agent: AgentRef
    place: Place
    attempt: int

    @property
    def message_id(self) -> str:
        """Where the answer goes."""
        return self.place.message_id

    @property
    def resumes(self) -> bool:
        """Whether there may be something of the answer already."""
        return self.row.applied_at is not None or self.place.continues == self.place.message_id
