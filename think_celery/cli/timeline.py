"""A workflow's run as a timeline: what each step did and when, how long it took, and what the run waits for now."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from think_celery.cli import standing
from think_celery.cli.printing import Column, print_table, shown, spell
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import workflows
from think_celery.domain.workflows.recordedruns import times_ended
from think_celery.ids import WorkflowRef
from think_celery.runtime import Runtime
from think_celery.serialization import loads
from think_celery.states import StepStatus, WorkflowStatus

Command = Callable[[str], str]
"""A command's words as a whole line, with the options that this command was given."""

COLUMNS: list[Column] = ["start", "step", "kind", "status", "took", "attempts", "until", "raised_at", "error"]


def steps_of(row: Any, journal: Sequence[Any]) -> list[dict[str, Any]]:
    """The entries of a run's journal, for programs."""
    return [_as_dict(row, step) for step in journal]


def print_timeline(row: Any, journal: Sequence[Any]) -> None:
    """Print the entries of a run's journal, for people."""
    lines = [
        {
            **each,
            "start": _offset(each["created_at"], row.started_at or row.created_at),
            "took": None if each["seconds"] is None else spell(timedelta(seconds=each["seconds"])),
            "until": None if each["completed_at"] else each["deadline_at"],
            "raised_at": _raised_at(each["trace"]),
            "error": each["error"]
            if each["error_type"] is None
            else f"{each['error_type']}: {each['error']}",
        }
        for each in steps_of(row, journal)
    ]
    print_table(lines, COLUMNS, nothing=standing.nothing_recorded(row))


def _offset(moment: datetime, since: datetime) -> str:
    """When a step began, counted from the run's beginning."""
    return f"+{spell(max(moment - since, timedelta(0)))}"


def _raised_at(trace: str | None) -> str | None:
    """The last frame of a trace, such as ``File "shop.py", line 12, in charge``."""
    frames = [line.strip() for line in (trace or "").splitlines() if line.lstrip().startswith('File "')]
    return frames[-1] if frames else None


def _as_dict(row: Any, step: Any) -> dict[str, Any]:
    ended = step.completed_at
    return {
        "step": step.step,
        "kind": step.kind,
        "status": step.status,
        "attempts": times_ended(step),
        "seconds": None if ended is None else (ended - step.created_at).total_seconds(),
        "error_type": step.error_type,
        "error": step.error,
        "trace": step.trace,
        "created_at": step.created_at,
        "completed_at": ended,
        "deadline_at": step.deadline_at,
    }


# --- what it waits for ----------------------------------------------------------------------------


def waits_for(rt: Runtime, row: Any, journal: Sequence[Any], command: Command, *, in_hand: bool) -> list[str]:
    """What a run waits for, one thing a line, and the command that helps where one does; nothing where it has ended."""
    match WorkflowStatus(row.status):
        case WorkflowStatus.RUNNING if in_hand:
            return []
        case WorkflowStatus.QUEUED | WorkflowStatus.RUNNING:
            queue = row.step_queue or row.queue or rt.settings.queue
            of_queue = "" if queue is None else f" of the queue {queue}"
            lost = ", for the one that had it is not heard of" if row.status == WorkflowStatus.RUNNING else ""
            return [f"a worker{of_queue}{lost}. If none comes: {command('doctor')}"]
        case WorkflowStatus.PAUSED:
            return [f"somebody who resumes it: {command(f'workflows resume {_id(row)}')}"]
        case WorkflowStatus.WAITING:
            there = {step.step: step for step in journal}
            open_steps = [step for step in journal if step.completed_at is None]
            return [text for step in open_steps for text in _waits_for(rt, row, step, there, command)]
    return []


def _id(row: Any) -> str:
    return shlex.quote(row.workflow_id)


def _waits_for(rt: Runtime, row: Any, step: Any, there: Mapping[str, Any], command: Command) -> list[str]:
    """What an open step waits for. *there* are the entries of the journal by their keys."""
    where = f"{_until(step)} ({step.step!r})"
    if step.status == StepStatus.RETRYING:
        return [f"the next attempt of {step.step!r}, at {shown(step.deadline_at)}"]
    match step.kind:
        case "sleep" | "sleep-until":
            return [f"{shown(step.deadline_at)} ({step.step!r})"]
        case "approval":
            return [f"a decision{where}: {command(f'workflows approve {_id(row)}')}, or workflows reject"]
        case "prompt-wait":
            return [_answer(rt, step, there, command)]
        case "prompt-open":  # of a prompt that was started: told where it is waited for
            return []
        case "child-wait":
            return [_child(rt, step, there, command)]
        case "event":
            type = json.loads(step.output)
            send = command(f"workflows send-event {_id(row)} --type {shlex.quote(type)}")
            return [f"an event of type {type!r}{where}: {send}"]
        case "gather":
            started = [there[key] for key in json.loads(step.output)]
            return [_answer(rt, each, there, command) for each in started if each.completed_at is None]
        case "any":
            return [f"{_one_of(rt, row, each, there, command)}{where}" for each in json.loads(step.output)]
        case kind:
            return [f"{kind} {step.step!r}{_until(step)}"]


def _until(step: Any) -> str:
    return "" if step.deadline_at is None else f", until {shown(step.deadline_at)}"


def _one_of(rt: Runtime, row: Any, label: str, there: Mapping[str, Any], command: Command) -> str:
    """One of the things of which a ``wait_any`` waits for the first."""
    kind, _, name = label.partition(" ")
    if kind == "step":
        return f"{_answer(rt, there[name], there, command)}, or what else comes first"
    send = command(f"workflows send-event {_id(row)} --type {shlex.quote(name)}")
    return f"an event {name!r}, or what else comes first: {send}"


def _answer(rt: Runtime, step: Any, there: Mapping[str, Any], command: Command) -> str:
    where = f"{_until(step)} ({step.step!r})"
    asked = there.get(f"{step.step.removesuffix(':wait')}:submit")
    if asked is None or not asked.output:
        return f"an answer{where}"
    submission_id = loads(asked.output)["submission_id"]
    found = submissions.get(rt, submission_id)
    status = "deleted" if found is None else found.status
    show = command(f"submissions show {submission_id}")
    return f"the answer of submission {submission_id}, which is {status}: {show}{where}"


def _child(rt: Runtime, step: Any, there: Mapping[str, Any], command: Command) -> str:
    where = f"{_until(step)} ({step.step!r})"
    started = there.get(f"{step.step.removesuffix(':wait')}:start")
    if started is None or not started.output:
        return f"a child workflow{where}"
    child = WorkflowRef(*loads(started.output))
    found = workflows.get(rt, child)
    status = "deleted" if found is None else found.status
    show = command(
        f"workflows show {shlex.quote(child.workflow_id)} --workflow {shlex.quote(child.workflow)}"
    )
    return f"the end of workflow {child}, which is {status}: {show}{where}"
