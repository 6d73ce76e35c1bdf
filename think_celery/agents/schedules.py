"""What an agent does with schedules: make them, look at them, cancel them."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar

from think_celery.agents.handle import AgentHandle
from think_celery.domain.pages import Page
from think_celery.domain.schedules import schedules
from think_celery.domain.schedules.records import Schedule, ScheduleSlot, as_schedule, as_slot
from think_celery.domain.schedules.specs import When, every, read_when
from think_celery.durations import Duration
from think_celery.retries import Retry


class AgentSchedules(AgentHandle, abstract=True):
    """An agent's schedules."""

    _hooks: ClassVar[tuple[str, ...]] = ("get_default_timezone",)

    def get_default_timezone(self) -> str | None:
        """The time zone of schedules that name none, such as ``Europe/Paris``."""
        return None

    def schedule(
        self,
        when: When,
        method: Callable[..., Any] | str,
        payload: Any = None,
        *,
        idempotent: bool | None = None,
        retry: Retry | None = None,
        timezone: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Schedule:
        """Let a worker call a method of this agent at a later time, once or again and again. Returns at once.

        When this returns, the schedule is stored (inside a joined transaction: once that commits). Each time that it
        comes is a slot, which is a job of its own: it is retried, and at most one of a schedule is unfinished. A slot
        that comes while the one before runs is skipped; one that has not begun when the next comes is skipped, too.
        Where nobody fired the schedules for a while, the latest slot runs once.

        Args:
            when: An aware ``datetime``; a delay as seconds, ``timedelta`` or words (``"10 minutes"``); a cron text
                (``"0 9 * * mon-fri"``); or schedule words (``"every day at 09:00 in Europe/Paris"``,
                ``"every 5 minutes"``).
            method: The method, or its name. What is stored is the name.
            payload: What it is called with: ``method(payload)``, and ``method()`` without one.
            idempotent: Whether the same method, payload and time again give the schedule that is there, as long as it
                has not ended. By default so for what comes again and again, which may be called in ``on_start``, and
                not for an instant or a delay.
            retry: How a call that raises is tried again.
            timezone: The zone of a cron text or of schedule words; else that of ``get_default_timezone()``, and for a
                cron text that of the Celery app.
            metadata: JSON of yours, kept with the schedule and with each of its jobs.

        Raises:
            InvalidSchedule: *when* recurs, and can't be read or lacks its time zone.
            InvalidValue: *when* is a naive datetime, or can't be read at all.
            InvalidMethod: *method* is none of this agent's, or can't be called so.
            NotSerializable, PayloadTooLarge: *payload* or *metadata* can't be stored.
            InvalidType: *retry* is no ``Retry``.
        """
        zones = {"default_timezone": self.get_default_timezone(), "cron_timezone": self._rt.timezone}
        rule = read_when(when, timezone, **zones)
        return schedules.of_method(self, rule, method, payload, idempotent, retry, metadata)

    def schedule_every(
        self,
        interval: Duration,
        method: Callable[..., Any] | str,
        payload: Any = None,
        *,
        idempotent: bool | None = None,
        retry: Retry | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Schedule:
        """Let a worker call a method of this agent after each *interval*, for the first time after one from now.

        The instants count from this call. The same interval, method and payload again give the schedule that is there,
        and move none of its instants. In all else as :meth:`schedule`.

        Args:
            interval: Seconds, a ``timedelta`` or words (``"90 seconds"``); a second at least.
            method: The method, or its name.
            payload: What it is called with.
            idempotent: False makes another schedule each time.
            retry: How a call that raises is tried again.
            metadata: JSON of yours, kept with the schedule and with each of its jobs.

        Raises what :meth:`schedule` raises.
        """
        return schedules.of_method(self, every(interval), method, payload, idempotent, retry, metadata)

    def get_schedule(self, schedule_id: str) -> Schedule | None:
        """A schedule of this agent as it stands now; ``None`` if there is none of that id.

        One that has ended (it came, or was cancelled) is kept for ``think_retention``.
        """
        row = schedules.get(self._rt, schedule_id, self._ref)
        return None if row is None else as_schedule(row)

    def list_schedules(
        self,
        *,
        kind: str | Sequence[str] | None = None,
        method: Callable[..., Any] | str | None = None,
        task_id: str | None = None,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
        ended: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Schedule]:
        """The schedules of this agent, the one that comes next first; declared tasks too.

        Args:
            kind: Only ``scheduled``, ``delayed``, ``cron``, ``interval``, ``wall`` or ``declared`` ones; or several.
            method: Only those that call it: the method, or its name.
            task_id: Only that of this declared task.
            due_after: Only those that come next at this instant or later.
            due_before: Only those that come next before it.
            ended: Those that have ended in place of the others, the latest first.
            limit: How many at most, from 1 to 1000.
            cursor: The ``cursor`` of the page before.

        Raises:
            ValueError: *kind* is unknown, *limit* or *cursor* can't be, or an instant is a naive datetime.
        """
        found = schedules.find(
            self._rt,
            self._ref,
            kind=kind,
            method=method,
            task_id=task_id,
            due_after=due_after,
            due_before=due_before,
            ended=ended,
            limit=limit,
            cursor=cursor,
        )
        return found.of(as_schedule)

    def list_slots(
        self,
        schedule_id: str,
        *,
        status: str | Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ScheduleSlot]:
        """The slots of one of this agent's schedules that have come, the latest first: what became of each, and why.

        Args:
            schedule_id: Which schedule.
            status: Only ``open``, ``done``, ``failed`` or ``skipped`` ones; or several of these.
            limit: How many at most, from 1 to 1000.
            cursor: The ``cursor`` of the page before.

        Raises:
            ValueError: *status* is unknown, or *limit* or *cursor* can't be.
        """
        found = schedules.find_slots(
            self._rt, schedule_id, self._ref, status=status, limit=limit, cursor=cursor
        )
        return found.of(as_slot)

    def cancel_schedule(self, schedule_id: str) -> bool:
        """End a schedule of this agent, and say whether that stopped anything.

        A slot that has come and has not begun is skipped; one that runs goes on to its end. A declared task comes
        again when the agent starts the next time: take it out of the class.
        """
        return schedules.cancel(self._rt, schedule_id, self._ref)
