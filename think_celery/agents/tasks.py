"""The tasks that an agent's class declares."""

from collections.abc import Mapping
from typing import Any, ClassVar

from think_celery.agents.handle import AgentHandle
from think_celery.domain.schedules import declarations
from think_celery.scheduled import ReconciledTasks, ScheduledTask


class AgentTasks(AgentHandle, abstract=True):
    """The tasks that an agent's class declares."""

    _hooks: ClassVar[tuple[str, ...]] = ("get_scheduled_tasks",)

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask | dict[str, Any]]:
        """What this agent does again and again: tasks by their ids, as ``ScheduledTask`` or dicts of its fields.

        An id has letters, digits, ``_`` and ``-``. Asked in a worker when the agent starts (:meth:`start`, the next
        work after the class has changed), when a beat starts, by :meth:`reconcile_scheduled_tasks`, and each time a
        handler is called, for handlers are not stored. So it is called often and anywhere: let it read, and do nothing
        else. ``None`` is the same as no task.
        """
        return {}

    def reconcile_scheduled_tasks(self) -> ReconciledTasks:
        """Let this agent's schedules say what :meth:`get_scheduled_tasks` returns now, and say what that changed.

        Call it when what it returns depends on something that has changed. A task that is declared as before keeps its
        next slot and its phase; one whose time is another counts from now on; one that is declared no longer is
        removed, and a slot of it that has not begun is skipped. Not removed is what another version of the class
        declared within the last ten minutes: in a rolling deployment it is there still. Inside a joined transaction it
        becomes part of that.

        Raises:
            InvalidSchedule: A task can't be used; the error names it, and nothing is changed.
            AsyncNotSupported: A handler is an async function.
        """
        return declarations.reconcile(self)
