"""Tasks that a class of agents declares, as its users write them, and what their handlers are told."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from think_celery import serialization
from think_celery.errors import AsyncNotSupported, InvalidSchedule, InvalidValue, PayloadTooLarge
from think_celery.messages import as_messages, clean
from think_celery.names import meant_by
from think_celery.recurrence import Recurrence, ScheduleSpec, Timezone, parse
from think_celery.retries import Retry
from think_celery.wording import a_type

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CONTEXT = "one ScheduledTaskContext"
_ALONE = "ScheduledTask"
"""Where a task is that no agent has declared yet, for errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledTaskContext:
    """Which slot of which task a handler is called for.

    ``scheduled_for`` is the slot's instant, aware, in UTC; the call itself comes a little later, or much later after an
    outage. ``idempotency_key`` is one for each slot, the same however often the handler is called for it: start a
    workflow with it as ``workflow_id``, or submit messages with it, and that happens once a slot. ``occurrence_key`` is
    the same without the agent. ``schedule`` is what was written, ``schedule_kind`` is ``interval``, ``wall`` or
    ``cron``, and ``timezone`` is ``None`` for an interval.
    """

    task_id: str
    scheduled_for: datetime
    occurrence_key: str
    idempotency_key: str
    schedule: ScheduleSpec
    schedule_kind: str
    timezone: str | None
    metadata: dict[str, Any] | None = field(repr=False)


Handler = Callable[[ScheduledTaskContext], Any]
"""Called in a worker for each slot of a task: a method of the agent, a function, anything callable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledTask:
    """A task that an agent does again and again: a *prompt* that becomes a turn, or a *handler* that is called.

    It does nothing until :meth:`~Think.get_scheduled_tasks` returns it. What can be checked without an agent is checked
    at once; then also whether a time of day has a zone, and the metadata.

    Args:
        schedule: When: words such as ``every day at 09:00 in Europe/Paris`` or ``every 15 minutes``, cron such as
            ``0 9 * * 1-5``, or an interval as seconds or ``timedelta``.
        prompt: The text of a message that is submitted for each slot.
        handler: What is called for each slot. It is not stored: the worker asks ``get_scheduled_tasks`` again.
        timezone: Whose time of day it is, where the schedule does not say so itself.
        retry: How often a handler that raises is tried; by default three times.
        metadata: JSON of yours, kept with each turn or job and told to the handler.

    Raises:
        InvalidSchedule: It has both or neither of prompt and handler, or one of its fields can't be used.
        AsyncNotSupported: The handler is an async function.
    """

    schedule: ScheduleSpec
    prompt: str | None = None
    handler: Handler | None = None
    timezone: Timezone | None = None
    retry: Retry | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_work(_ALONE, self)
        _rule(_ALONE, self, "UTC", "UTC")  # whose zone it is without one of its own, the agent says


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredTask:
    """A task that was checked: its rule was read."""

    task_id: str
    task: ScheduledTask
    rule: Recurrence
    metadata: dict[str, Any] | None

    @property
    def spec(self) -> str | float:
        """What the rule was read from, as it is stored."""
        given = self.task.schedule
        return given.total_seconds() if isinstance(given, timedelta) else given


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconciledTasks:
    """What :meth:`~Think.reconcile_scheduled_tasks` did: the ids of tasks.

    ``changed`` were added, changed, or armed again; ``removed`` are no longer declared; ``kept`` are not declared here,
    but another version of the class declared them within the last ten minutes.
    """

    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


# --- reading what a class declares ----------------------------------------------------------------


def read_tasks(
    given: object,
    owner: str,
    *,
    default_timezone: Timezone | None,
    cron_timezone: Timezone | None,
    limit: int,
) -> dict[str, DeclaredTask]:
    """Check what ``get_scheduled_tasks`` returned: all of it, or nothing is used.

    Args:
        given: That: ids and tasks, or dicts with the fields of a task; ``None`` is none.
        owner: Whose tasks they are, for errors.
        default_timezone: The zone of times of day that have none.
        cron_timezone: That of cron, if there is none of the others.
        limit: How long the metadata of a task may be, and the message that its prompt becomes.

    Raises:
        InvalidSchedule: One of them can't be used; the error names it.
        AsyncNotSupported: A handler is an async function.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidSchedule(
            f"{owner}.get_scheduled_tasks()",
            f"it returned {a_type(given)}, and must return a dict of tasks",
            'Return {"digest": ScheduledTask(schedule="every hour", prompt="…")}.',
        )
    found = {}
    for task_id, written in given.items():
        where = f"{owner}, scheduled task {task_id!r}"
        _check_id(where, task_id)
        task = _as_task(where, written)
        _check_work(where, task)
        _check_size(where, task.prompt, limit)
        found[task_id] = DeclaredTask(
            task_id=task_id,
            task=task,
            rule=_rule(where, task, default_timezone, cron_timezone),
            metadata=_metadata(where, task, limit),
        )
    return found


def _check_id(where: str, task_id: object) -> None:
    if not (isinstance(task_id, str) and _ID.fullmatch(task_id)):
        raise InvalidSchedule(
            where, "its id can't be used", 'Use letters, digits, "_" and "-", 100 at most: "daily-report".'
        )


def _as_task(where: str, written: object) -> ScheduledTask:
    if isinstance(written, ScheduledTask):
        return written
    if not isinstance(written, Mapping):
        raise InvalidSchedule(
            where,
            f"it is {a_type(written)}",
            'Write ScheduledTask(schedule="every hour", prompt="…").',
        )
    given = _known_fields(where, written, ScheduledTask)
    if "schedule" not in given:
        raise InvalidSchedule(
            where, "it has no schedule", 'Add "schedule": "every day at 09:00 in Europe/Paris".'
        )
    if isinstance(given.get("retry"), Mapping):
        try:
            given["retry"] = Retry(**_known_fields(where, given["retry"], Retry))
        except InvalidValue as error:
            raise _with_place(where, error) from None
    try:
        return ScheduledTask(**given)
    except InvalidSchedule as error:
        place = error.given.removeprefix(_ALONE)
        raise InvalidSchedule(f"{where}{place}", error.problem, error.remedy) from None
    except AsyncNotSupported:
        raise AsyncNotSupported(f"The handler of {where}") from None


def _known_fields(
    where: str, written: Mapping[Any, Any], kind: type[ScheduledTask] | type[Retry]
) -> dict[str, Any]:
    names = [each.name for each in fields(kind)]
    for name in written:
        if name not in names:
            near = meant_by(str(name).lower(), names)
            hint = f"Did you mean {near!r}?" if near else f"Its fields are {', '.join(names)}."
            raise InvalidSchedule(where, f"{kind.__name__} has no field {name!r}", hint)
    return dict(written)


def _check_work(where: str, task: ScheduledTask) -> None:
    prompt: object = task.prompt
    handler: object = task.handler
    if (prompt is None) == (handler is None):
        has = "neither a prompt nor a handler" if prompt is None else "both a prompt and a handler"
        raise InvalidSchedule(where, f"it has {has}", "Give it one of the two.")
    if prompt is not None:
        if not (isinstance(prompt, str) and prompt.strip()):
            raise InvalidSchedule(
                where, "its prompt is no text, or empty", 'Write prompt="Summarise the news.".'
            )
        if "\0" in prompt or clean(prompt) != prompt:
            raise InvalidSchedule(
                where,
                "its prompt has a NUL or half a character, which no database takes",
                'Take it out, or write prompt.encode("utf-8", "replace").decode().',
            )
        if task.retry is not None:
            raise InvalidSchedule(
                where,
                "it has a prompt, whose turn has its own retries, and retry= besides",
                "Leave retry out; or give it a handler, which retry is for.",
            )
        return
    _check_handler(where, handler)
    if not isinstance(task.retry, Retry | None):
        raise InvalidSchedule(
            where, f"its retry is {a_type(task.retry)}", "Write retry=Retry(max_attempts=3)."
        )


def _check_size(where: str, prompt: str | None, limit: int) -> None:
    if prompt is None:
        return
    try:
        serialization.check_size("the messages", [each.to_dict() for each in as_messages(prompt)], limit)
    except PayloadTooLarge as error:
        raise InvalidSchedule(
            where,
            f"its prompt takes {error.size:,} bytes as a message; think_max_payload allows {limit:,}",
            "Let a tool or a handler get at the data, or raise the setting.",
        ) from None


def _check_handler(where: str, handler: object) -> None:
    if not callable(handler):
        raise InvalidSchedule(
            where,
            f"its handler is {a_type(handler)}, which can't be called",
            f"Pass a method of the agent, or a function, that takes {_CONTEXT}: handler=self.make_report.",
        )
    called = getattr(type(handler), "__call__", None)  # noqa: B004
    if any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (handler, called)
    ):
        raise AsyncNotSupported(f"The handler of {where}")
    if inspect.isgeneratorfunction(handler):
        raise InvalidSchedule(
            where,
            "its handler is a generator, whose code would never run",
            "Take the yield out; what it returns is not used.",
        )
    try:
        inspect.signature(handler).bind(object())
    except TypeError as error:
        raise InvalidSchedule(
            where,
            f"its handler can't be called with {_CONTEXT} alone ({error})",
            "Write def make_report(self, ctx: ScheduledTaskContext), and pass handler=self.make_report.",
        ) from None
    except ValueError:  # something built in, which tells nobody what it takes
        return


def _rule(
    where: str, task: ScheduledTask, default_timezone: Timezone | None, cron_timezone: Timezone | None
) -> Recurrence:
    try:
        return parse(
            task.schedule,
            timezone=task.timezone,
            default_timezone=default_timezone,
            cron_timezone=cron_timezone,
        )
    except InvalidValue as error:
        raise _with_place(where, error) from None


def _metadata(where: str, task: ScheduledTask, limit: int) -> dict[str, Any] | None:
    try:
        return serialization.json_metadata(task.metadata, limit)
    except InvalidValue as error:
        raise InvalidSchedule(
            where, f"its metadata can't be kept: {error}", "Pass a dict of JSON values."
        ) from None


def _with_place(where: str, error: InvalidValue) -> InvalidSchedule:
    if isinstance(error, InvalidSchedule):
        return InvalidSchedule(f"{where}, {error.given}", error.problem, error.remedy)
    problem, _, remedy = str(error).partition(". ")  # of a span of time, or of Retry
    return InvalidSchedule(where, problem, remedy)
