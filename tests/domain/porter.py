"""An agent whose methods are called later, and what a test asks of its jobs."""

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel

from think_celery import Think
from think_celery.domain.jobs import runs
from think_celery.domain.outcomes import Outcome
from think_celery.runtime import Runtime
from think_celery.store import jobs

Carry = Callable[["Hauler", Any], Any]


class Parcel(BaseModel):
    """What is carried, as a model."""

    label: str
    weight: float = 1.0


class Hauler(Think):
    """The agent of these tests; what it does is set by each test."""

    carries: ClassVar[Carry] = lambda agent, payload: payload

    def carry(self, payload: Any = None) -> Any:
        """What is queued in most tests."""
        return type(self).carries(self, payload)

    def rest(self) -> str:
        """Takes nothing."""
        return str(type(self).carries(self, "rest"))

    def deliver(self, parcel: Parcel) -> Any:
        """Takes a model."""
        return type(self).carries(self, parcel)

    def two(self, one: int, other: int) -> None:
        """Takes too much."""

    async def later(self, payload: int) -> None:
        """An async def."""

    def each(self, payload: int) -> Any:
        """A generator."""
        yield payload


def porter(rt: Runtime, name: str = "a") -> Hauler:
    """That agent, on a runtime."""
    return Hauler._bound_to(rt, name)


def row(rt: Runtime, job_id: str) -> Any:
    """The row of a job."""
    return rt.db.read(lambda tx: jobs.get(tx, job_id))


def run(rt: Runtime, job_id: str) -> Outcome:
    """Do what a worker does that is knocked for it."""
    return runs.run(rt, job_id)
