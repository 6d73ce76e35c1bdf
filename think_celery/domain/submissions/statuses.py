"""Tell an agent what its submissions have become: by whoever made them so, after the commit."""

from typing import Any

from think_celery.domain import calls
from think_celery.domain.agents import reactions
from think_celery.errors import ThinkError
from think_celery.hooks.turns import StatusChange
from think_celery.runtime import Runtime, agent_classes
from think_celery.states import SubmissionStatus
from think_celery.store.database import Tx

HOOK = "on_submission_status"
PATIENCE_SECONDS = 5.0
"""How long a hook may hold up whoever has accepted or ended a submission of the agent's."""


def overrides(agent_class: str, *hooks: str) -> bool:
    """Whether the agent class of that name, as far as it is known here, has one of these hooks."""
    try:
        cls = agent_classes.get(agent_class)
    except ThinkError:  # not imported here, or there are two
        return False
    return any(cls._overrides(hook) for hook in hooks)


def follows(agent_class: str) -> bool:
    """Whether agents of that class want to be told how a turn has ended, before the next one begins."""
    return overrides(agent_class, "on_chat_response", HOOK)


def tell_after(
    rt: Runtime,
    tx: Tx,
    row: Any,
    status: SubmissionStatus,
    *,
    error_type: str | None = None,
    error: str | None = None,
) -> None:
    """Tell the agent of this change once it is committed, if its class is known here and has the hook."""
    if not overrides(row.agent_class, HOOK):
        return
    change = StatusChange(
        submission_id=row.id, status=status, error_type=error_type, error=error, metadata=row.metadata
    )

    def work() -> None:
        getattr(rt.make_agent(row.agent_class, row.agent_name), HOOK)(change)

    tx.after_commit(lambda: _tell(rt, change, work))


def _tell(rt: Runtime, change: StatusChange, work: Any) -> None:
    result = calls.attempt(rt, work, timeout=PATIENCE_SECONDS)
    turn = change.submission_id
    reactions.returned(result, f"{HOOK} of submission {turn}", think_submission=turn)
