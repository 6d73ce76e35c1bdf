"""What becomes of submissions whose Celery tasks were revoked."""

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from think_celery.domain.submissions import lines, submissions
from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store.database import Tx, is_away

logger = logging.getLogger("think_celery.revoked")

REASON = "revoked in Celery"


class Remembered(Protocol):
    """The ids whose messages a worker drops, for as long as it remembers them."""

    def __contains__(self, task_id: object) -> bool: ...

    def discard(self, task_id: str) -> None:
        """Let its messages pass again."""


def settle(
    rt: Runtime, revoked: Iterable[str], dropped: Iterable[str], remembered: Remembered
) -> tuple[list[str], list[str]]:
    """Cancel the submissions among the ids *revoked* since the last time, and see to messages that were *dropped*.

    A message is dropped because its id was revoked at some time. A submission that has not ended for all that
    was deleted since, and accepted anew under its key: a revoke is for what was there when it came, so its id
    is forgotten and its agent knocked for. Or the id is not *remembered*: then it was revoked just now by a
    stamp, of which no list of ids knows. Ids of anything else change nothing.

    A submission that somebody has locked, such as a caller in an open transaction or the process that hands it over,
    is not waited for, and one that can't be cancelled hides no other. Its messages go on to be dropped: it was not
    accepted anew. Returns those ids, of the first and of the second kind, for the next look.
    """
    left: tuple[list[str], list[str]] = ([], [])
    for row in _unfinished(rt, revoked):
        if not _cancelled(rt, row.id):
            left[0].append(row.id)
    for row in _unfinished(rt, dropped):
        if row.id in left[0]:
            left[1].append(row.id)
        elif row.id in remembered:
            remembered.discard(row.id)  # before the knock, which would be dropped as well
            lines.knock_head(rt, row.agent_id)
        elif not _cancelled(rt, row.id):
            left[1].append(row.id)
    return left


def _cancelled(rt: Runtime, submission_id: str) -> bool:
    """Whether a submission has ended now."""

    def cancel(tx: Tx) -> bool:
        return submissions.cancel(rt, tx, submission_id, REASON, patient=False)

    try:
        return rt.db.transact(cancel) or not _unfinished(rt, [submission_id])
    except Exception as error:
        if is_away(error):
            raise
        logger.error("could not cancel %s, which was revoked: %s", submission_id, trace_of(error))
        return False


def _unfinished(rt: Runtime, task_ids: Iterable[str]) -> list[Any]:
    found = [submissions.get(rt, task_id) for task_id in dict.fromkeys(task_ids)]
    return [row for row in found if row is not None and not is_terminal(SubmissionStatus(row.status))]
