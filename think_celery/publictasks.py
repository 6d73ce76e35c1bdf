"""Tasks for callers that have nothing but Celery: another service, or a row of django-celery-beat.

They start workflows, send them events and submit turns. Their arguments travel through the broker as they are, and so
does the text of a prompt: whoever can import think_celery should call its methods instead.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery.exceptions import Reject

from think_celery.domain import calls
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import workflows
from think_celery.errors import InvalidValue, TaskFailed, ThinkError
from think_celery.ids import AgentRef, named_id, new_id
from think_celery.logs import trace_of
from think_celery.names import check_name, meant_by
from think_celery.runtime import Runtime, agent_classes
from think_celery.store.database import is_away

logger = logging.getLogger("think_celery.tasks")

SUBMIT, START, SEND_EVENT = "think.submit", "think.workflow.start", "think.workflow.send_event"

AWAY_SECONDS = 1.0
"""How long a worker keeps a message while the database is away, before it gives it back to the broker."""

Given = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicTask:
    """One of them: what it needs, what it may be given, and what it does, in words of its own id."""

    needs: Sequence[str]
    takes: Sequence[str]
    run: Callable[[Runtime, Given, str], str]


def _agent(given: Given) -> AgentRef:
    check_name("agent_class", given["agent_class"], 200)
    check_name("agent_name", given["agent_name"], 200)
    # A slip in its name must not wait for ever for a worker that has it.
    agent_classes.get(given["agent_class"])
    return AgentRef(given["agent_class"], given["agent_name"])


def _submit(rt: Runtime, given: Given, task_id: str) -> str:
    """Accept a turn. The same key, id or message again is the same submission."""
    agent, key, chosen = _agent(given), given.get("idempotency_key"), given.get("submission_id")
    if key is None and chosen is None:
        chosen = named_id(SUBMIT, task_id)
    row, _, _ = submissions.submit(
        rt,
        agent,
        given["messages"],
        idempotency_key=key,
        submission_id=chosen,
        metadata=given.get("metadata"),
        queue=agent_classes.get(agent.agent_class).queue or rt.settings.queue,
    )
    return str(row.id)


def _start(rt: Runtime, given: Given, task_id: str) -> str:
    """Start a workflow. The same id or message again is the same workflow."""
    workflow_id = given.get("workflow_id")
    return workflows.start(
        rt,
        _agent(given),
        _workflow(given),
        given.get("params"),
        workflow_id=f"wf_{named_id(START, task_id)}" if workflow_id is None else workflow_id,
        metadata=given.get("metadata"),
    )


def _send_event(rt: Runtime, given: Given, task_id: str) -> str:
    """Send an event. The same key or message again is the same event."""
    reference, key = workflows.reference(_workflow(given), given["workflow_id"]), given.get("idempotency_key")
    workflows.send_event(
        rt,
        reference,
        type=given["type"],
        payload=given.get("payload"),
        idempotency_key=f"task:{task_id}" if key is None else key,
    )
    return reference.workflow_id


def _workflow(given: Given) -> str:
    if not isinstance(given["workflow"], str):
        raise InvalidValue(f"workflow={given['workflow']!r}: pass the registered name of a workflow class.")
    return given["workflow"]


PUBLIC: Mapping[str, PublicTask] = {
    SUBMIT: PublicTask(
        needs=("agent_class", "agent_name", "messages"),
        takes=("idempotency_key", "submission_id", "metadata"),
        run=_submit,
    ),
    START: PublicTask(
        needs=("workflow", "agent_class", "agent_name"),
        takes=("params", "workflow_id", "metadata"),
        run=_start,
    ),
    SEND_EVENT: PublicTask(
        needs=("workflow", "workflow_id", "type"), takes=("payload", "idempotency_key"), run=_send_event
    ),
}


def perform(rt: Runtime, name: str, args: Sequence[Any], kwargs: Given, task_id: str | None) -> str:
    """Do what that task is asked for, and return the id of what it has made or found.

    Where the database is away, the message goes back to the broker: it is all that there is of the request.

    Raises:
        ThinkError: The arguments can't be used. The message is done with.
        Reject: The database is away.
        TaskFailed: Something else went wrong. The message is done with.
    """
    task = PUBLIC[name]
    _check(name, task, args, kwargs)
    try:
        return task.run(rt, kwargs, task_id or new_id())
    except ThinkError as error:
        raise error from None  # a cause may repeat what the caller wrote, and a failure's traceback is kept
    except BaseException as error:
        if calls.interrupts(error):
            raise
        if isinstance(error, Exception) and is_away(error):
            logger.warning("%s waits: the database is away", name)
            rt.clock.sleep(AWAY_SECONDS)
            raise Reject("the database is away", requeue=True) from None
        # A database's own words can hold what a row holds; Celery would print and send them.
        logger.error("%s failed: %s", name, trace_of(error))
        raise TaskFailed(name, type(error).__name__) from None


def _check(name: str, task: PublicTask, args: Sequence[Any], kwargs: Given) -> None:
    known = [*task.needs, *task.takes]
    told = f"{name} takes {', '.join(task.needs)}, and may take {', '.join(task.takes)}"
    if args:
        raise InvalidValue(f"{told}, all by name (kwargs); it got {len(args)} without a name.")
    missing = [each for each in task.needs if each not in kwargs]
    if missing:
        raise InvalidValue(f"{told}; {', '.join(missing)} is missing.")
    for given in kwargs:
        if given not in known:
            near = meant_by(given, known)
            raise InvalidValue(f"{told}; it got {given!r}." + (f" Did you mean {near!r}?" if near else ""))
