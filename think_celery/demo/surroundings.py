"""What the demo changes in its process while it runs, and puts back."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from celery import signals
from celery.platforms import SecurityWarning  # type: ignore[attr-defined,unused-ignore]

from think_celery.demo import desk as desks
from think_celery.demo.desk import Desk


@contextmanager
def own_environment() -> Iterator[None]:
    """Hide the settings of the user's own applications: a ``CELERY_BROKER_URL`` would win over ours."""
    before = dict(os.environ)
    for name in before:
        if name.upper().startswith(("CELERY_", "THINK_")):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def logging_into(path: Path) -> Iterator[None]:
    """Write logs into a file, so that they don't break up what the terminal shows."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    signals.setup_logging.connect(_leave_logging_alone, dispatch_uid=_UID)
    try:
        yield
    finally:
        signals.setup_logging.disconnect(_leave_logging_alone, dispatch_uid=_UID)
        root.handlers[:] = handlers
        root.setLevel(level)
        handler.close()


_UID = "think-demo-logging"


def _leave_logging_alone(**_: object) -> None:
    """A worker that finds a receiver of this signal sets up no logging itself."""


@contextmanager
def without_warnings_to_root() -> Iterator[None]:
    """Keep Celery's warning to the superuser off the screen: this worker runs nobody's code but the demo's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        yield


@contextmanager
def at_desk(desk: Desk) -> Iterator[None]:
    """Let the agents of this process work at that desk."""
    desks.use(desk)
    try:
        yield
    finally:
        desks.use(None)


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the program as Ctrl-C does: in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
