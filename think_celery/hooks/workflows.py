"""What an agent is told of the workflows that it has started."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class WorkflowNews:
    """Something that happened in a workflow: what the hooks ``on_workflow_…`` of its agent are told.

    ``workflow`` is the registered name of its class, ``workflow_id`` its id, and ``run`` counts from 1; a restart makes
    the next one. Of what follows, that is set of which a hook tells: ``progress`` in ``on_workflow_progress``,
    ``output`` in ``on_workflow_complete``, ``error_type`` and ``error`` (texts) in ``on_workflow_error``, ``event``
    (a dict of ``type`` and ``payload``) in ``on_workflow_event``.
    """

    workflow: str
    workflow_id: str
    run: int
    progress: Any = field(default=None, repr=False)
    output: Any = field(default=None, repr=False)
    event: Any = field(default=None, repr=False)
    error_type: str | None = None
    error: str | None = field(default=None, repr=False)
