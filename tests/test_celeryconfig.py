"""`celeryconfig.py` at the top: what it reads is documented in it, and `celery -A think_celery` uses it."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FILE = ROOT / "celeryconfig.py"

SHOW = """
import json
from celery.app.utils import find_app
app = find_app("think_celery")
conf = app.conf
names = ["broker_url", "broker_transport_options", "worker_prefetch_multiplier", "worker_pool", "task_send_sent_event",
         "worker_send_task_events", "accept_content", "imports", "broker_connection_retry_on_startup",
         "worker_soft_shutdown_timeout"]
from think_celery import brokers
print(json.dumps({**{name: conf[name] for name in names}, "advice": brokers.advice(app),
                  "lease": app.think.runtime.settings.lease_seconds}))
"""


def configured(folder: Path, **environment: str) -> dict[str, Any]:
    """The configuration of the default app of a process in that folder."""
    ran = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_every_variable_that_it_reads_is_documented_in_it() -> None:
    """With the default that the code has; and nothing is documented as read that is not."""
    tree = ast.parse(FILE.read_text())
    document = ast.get_docstring(tree) or ""
    own = document[document.index("this file reads") : document.index("Others read these")]
    read = {
        ast.literal_eval(node.args[0]): ast.literal_eval(node.args[1])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get"
    }

    assert read
    assert dict(re.findall(r"^([A-Z_]+) \((.*)\)$", own, re.MULTILINE)) == read
    assert FILE.read_text().count("environ") == len(read)


def test_each_setting_stands_in_it_once() -> None:
    """Of two lines the first would look as if it counted."""
    names = [
        ast.unparse(node.targets[0])
        for node in ast.parse(FILE.read_text()).body
        if isinstance(node, ast.Assign)
    ]

    assert sorted(names) == sorted(set(names))


def test_where_it_lies_in_the_working_folder_the_default_app_uses_it(tmp_path: Path) -> None:
    """On Redis a worker then recovers as fast as it can: nothing is left to advise. Variables change it."""
    shutil.copy(FILE, tmp_path)
    found = configured(
        tmp_path,
        CELERY_BROKER_URL="redis://127.0.0.1:1/0",
        CELERY_VISIBILITY_TIMEOUT="4000",
        CELERY_SOFT_SHUTDOWN_TIMEOUT="7",
        THINK_LEASE="5 seconds",
    )

    options = found["broker_transport_options"]
    assert (options["visibility_timeout"], options["unacked_restore_interval"]) == (4000, 1)
    assert options["unacked_restore_throttle"] == 1
    assert found["advice"] == []
    assert found["worker_prefetch_multiplier"] == 1
    assert (found["task_send_sent_event"], found["worker_send_task_events"]) == (True, True)
    assert found["accept_content"] == ["json"]
    assert found["worker_soft_shutdown_timeout"] == 7
    assert found["imports"] == ["think_celery.demo.agents"]
    assert found["lease"] == 5


def test_without_a_broker_it_is_in_memory_with_it_too(tmp_path: Path) -> None:
    """As without the file: nothing in it names a broker."""
    bare = configured(tmp_path)
    shutil.copy(FILE, tmp_path)
    found = configured(tmp_path)

    for each in (bare, found):
        assert (each["broker_url"], each["worker_pool"]) == ("memory://", "threads")
        assert each["broker_transport_options"]["polling_interval"] < 0.1
    assert (bare["worker_send_task_events"], found["worker_send_task_events"]) == (False, True)
    assert (bare["broker_connection_retry_on_startup"], bare["worker_prefetch_multiplier"]) == (True, 1)


def test_one_in_another_folder_is_not_used(tmp_path: Path) -> None:
    """Not even if Python could import it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "celeryconfig.py").write_text("worker_prefetch_multiplier = 9\n")
    (tmp_path / "here").mkdir()

    found = configured(tmp_path / "here", PYTHONPATH=str(tmp_path / "elsewhere"))

    assert found["worker_prefetch_multiplier"] == 1


def test_what_it_says_wins_over_our_defaults(tmp_path: Path) -> None:
    """It is the user's."""
    (tmp_path / "celeryconfig.py").write_text("worker_prefetch_multiplier = 3\nthink_lease = '9 seconds'\n")

    found = configured(tmp_path, THINK_LEASE="5 seconds")

    assert (found["worker_prefetch_multiplier"], found["lease"]) == (3, 9)


def test_a_plain_worker_reads_it_and_has_none_of_our_tasks(tmp_path: Path) -> None:
    """What the file says of `celery worker` without -A: Celery's own default app is another app."""
    shutil.copy(FILE, tmp_path)
    look = "from celery import current_app as a; print(a.conf.worker_prefetch_multiplier, 'think.tick' in a.tasks)"

    ran = subprocess.run(
        [sys.executable, "-c", f"import think_celery.celery; {look}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.stdout == "1 False\n", ran.stderr


@pytest.mark.parametrize("fault", ["import no_such_module", "worker_prefetch_multiplier = 1 / 0"])
def test_one_that_is_broken_stops_the_start(tmp_path: Path, fault: str) -> None:
    """A worker that silently runs without it would recover slowly, or on another broker."""
    (tmp_path / "celeryconfig.py").write_text(fault + "\n")

    ran = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "think_celery", "report"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.returncode != 0
    assert "no_such_module" in ran.stderr or "ZeroDivisionError" in ran.stderr
