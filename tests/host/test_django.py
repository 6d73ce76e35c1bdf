"""Django's connections, which are a thread's own: none that our threads have opened outlives their work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def project(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run it; it ends in order."""
    command = [sys.executable, "-m", "tests.host.ledger", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.parametrize("kept", [False, True], ids=["", "CONN_MAX_AGE"])
def test_no_connection_is_left_open(tmp_path: Path, kept: bool) -> None:
    """Tools, hooks, steps, jobs, fibers, handlers, declarations, and what was given up and came back.

    Celery's tasks have theirs closed by Celery, where a task ends in its thread; it does not know of our threads.
    """
    ran = project(tmp_path, *(["keep"] if kept else []))

    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["left"] == {}
    assert told["opened"]["think-call"] > 10


def test_in_a_test_case_the_connection_stays(tmp_path: Path) -> None:
    """In ``think_test`` tools run in the thread of Django's ``TestCase``, inside its transaction."""
    assert "OK" in project(tmp_path, "test").stderr
