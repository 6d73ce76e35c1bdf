"""``celery beat -S think_celery.beat:ThinkScheduler``: Celery's own beat, which also fires the schedules of agents."""

import logging
import threading
from datetime import datetime
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler

from think_celery.domain.schedules import drivers, schedules
from think_celery.errors import ConfigurationError
from think_celery.logs import trace_of
from think_celery.metronome import Metronome
from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.beat")

LISTED = 5
LIST_SECONDS = 3.0
"""How long a beat that starts waits for the database to list the next slots."""

TICK_SECONDS = 1.0


class ThinkScheduler(PersistentScheduler):  # type: ignore[misc,unused-ignore]
    """Sends the app's ``beat_schedule`` as Celery's default scheduler does, and beside it fires schedules of agents.

    The two share nothing: while the broker is away, which holds up Celery's part, slots are still stored, and while
    the database is away, the app's entries are still sent. It sleeps until the next slot comes, for a
    second at most. Any number of beats may run: each slot is fired once. (The app's own entries are sent by each
    beat, as always with Celery.)

    It fires schedules, and keeps the declared tasks of all agents as their classes have them. What else is due or
    lost, workers look after.
    """

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        """Made by ``celery beat``, twice: once to show what will run, with ``lazy=True``.

        Raises:
            ConfigurationError: The app has no ``ThinkCelery``.
            InvalidSetting: A setting is unknown or unfit.
        """
        self._rt = _runtime_of(app)
        self._metronome: Metronome | None = None
        super().__init__(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        """Set the app's entries up, and begin to fire."""
        super().setup_schedule()
        self._metronome = Metronome(self._rt, drivers.on_time)
        self._metronome.start()

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Send the app's next entry if it is due, and say how long to sleep, a second at most."""
        if self._metronome is not None and not self._metronome.runs:
            logger.error("the threads that fire schedules have ended; they are started again")
            self._metronome.stop()
            self._metronome.start()
        return min(super().tick(*args, **kwargs), TICK_SECONDS)

    def close(self) -> None:
        """Store the state of the app's entries, and stop."""
        try:
            super().close()
        finally:
            if self._metronome is not None:
                metronome, self._metronome = self._metronome, None
                metronome.stop()

    @property
    def info(self) -> str:
        """What ``celery beat`` shows at its start: the file of the app's entries, and the next slots."""
        return f"{super().info}\n{listing(self._rt)}"


def _runtime_of(app: Celery) -> Runtime:
    think = getattr(app, "think", None)
    if think is None:
        raise ConfigurationError(
            f"The Celery app {app.main!r} has no agents: ThinkScheduler needs one that ThinkCelery(app) has wired. "
            "Give that app to celery beat with -A, or start it without -S."
        )
    runtime: Runtime = think.runtime
    return runtime


def listing(rt: Runtime) -> str:
    """The next slots, in lines for Celery's banner; what keeps them from being read, where something does."""
    lines: list[str] = []

    def read() -> None:
        try:
            lines.extend(_lines(rt))
        except ConfigurationError as error:
            lines.append(str(error))
        except Exception as error:
            logger.debug("the next slots can't be listed: %s", trace_of(error))
            lines.append(f"the database can't be read now ({type(error).__name__}); it is tried each second")

    thread = threading.Thread(target=read, name="think-listing", daemon=True)
    thread.start()
    thread.join(LIST_SECONDS)
    shown = lines or ["the database does not answer; it is tried each second"]
    return "\n".join(
        f"    . {'next slots ->' if at == 0 else '             '} {line}" for at, line in enumerate(shown)
    )


def _lines(rt: Runtime) -> list[str]:
    rows = schedules.find(rt, limit=LISTED + 1)
    lines = [
        f"{_shown(row.next_run_at)}  {row.agent_class}:{row.agent_name}  {row.task_id or row.method}"
        for row in rows
    ]
    if len(rows) > LISTED:
        lines[LISTED:] = ["and more: think-celery schedules list"]
    return lines or ["no agent has a schedule yet"]


def _shown(moment: datetime) -> str:
    return moment.isoformat(" ", "seconds").replace("+00:00", "Z")
