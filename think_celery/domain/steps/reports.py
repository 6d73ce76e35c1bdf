"""What a workflow tells its agent on purpose, once: ``step.report_complete``, ``report_error``, ``send_event``.

The entry and the job that calls the agent's hook are one transaction. The hook of a run's end is called once a run: a
report that comes before the end is what it is told.
"""

from dataclasses import dataclass
from typing import Any

from think_celery import serialization
from think_celery.described import MAX_ERROR, MAX_TYPE, describe, storable
from think_celery.domain.workflows import hooks
from think_celery.domain.workflows.journal import Asked, failure_of
from think_celery.domain.workflows.replay import Replay
from think_celery.errors import InvalidValue, StepMisuse
from think_celery.names import RESERVED, name_problem
from think_celery.states import StepStatus
from think_celery.store import steps
from think_celery.store.database import Tx
from think_celery.wording import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What a hook's job needs of the workflow's row."""

    key: str
    workflow: str
    workflow_id: str
    run: int


def report_complete(replay: Replay, result: Any) -> None:
    """Tell the agent of the result; see ``Step.report_complete``."""
    replay.check("report-complete")
    _report(replay, replay.ask("report-complete", "report"), "complete", result)


def report_error(replay: Replay, error: Any) -> None:
    """Tell the agent of an error; see ``Step.report_error``."""
    replay.check("report-error")
    if isinstance(error, BaseException):
        error_type, text = describe(error)
    elif isinstance(error, str):
        error_type, text = "Error", error
    else:
        raise StepMisuse("report-error", f"{type(error).__name__} is no error. Pass an exception, or a text.")
    told = {"error_type": storable(error_type, MAX_TYPE), "error": storable(text, MAX_ERROR)}
    _report(replay, replay.ask("report-error", "report"), "error", told)


def send_event(replay: Replay, type: str, payload: Any) -> None:
    """Tell the agent of something; see ``Step.send_event``."""
    replay.check("send-event")
    problem = name_problem(type, 200)
    if problem is None and type.startswith(RESERVED):
        problem = f"what begins with {RESERVED!r} is the engine's own"
    if problem is not None:
        raise StepMisuse("send-event", f"type={shown(type)}, an event's type: {problem}.")
    asked = replay.ask("send-event", "report")
    _report(replay, asked, f"event:{asked.ref.step}", {"type": type, "payload": payload})


def _report(replay: Replay, asked: Asked, what: str, payload: Any) -> None:
    if replay.recorded(asked) is not None:
        return
    rt = replay.rt
    replay.before_effect(asked)
    rt.failpoint(f"step:{asked.ref.step}:before")
    try:
        limit = rt.settings.max_payload
        told = serialization.loads(serialization.dumps(payload, what="what is told", limit=limit))
    except InvalidValue as error:
        replay.fail(asked, failure_of(error).for_good(), 1, recorded=False)
    workflow = replay.workflow
    run = _Run(key=workflow.key, workflow=workflow.workflow, workflow_id=workflow.workflow_id, run=replay.run)

    def store(tx: Tx, _: int) -> None:
        replay.must(steps.insert(tx, asked.ref, StepStatus.DONE, output="null"))
        hooks.enqueue(rt, tx, replay.agent, run, what, told)
        rt.failpoint(f"step:{asked.ref.step}:before-commit")

    replay.write(asked, store)
    rt.failpoint(f"step:{asked.ref.step}:committed")
