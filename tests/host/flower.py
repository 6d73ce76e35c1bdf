"""A Flower, and what it shows."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.host.world import Command, until


class Flower(Command):
    """``celery flower`` on the loopback."""

    def __init__(self, environ: Mapping[str, str], log: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        given = {**environ, "FLOWER_UNAUTHENTICATED_API": "true"}
        super().__init__(given, log, "flower", "--address=127.0.0.1", f"--port={port}")

    def page(self, path: str) -> str:
        """What is at that path."""
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return str(answer.read().decode())

    def revoke(self, task_id: str) -> Any:
        """Press the button."""
        request = urllib.request.Request(f"{self.url}/api/task/revoke/{task_id}", method="POST", data=b"")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def sees(self, worker: str) -> None:
        """Return once it has heard of this worker by its events."""

        def heard() -> bool:
            try:
                return worker in self.page("/metrics")
            except urllib.error.URLError:  # it does not listen yet
                return False

        until(heard, self.output)

    def task(self, task_id: str) -> Any:
        """What it knows of a task."""
        return json.loads(self.page(f"/api/task/info/{task_id}"))

    def tasks(self) -> dict[str, Any]:
        """All tasks that it knows, by id."""
        return dict(json.loads(self.page("/api/tasks")))
