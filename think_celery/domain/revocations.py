"""What becomes of submissions whose Celery tasks were revoked."""

from collections.abc import Iterable
from typing import Any, Protocol

from think_celery.domain import lines, submissions
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal

REASON = "revoked in Celery"


class Remembered(Protocol):
    """The ids whose messages a worker drops, for as long as it remembers them."""

    def __contains__(self, task_id: object) -> bool: ...

    def discard(self, task_id: str) -> None:
        """Let its messages pass again."""


def settle(rt: Runtime, revoked: Iterable[str], dropped: Iterable[str], remembered: Remembered) -> None:
    """Cancel the submissions among the ids *revoked* since the last time, and see to messages that were *dropped*.

    A message is dropped because its id was revoked at some time. A submission that has not ended for all that
    was deleted since, and accepted anew under its key: a revoke is for what was there when it came, so its id
    is forgotten and its agent knocked for. Or the id is not *remembered*: then it was revoked just now by a
    stamp, of which no list of ids knows. Ids of anything else change nothing.
    """
    for row in _unfinished(rt, revoked):
        submissions.cancel_by_id(rt, row.id, REASON)
    for row in _unfinished(rt, dropped):
        if row.id in remembered:
            remembered.discard(row.id)  # before the knock, which would be dropped as well
            lines.knock_head(rt, row.agent_id)
        else:
            submissions.cancel_by_id(rt, row.id, REASON)


def _unfinished(rt: Runtime, task_ids: Iterable[str]) -> list[Any]:
    found = [submissions.get(rt, task_id) for task_id in dict.fromkeys(task_ids)]
    return [row for row in found if row is not None and not is_terminal(SubmissionStatus(row.status))]
