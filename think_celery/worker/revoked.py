"""Revoking in Celery or Flower: a submission whose task is revoked is cancelled, and nothing else of ours is."""

import functools
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

from celery import Celery, signals
from celery.utils.functional import maybe_list
from celery.worker import state
from celery.worker.control import Panel
from celery.worker.request import Request

from think_celery.domain.knocks import RUN_SUBMISSION
from think_celery.domain.submissions import revocations
from think_celery.domain.work import WORK
from think_celery.logs import trace_of
from think_celery.runtime import Runtime
from think_celery.store.engines import pause

logger = logging.getLogger("think_celery.revoked")

AT_ONCE = 500
"""How many ids one look goes through: whoever revokes thousands must not hold up the tick."""
LAST_LOOKS = 3
LAST_PAUSE_SECONDS = 0.2
"""How often, and how far apart, a worker that stops looks at submissions that somebody has locked."""


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


# --- hearing of it --------------------------------------------------------------------------------

_listeners: list[Callable[[Celery, list[str]], None]] = []


def _told_of(command: Callable[..., Any]) -> Callable[..., Any]:
    """A remote control command of Celery's that revokes, which tells our listeners, too."""

    @functools.wraps(command)
    def told(panel: Any, **arguments: Any) -> Any:
        task_ids = [str(each) for each in maybe_list(arguments.get("task_id")) or ()]
        for listen in list(_listeners):
            listen(panel.app, task_ids)
        return command(panel, **arguments)

    return told


# Celery's list of revoked ids can't serve. A worker that starts, or connects again, fills its own from its neighbours'
# or from its statedb, and a submission that was deleted and accepted anew has the id of the one that was revoked.
for _name in ("revoke", "terminate"):
    Panel.data[_name] = _told_of(Panel.data[_name])


class Revocations:
    """Carries what one worker is told of revoked tasks into the database, once a second, beside the tick.

    Celery tells every worker of a revoke, but nothing happens then to a task that runs, or whose message no
    worker has. What a worker learns of earlier revokes when it starts changes nothing: whoever ran then has acted.
    """

    def __init__(self, app: Celery, rt: Runtime) -> None:
        self._app, self._rt = app, rt
        self._revoked: deque[str] = deque()
        self._dropped: deque[str] = deque()

    def start(self) -> None:
        """Begin to note what is revoked, and which messages Celery drops."""
        _listeners.append(self._note_revoked)
        signals.task_revoked.connect(self._note_dropped)

    def stop(self) -> None:
        """End that, with last looks: nobody remembers for this worker what it was told just now.

        They come to an end: a caller may keep a submission locked for as long as it likes.
        """
        signals.task_revoked.disconnect(self._note_dropped)
        if self._note_revoked in _listeners:
            _listeners.remove(self._note_revoked)
        try:
            self._look_last()
        except Exception as error:
            logger.error("could not look at what was revoked last: %s", trace_of(error))

    def _look_last(self) -> None:
        for number in range(LAST_LOOKS):
            if number:
                pause(LAST_PAUSE_SECONDS)
            for _ in range(0, max(len(self._revoked), len(self._dropped)), AT_ONCE):
                self.look()
            if not (self._revoked or self._dropped):
                return
        left = [*self._revoked, *self._dropped]
        logger.warning("revoked, but not cancelled, for somebody has them locked: %s", ", ".join(left))

    def _note_revoked(self, app: Celery, task_ids: list[str]) -> None:
        if app is self._app:
            self._revoked.extend(task_ids)

    def _note_dropped(self, sender: Any = None, request: Any = None, signum: Any = None, **_: Any) -> None:
        # Where it tells of a signal in words, a process was ended, and this was in its hands: the one that was to be
        # ended, perhaps, which we are told of, or the turn after it. It is taken over like that of any dead process.
        if sender.app is self._app and sender.name == RUN_SUBMISSION and not isinstance(signum, str):
            self._dropped.append(request.id)

    def look(self) -> None:
        """Cancel the submissions that were revoked since the last look; those that are locked, in the next one."""
        dropped = list(islice(self._dropped, AT_ONCE))
        noted = list(self._revoked)  # after those: of what was revoked and dropped for it, the revoke is seen
        revoked, later = noted[:AT_ONCE], set(noted[AT_ONCE:])
        settled = [task_id for task_id in dropped if task_id not in later]
        left = revocations.settle(self._rt, revoked, settled, state.revoked)
        for queue, done, again in (
            (self._revoked, revoked, left[0]),
            (self._dropped, dropped, left[1] + [task_id for task_id in dropped if task_id in later]),
        ):
            for _ in done:
                queue.popleft()
            queue.extend(again)
