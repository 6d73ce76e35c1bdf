"""What this process lacks to do some work: said in its log once for each class, however many rows wait for it.

Such a row is looked at again and again, for another worker may have the class: `think-celery doctor` counts them.
"""

import logging
from typing import Any

from think_celery.errors import ConfigurationError
from think_celery.ids import WorkflowRef
from think_celery.runtime import Runtime, agent_classes, workflow_classes

logger = logging.getLogger("think_celery.work")

OTHERS = "Others that wait for it are not named here; see: think-celery doctor"


def has_agent(rt: Runtime, agent_class: str, what: str) -> bool:
    """Whether *what* can be worked on here: this process has its agent's class."""
    if agent_class in agent_classes:
        return True
    if rt.said.is_new("agent", agent_class):
        logger.error(
            "%s waits: no agent class %r is imported in this worker. Add its module to `think_imports` or to Celery's "
            "`imports`. %s",
            what,
            agent_class,
            OTHERS,
        )
    return False


def has_method(rt: Runtime, agent_class: str, method: str, job_id: str) -> bool:
    """Whether the class of a job's agent, which this process has, has the job's method."""
    if callable(getattr(agent_classes.get(agent_class), method, None)):
        return True
    if rt.said.is_new("method", agent_class, method):
        logger.error(
            "job %s waits: %s has no method %r in this worker. Run a worker whose code has it, or cancel the job: "
            "think-celery jobs cancel %s. %s",
            job_id,
            agent_class,
            method,
            job_id,
            OTHERS,
        )
    return False


def no_task(rt: Runtime, agent_class: str, task_id: str, job_id: str, problem: Exception) -> None:
    """Say that the class of a job's agent, which this process has, declares no such task with a handler."""
    if rt.said.is_new("task", agent_class, task_id):
        logger.error("job %s waits: %s %s", job_id, problem, OTHERS)


def workflow_class(rt: Runtime, ref: WorkflowRef, agent_class: str, version: str) -> Any | None:
    """The class that runs this workflow here; ``None`` where this process lacks it, or has it in another version."""
    try:
        cls = workflow_classes.get(ref.workflow)
        agent_classes.get(agent_class)
    except ConfigurationError as error:
        if rt.said.is_new("workflow", ref.workflow, agent_class):
            logger.error("workflow %s %s waits: %s %s", ref.workflow, ref.workflow_id, error, OTHERS)
        return None
    if version in (cls.version, *cls.also_runs):
        return cls
    if rt.said.is_new("version", ref.workflow, version):
        logger.error(
            "workflow %s %s waits: it was started by version %r of its class, and this worker has %r. Name the old "
            "version in also_runs, or keep a worker with the old code until its runs have ended. %s",
            ref.workflow,
            ref.workflow_id,
            version,
            cls.version,
            OTHERS,
        )
    return None
