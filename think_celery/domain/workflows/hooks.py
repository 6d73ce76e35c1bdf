"""What the agent that started a workflow is told of it: its hooks ``on_workflow_…``.

Of a run's end, and of what it sends on purpose, the agent is told by a job, which is stored in the transaction of what
it tells of: so once, and later. Progress is told at once, in the worker, and may be told again.
"""

import logging
from typing import Any

from think_celery import serialization
from think_celery.domain.agents.reactions import react
from think_celery.domain.jobs import jobs
from think_celery.domain.workflows.replay import Replay
from think_celery.hooks.workflows import WorkflowNews
from think_celery.ids import AgentRef
from think_celery.logs import trace_of
from think_celery.runtime import Runtime, agent_classes
from think_celery.store import control
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.workflows")


def _kind(what: str) -> str:
    return what.partition(":")[0]


def hook_of(what: str) -> str:
    """The name of the hook for ``progress``, ``complete``, ``error``, or ``event:<step>``."""
    return f"on_workflow_{_kind(what)}"


def is_wanted(agent: AgentRef, what: str) -> bool:
    """Whether the agent's class has that hook."""
    return bool(agent_classes.get(agent.agent_class)._overrides(hook_of(what)))


def news_of(row: Any, what: str, payload: Any) -> WorkflowNews:
    """What a hook is told of the workflow with this row. Of an error, *payload* holds its two texts."""
    told = payload if what == "error" else {{"complete": "output"}.get(what, _kind(what)): payload}
    return WorkflowNews(workflow=row.workflow, workflow_id=row.workflow_id, run=row.run, **told)


def enqueue(rt: Runtime, tx: Tx, agent: AgentRef, row: Any, what: str, payload: Any) -> None:
    """Let a hook of the agent be called soon, once a run, if its class has that hook.

    Args:
        rt: The runtime.
        tx: The transaction of what the hook is told of.
        agent: The agent that started the workflow.
        row: The workflow's: its key, names and run are read.
        what: ``complete``, ``error``, or ``event:<step>``; the same one again is nothing new.
        payload: The output; of an error ``{"error_type": …, "error": …}``; or the event.
    """
    if not is_wanted(agent, what):
        return
    hook = hook_of(what)
    jobs.insert(
        rt,
        tx,
        agent,
        kind="hook",
        lane=jobs.HOOK,
        method=hook,
        payload_text=serialization.dumps([news_of(row, what, payload)], what=f"what {hook} is told"),
        idempotency_key=f"workflow-hook:{row.key}:{row.run}:{what}",
    )


def report_progress(replay: Replay, progress: Any) -> None:
    """Store how far a run has come, for whoever looks at it, and call the hook; nothing while the journal is replayed.

    A hint: where it can't be stored now, the run goes on without.

    Raises:
        NotSerializable, PayloadTooLarge: The progress can't be stored.
    """
    if replay.journal.replaying:
        return
    rt, agent, lease = replay.rt, replay.agent, replay.hold.lease
    text = serialization.dumps(progress, what="progress", limit=rt.settings.max_payload)
    try:
        if not rt.db.accept_single(lambda tx: control.report_progress(tx, lease, text)):
            return  # the run is another's now, or has ended
    except Exception as error:
        logger.warning("%s: could not store its progress: %s", replay.workflow, trace_of(error))
        return
    if is_wanted(agent, "progress"):
        told = WorkflowNews(
            workflow=replay.workflow.workflow,
            workflow_id=replay.workflow.workflow_id,
            run=replay.run,
            progress=serialization.loads(text),
        )
        made = rt.make_agent(agent.agent_class, agent.name)
        react(f"{hook_of('progress')} of {agent}", lambda: made.on_workflow_progress(told))
