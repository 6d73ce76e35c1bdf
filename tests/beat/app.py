"""For ``celery -A tests.beat.app``: the app of one process, as its environment says.

``BEAT_BROKER``, ``BEAT_QUEUE``: where messages go. ``BEAT_CONF``: more of Celery's settings, as JSON.
``BEAT_CLOCK``: a file that says by how many seconds this process's clock is wrong.
"""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

from celery import Celery

from tests.beat.agents import effect
from tests.beat.service import CLOCK
from think_celery import ThinkCelery
from think_celery.clock import SystemClock


def make_clock_wrong(file: Path) -> None:
    """From now on this process's clock is wrong by as many seconds as the file says."""
    right = SystemClock.now

    def wrong(self: SystemClock) -> datetime:
        return right(self) + timedelta(seconds=float(file.read_text() or 0))

    SystemClock.now = wrong  # type: ignore[method-assign]


def tock() -> None:
    """A task of the app's own."""
    effect("own entry")


if file := os.environ.get(CLOCK):
    make_clock_wrong(Path(file))

app = Celery("beats", set_as_current=True)
app.conf.update(
    broker_url=os.environ["BEAT_BROKER"],
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ["BEAT_QUEUE"],
    worker_prefetch_multiplier=1,
    think_imports=["tests.beat.agents"],
    **json.loads(os.environ.get("BEAT_CONF", "{}")),
)
app.task(name="own.tock")(tock)
ThinkCelery(app)
