"""Revoking in Celery or Flower: a submission whose task is revoked is cancelled, and nothing else of ours is."""

import logging
from collections import deque
from typing import Any, Literal

from celery import Celery, signals
from celery.worker import state
from celery.worker.request import Request

from think_celery.domain import lines, revocations
from think_celery.domain.knocks import RUN_SUBMISSION
from think_celery.domain.work import WORK
from think_celery.logs import trace_of
from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.revoked")

AT_ONCE = 500
"""How many ids one look goes through: a worker that starts is told of all that its neighbours remember."""


class ThinkRequest(Request):  # type: ignore[misc,type-arg,unused-ignore]
    """A message of ours in a worker.

    A row is knocked for under one id until it has moved, and Celery remembers a revoked id for hours. A
    workflow or a piece of news whose id is in that list would wait as long, so the list is not for them.
    Nor does a knock expire, whatever the host's routes say: the row is still there.
    """

    def revoked(self) -> bool:
        """Whether it is dropped."""
        kept = self.name in WORK and self.name != RUN_SUBMISSION
        return not kept and super().revoked()

    def maybe_expire(self) -> Literal[True] | None:
        """Whether it came too late."""
        return None if self.name in WORK else super().maybe_expire()


class Revocations:
    """Carries what one worker learns of revoked tasks into the database.

    Celery tells every worker of a revoke, but nothing happens then to a task that runs, or whose message no
    worker has. So Celery's list is looked at once a second, beside the tick.
    """

    def __init__(self, app: Celery, rt: Runtime) -> None:
        self._app, self._rt = app, rt
        self._known: set[str] = set()
        self._dropped: deque[str] = deque()

    def start(self) -> None:
        """Begin to note which messages Celery drops."""
        signals.task_revoked.connect(self._note)

    def stop(self) -> None:
        """End that, with a last look: nobody remembers for this worker what it was told just now."""
        signals.task_revoked.disconnect(self._note)
        try:
            self.look()
        except Exception as error:
            logger.error("could not look at what was revoked last: %s", trace_of(error))

    def _note(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        if sender.app is self._app and sender.name == RUN_SUBMISSION:
            self._dropped.append(request.id)

    def look(self) -> None:
        """Cancel the submissions that were revoked since the last look."""
        listed = set(state.revoked)
        dropped = {self._dropped.popleft() for _ in range(len(self._dropped))}
        self._known &= listed
        # One that was deleted, and accepted anew under its key, has its old id, and that is in the list.
        for row in revocations.unfinished(self._rt, sorted(dropped & self._known)):
            for ids in (state.revoked, listed, dropped, self._known):
                ids.discard(row.id)
            lines.knock_head(self._rt, row.agent_id)
        new = sorted((listed | dropped) - self._known)[:AT_ONCE]
        revocations.cancel(self._rt, new)
        self._known.update(new)
