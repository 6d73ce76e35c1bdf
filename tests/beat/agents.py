"""What the processes of these tests can do. Imported in them alone: what it declares depends on their environment."""

import json
import os
import time
from typing import Any

from think_celery import Think
from think_celery.protocols import Model, ModelRequest
from think_celery.providers.scripted import FunctionModel, say

EFFECTS, VERSION = "BEAT_EFFECTS", "BEAT_VERSION"


def effect(what: str, **more: Any) -> None:
    """Do something that the world notices: a line in a file."""
    line = json.dumps({"what": what, "at": time.time(), "pid": os.getpid(), **more}) + "\n"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class Pulse(Think):
    """Notes that it was called."""

    def note(self, payload: Any) -> None:
        """The method of its schedules."""
        effect(self.name)

    def get_model(self) -> Model:
        """It is quick."""
        return FunctionModel(_reply)


def _reply(request: ModelRequest) -> Any:
    effect(f"prompt {request.messages[-1].text}")
    return say("Done.")


class Deployed(Pulse):
    """Declares other tasks in each version of its code."""

    version = os.environ.get(VERSION, "1")

    def get_scheduled_tasks(self) -> dict[str, Any]:
        """``old`` goes, ``new`` comes, ``both`` stays, and ``changed`` is at another time."""
        hour = 3 if self.version == "1" else 4
        tasks = {
            "both": {"schedule": "every day at 03:00 in UTC", "prompt": "both"},
            "changed": {"schedule": f"every day at {hour:02}:30 in UTC", "prompt": "changed"},
        }
        name = "old" if self.version == "1" else "new"
        return {**tasks, name: {"schedule": "every day at 05:00 in UTC", "prompt": name}}
